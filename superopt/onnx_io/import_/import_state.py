"""The state of an import: what is known of each value of the file.

Small integer tensors have known elements, and become constants if all are integers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as oir

from superopt.ir import graph
from superopt.ir.evaluate import evaluate
from superopt.ir.op import Attr, InferError
from superopt.onnx_io.import_.constants import ConstantPool
from superopt.onnx_io.import_.data_propagation import (
    MAX_READ_BYTES,
    MAX_TRACKED_ELEMENTS,
    SizeArray,
    is_tracked,
    operand_as_attr,
    propagate,
    python_numbers,
)
from superopt.onnx_io.import_.model import Expansion, Origin
from superopt.onnx_io.import_.symbols import Symbols
from superopt.onnx_io.import_.type_inference import DeclaredType
from superopt.te.analysis.size_oracle import SizeOracle
from superopt.te.expr.dtype import STRING
from superopt.te.expr.node import Dim, Expr
from superopt.te.expr.tensor import TensorType


@dataclass(slots=True)
class ImportState:
    """State of the import; frozen into a Model at the end."""

    domains: dict[str, int]
    functions: frozenset[tuple[str, str]]
    declared_type: Callable[[str], DeclaredType]
    symbols: Symbols
    oracle: SizeOracle | None = None  # compares sizes that differ as expressions
    pool: ConstantPool = field(default_factory=ConstantPool)
    values: dict[oir.Value, graph.Value] = field(default_factory=dict)
    elements: dict[graph.Value, SizeArray] = field(default_factory=dict)
    constant_values: set[graph.Value] = field(
        default_factory=set
    )  # small, and computed from constants only
    names: dict[graph.Value, str] = field(default_factory=dict)
    origins: dict[graph.Node, Origin] = field(default_factory=dict)
    constant_nodes: dict[graph.Constant, Origin] = field(default_factory=dict)
    declared_values: dict[graph.Value, oir.Value] = field(default_factory=dict)
    opaque_reasons: list[tuple[str, str]] = field(default_factory=list)
    size_bindings: dict[str, tuple[str, int]] = field(default_factory=dict)
    size_producers: dict[str, graph.Node] = field(default_factory=dict)
    expansions: list[Expansion] = field(default_factory=list)


def bind_value(state: ImportState, v: oir.Value, made: graph.Value) -> None:
    """Record that the file's value `v` is `made` in the graph."""
    state.values[v] = made
    if v.name:
        state.names.setdefault(made, v.name)
        state.declared_values.setdefault(made, v)
    if isinstance(made, graph.Constant):
        if made.nbytes <= MAX_READ_BYTES and made.type.dtype not in (None, STRING):
            state.constant_values.add(made)
        if is_tracked(made.type) and made not in state.elements:
            state.elements[made] = python_numbers(made.load())


def fold_integers(state: ImportState, n: graph.Node, index: int) -> graph.Value:
    """Return output `index` of `n`, as a constant if it is a small tensor of known integers."""
    value = graph.result(n, index)
    operands = [v for v in n.inputs if v is not None]
    steady = bool(operands) and all(v in state.constant_values for v in operands)
    if not is_tracked(value.type):
        if steady and _is_small(value.type):
            state.constant_values.add(value)
        return value
    assert value.type.dtype is not None
    # a sum of many floats is one that would be computed here
    is_sized = not value.type.dtype.is_float or all(v in state.elements for v in operands)
    found = propagate(state.elements, n, index) if is_sized else None
    if value.type.dtype.is_float:
        if found is not None:
            state.elements[value] = found
        elif steady:
            state.constant_values.add(value)
        return value
    if found is None and steady and (array := _evaluate_constant(value)) is not None:
        found = python_numbers(array)
    if found is None:
        return value
    state.elements[value] = found
    if not all(isinstance(e, int) for e in found.reshape(-1)):
        return value
    return state.pool.array_constant(found, value.type.dtype)


def _evaluate_constant(value: graph.Value) -> np.ndarray | None:
    """Evaluate a value computed from constants in the precision of its element types, as a runtime
    does."""
    try:
        return evaluate(graph.Graph((), (value,)), {})[0]
    except (ValueError, TypeError, LookupError, ArithmeticError):
        return None  # it fails at run time too, if it is ever needed


def _is_small(t: TensorType) -> bool:
    count = 1
    for d in t.shape or ():
        if not isinstance(d, int):
            return False
        count *= d
    return count <= MAX_TRACKED_ELEMENTS and t.shape is not None and t.dtype not in (None, STRING)


def value_as_attr(state: ImportState, value: graph.Value, name: str) -> Attr:
    """Return the value of an operand as the attribute `name`. Raises InferError if it depends on
    data."""
    if (
        value in state.constant_values
        and value not in state.elements
        and not isinstance(value, graph.Constant)
    ):
        array = _evaluate_constant(value)
        if array is not None and array.ndim <= 1:
            return array.item() if array.ndim == 0 else tuple(array.tolist())
    return operand_as_attr(state.elements, value, name)


def known_size(state: ImportState, value: graph.Value) -> Dim | None:
    """Return the value of a tensor of one integer as a size, or None if it depends on data."""
    try:
        found = value_as_attr(state, value, "size")
    except InferError:
        return None
    if isinstance(found, tuple) and len(found) == 1:
        (found,) = found
    return found if isinstance(found, int | Expr) else None
