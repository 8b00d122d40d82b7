"""The families that a default run enumerates, as data.

Sizes are as small as laws allow: squares of 2 by 2 matrices obey more of them than matrices do, and
two rows are a sum of one more. The rules that come of equations are tried on other sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from superopt.generate.family import MANY, Family, Shape, Use, each, fitting, parts, use
from superopt.ir.op import Attr

SAME = (1, 1, 1, 1)
VALID = (0, 0, 0, 0)
POINTWISE = ("arithmetic", "order")


def arithmetic() -> Family:
    """Sums and products of elements, their inverses, and exp, which turns one into the other."""
    return Family(
        "arithmetic",
        dict.fromkeys("xyz", (2,)),
        {"0": ("zeros", (2,)), "1": ("ones", (2,))},
        (
            use("Add", 2),
            use("Sub", 2),
            use("Mul", 2),
            use("Div", 2),
            use("Neg", 1),
            use("Exp", 1),
            use("Sqrt", 1),
        ),
        2,
        samples=32,
        top=3,
    )


def order() -> Family:
    """Max and min, which are Relu where one of them is 0. What mixes them with sums of anything but
    themselves is not searched: the field's order is none of sums."""
    return Family(
        "order",
        dict.fromkeys("xyz", (2,)),
        {"0": ("zeros", (2,))},
        (use("Max", 2), use("Min", 2), use("Relu", 1), use("Mul", 2), use("Add", 2)),
        2,
        samples=32,
        top=3,
    )


def matrices() -> Family:
    """TASO's operators on square matrices (Jia et al., SOSP 2019, table 1)."""
    n = 3
    return Family(
        "matrices",
        {**dict.fromkeys("xyzw", (n, n)), "s": ()},
        {},
        (
            use("MatMul", 2),
            use("Add", 2),
            use("Mul", 2),
            use("Relu", 1),
            use("Transpose", 1, perm=(1, 0)),
            *each("Concat", 2, "axis", (0, 1)),
            *parts("Split", 2, axis=0, split=(n, n)),
            *parts("Split", 2, axis=1, split=(n, n)),
        ),
        2 * n * n,
        theory=POINTWISE,
    )


def linear() -> Family:
    """Products of matrices beside differences, signs, and constants."""
    n = 3
    return Family(
        "linear",
        {**dict.fromkeys("xyz", (n, n)), "s": ()},
        {"0": ("zeros", (n, n)), "i": ("eye", (n, n))},
        (
            use("MatMul", 2),
            use("Add", 2),
            use("Sub", 2),
            use("Mul", 2),
            use("Neg", 1),
            use("Transpose", 1, perm=(1, 0)),
        ),
        n * n,
        top=3,
        theory=POINTWISE,
    )


def reductions() -> Family:
    """Sums, means and maxima along rows and columns, with what is broadcast along them."""
    n, m = 3, 5  # a fourth is a half of a half
    rows: dict[str, Attr] = {"axes": (1,), "keepdims": 1}
    columns: dict[str, Attr] = {"axes": (0,), "keepdims": 1}
    return Family(
        "reductions",
        {**dict.fromkeys("xy", (n, m)), "w": (m, m), "r": (n, 1), "c": (1, m)},
        {},
        (
            use("MatMul", 2),
            use("Add", 2),
            use("Mul", 2),
            use("Relu", 1),
            *(use(name, 1, **rows) for name in ("ReduceSum", "ReduceMax", "ReduceMean")),
            *(use(name, 1, **columns) for name in ("ReduceSum", "ReduceMax", "ReduceMean")),
            use("Transpose", 1, perm=(1, 0)),
            *(fitting(u, (n, m), (n, m)) for u in each("Concat", 2, "axis", (0, 1))),
        ),
        2 * m * m,
        top=3,
        theory=POINTWISE,
    )


def batches() -> Family:
    """Batched products beside plain ones: stacks of matrices, one weight for all of them."""
    b, n = 2, 3
    return Family(
        "batches",
        {**dict.fromkeys("xyz", (b, n, n)), "w": (n, n), "v": (n, n)},
        {},
        (
            use("MatMul", 2),
            use("Add", 2),
            use("Relu", 1),
            use("Transpose", 1, perm=(0, 2, 1)),
            use("Transpose", 1, perm=(1, 0)),
            *each("Concat", 2, "axis", (0, 1, 2)),
            use("Reshape", 1, shape=(b * n, n)),
            use("Reshape", 1, shape=(b, n, n)),
            use("Unsqueeze", 1, axes=(0,)),
            use("Squeeze", 1, axes=(0,)),
        ),
        2 * b * n * n,
        samples=4,
        top=3,
        theory=POINTWISE,
    )


def activations() -> Family:
    """Functions of elements change places with what only moves elements."""
    n = 3
    return Family(
        "activations",
        {**dict.fromkeys("xy", (n, n)), "s": ()},
        {},
        (
            *(use(name, 1) for name in ("Relu", "Sigmoid", "Tanh", "Exp", "Sqrt", "Erf", "Neg")),
            use("Add", 2),
            use("Mul", 2),
            use("Transpose", 1, perm=(1, 0)),
            *each("Concat", 2, "axis", (0, 1)),
            *parts("Split", 2, axis=1, split=(n, n)),
            use("Slice", 1, axes=(1,), starts=(0,), ends=(2,), steps=(1,)),
            use("Reshape", 1, shape=(n * n,)),
        ),
        2 * n * n,
        top=3,
        theory=POINTWISE,
    )


def _conv(size: Shape, image: Shape, group: int = 1, **attrs: Attr) -> Use:
    """A convolution of images by kernels of this size, which a scale of channels is not."""
    made = use("Conv", 2, strides=attrs.pop("strides", (1, 1)), group=group, **attrs)
    return fitting(made, image, (MANY, MANY if group == 1 else 1, *size))


def images() -> Family:
    """TASO's operators on images: convolution and pooling, kernels that are enlarged, joined,
    scaled."""
    n, kernel, side = 2, (3, 3), 4
    image = (side, side)
    attrs: dict[str, Attr] = {"kernel_shape": kernel, "pads": SAME, "strides": (1, 1)}
    return Family(
        "images",
        {
            **dict.fromkeys("xy", (1, n, *image)),
            **dict.fromkeys("vw", (n, n, *kernel)),
            **dict.fromkeys("pq", (n, n, 1, 1)),
            "s": (n, 1, 1),
        },
        {},
        (
            _conv(kernel, image, pads=SAME),
            _conv((1, 1), image, pads=VALID),
            _conv(kernel, image, pads=SAME, strides=(2, 2)),
            use("Add", 2),
            use("Mul", 2),
            use("Relu", 1),
            *each("Concat", 2, "axis", (0, 1)),
            *parts("Split", 2, axis=0, split=(n, n)),
            *parts("Split", 2, axis=1, split=(n, n)),
            fitting(use("Pad", 1, pads=(0, 0, 1, 1, 0, 0, 1, 1)), (MANY, n, 1, 1)),
            fitting(use("AveragePool", 1, count_include_pad=1, **attrs), image),
            fitting(use("MaxPool", 1, **attrs), image),
        ),
        2 * n * n * 9,
        theory=POINTWISE,
    )


def scales() -> Family:
    """Scales of channels before and after convolutions, as normalisation leaves them."""
    n, kernel, side = 2, (2, 2), 3
    image = (side, side)
    return Family(
        "scales",
        {
            **dict.fromkeys("xy", (1, n, *image)),
            **dict.fromkeys("vw", (n, n, *kernel)),
            **dict.fromkeys("st", (1, n, 1, 1)),
            "c": (),
        },
        {},
        (
            _conv(kernel, image, pads=SAME),
            fitting(use("Transpose", 1, perm=(1, 0, 2, 3)), (1, n, 1, 1)),
            use("Add", 2),
            use("Mul", 2),
            use("Relu", 1),
            *each("Concat", 2, "axis", (0, 1)),
        ),
        2 * n * n * 4 + 32,
        top=3,
        theory=POINTWISE,
    )


def means() -> Family:
    """The kernels that leave an image as it is, or take means of it."""
    n, kernel, side = 2, (3, 3), 4
    image = (side, side)
    attrs: dict[str, Attr] = {"kernel_shape": kernel, "pads": SAME, "strides": (1, 1)}
    return Family(
        "means",
        {**dict.fromkeys("xy", (1, n, *image)), "v": (n, n, *kernel), "p": (n, n, 1, 1)},
        {"i": ("dirac", (n, n, *kernel)), "m": ("means", (n, n, *kernel))},
        (
            _conv(kernel, image, pads=SAME),
            _conv((1, 1), image, pads=VALID),
            use("Add", 2),
            use("Relu", 1),
            fitting(use("AveragePool", 1, count_include_pad=1, **attrs), image),
        ),
        n * n * 9,
        top=3,
        theory=POINTWISE,
    )


def kernels() -> Family:
    """Kernels of unequal sides, pads of every kind, and strides."""
    n, side = 2, 4
    image = (side, side)  # not as large as a kernel
    return Family(
        "kernels",
        {
            **dict.fromkeys("xy", (1, n, *image)),
            "h": (n, n, 1, 3),
            "v": (n, n, 3, 1),
            "k": (n, n, 2, 2),
            "p": (n, n, 1, 1),
            "s": (n, 1, 1),
        },
        {},
        (
            _conv((1, 3), image, pads=(0, 1, 0, 1)),
            _conv((3, 1), image, pads=(1, 0, 1, 0)),
            _conv((3, 3), image, pads=SAME),
            _conv((2, 2), image, pads=VALID),
            _conv((2, 2), image, pads=(1, 0, 0, 1)),
            _conv((1, 1), image, pads=VALID),
            _conv((1, 1), image, pads=VALID, strides=(2, 2)),
            use("Add", 2),
            use("Mul", 2),
            use("Relu", 1),
            *each("Concat", 2, "axis", (0, 1)),
            fitting(use("Pad", 1, pads=(0, 0, 1, 0, 0, 0, 1, 0)), (1, 3)),
            fitting(use("Pad", 1, pads=(0, 0, 0, 1, 0, 0, 0, 1)), (3, 1)),
            fitting(use("Pad", 1, pads=(0, 0, 0, 1, 0, 0, 0, 1)), (1, 1)),
            fitting(use("Pad", 1, pads=(0, 0, 1, 0, 0, 0, 0, 1)), image),
        ),
        2 * n * n * 9,
        partial=True,
        top=3,
        theory=POINTWISE,
    )


def pools() -> Family:
    """Pooling of several kinds, beside sums, scales, and moves of images."""
    n, side = 2, 4
    image = (side, side)

    def pool(name: str, size: Shape, pads: Shape, step: int, **attrs: Attr) -> Use:
        made = use(name, 1, kernel_shape=size, pads=pads, strides=(step, step), **attrs)
        return fitting(made, image)

    return Family(
        "pools",
        {**dict.fromkeys("xy", (1, n, *image)), "p": (n, n, 1, 1), "s": (n, 1, 1), "t": ()},
        {},
        (
            pool("MaxPool", (3, 3), SAME, 1),
            pool("MaxPool", (2, 2), VALID, 2),
            pool("AveragePool", (3, 3), SAME, 1, count_include_pad=1),
            pool("AveragePool", (3, 3), SAME, 1, count_include_pad=0),
            pool("AveragePool", (2, 2), VALID, 2, count_include_pad=0),
            fitting(use("GlobalAveragePool", 1), image),
            _conv((1, 1), image, pads=VALID),
            use("Add", 2),
            use("Mul", 2),
            use("Max", 2),
            use("Relu", 1),
            *each("Concat", 2, "axis", (0, 1)),
            *parts("Split", 2, axis=1, split=(n, n)),
            fitting(use("Transpose", 1, perm=(0, 1, 3, 2)), image),
        ),
        4 * n * side * side,
        samples=4,
        partial=True,
        top=3,
        theory=POINTWISE,
    )


def groups() -> Family:
    """Convolution in two groups, depthwise among them, beside that in one."""
    image = (3, 3)
    return Family(
        "groups",
        {
            **dict.fromkeys("xy", (1, 2, *image)),
            **dict.fromkeys("vw", (2, 1, 2, 2)),
            **dict.fromkeys("pq", (2, 2, 2, 2)),
            "s": (2, 1, 1),
        },
        {},
        (
            _conv((2, 2), image, pads=SAME),
            _conv((2, 2), image, pads=SAME, group=2),
            use("Add", 2),
            use("Mul", 2),
            use("Relu", 1),
            *each("Concat", 2, "axis", (0, 1)),
            *parts("Split", 2, axis=0, split=(2, 2)),
            *parts("Split", 2, axis=1, split=(2, 2)),
        ),
        64,
        theory=POINTWISE,
        top=3,
    )


def layouts() -> Family:
    """Moving elements: all permutations of three axes, merged and split axes, parts, padding."""
    perms = [(0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]
    return Family(
        "layouts",
        {**dict.fromkeys("xy", (2, 3, 4)), "z": (6, 4)},
        {},
        (
            *each("Transpose", 1, "perm", [*perms, (1, 0)]),
            *each("Reshape", 1, "shape", [(6, 4), (2, 12), (24,), (2, 3, 4)]),
            *each("Unsqueeze", 1, "axes", [(0,), (1,)]),
            *each("Squeeze", 1, "axes", [(0,), (1,)]),
            *each("Concat", 2, "axis", [0, 1, 2]),
            use("Relu", 1),
            use("Add", 2),
        ),
        48,
        samples=2,
        partial=True,
        top=3,
    )


def volumes() -> Family:
    """Permutations, merges and splits of four axes, as attention has them."""
    perms = [(0, 2, 1, 3), (0, 1, 3, 2), (0, 2, 3, 1), (1, 0, 2, 3), (0, 3, 1, 2)]
    return Family(
        "volumes",
        {"x": (2, 3, 2, 3), "y": (2, 2, 3, 3), "z": (2, 3, 6)},
        {},
        (
            *each("Transpose", 1, "perm", [*perms, (0, 2, 1)]),
            *each("Reshape", 1, "shape", [(2, 3, 6), (6, 6), (2, 3, 2, 3), (2, 6, 3)]),
            *each("Concat", 2, "axis", [0, 1]),
            use("Relu", 1),
            use("Add", 2),
            use("MatMul", 2),
        ),
        72,
        samples=2,
        top=3,
    )


def pieces() -> Family:
    """Slices and pads among each other, and with what they pass through."""
    n = 4
    cut: dict[str, Attr] = {"steps": (1,)}
    return Family(
        "pieces",
        {**dict.fromkeys("xy", (n, n)), "w": (2, n)},
        {},
        (
            use("Slice", 1, axes=(0,), starts=(0,), ends=(2,), **cut),
            use("Slice", 1, axes=(0,), starts=(2,), ends=(4,), **cut),
            use("Slice", 1, axes=(1,), starts=(0,), ends=(2,), **cut),
            use("Slice", 1, axes=(1,), starts=(1,), ends=(3,), **cut),
            use("Pad", 1, pads=(1, 0, 1, 0)),
            use("Pad", 1, pads=(0, 0, 0, 2)),
            use("Transpose", 1, perm=(1, 0)),
            *each("Concat", 2, "axis", (0, 1)),
            use("MatMul", 2),
            use("Add", 2),
            use("Mul", 2),
            use("Relu", 1),
        ),
        2 * n * n,
        samples=4,
        partial=True,
        top=3,
        theory=POINTWISE,
    )


def attention() -> Family:
    """Softmax and what it is made of, along the rows of a matrix that is then multiplied."""
    n, m = 3, 3
    along: dict[str, Attr] = {"axes": (1,), "keepdims": 1}
    return Family(
        "attention",
        {**dict.fromkeys("xy", (n, m)), "w": (m, m), "r": (n, 1)},
        {},
        (
            use("MatMul", 2),
            use("Add", 2),
            fitting(use("Sub", 2), (n, m), (n, 1)),
            fitting(use("Div", 2), (n, m), (n, 1)),
            use("Exp", 1),
            use("ReduceSum", 1, **along),
            use("ReduceMax", 1, **along),
            use("Softmax", 1, axis=1),
        ),
        n * m,
        top=3,
        theory=POINTWISE,
    )


def norms() -> Family:
    """Normalisation of rows and what it is made of."""
    n, m = 2, 5
    along: dict[str, Attr] = {"axes": (1,), "keepdims": 1}
    normal = use("LayerNormalization", 2, axis=1, epsilon=0.5)
    return Family(
        "norms",
        {**dict.fromkeys("xy", (n, m)), "r": (n, 1), "g": (m,), "h": (m,)},
        {"2": ("twos", ())},
        (
            fitting(use("Sub", 2), (n, m), (n, 1)),
            use("Mul", 2),
            fitting(use("Div", 2), (n, m), (n, 1)),
            fitting(use("Sqrt", 1), (n, 1)),
            fitting(use("Pow", 2), (n, m), ()),
            use("ReduceMean", 1, **along),
            fitting(replace(normal, many=True), (n, m), (m,)),
            fitting(use("RMSNormalization", 2, axis=1, epsilon=0.5), (n, m), (m,)),
        ),
        n * m,
        samples=4,
        top=3,
        theory=POINTWISE,
    )


def borders() -> Family:
    """One image and its parts: side by side, one above the other, and as a batch; rows of every
    second one; convolutions that reach across the seams. Most of what is equal here is so in parts
    of the output only."""
    h, w = 6, 4
    image = (1, 1, h, w)
    wide = (1, 1, h // 2, 2 * w)

    def conv(size: Shape, step: Shape, pads: Shape) -> Use:
        made = use("Conv", 2, strides=(1, 1), dilations=step, group=1, pads=pads)
        return fitting(made, (1, MANY, MANY), (1, 1, *size))

    return Family(
        "borders",
        {"x": image, "y": image, "k": (1, 1, 3, 3), "v": (1, 1, 3, 1), "p": (1, 1, 1, 1)},
        {},
        (
            conv((3, 3), (1, 1), SAME),
            conv((3, 3), (2, 1), (2, 1, 2, 1)),
            conv((3, 1), (1, 1), (1, 0, 1, 0)),
            conv((3, 1), (2, 1), (2, 0, 2, 0)),
            conv((1, 1), (1, 1), VALID),
            fitting(use("Pad", 1, pads=(0, 0, 1, 1, 0, 0, 1, 1)), (1, 1, 1, 1)),
            fitting(use("Pad", 1, pads=(0, 0, 0, 1, 0, 0, 0, 1)), (1, 1, 3, 1)),
            *(
                fitting(u, (1, MANY, MANY), (1, MANY, MANY))
                for u in each("Concat", 2, "axis", (0, 2, 3))
            ),
            *parts("Split", 2, axis=0, split=(1, 1)),
            *parts("Split", 2, axis=2, split=(h, h)),
            *parts("Split", 2, axis=3, split=(w, w)),
            *each("Reshape", 1, "shape", [(2, 1, h // 2, w), wide, image]),
            fitting(
                use("MaxPool", 1, kernel_shape=(3, 3), pads=SAME, strides=(1, 1)), (1, MANY, MANY)
            ),
            fitting(
                use(
                    "AveragePool",
                    1,
                    kernel_shape=(3, 3),
                    pads=SAME,
                    strides=(1, 1),
                    count_include_pad=1,
                ),
                (1, MANY, MANY),
            ),
            fitting(
                use(
                    "AveragePool",
                    1,
                    kernel_shape=(3, 3),
                    pads=SAME,
                    strides=(1, 1),
                    count_include_pad=0,
                ),
                (1, MANY, MANY),
            ),
        ),
        2 * h * w,
        samples=2,
        partial=True,
        rules=False,
        top=3,
    )


FAMILIES: dict[str, Callable[[], Family]] = {
    f.__name__: f
    for f in (
        arithmetic,
        order,
        matrices,
        linear,
        reductions,
        batches,
        activations,
        images,
        scales,
        means,
        kernels,
        pools,
        groups,
        layouts,
        volumes,
        pieces,
        attention,
        norms,
        borders,
    )
}
