"""Import ONNX into a graph. Nothing is lost: nodes without a tensor expression become opaque nodes.

Small integer tensors are tracked as size expressions (see `data_propagation`), because operands
that ONNX passes as tensors and the graph stores as attributes (the shape of a Reshape) take their
values from there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as oir

from superopt import guard
from superopt.ir import graph as g
from superopt.ir.evaluate import evaluate
from superopt.ir.op import (
    Attr,
    InferError,
    Op,
    Payload,
    canonical_attrs,
    expression,
    opaque_op,
)
from superopt.onnx_io.capture import captured
from superopt.onnx_io.follow import (
    READ,
    SMALL,
    Known,
    as_attr,
    exact,
    follow,
    followed,
    sizes_in,
    sizes_of,
)
from superopt.onnx_io.infer import Declared, declared_types, result_types
from superopt.onnx_io.ml import DOMAIN as ML
from superopt.onnx_io.ml import expanded, ml_types
from superopt.onnx_io.model import Expansion, Origin
from superopt.onnx_io.model import Model as Model
from superopt.onnx_io.older import Older, checked
from superopt.onnx_io.schema import Schema, attribute_value, is_plain, is_redundant, meant
from superopt.onnx_io.source import Source
from superopt.onnx_io.symbols import FileDim, Symbols, names_in
from superopt.onnx_io.tensors import ConstantPool, literal, sparse_literal
from superopt.onnx_io.types import dtype_of
from superopt.ops import OPS
from superopt.te.dtype import STRING, to_numpy
from superopt.te.expr import TensorType
from superopt.te.node import Size

# Before this IR version every initializer is listed as an input, and none can be overridden.
OVERRIDABLE_SINCE = 4


@dataclass(slots=True)
class _State:
    """State of the import; frozen into a Model at the end."""

    domains: dict[str, int]
    functions: frozenset[tuple[str, str]]
    types: Callable[[str], Declared]
    symbols: Symbols
    pool: ConstantPool = field(default_factory=ConstantPool)
    values: dict[oir.Value, g.Value] = field(default_factory=dict)
    known: dict[g.Value, Known] = field(default_factory=dict)
    steady: set[g.Value] = field(default_factory=set)  # small, and computed from constants only
    names: dict[g.Value, str] = field(default_factory=dict)
    origins: dict[g.Node, Origin] = field(default_factory=dict)
    literals: dict[g.Constant, Origin] = field(default_factory=dict)
    declared: dict[g.Value, oir.Value] = field(default_factory=dict)
    opaque: list[tuple[str, str]] = field(default_factory=list)
    sizes: dict[str, tuple[str, int]] = field(default_factory=dict)
    born: dict[str, g.Node] = field(default_factory=dict)
    expansions: list[Expansion] = field(default_factory=list)


def import_model(source: Source) -> Model:
    """Return the graph of a validated `source`; symbolic sizes stay symbolic."""
    model = source.model
    top = model.graph
    state = _State(
        domains(model),
        frozenset((f.domain, f.name) for f in model.functions.values()),
        declared_types(source),
        Symbols(names_in(_dims(v) for v in top.inputs)),
    )
    inputs: list[g.Input] = []
    overridable: dict[g.Input, oir.Value] = {}
    for v in top.inputs:
        if v.name in top.initializers and model.ir_version < OVERRIDABLE_SINCE:
            continue
        made = g.Input(v.name or "", _input_type(state, v))
        inputs.append(made)
        _define(state, v, made)
        if v.name in top.initializers:
            overridable[made] = v
    weights = [v for v in top.initializers.values() if v not in state.values]
    state.pool.add([v.const_value for v in weights if v.const_value is not None])
    for v in weights:
        if v.const_value is not None:
            _define(state, v, state.pool.constant(v.const_value))
    for position, n in enumerate(top):
        guard.check_time(f"reading {source.label}")
        _node(state, n, position)
    return Model(
        source,
        g.Graph(tuple(inputs), tuple(state.values[v] for v in top.outputs)),
        state.domains.get("", 1),
        state.names,
        state.origins,
        state.pool.tensors,
        state.literals,
        overridable,
        state.declared,
        tuple(state.opaque),
        state.sizes,
        state.born,
        state.symbols.names,
        tuple(state.expansions),
    )


def domains(model: oir.Model) -> dict[str, int]:
    """Return the opset of each domain; "ai.onnx" is another name of the default domain ""."""
    return {("" if d == "ai.onnx" else d): v for d, v in model.opset_imports.items()}


def _dims(v: oir.Value) -> tuple[FileDim, ...] | None:
    """Return the declared dimensions. A negative one is unknown, as in ONNX Runtime."""
    if v.shape is None:
        return None
    dims = (d if isinstance(d, int) else d.value for d in v.shape)
    return tuple(None if isinstance(d, int) and d < 0 else d for d in dims)


def _input_type(state: _State, v: oir.Value) -> TensorType:
    name = v.name or "input"
    if not isinstance(v.type, oir.TensorType) or dtype_of(v.type.dtype) is None:
        return TensorType(None, None)
    shape = state.symbols.shape(_dims(v), name)
    for axis, d in enumerate(shape or ()):
        if isinstance(d, Size):
            state.sizes.setdefault(d.name, (name, axis))
    return TensorType(dtype_of(v.type.dtype), shape)


def _define(state: _State, v: oir.Value, made: g.Value) -> None:
    """Record that the file's value `v` is `made` in the graph."""
    state.values[v] = made
    if v.name:
        state.names.setdefault(made, v.name)
        state.declared.setdefault(made, v)
    if isinstance(made, g.Constant):
        if made.nbytes <= READ and made.type.dtype not in (None, STRING):
            state.steady.add(made)
        if followed(made.type) and made not in state.known:
            state.known[made] = exact(made.load())


def _node(state: _State, n: oir.Node, position: int) -> None:
    if n.op_type == "Constant" and n.domain == "" and _constant(state, n, position):
        return
    try:
        if n.domain == ML:
            _expand(state, n, position)
            return
        made, bound = _plain(state, n)
    except (ValueError, TypeError, ArithmeticError) as e:  # InferError, or what no attribute can be
        made, bound = _opaque(state, n), {}
        state.opaque.append((_label(n), f"{n.op_type}: {e}"))
    state.origins.setdefault(made, Origin(n, bound, position))
    for i, v in enumerate(n.outputs):
        value = g.item(made, i)
        if not made.op.opaque and v.name:
            value = _computed(state, made, i)
        _define(state, v, value)


def _expand(state: _State, n: oir.Node, position: int) -> None:
    """Define the results of an ai.onnx.ml node by nodes of ONNX operators.

    Raises InferError with the reason if there is no expansion.
    """
    version = state.domains.get(ML)
    if version is None:
        raise InferError(f"the model imports no opset of {ML}")
    operands = [None if v is None else state.values[v] for v in n.inputs]
    results = tuple(expanded(n, operands, version))[: len(n.outputs)]
    made = Op(n.op_type, None, domain=n.domain)
    carrier = g.opaque(made, operands, Payload(n, _label(n)), [v.type for v in results])
    before = set(g.nodes([v for v in operands if v is not None]))
    nodes = tuple(m for m in g.nodes(results) if m not in before)
    state.expansions.append(Expansion(carrier, results, nodes))
    state.origins.setdefault(carrier, Origin(n, {}, position))
    for v, result, held in zip(n.outputs, results, g.results(carrier), strict=True):
        _define(state, v, result)
        if v.name:
            state.names.setdefault(held, v.name)
            state.declared.setdefault(held, v)
    for k, inner in enumerate(nodes):
        for value in g.results(inner):
            state.names.setdefault(value, f"{_label(n)}/{k}.{inner.op.name}")


def _constant(state: _State, n: oir.Node, position: int) -> bool:
    """Define a Constant node's result; return False if its value is not a supported tensor."""
    tensor, sparse = literal(n), sparse_literal(n)
    if tensor is not None:
        state.pool.add([tensor])
        made = state.pool.constant(tensor)
    elif sparse is not None:
        made = state.pool.unshared(sparse)
    else:
        return False
    if made not in state.names:
        state.literals[made] = Origin(n, {}, position)
    _define(state, n.outputs[0], made)
    return True


def _computed(state: _State, n: g.Node, index: int) -> g.Value:
    """Return output `index` of `n`, as a constant if it is a small tensor of known integers."""
    value = g.item(n, index)
    operands = [v for v in n.inputs if v is not None]
    steady = bool(operands) and all(v in state.steady for v in operands)
    if not followed(value.type):
        if steady and _small(value.type):
            state.steady.add(value)
        return value
    found = follow(state.known, n, index)
    if found is None and steady and (array := _steady_value(value)) is not None:
        found = exact(array)
    if found is None:
        return value
    state.known[value] = found
    if not all(isinstance(e, int) for e in found.reshape(-1)):
        return value
    dtype = value.type.dtype
    assert dtype is not None
    return state.pool.of_array(found, dtype)


def _steady_value(value: g.Value) -> np.ndarray | None:
    """Evaluate a value computed from constants in the precision of its element types, as a runtime
    does."""
    try:
        return evaluate(g.Graph((), (value,)), {})[0]
    except (ValueError, TypeError, LookupError, ArithmeticError):
        return None  # it fails at run time too, if it is ever needed


def _small(t: TensorType) -> bool:
    count = 1
    for d in t.shape or ():
        if not isinstance(d, int):
            return False
        count *= d
    return count <= SMALL and t.shape is not None and t.dtype not in (None, STRING)


def _plain(state: _State, n: oir.Node) -> tuple[g.Node, dict[str, g.Value]]:
    """Import a node by its tensor expression. Return it and the operands that became attributes.

    Raises InferError (or TypeError, from an attribute) with the reason if there is none.
    """
    if (n.domain, n.op_type) in state.functions:
        raise InferError("a local function")
    version = state.domains.get(n.domain)
    told = None if version is None else meant(n.op_type, n.domain, version)
    if told is None:
        kind = "no tensor expression" if n.domain == "" else f"domain {n.domain}"
        raise InferError(f"{kind} (opset {version})")
    found, s, how = told
    operands, attrs, bound = _bind(state, n, found, s, how)
    types = tuple(None if v is None else v.type for v in operands)
    full = canonical_attrs(found, types, attrs)
    checked(how, found, types[0] if types else None, dict(full))
    if how.results is not None and any(
        v.uses() or v.is_graph_output() for v in n.outputs[how.results :]
    ):
        raise InferError(f"more than {how.results} results, which were others then")
    hidden = frozenset().union(*(sizes_of(a) for _, a in full)) & state.born.keys()
    hidden -= frozenset().union(*(sizes_in(t) for t in types))
    if hidden:  # its value would have to be computed first, and no operand says so
        raise InferError(f"{', '.join(sorted(hidden))} is known only from another node's result")
    results = expression(found, types, full)
    if len(n.outputs) > len(results):
        raise InferError(f"{len(n.outputs)} outputs asked, the expression gives {len(results)}")
    kinds = tuple(t.type for t in results)
    return g.intern_node(found, tuple(operands), full, kinds), bound


def _bind(
    state: _State, n: oir.Node, op: Op, s: Schema, how: Older
) -> tuple[list[g.Value | None], dict[str, Attr], dict[str, g.Value]]:
    """Bind the operands and attributes of `op` by the names of ONNX's schema. Also return the
    operands of the file that became attributes."""
    attrs: dict[str, Attr] = {}
    for key, a in n.attributes.items():
        if key in how.operands:
            continue
        if key in op.attrs:
            attrs[key] = attribute_value(key, a)
            if op.name == "ConstantOfShape":
                attrs["dtype"] = dtype_of(a.as_tensor().dtype)
        elif not is_redundant(key, n.op_type) and not is_plain(key, n.op_type, a):
            raise InferError(f"attribute {key} has no meaning in the expression")
    for key, declared in s.attributes.items():
        if key in op.attrs and key not in attrs and declared.default is not None:
            attrs[key] = declared.default
    if "num_outputs" in op.attrs and "num_outputs" not in s.attributes:
        attrs["num_outputs"] = len(n.outputs)  # Split before opset 18
    attrs = {**how.attrs, **attrs}
    operands: list[g.Value | None] = []
    bound: dict[str, g.Value] = {}
    for position, v in enumerate(n.inputs):
        value = None if v is None else state.values[v]
        formal = s.operands[min(position, len(s.operands) - 1)]
        if formal.name not in op.attrs or formal.variadic:
            operands.append(value)
        elif value is not None:
            bound[formal.name] = value
            attrs[formal.name] = _as_attr(state, value, formal.name)
            if op.name == "Range":
                attrs["dtype"] = value.type.dtype
    for key, name in how.operands.items():
        own = n.attributes.get(key)
        number = s.attributes[key].default if own is None else attribute_value(key, own)
        if number is None or number == how.without.get(key):
            continue
        first = operands[0] if operands else None
        if first is None or first.type.dtype is None:
            raise InferError(f"{key} of an operand of no known type")
        operands += [None] * (op.inputs.index(name) + 1 - len(operands))
        operands[op.inputs.index(name)] = g.constant(np.array(number, to_numpy(first.type.dtype)))
    while operands and operands[-1] is None:
        operands.pop()
    return operands, attrs, bound


def _as_attr(state: _State, value: g.Value, name: str) -> Attr:
    if value in state.steady and value not in state.known and not isinstance(value, g.Constant):
        array = _steady_value(value)
        if array is not None and array.ndim <= 1:
            return array.item() if array.ndim == 0 else tuple(array.tolist())
    return as_attr(state.known, value, name)


def _label(n: oir.Node) -> str:
    return n.name or next((v.name for v in n.outputs if v.name), n.op_type)


def _numbers(dims: tuple[FileDim, ...] | None) -> bool:
    return dims is not None and all(isinstance(d, int) for d in dims)


def _opaque(state: _State, n: oir.Node) -> g.Node:
    inputs = [None if v is None else state.values[v] for v in n.inputs]
    inputs += [state.values[v] for v in captured(n)]
    types: list[TensorType] = []
    told = [state.types(v.name) if v.name else (None, None) for v in n.outputs]
    if any(not _numbers(dims) for _, dims in told):
        own = result_types(n, state.domains.get(n.domain, 0), inputs)
        told = [b if _numbers(b[1]) else a for a, b in zip(told, own, strict=True)] if own else told
    if n.domain == ML:
        own_types = ml_types(n, inputs)
        told = [(a or c, b or d) for (a, b), (c, d) in zip(told, own_types, strict=True)]
    for i, (v, (dtype, dims)) in enumerate(zip(n.outputs, told, strict=True)):
        where = v.name or f"{n.name or n.op_type}_{i}"
        types.append(TensorType(dtype, state.symbols.shape(dims, where)))
    made = g.opaque(opaque_op(n.op_type, n.domain, OPS), inputs, Payload(n, _label(n)), types)
    for t in types:
        for d in t.shape or ():
            if isinstance(d, Size) and d.name not in state.sizes:
                state.born.setdefault(d.name, made)
    return made
