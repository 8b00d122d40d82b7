"""Families of at most three operators: operators that commute with others.

There are many such pairs, each a law of its own; more operators would add little. No size is 1,
which has laws of its own.
"""

from __future__ import annotations

from dataclasses import replace

from superopt.generate.family import MANY, NONE, Family, Shape, Use, each, fitting, parts, use
from superopt.ir.op import Attr

SUMMED = ("ReduceSum", "ReduceMean", "ReduceMax")
VALID = (0, 0, 0, 0)


def _cuts(*some: tuple[int, int, int]) -> list[Use]:
    """Return slices by (axis, from, to). One that ends beyond its operand is another slice."""
    made = [use("Slice", 1, axes=(k,), starts=(a,), ends=(b,), steps=(1,)) for k, a, b in some]
    return [replace(u, cuts=True) for u in made]


def rows() -> Family:
    """Operations on the rows of a batch of matrices, and movement or selection of these rows.

    Not found here: laws with a reshape, which depend on its shape and not on an axis, and laws of
    normalizations for every axis, whose proofs take long or fail; these are written by hand.
    """
    b, n, m = 5, 4, 3
    plain: dict[str, Attr] = {"axis": 2, "epsilon": 0.5}
    layer = replace(use("LayerNormalization", 2, **plain), many=True)
    normal = (layer, use("RMSNormalization", 2, **plain))
    return Family(
        "rows",
        {**dict.fromkeys("xy", (b, n, m)), "g": (m,), "s": ()},
        {},
        (
            use("Softmax", 1, axis=2),
            # with more axes, the last two would be normalized together
            *(fitting(u, (NONE, b, n, m), (m,)) for u in normal),
            *(use(name, 1, axes=(2,), keepdims=0) for name in SUMMED),
            *each("Concat", 2, "axis", (0, 1)),
            *_cuts((1, 1, 3)),
            *parts("Split", 2, axis=0, split=(2, 3)),
            use("Transpose", 1, perm=(1, 0, 2)),
            use("Unsqueeze", 1, axes=(0,)),
            use("Neg", 1),
            fitting(use("Mul", 2), (m,), ()),
        ),
        2 * b * n * m,
        samples=8,
        top=3,
    )


def chains() -> Family:
    """Nested sums, means and maxima, over one axis and over two."""
    some = [(1,), (2,), (1, 2)]
    return Family(
        "chains",
        dict.fromkeys("xy", (2, 3, 4)),
        {},
        (
            *(use(name, 1, axes=a, keepdims=0) for name in SUMMED for a in some),
            *each("Reshape", 1, "shape", [(2, 12), (6, 4)]),
            *each("Transpose", 1, "perm", [(0, 2, 1), (1, 0, 2)]),
            *each("Concat", 2, "axis", (0, 1)),
            *_cuts((1, 1, 3)),
            use("Neg", 1),
            use("Add", 2),
            use("Sub", 2),
        ),
        48,
        samples=8,
        top=3,
    )


def windows() -> Family:
    """Pooling windows, including global ones, and operations on a batch of images. Merging two
    windows into one is written by hand, as a formula of their sizes; literal sizes would be
    useless."""
    image = (5, 5)  # large enough that three windows never cover it

    def pool(name: str, size: Shape) -> Use:
        counted: dict[str, Attr] = {"count_include_pad": 1} if name == "AveragePool" else {}
        made = use(name, 1, kernel_shape=size, pads=VALID, strides=(1, 1), **counted)
        return fitting(made, (MANY, MANY))

    both = ("MaxPool", "AveragePool")
    sizes = ((2, 2), (1, 2), (1, 1))
    return Family(
        "windows",
        {"x": (3, 2, *image), "s": (2, 1, 1), "t": ()},
        {},
        (
            *(pool(name, size) for name in both for size in sizes),
            *(fitting(use(f"Global{name}", 1), image) for name in both),
            *(use(name, 1, axes=(2, 3), keepdims=1) for name in SUMMED),
            *_cuts((0, 1, 3)),
            use("Transpose", 1, perm=(0, 1, 3, 2)),
            use("Neg", 1),
            use("Mul", 2),
        ),
        2 * 3 * 2 * 25,
        samples=8,
        top=3,
    )


def edges() -> Family:
    """Zero padding, by Pad and by Concat; what commutes with it, and slices that cut it off
    again."""
    n, m = 3, 4
    pads = ((1, 0, 0, 0), (0, 0, 1, 0), (0, 1, 0, 0), (0, 0, 0, 1), (0, 1, 0, 2))
    return Family(
        "edges",
        {"x": (n, m), "y": (n, m), "w": (m, n)},
        {"0": ("zeros", (1, m)), "o": ("zeros", (n, 1))},
        (
            *each("Pad", 1, "pads", pads),
            *_cuts((0, 1, 4), (0, 0, 3), (1, 1, 5), (1, 1, 3)),
            *each("Concat", 2, "axis", (0, 1)),
            use("Transpose", 1, perm=(1, 0)),
            use("MatMul", 2),
            *(use("ReduceSum", 1, axes=(k,), keepdims=0) for k in (0, 1)),
            use("Neg", 1),
            use("Add", 2),
        ),
        48,
        samples=8,
        top=3,
    )


def filters() -> Family:
    """Convolutions of parts of a batch, with parts of their filters; of differences and signs."""
    n, o, side = 2, 3, 4
    image = (side, side)

    def conv(size: Shape, pads: Shape, step: int = 1) -> Use:
        made = use("Conv", 2, strides=(step, step), group=1, pads=pads)
        # a filter is not an image, except as small as a pixel
        return fitting(made, (MANY, MANY) if size == (1, 1) else image, (MANY, MANY, *size))

    return Family(
        "filters",
        {
            **dict.fromkeys("xy", (3, n, *image)),
            **dict.fromkeys("vw", (o, n, 3, 3)),
            "p": (o, n, 1, 1),
        },
        {
            "0": ("zeros", (o, n, 3, 3)),
            "z": ("zeros", (3, o, *image)),  # the result of such a filter
            "i": ("dirac", (n, n, 1, 1)),
        },
        (
            conv((3, 3), (1, 1, 1, 1)),
            conv((3, 3), VALID),
            conv((1, 1), VALID),
            conv((1, 1), VALID, 2),
            *_cuts((0, 1, 3), (2, 1, 3)),
            use("Slice", 1, axes=(2, 3), starts=(0, 0), ends=(4, 4), steps=(2, 2)),
            use("Transpose", 1, perm=(0, 1, 3, 2)),
            use("Neg", 1),
            use("Sub", 2),
        ),
        2 * o * o * 16,
        samples=4,
        top=3,
    )
