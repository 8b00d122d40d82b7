"""Families of operators to be enumerated together: inputs, constants, and ways to use operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from superopt.ir.op import Attr, Op
from superopt.ops import OPS


@dataclass(frozen=True, slots=True)
class Use:
    """An operator with its attributes, applied to `arity` tensors; `result` is which of its
    results, where it has `many`. fits: for each operand the last dims that it must have, so that
    images are not taken for kernels."""

    op: Op
    attrs: tuple[tuple[str, Attr], ...]
    arity: int
    result: int = 0
    many: bool = False
    fits: tuple[tuple[int, ...], ...] = ()

    def takes(self, shapes: Sequence[tuple[int, ...]]) -> bool:
        """May operands of these shapes be tried?"""
        return all(s[len(s) - len(f) :] == f for s, f in zip(shapes, self.fits, strict=False))

    def __str__(self) -> str:
        attrs = "".join(f" {k}={v}" for k, v in self.attrs)
        return f"{self.op.name}{attrs}{f' [{self.result}]' if self.many else ''}"


@dataclass(frozen=True, slots=True)
class Family:
    """What is enumerated: inputs and constants by name, uses of operators, and the largest tensor.

    inputs: shapes. constants: a kind (zeros, ones, eye) and a shape. largest: elements of a tensor.
    samples: random inputs at a time; a tensor of few elements is all positive, or all negative, by
    chance, and then it is its own Relu.
    """

    name: str
    inputs: Mapping[str, tuple[int, ...]]
    constants: Mapping[str, tuple[str, tuple[int, ...]]]
    uses: tuple[Use, ...]
    largest: int
    samples: int


def use(name: str, arity: int, **attrs: Attr) -> Use:
    return Use(OPS[name], tuple(attrs.items()), arity)


def parts(name: str, count: int, **attrs: Attr) -> list[Use]:
    """Each of several results of an operator of one operand."""
    return [Use(OPS[name], tuple(attrs.items()), 1, i, True) for i in range(count)]


def each(name: str, arity: int, key: str, values: Sequence[Attr], **attrs: Attr) -> list[Use]:
    """One use for each value of an attribute."""
    return [use(name, arity, **{key: v, **attrs}) for v in values]


def fitting(u: Use, *last: tuple[int, ...]) -> Use:
    """The use for operands whose last dims are these."""
    return replace(u, fits=last)


def matrices() -> Family:
    """TASO's operators on square matrices (Jia et al., SOSP 2019, table 1)."""
    n = 3  # of 2 by 2 there are more laws: their squares are linear in them
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
        8,
    )


def images() -> Family:
    """Convolution and pooling, of kernels that are made larger, joined, scaled."""
    n, kernel, side = 2, (3, 3), 4
    same = (1, 1, 1, 1)

    def conv(size: tuple[int, int], **attrs: Attr) -> Use:
        return fitting(use("Conv", 2, **attrs), (side, side), size)

    def pool(name: str, **attrs: Attr) -> Use:
        made = use(name, 1, kernel_shape=kernel, pads=same, strides=(1, 1), **attrs)
        return fitting(made, (side, side))

    return Family(
        "images",
        {
            **dict.fromkeys("xy", (1, n, side, side)),
            **dict.fromkeys("vw", (n, n, *kernel)),
            "p": (n, n, 1, 1),
            "s": (n, 1, 1),
        },
        {},
        (
            conv(kernel, pads=same, strides=(1, 1), group=1),
            conv((1, 1), pads=(0, 0, 0, 0), strides=(1, 1), group=1),
            conv(kernel, pads=same, strides=(2, 2), group=1),
            use("Add", 2),
            use("Mul", 2),
            use("Relu", 1),
            *each("Concat", 2, "axis", (0, 1)),
            *parts("Split", 2, axis=0, split=(n, n)),
            *parts("Split", 2, axis=1, split=(n, n)),
            fitting(use("Pad", 1, pads=(0, 0, 1, 1, 0, 0, 1, 1)), (1, 1)),
            pool("AveragePool", count_include_pad=1),
            pool("MaxPool"),
        ),
        2 * n * n * 9,
        8,
    )


def groups() -> Family:
    """Convolution in two groups, depthwise among them, beside that in one."""
    side, same = 3, (1, 1, 1, 1)

    def conv(count: int) -> Use:
        made = use("Conv", 2, pads=same, strides=(1, 1), group=count)
        return fitting(made, (side, side), (2, 2))

    return Family(
        "groups",
        {
            **dict.fromkeys("xy", (1, 2, side, side)),
            **dict.fromkeys("vw", (2, 1, 2, 2)),
            **dict.fromkeys("pq", (2, 2, 2, 2)),
            "s": (2, 1, 1),
        },
        {},
        (
            conv(1),
            conv(2),
            use("Add", 2),
            use("Mul", 2),
            use("Relu", 1),
            *each("Concat", 2, "axis", (0, 1)),
            *parts("Split", 2, axis=1, split=(2, 2)),
        ),
        64,
        8,
    )


def rows() -> Family:
    """Softmax, normalisation and what they are made of, along the rows of a matrix."""
    n = 2
    along: dict[str, Attr] = {"axes": (1,), "keepdims": 1}
    return Family(
        "rows",
        {**dict.fromkeys("xy", (n, n)), "w": (n, n), "r": (n, 1)},
        {
            "0": ("zeros", (n, n)),
            "1": ("ones", (n, n)),
            "0'": ("zeros", (n, 1)),
            "1'": ("ones", (n, 1)),
        },
        (
            use("MatMul", 2),
            use("Add", 2),
            use("Sub", 2),
            use("Mul", 2),
            use("Div", 2),
            use("Exp", 1),
            use("Sqrt", 1),
            use("Neg", 1),
            use("ReduceSum", 1, **along),
            use("ReduceMax", 1, **along),
            use("ReduceMean", 1, **along),
            use("Softmax", 1, axis=1),
        ),
        n * n,
        8,
    )


def layouts() -> Family:
    """Moving elements: all permutations of three axes, merged and split axes, parts."""
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
        2,
    )


FAMILIES: dict[str, Callable[[], Family]] = {
    "matrices": matrices,
    "images": images,
    "groups": groups,
    "rows": rows,
    "layouts": layouts,
}
