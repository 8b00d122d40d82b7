"""Families of at most three operators: operators that commute with others.

There are many such pairs, each a law of its own; more operators would add little. No size is 1,
which has laws of its own.
"""

from __future__ import annotations

from dataclasses import replace

from superopt.generate.families.family import (
    NO_FURTHER_DIMS,
    SIZE_ABOVE_1,
    Family,
    OperatorUse,
    Shape,
    attribute_uses,
    operator_use,
    result_uses,
    with_operand_suffixes,
)
from superopt.ir.op import Attr

REDUCTION_OPS = ("ReduceSum", "ReduceMean", "ReduceMax")
NO_PADS = (0, 0, 0, 0)


def _slice_uses(*bounds: tuple[int, int, int]) -> list[OperatorUse]:
    """Return slices by (axis, from, to). One that ends beyond its operand is another slice."""
    made = [
        operator_use("Slice", 1, axes=(k,), starts=(a,), ends=(b,), steps=(1,))
        for k, a, b in bounds
    ]
    return [replace(u, must_cut_within=True) for u in made]


def rows() -> Family:
    """Operations on the rows of a batch of matrices, and movement or selection of these rows.

    Not found here: laws with a reshape, which depend on its shape and not on an axis, and laws of
    normalizations for every axis, whose proofs take long or fail; these are written by hand.
    """
    b, n, m = 5, 4, 3
    plain: dict[str, Attr] = {"axis": 2, "epsilon": 0.5}
    layer = replace(operator_use("LayerNormalization", 2, **plain), has_many_results=True)
    normal = (layer, operator_use("RMSNormalization", 2, **plain))
    return Family(
        "rows",
        {**dict.fromkeys("xy", (b, n, m)), "g": (m,), "s": ()},
        {},
        (
            operator_use("Softmax", 1, axis=2),
            # with more axes, the last two would be normalized together
            *(with_operand_suffixes(u, (NO_FURTHER_DIMS, b, n, m), (m,)) for u in normal),
            *(operator_use(name, 1, axes=(2,), keepdims=0) for name in REDUCTION_OPS),
            *attribute_uses("Concat", 2, "axis", (0, 1)),
            *_slice_uses((1, 1, 3)),
            *result_uses("Split", 2, axis=0, split=(2, 3)),
            operator_use("Transpose", 1, perm=(1, 0, 2)),
            operator_use("Unsqueeze", 1, axes=(0,)),
            operator_use("Neg", 1),
            with_operand_suffixes(operator_use("Mul", 2), (m,), ()),
        ),
        2 * b * n * m,
        samples=8,
        max_ops=3,
    )


def chains() -> Family:
    """Nested sums, means and maxima, over one axis and over two."""
    some = [(1,), (2,), (1, 2)]
    return Family(
        "chains",
        dict.fromkeys("xy", (2, 3, 4)),
        {},
        (
            *(operator_use(name, 1, axes=a, keepdims=0) for name in REDUCTION_OPS for a in some),
            *attribute_uses("Reshape", 1, "shape", [(2, 12), (6, 4)]),
            *attribute_uses("Transpose", 1, "perm", [(0, 2, 1), (1, 0, 2)]),
            *attribute_uses("Concat", 2, "axis", (0, 1)),
            *_slice_uses((1, 1, 3)),
            operator_use("Neg", 1),
            operator_use("Add", 2),
            operator_use("Sub", 2),
        ),
        48,
        samples=8,
        max_ops=3,
    )


def windows() -> Family:
    """Pooling windows, including global ones, and operations on a batch of images. Merging two
    windows into one is written by hand, as a formula of their sizes; literal sizes would be
    useless."""
    image = (5, 5)  # large enough that three windows never cover it

    def pool(name: str, size: Shape) -> OperatorUse:
        counted: dict[str, Attr] = {"count_include_pad": 1} if name == "AveragePool" else {}
        made = operator_use(name, 1, kernel_shape=size, pads=NO_PADS, strides=(1, 1), **counted)
        return with_operand_suffixes(made, (SIZE_ABOVE_1, SIZE_ABOVE_1))

    both = ("MaxPool", "AveragePool")
    sizes = ((2, 2), (1, 2), (1, 1))
    return Family(
        "windows",
        {"x": (3, 2, *image), "s": (2, 1, 1), "t": ()},
        {},
        (
            *(pool(name, size) for name in both for size in sizes),
            *(with_operand_suffixes(operator_use(f"Global{name}", 1), image) for name in both),
            *(operator_use(name, 1, axes=(2, 3), keepdims=1) for name in REDUCTION_OPS),
            *_slice_uses((0, 1, 3)),
            operator_use("Transpose", 1, perm=(0, 1, 3, 2)),
            operator_use("Neg", 1),
            operator_use("Mul", 2),
        ),
        2 * 3 * 2 * 25,
        samples=8,
        max_ops=3,
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
            *attribute_uses("Pad", 1, "pads", pads),
            *_slice_uses((0, 1, 4), (0, 0, 3), (1, 1, 5), (1, 1, 3)),
            *attribute_uses("Concat", 2, "axis", (0, 1)),
            operator_use("Transpose", 1, perm=(1, 0)),
            operator_use("MatMul", 2),
            *(operator_use("ReduceSum", 1, axes=(k,), keepdims=0) for k in (0, 1)),
            operator_use("Neg", 1),
            operator_use("Add", 2),
        ),
        48,
        samples=8,
        max_ops=3,
    )


def filters() -> Family:
    """Convolutions of parts of a batch, with parts of their filters; of differences and signs."""
    n, o, side = 2, 3, 4
    image = (side, side)

    def conv(size: Shape, pads: Shape, step: int = 1) -> OperatorUse:
        made = operator_use("Conv", 2, strides=(step, step), group=1, pads=pads)
        # a filter is not an image, except as small as a pixel
        return with_operand_suffixes(
            made,
            (SIZE_ABOVE_1, SIZE_ABOVE_1) if size == (1, 1) else image,
            (SIZE_ABOVE_1, SIZE_ABOVE_1, *size),
        )

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
            conv((3, 3), NO_PADS),
            conv((1, 1), NO_PADS),
            conv((1, 1), NO_PADS, 2),
            *_slice_uses((0, 1, 3), (2, 1, 3)),
            operator_use("Slice", 1, axes=(2, 3), starts=(0, 0), ends=(4, 4), steps=(2, 2)),
            operator_use("Transpose", 1, perm=(0, 1, 3, 2)),
            operator_use("Neg", 1),
            operator_use("Sub", 2),
        ),
        2 * o * o * 16,
        samples=4,
        max_ops=3,
    )
