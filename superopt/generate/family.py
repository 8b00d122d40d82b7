"""Families of operators to be enumerated together: inputs, constants, and ways to use operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from superopt.ir.op import Attr, Op
from superopt.ops import OPS


@dataclass(frozen=True, slots=True)
class Use:
    """An operator with its attributes, applied to `arity` tensors; `result` is which of its
    results."""

    op: Op
    attrs: tuple[tuple[str, Attr], ...]
    arity: int
    result: int = 0
    many: bool = False  # does it have several results?

    def __str__(self) -> str:
        attrs = "".join(f" {k}={v}" for k, v in self.attrs)
        return f"{self.op.name}{attrs}{f' [{self.result}]' if self.many else ''}"


@dataclass(frozen=True, slots=True)
class Family:
    """What is enumerated: inputs and constants by name, uses of operators, and the largest tensor.

    inputs: shapes. constants: a kind (zeros, ones, eye) and a shape. largest: elements of a tensor.
    """

    name: str
    inputs: Mapping[str, tuple[int, ...]]
    constants: Mapping[str, tuple[str, tuple[int, ...]]]
    uses: tuple[Use, ...]
    largest: int


def use(name: str, arity: int, **attrs: Attr) -> Use:
    return Use(OPS[name], tuple(attrs.items()), arity)


def parts(name: str, count: int, **attrs: Attr) -> list[Use]:
    """Each of several results of an operator of one operand."""
    return [Use(OPS[name], tuple(attrs.items()), 1, i, True) for i in range(count)]


def both(name: str, arity: int, key: str, values: Sequence[Attr]) -> list[Use]:
    """One use for each value of an attribute."""
    return [use(name, arity, **{key: v}) for v in values]


def matrices(n: int = 3, count: int = 4) -> Family:
    """TASO's operators on square matrices (Jia et al., SOSP 2019, table 1)."""
    names = "xyzw"[:count]
    return Family(
        "matrices",
        {**dict.fromkeys(names, (n, n)), "s": ()},
        {},
        (
            use("MatMul", 2),
            use("Add", 2),
            use("Mul", 2),
            use("Relu", 1),
            use("Transpose", 1, perm=(1, 0)),
            *both("Concat", 2, "axis", (0, 1)),
            *parts("Split", 2, axis=0, split=(n, n)),
            *parts("Split", 2, axis=1, split=(n, n)),
        ),
        2 * n * n,
    )
