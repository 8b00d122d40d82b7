"""Families of NCHW tensors: convolution and pooling."""

from __future__ import annotations

from superopt.generate.families.family import (
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

SAME_PADS = (1, 1, 1, 1)
NO_PADS = (0, 0, 0, 0)


def _conv(size: Shape, image: Shape, group: int = 1, **attrs: Attr) -> OperatorUse:
    """Return a convolution by kernels of this size; channel scales are not kernels."""
    made = operator_use("Conv", 2, strides=attrs.pop("strides", (1, 1)), group=group, **attrs)
    return with_operand_suffixes(
        made, image, (SIZE_ABOVE_1, SIZE_ABOVE_1 if group == 1 else 1, *size)
    )


def images() -> Family:
    """TASO's operators on images: convolution and pooling; padded, joined and scaled kernels."""
    n, kernel, side = 2, (3, 3), 4
    image = (side, side)
    attrs: dict[str, Attr] = {"kernel_shape": kernel, "pads": SAME_PADS, "strides": (1, 1)}
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
            _conv(kernel, image, pads=SAME_PADS),
            _conv((1, 1), image, pads=NO_PADS),
            _conv(kernel, image, pads=SAME_PADS, strides=(2, 2)),
            operator_use("Add", 2),
            operator_use("Mul", 2),
            operator_use("Relu", 1),
            *attribute_uses("Concat", 2, "axis", (0, 1)),
            *result_uses("Split", 2, axis=0, split=(n, n)),
            *result_uses("Split", 2, axis=1, split=(n, n)),
            with_operand_suffixes(
                operator_use("Pad", 1, pads=(0, 0, 1, 1, 0, 0, 1, 1)), (SIZE_ABOVE_1, n, 1, 1)
            ),
            with_operand_suffixes(
                operator_use("AveragePool", 1, count_include_pad=1, **attrs), image
            ),
            with_operand_suffixes(operator_use("MaxPool", 1, **attrs), image),
        ),
        2 * n * n * 9,
    )


def scales() -> Family:
    """Scales of channels before and after convolutions, as normalization leaves them."""
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
            _conv(kernel, image, pads=SAME_PADS),
            with_operand_suffixes(operator_use("Transpose", 1, perm=(1, 0, 2, 3)), (1, n, 1, 1)),
            operator_use("Add", 2),
            operator_use("Mul", 2),
            operator_use("Relu", 1),
            *attribute_uses("Concat", 2, "axis", (0, 1)),
        ),
        2 * n * n * 4 + 32,
        complete_ops=3,
    )


def means() -> Family:
    """Convolution kernels that keep an image, or average it."""
    n, kernel, side = 2, (3, 3), 4
    image = (side, side)
    attrs: dict[str, Attr] = {"kernel_shape": kernel, "pads": SAME_PADS, "strides": (1, 1)}
    return Family(
        "means",
        {**dict.fromkeys("xy", (1, n, *image)), "v": (n, n, *kernel), "p": (n, n, 1, 1)},
        {"i": ("dirac", (n, n, *kernel)), "m": ("means", (n, n, *kernel))},
        (
            _conv(kernel, image, pads=SAME_PADS),
            _conv((1, 1), image, pads=NO_PADS),
            operator_use("Add", 2),
            operator_use("Relu", 1),
            with_operand_suffixes(
                operator_use("AveragePool", 1, count_include_pad=1, **attrs), image
            ),
        ),
        n * n * 9,
        complete_ops=3,
    )


def kernels() -> Family:
    """Non-square kernels, pads of every kind, and strides."""
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
            _conv((3, 3), image, pads=SAME_PADS),
            _conv((2, 2), image, pads=NO_PADS),
            _conv((2, 2), image, pads=(1, 0, 0, 1)),
            _conv((1, 1), image, pads=NO_PADS),
            _conv((1, 1), image, pads=NO_PADS, strides=(2, 2)),
            operator_use("Add", 2),
            operator_use("Mul", 2),
            operator_use("Relu", 1),
            *attribute_uses("Concat", 2, "axis", (0, 1)),
            with_operand_suffixes(operator_use("Pad", 1, pads=(0, 0, 1, 0, 0, 0, 1, 0)), (1, 3)),
            with_operand_suffixes(operator_use("Pad", 1, pads=(0, 0, 0, 1, 0, 0, 0, 1)), (3, 1)),
            with_operand_suffixes(operator_use("Pad", 1, pads=(0, 0, 0, 1, 0, 0, 0, 1)), (1, 1)),
            with_operand_suffixes(operator_use("Pad", 1, pads=(0, 0, 1, 0, 0, 0, 0, 1)), image),
        ),
        2 * n * n * 9,
        finds_partial=True,
        complete_ops=3,
    )


def pools() -> Family:
    """Several kinds of pooling, beside sums, scales, and layout changes of images."""
    n, side = 2, 4
    image = (side, side)

    def pool(name: str, size: Shape, pads: Shape, step: int, **attrs: Attr) -> OperatorUse:
        made = operator_use(name, 1, kernel_shape=size, pads=pads, strides=(step, step), **attrs)
        return with_operand_suffixes(made, image)

    return Family(
        "pools",
        {**dict.fromkeys("xy", (1, n, *image)), "p": (n, n, 1, 1), "s": (n, 1, 1), "t": ()},
        {},
        (
            pool("MaxPool", (3, 3), SAME_PADS, 1),
            pool("MaxPool", (2, 2), NO_PADS, 2),
            pool("AveragePool", (3, 3), SAME_PADS, 1, count_include_pad=1),
            pool("AveragePool", (3, 3), SAME_PADS, 1, count_include_pad=0),
            pool("AveragePool", (2, 2), NO_PADS, 2, count_include_pad=0),
            with_operand_suffixes(operator_use("GlobalAveragePool", 1), image),
            _conv((1, 1), image, pads=NO_PADS),
            operator_use("Add", 2),
            operator_use("Mul", 2),
            operator_use("Max", 2),
            operator_use("Relu", 1),
            *attribute_uses("Concat", 2, "axis", (0, 1)),
            *result_uses("Split", 2, axis=1, split=(n, n)),
            with_operand_suffixes(operator_use("Transpose", 1, perm=(0, 1, 3, 2)), image),
        ),
        4 * n * side * side,
        samples=4,
        finds_partial=True,
        complete_ops=3,
    )


def groups() -> Family:
    """Convolution in two groups, including depthwise, beside ungrouped convolution."""
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
            _conv((2, 2), image, pads=SAME_PADS),
            _conv((2, 2), image, pads=SAME_PADS, group=2),
            operator_use("Add", 2),
            operator_use("Mul", 2),
            operator_use("Relu", 1),
            *attribute_uses("Concat", 2, "axis", (0, 1)),
            *result_uses("Split", 2, axis=0, split=(2, 2)),
            *result_uses("Split", 2, axis=1, split=(2, 2)),
        ),
        64,
        complete_ops=3,
        adds_biases=True,
    )


def borders(h: int = 6, w: int = 4, c: int = 1) -> Family:
    """One image and its parts: side by side, stacked, and as a batch; every second row;
    convolutions across the seams. Most equalities here are partial. At other sizes, with even h and
    no size 1 but that of channels, the same terms are analogous."""
    image = (1, c, h, w)
    wide = (1, c, h // 2, 2 * w)

    def conv(size: Shape, step: Shape, pads: Shape) -> OperatorUse:
        made = operator_use("Conv", 2, strides=(1, 1), dilations=step, group=1, pads=pads)
        return with_operand_suffixes(made, (c, SIZE_ABOVE_1, SIZE_ABOVE_1), (c, c, *size))

    around: dict[str, Attr] = {"kernel_shape": (3, 3), "pads": SAME_PADS, "strides": (1, 1)}
    pools = (
        operator_use("MaxPool", 1, **around),
        *attribute_uses("AveragePool", 1, "count_include_pad", (1, 0), **around),
    )
    return Family(
        "borders",
        {"x": image, "y": image, "k": (c, c, 3, 3), "v": (c, c, 3, 1), "p": (c, c, 1, 1)},
        {},
        (
            conv((3, 3), (1, 1), SAME_PADS),
            conv((3, 3), (2, 1), (2, 1, 2, 1)),
            conv((3, 1), (1, 1), (1, 0, 1, 0)),
            conv((3, 1), (2, 1), (2, 0, 2, 0)),
            conv((3, 1), (1, 1), NO_PADS),
            conv((1, 1), (1, 1), NO_PADS),
            with_operand_suffixes(
                operator_use("Pad", 1, pads=(0, 0, 1, 1, 0, 0, 1, 1)), (1, 1, 1, 1)
            ),
            with_operand_suffixes(
                operator_use("Pad", 1, pads=(0, 0, 0, 1, 0, 0, 0, 1)), (1, 1, 3, 1)
            ),
            with_operand_suffixes(
                operator_use("Pad", 1, pads=(0, 0, 1, 0, 0, 0, 1, 0)), (1, 1, 1, 1)
            ),
            with_operand_suffixes(
                operator_use("Pad", 1, pads=(0, 0, 1, 0, 0, 0, 1, 0)), (1, c, SIZE_ABOVE_1, w)
            ),
            *(
                with_operand_suffixes(
                    u, (c, SIZE_ABOVE_1, SIZE_ABOVE_1), (c, SIZE_ABOVE_1, SIZE_ABOVE_1)
                )
                for u in attribute_uses("Concat", 2, "axis", (0, 2, 3))
            ),
            *result_uses("Split", 2, axis=0, split=(1, 1)),
            *result_uses("Split", 2, axis=2, split=(h, h)),
            *result_uses("Split", 2, axis=3, split=(w, w)),
            *attribute_uses("Reshape", 1, "shape", [(2, c, h // 2, w), wide, image]),
            *(with_operand_suffixes(u, (c, SIZE_ABOVE_1, SIZE_ABOVE_1)) for u in pools),
        ),
        2 * h * w,
        samples=2,
        finds_partial=True,
        makes_rules=False,
        max_ops=3,
    )


def strided(h: int = 6, w: int = 4, c: int = 1) -> Family:
    """One image and every second of its rows and columns: strides, dilations and strided slices,
    separable kernels, interleaved rows. At other sizes, all even but that of channels, the same
    terms are analogous."""
    image = (1, c, h, w)

    def conv(size: Shape, steps: Shape, apart: Shape = (1, 1)) -> OperatorUse:
        pads = tuple(d * (n // 2) for d, n in zip(apart, size, strict=True)) * 2
        made = operator_use("Conv", 2, strides=steps, dilations=apart, group=1, pads=pads)
        return with_operand_suffixes(made, (c, SIZE_ABOVE_1, SIZE_ABOVE_1), (c, c, *size))

    def cut(axis: int, begin: int, end: int) -> OperatorUse:
        return operator_use("Slice", 1, axes=(axis,), starts=(begin,), ends=(end,), steps=(2,))

    return Family(
        "strided",
        {"x": image, "k": (c, c, 3, 3), "v": (c, c, 3, 1), "u": (c, c, 1, 3)},
        {},
        (
            conv((3, 3), (1, 1)),
            conv((3, 3), (2, 2)),
            conv((3, 3), (1, 1), (2, 2)),
            conv((3, 1), (1, 1)),
            conv((3, 1), (2, 1)),
            conv((1, 3), (1, 1)),
            cut(2, 0, h),
            cut(2, 1, h),
            cut(3, 0, w),
            with_operand_suffixes(
                operator_use("Pad", 1, pads=(0, 0, 1, 0, 0, 0, 0, 0)),
                (1, c, SIZE_ABOVE_1, SIZE_ABOVE_1),
            ),
            with_operand_suffixes(
                operator_use("Concat", 2, axis=2),
                (c, SIZE_ABOVE_1, SIZE_ABOVE_1),
                (c, SIZE_ABOVE_1, SIZE_ABOVE_1),
            ),
            operator_use("Reshape", 1, shape=(2, c, h // 2, w)),
        ),
        2 * h * w,
        samples=2,
        finds_partial=True,
        makes_rules=False,
        max_ops=3,
    )
