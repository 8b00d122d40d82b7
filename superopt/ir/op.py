"""An operator: its tensor expression, and the properties derived from it.

@op("Relu", example="f32[2,3]", laws="elementwise")
def relu(x: Tensor) -> Tensor:
    return compute(x.shape, lambda *i: apply("max", x[i], 0))

Positional parameters are operands (`x: Tensor | None = None` is optional, `*xs` variadic),
keyword-only parameters are attributes with their defaults. Shapes and dtypes of results are those
of the expression, so that inference agrees with evaluation.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Union

from superopt.te.analysis.size_oracle import SizeOracle, use_size_oracle
from superopt.te.expr.dtype import DType
from superopt.te.expr.node import Expr
from superopt.te.expr.symbolic_int import without_symbolic_sizes
from superopt.te.expr.tensor import Tensor, TensorType, placeholder

# An attribute. Sizes may be symbolic, so that an int may be an index expression.
Attr = Union[int, float, str, bool, None, DType, Expr, "Payload", tuple["Attr", ...]]
Attrs = tuple[tuple[str, Attr], ...]
Types = tuple[TensorType | None, ...]
Canonical = Callable[[Types, dict[str, Attr]], dict[str, Attr]]
REQUIRED = inspect.Parameter.empty


class InferError(ValueError):
    """The types of the operands or the attributes do not fit the operator."""


@dataclass(frozen=True, slots=True, eq=False)
class Payload:
    """The content of an opaque node, compared by identity: two random nodes are never merged."""

    content: object
    label: str = ""

    def __str__(self) -> str:
        return self.label or f"payload{id(self):x}"


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """An operator of the graph.

    name: ONNX's name, or ours for internal operators; for opaque operators see `opaque_op`.
    compute: maps operands and attributes to result tensors; None for opaque operators. inputs,
    required, variadic: operand names, how many are required, whether the last one repeats. attrs:
    attribute names with defaults (REQUIRED if there is none). laws: words among commutative,
    associative, elementwise, linear, data (moves elements only). example: operand types and
    attributes with which all operator tests run it. since: the least ONNX schema version whose
    semantics the expression has; older nodes are opaque. canonical: maps (operand types,
    attributes) to canonical attributes: axes from 0, explicit pads. domain: the ONNX domain; None
    for internal operators that are expanded at export.
    """

    name: str
    compute: Callable[..., Tensor | tuple[Tensor, ...]] | None
    inputs: tuple[str, ...] = ()
    required: int = 0
    variadic: bool = False
    attrs: Mapping[str, object] = field(default_factory=dict)
    laws: frozenset[str] = frozenset()
    example: tuple[str, ...] = ()
    since: int = 1
    canonical: Canonical | None = None
    domain: str | None = ""

    def __repr__(self) -> str:
        return f"Op({self.name})"

    @property
    def opaque(self) -> bool:
        return self.compute is None

    @property
    def title(self) -> str:
        """Return ONNX's name for display: `name` without the domain."""
        return self.name.rpartition("::")[2]


def opaque_op(op_type: str, domain: str, expression_ops: Container[str]) -> Op:
    """Return the operator of an opaque node.

    Code that distinguishes operators by `name` relies on the attributes and operands of the tensor
    expression. An opaque Concat has neither, so its name is "ai.onnx::Concat". expression_ops: the
    names of operators that have a tensor expression.
    """
    name = f"{domain or 'ai.onnx'}::{op_type}" if op_type in expression_ops else op_type
    return Op(name, None, domain=domain)


def op(
    name: str,
    *,
    example: str | tuple[str, ...],
    laws: str = "",
    since: int = 1,
    canonical: Canonical | None = None,
    domain: str | None = "",
) -> Callable[[Callable[..., Tensor | tuple[Tensor, ...]]], Op]:
    """Declare an operator by its tensor expression (see the module's docstring)."""

    def declare(compute: Callable[..., Tensor | tuple[Tensor, ...]]) -> Op:
        operands: list[inspect.Parameter] = []
        attrs: dict[str, object] = {}
        for p in inspect.signature(compute).parameters.values():
            if p.kind is p.KEYWORD_ONLY:
                attrs[p.name] = p.default
            else:
                operands.append(p)
        variadic = bool(operands) and operands[-1].kind is inspect.Parameter.VAR_POSITIONAL
        fixed = operands[:-1] if variadic else operands
        return Op(
            name,
            compute,
            tuple(p.name for p in operands),
            sum(p.default is REQUIRED for p in fixed) + variadic,
            variadic,
            attrs,
            frozenset(laws.split()),
            (example,) if isinstance(example, str) else example,
            since,
            canonical,
            domain,
        )

    return declare


def canonical_attrs(op: Op, types: Types, attrs: Mapping[str, Attr]) -> Attrs:
    """Return `attrs` with defaults, canonical, sorted by name.

    Raises InferError for an unknown or missing attribute, or one that does not fit the operands.
    """
    given = tuple((k, tuple(v) if isinstance(v, list) else v) for k, v in attrs.items())
    return _canonical_attrs(op, types, given)


def canonical_attrs_by(
    oracle: SizeOracle, op: Op, types: Types, attrs: Mapping[str, Attr]
) -> Attrs:
    """Return canonical attributes where the oracle compares sizes; nothing is remembered."""
    with use_size_oracle(oracle):
        return _canonical_attrs.__wrapped__(op, types, tuple(attrs.items()))


@lru_cache(maxsize=1 << 15)
def _canonical_attrs(op: Op, types: Types, items: Attrs) -> Attrs:
    attrs = dict(items)
    full: dict[str, Attr] = {}
    for key in attrs:
        if key not in op.attrs:
            raise InferError(f"{op.name} has no attribute {key}; it has {', '.join(op.attrs)}")
    for key, default in op.attrs.items():
        value = attrs.get(key, default)
        if value is REQUIRED:
            raise InferError(f"{op.name} needs the attribute {key}")
        if isinstance(value, int) and isinstance(default, (int, float)):
            # 1, 1.0 and True are equal as keys: keep the declared type
            value = type(default)(value)
        full[key] = _to_tuple(value)  # type: ignore[arg-type]
    if op.canonical is not None:
        try:
            with without_symbolic_sizes():
                full = {k: _to_tuple(v) for k, v in op.canonical(types, full).items()}
        except InferError:
            raise
        except (ValueError, TypeError, IndexError, KeyError, AttributeError) as e:
            shown = ", ".join(f"{k}={v}" for k, v in full.items())
            raise InferError(f"{op.name}({shown}): {e}") from e
    return tuple(sorted(full.items()))


def _to_tuple(value: Attr) -> Attr:
    if isinstance(value, (list, tuple)):
        return tuple(_to_tuple(v) for v in value)
    return value


@lru_cache(maxsize=1 << 15)
def expression(op: Op, types: Types, attrs: Attrs) -> tuple[Tensor, ...]:
    """Return the results of `op` on placeholders `a0`, `a1`, ... of `types`; None is an absent
    operand.

    Raises InferError if they do not fit.
    """
    if op.compute is None:
        raise InferError(f"{op.name} is opaque: it has no tensor expression")
    given = len(types)
    if given < op.required or (given > len(op.inputs) and not op.variadic):
        most = "or more" if op.variadic else f"to {len(op.inputs)}"
        raise InferError(f"{op.name} takes {op.required} {most} operands, got {given}")
    if any(t is not None and (t.dtype is None or t.shape is None) for t in types):
        raise InferError(f"{op.name} on an operand of unknown type")
    operands = [None if t is None else placeholder(f"a{n}", t) for n, t in enumerate(types)]
    try:
        with without_symbolic_sizes():
            out = op.compute(*operands, **dict(attrs))
    except InferError:
        raise
    except (ValueError, TypeError, IndexError, KeyError, ZeroDivisionError, AttributeError) as e:
        shown = ", ".join(map(str, types))
        raise InferError(f"{op.name}({shown}): {e}") from e
    return out if isinstance(out, tuple) else (out,)


def expression_by(oracle: SizeOracle, op: Op, types: Types, attrs: Attrs) -> tuple[Tensor, ...]:
    """Return `expression` where the oracle compares sizes; nothing is remembered."""
    with use_size_oracle(oracle):
        return expression.__wrapped__(op, types, attrs)


def infer(op: Op, types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    """Return the types of the results, from the tensor expression."""
    return tuple(t.type for t in expression(op, types, attrs))
