"""Bounds of the values of graphs, and of their rounding errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from superopt.ir import graph as ir_graph
from superopt.ir.constant_values import is_constant
from superopt.ir.evaluate import evaluate
from superopt.ir.op import InferError
from superopt.ir.stand_ins import numbered_input
from superopt.ir.substitute import replace_all
from superopt.te.eval.domain import Reals
from superopt.te.expr.dtype import F32, F64
from superopt.te.expr.tensor import Tensor, placeholder
from superopt.verifier.elements.intervals import INTEGER_TYPES
from superopt.verifier.rounding.bound_arrays import constant_bounds
from superopt.verifier.rounding.error_bounds import (
    SAFETY,
    Bounds,
    Limits,
    Unbounded,
    any_float,
    limit_relative,
)
from superopt.verifier.rounding.expressions import TensorBounds, any_value
from superopt.verifier.rounding.quantized_results import MAX_BITS

Value = ir_graph.Value
MAX_QUOTIENT = 65535.0  # steps from the zero point, beyond which the results are limited


@dataclass(slots=True)
class GraphBounds:
    """The bounds of the values of a graph. leaves: of its inputs."""

    limits: Limits
    leaves: Mapping[Value, Bounds]
    tensors: dict[Value, Tensor] = field(default_factory=dict)
    bounds: TensorBounds = field(init=False)

    def __post_init__(self) -> None:
        self.bounds = TensorBounds(self.limits)

    def total_error(self, v: Value) -> np.ndarray:
        """Return bounds of the error of a quotient, which is limited afterwards."""
        return as_array(self.limits.total_error(limit_relative(self.bounds_of(v), MAX_QUOTIENT)))

    def bounds_of(self, v: Value) -> Bounds:
        """Return the bounds of a value. Raises Unbounded if they are not known."""
        for n in ir_graph.nodes([v]):
            if ir_graph.result(n, 0) in self.tensors:
                continue
            operands = [None if i is None else self.tensor_of(i) for i in n.inputs]
            if n.op.compute is None:
                raise Unbounded(f"{n.op.title}, which has no expression")
            found = n.op.compute(*operands, **dict(n.attrs))
            every = found if isinstance(found, tuple) else (found,)
            for r, t in zip(ir_graph.results(n), every, strict=True):
                self.tensors[r] = t
                bounds = self.bounds.tensor(t)
                if is_constant(r, {}):
                    self.bounds.known[t] = self.constant(r, bounds)
        return self.bounds.tensor(self.tensor_of(v))

    def tensor_of(self, v: Value) -> Tensor:
        found = self.tensors.get(v)
        if found is None:
            found = self.tensors[v] = placeholder(f"v{len(self.tensors)}", v.type)
            if isinstance(v, ir_graph.Constant):
                self.bounds.known[found] = constant_bounds(np.asarray(v.load()))
            elif v in self.leaves:
                self.bounds.known[found] = self.leaves[v]
        return found

    def constant(self, v: Value, b: Bounds) -> Bounds:
        """Return the bounds of a computed constant with its elements' magnitudes."""
        (array,) = evaluate(ir_graph.Graph((), (v,)), {}, Reals(F64))
        found = constant_bounds(np.asarray(array))
        if b.is_relative:
            roundings, error = b.all_roundings, b.error
        else:  # terms cancel: their errors are not relative to the sum
            roundings, error = 0.0, self.limits.total_error(b)
        return Bounds(found.size, 1.0, roundings, error, found.low, found.high, found.least, True)


def is_small_integer(v: Value) -> bool:
    """True for integers of at most 16 bits."""
    dtype = v.type.dtype
    return dtype is not None and dtype in INTEGER_TYPES and dtype.bits <= MAX_BITS


def computed_range(v: Value) -> Bounds:
    """Return the bounds of a value as if it were exact: of what is computed, not of what it should
    be. It is computed from quantized integers, which have any value of their type."""
    dtype = v.type.dtype
    if dtype is None:
        raise Unbounded("a value of unknown type")
    if dtype != F32:
        return any_value(dtype) if dtype.bits <= MAX_BITS else _analyzed_range(v, any_value(dtype))
    return _analyzed_range(v, any_float())


def _analyzed_range(v: Value, otherwise: Bounds) -> Bounds:
    change: dict[Value, Value] = {}
    stack, seen = [v], {v}
    while stack:
        w = stack.pop()
        if w is not v and is_small_integer(w) and not is_constant(w, {}):
            change[w] = numbered_input(len(change), w.type, "range")
            continue
        more = [x for x in ir_graph.operands(w) if x not in seen]
        seen.update(more)
        stack += more
    try:
        (root,) = replace_all(ir_graph.Graph((), (v,)), change).outputs
        limits = Limits()
        b = GraphBounds(limits, {}).bounds_of(root)
        size = as_array(b.size) + as_array(limits.total_error(b))
    except (Unbounded, InferError):
        return otherwise
    if v.type.dtype != F32:
        return Bounds(size, low=b.low, high=b.high, is_relative=True)
    return Bounds(size * SAFETY, is_relative=True) if np.isfinite(size).all() else otherwise


def as_array(a: object) -> np.ndarray:
    """Return an amount as an array."""
    return np.asarray(a, np.float64)
