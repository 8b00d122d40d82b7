"""The key of a node's cost: operator, attributes, concrete operand types, constant operands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from superopt.ir import graph
from superopt.ir.concrete_graph import concrete_type
from superopt.ir.op import Attr, Attrs, Op
from superopt.te.expr import index
from superopt.te.expr.node import Expr
from superopt.te.expr.tensor import TensorType


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand: its concrete type, and whether it is constant."""

    type: TensorType
    constant: bool

    def __str__(self) -> str:
        return f"{'const ' if self.constant else ''}{self.type}"


@dataclass(frozen=True, slots=True)
class Signature:
    """Nodes with equal signatures have equal costs. All sizes are ints."""

    op: Op
    operands: tuple[Operand | None, ...]
    attrs: Attrs
    outputs: tuple[TensorType, ...]

    def __str__(self) -> str:
        shown = [str(o) for o in self.operands] + [f"{k}={v}" for k, v in self.attrs]
        return f"{self.op.name}({', '.join(shown)})"


def concrete_attr(value: Attr, sizes: Mapping[str, int]) -> Attr:
    """Return an attribute with its symbolic sizes replaced."""
    if isinstance(value, tuple):
        return tuple(concrete_attr(v, sizes) for v in value)
    return index.evaluate(value, dict(sizes)) if isinstance(value, Expr) else value


def signature(
    n: graph.Node, sizes: Mapping[str, int], constant: tuple[bool, ...]
) -> Signature | None:
    """Return the signature of `n` at `sizes`; None for an unknown type or a size without a
    value."""
    try:
        operands = tuple(
            None if v is None else Operand(concrete_type(v.type, sizes), c)
            for v, c in zip(n.inputs, constant, strict=True)
        )
        attrs = tuple((k, concrete_attr(v, sizes)) for k, v in n.attrs)
        outputs = tuple(concrete_type(t, sizes) for t in n.types)
    except (KeyError, ZeroDivisionError):
        return None
    if any(o is not None and o.type.shape is None for o in operands):
        return None
    return Signature(n.op, operands, attrs, outputs)
