"""Import ONNX into a graph. Nothing is lost: nodes without a tensor expression become opaque nodes.

Small integer tensors are tracked as size expressions (see `data_propagation`), because operands
that ONNX passes as tensors and the graph stores as attributes (the shape of a Reshape) take their
values from there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial

import numpy as np
import onnx_ir as oir

from superopt import guard
from superopt.ir import graph
from superopt.ir.op import (
    Attr,
    InferError,
    Op,
    Payload,
    canonical_attrs,
    canonical_attrs_by,
    expression,
    expression_by,
    opaque_op,
)
from superopt.onnx_io.import_.constants import constant_node_tensor, sparse_constant_node_tensor
from superopt.onnx_io.import_.contrib.expand import expand_contrib_node, is_expanded
from superopt.onnx_io.import_.data_propagation import attr_symbols, type_symbols
from superopt.onnx_io.import_.dtypes import dtype_of
from superopt.onnx_io.import_.import_state import (
    ImportState,
    bind_value,
    fold_integers,
    known_size,
    value_as_attr,
)
from superopt.onnx_io.import_.ml.expand import ML_DOMAIN as ML
from superopt.onnx_io.import_.ml.expand import expand_node, ml_result_types
from superopt.onnx_io.import_.model import Expansion, Origin
from superopt.onnx_io.import_.model import Model as Model
from superopt.onnx_io.import_.narrow_weights import NARROW_READERS, expand_narrow_weights
from superopt.onnx_io.import_.older_opsets import OlderForm, check_older_form
from superopt.onnx_io.import_.schema import (
    Schema,
    attribute_value,
    find_operator,
    has_neutral_value,
    is_redundant,
)
from superopt.onnx_io.import_.sequence_types import sequence_result_types
from superopt.onnx_io.import_.subgraphs import captured_values
from superopt.onnx_io.import_.symbols import FileDim, Symbols, dim_names
from superopt.onnx_io.import_.type_inference import infer_result_types, type_lookup
from superopt.onnx_io.read.source import Source
from superopt.ops import OPS
from superopt.te.analysis.size_oracle import SizeOracle, use_size_oracle
from superopt.te.expr import index as te_index
from superopt.te.expr.dtype import to_numpy
from superopt.te.expr.node import Size
from superopt.te.expr.tensor import Dim, TensorType

# Before this IR version every initializer is listed as an input, and none can be overridden.
OVERRIDABLE_SINCE_IR_VERSION = 4


def import_model(
    source: Source,
    replaced: Mapping[str, Dim] | None = None,
    oracle: SizeOracle | None = None,
) -> Model:
    """Return the graph of a validated `source`; symbolic sizes stay symbolic. replaced: what stands
    for symbolic sizes, by our names. oracle: compares sizes that differ as expressions."""
    model = source.model
    top = model.graph
    state = ImportState(
        opset_versions(model),
        frozenset((f.domain, f.name) for f in model.functions.values()),
        type_lookup(source),
        Symbols(dim_names(_declared_dims(v) for v in top.inputs), replaced or {}),
        oracle,
    )
    inputs: list[graph.Input] = []
    overridable: dict[graph.Input, oir.Value] = {}
    for v in top.inputs:
        if v.name in top.initializers and model.ir_version < OVERRIDABLE_SINCE_IR_VERSION:
            continue
        made = graph.Input(v.name or "", _input_type(state, v))
        inputs.append(made)
        bind_value(state, v, made)
        if v.name in top.initializers:
            overridable[made] = v
    weights = [v for v in top.initializers.values() if v not in state.values]
    state.pool.announce([v.const_value for v in weights if v.const_value is not None])
    for v in weights:
        if v.const_value is not None:
            bind_value(state, v, state.pool.constant(v.const_value))
    for position, n in enumerate(top):
        guard.check_time(f"reading {source.label}")
        _import_node(state, n, position)
    return Model(
        source,
        graph.Graph(tuple(inputs), tuple(state.values[v] for v in top.outputs)),
        state.domains.get("", 1),
        state.names,
        state.origins,
        state.pool.tensors,
        state.constant_nodes,
        overridable,
        state.declared_values,
        tuple(state.opaque_reasons),
        state.size_bindings,
        state.size_producers,
        state.symbols.names,
        tuple(state.expansions),
    )


def opset_versions(model: oir.Model) -> dict[str, int]:
    """Return the opset of each domain; "ai.onnx" is another name of the default domain ""."""
    return {("" if d == "ai.onnx" else d): v for d, v in model.opset_imports.items()}


def _declared_dims(v: oir.Value) -> tuple[FileDim, ...] | None:
    """Return the declared dimensions. A negative one is unknown, as in ONNX Runtime."""
    if v.shape is None:
        return None
    dims = (d if isinstance(d, int) else d.value for d in v.shape)
    return tuple(None if isinstance(d, int) and d < 0 else d for d in dims)


def _input_type(state: ImportState, v: oir.Value) -> TensorType:
    name = v.name or "input"
    if not isinstance(v.type, oir.TensorType) or dtype_of(v.type.dtype) is None:
        return TensorType(None, None)
    shape = state.symbols.shape(_declared_dims(v), name)
    for axis, d in enumerate(shape or ()):
        for symbol in sorted(te_index.symbols(d)):
            state.size_bindings.setdefault(symbol, (name, axis))
    return TensorType(dtype_of(v.type.dtype), shape)


def _import_node(state: ImportState, n: oir.Node, position: int) -> None:
    if n.op_type == "Constant" and n.domain == "" and _import_constant(state, n, position):
        return
    try:
        if n.domain == ML or is_expanded(n):
            _import_expanded_node(state, n, position)
            return
        if _import_narrow_weights(state, n, position):
            return
        made, bound = _import_operator(state, n)
    except (ValueError, TypeError, ArithmeticError) as e:  # InferError, or what no attribute can be
        made, bound = _import_opaque(state, n), {}
        state.opaque_reasons.append((_node_label(n), f"{n.op_type}: {e}"))
    state.origins.setdefault(made, Origin(n, bound, position))
    for i, v in enumerate(n.outputs):
        value = graph.result(made, i)
        if not made.op.opaque and v.name:
            value = fold_integers(state, made, i)
        bind_value(state, v, value)


def _import_expanded_node(state: ImportState, n: oir.Node, position: int) -> None:
    """Define the results of a node of ai.onnx.ml or com.microsoft by nodes of ONNX operators.

    Raises InferError with the reason if there is no expansion.
    """
    version = state.domains.get(n.domain)
    if version is None or (n.domain, n.op_type) in state.functions:
        raise InferError(f"the model imports no opset of {n.domain}, or has such a function")
    operands = [None if v is None else state.values[v] for v in n.inputs]
    if n.domain == ML:
        results = tuple(expand_node(n, operands, version))
    else:
        with nullcontext() if state.oracle is None else use_size_oracle(state.oracle):
            results = tuple(expand_contrib_node(n, operands, partial(known_size, state)))
    results = results[: len(n.outputs)]
    if len(results) < len(n.outputs):
        raise InferError(f"{len(n.outputs)} results, of which {len(results)} are known")
    _bind_expansion(state, n, position, results, operands)


def _import_narrow_weights(state: ImportState, n: oir.Node, position: int) -> bool:
    """Define the result of a node that reads narrow weights; return False for another node."""
    if (n.domain, n.op_type) in state.functions or n.op_type not in NARROW_READERS:
        return False
    operands = [None if v is None else state.values[v] for v in n.inputs]
    found = expand_narrow_weights(n, operands)
    if found is None:
        return False
    held = {
        v: graph.result(e.carrier, k) for e in state.expansions for k, v in enumerate(e.results)
    }
    given = [None if v is None else held.get(v, v) for v in operands]
    _bind_expansion(state, n, position, [found], given)
    return True


def _bind_expansion(
    state: ImportState,
    n: oir.Node,
    position: int,
    results: Sequence[graph.Value],
    operands: Sequence[graph.Value | None],
) -> None:
    """Bind the results of a node of the file to those of other nodes. operands: of the carrier."""
    carrier = graph.opaque_node(
        opaque_op(n.op_type, n.domain, OPS),
        operands,
        Payload(n, _node_label(n)),
        [v.type for v in results],
    )
    before = set(graph.nodes([v for v in operands if v is not None]))
    nodes = tuple(m for m in graph.nodes(results) if m not in before)
    state.expansions.append(Expansion(carrier, tuple(results), nodes))
    state.origins.setdefault(carrier, Origin(n, {}, position))
    for v, result, held in zip(n.outputs, results, graph.results(carrier), strict=True):
        bind_value(state, v, result)
        if v.name:
            state.names.setdefault(held, v.name)
            state.declared_values.setdefault(held, v)
    for k, inner in enumerate(nodes):
        for value in graph.results(inner):
            state.names.setdefault(value, f"{_node_label(n)}/{k}.{inner.op.name}")


def _import_constant(state: ImportState, n: oir.Node, position: int) -> bool:
    """Define a Constant node's result; return False if its value is not a supported tensor."""
    tensor, sparse = constant_node_tensor(n), sparse_constant_node_tensor(n)
    if tensor is not None:
        state.pool.announce([tensor])
        made = state.pool.constant(tensor)
    elif sparse is not None:
        made = state.pool.unshared_constant(sparse)
    else:
        return False
    if made not in state.names:
        state.constant_nodes[made] = Origin(n, {}, position)
    bind_value(state, n.outputs[0], made)
    return True


def _import_operator(state: ImportState, n: oir.Node) -> tuple[graph.Node, dict[str, graph.Value]]:
    """Import a node by its tensor expression. Return it and the operands that became attributes.

    Raises InferError (or TypeError, from an attribute) with the reason if there is none.
    """
    if (n.domain, n.op_type) in state.functions:
        raise InferError("a local function")
    version = state.domains.get(n.domain)
    told = None if version is None else find_operator(n.op_type, n.domain, version)
    if told is None:
        kind = "no tensor expression" if n.domain == "" else f"domain {n.domain}"
        raise InferError(f"{kind} (opset {version})")
    found, s, how = told
    operands, attrs, bound = _bind_operands(state, n, found, s, how)
    types = tuple(None if v is None else v.type for v in operands)
    oracle = state.oracle
    if oracle is None:
        full = canonical_attrs(found, types, attrs)
    else:
        full = canonical_attrs_by(oracle, found, types, attrs)
    check_older_form(how, found, types[0] if types else None, dict(full))
    if how.same_results is not None and any(
        v.uses() or v.is_graph_output() for v in n.outputs[how.same_results :]
    ):
        raise InferError(f"more than {how.same_results} results, which were others then")
    hidden = frozenset().union(*(attr_symbols(a) for _, a in full)) & state.size_producers.keys()
    hidden -= frozenset().union(*(type_symbols(t) for t in types))
    if hidden:  # its value would have to be computed first, and no operand says so
        raise InferError(f"{', '.join(sorted(hidden))} is known only from another node's result")
    try:
        results = expression(found, types, full)
    except InferError:
        if oracle is not None:  # raises what makes sizes equal as expressions
            expression_by(oracle, found, types, full)
        raise
    if len(n.outputs) > len(results):
        raise InferError(f"{len(n.outputs)} outputs declared, the expression has {len(results)}")
    kinds = tuple(t.type for t in results)
    return graph.intern_node(found, tuple(operands), full, kinds), bound


def _node_attributes(n: oir.Node, op: Op, s: Schema, old_form: OlderForm) -> dict[str, Attr]:
    """Return the attributes of a node by their names in `op`, with defaults and implied ones."""
    attrs: dict[str, Attr] = {}
    for key, a in n.attributes.items():
        if key in old_form.attribute_operands:
            continue
        if key in op.attrs:
            attrs[key] = attribute_value(key, a)
            if op.name == "ConstantOfShape":
                attrs["dtype"] = dtype_of(a.as_tensor().dtype)
        elif not is_redundant(key, n.op_type) and not has_neutral_value(key, n.op_type, a):
            raise InferError(f"attribute {key} has no meaning in the expression")
    for key, declared in s.attributes.items():
        if key in op.attrs and key not in attrs and declared.default is not None:
            attrs[key] = declared.default
    if "num_outputs" in op.attrs and "num_outputs" not in s.attributes:
        attrs["num_outputs"] = len(n.outputs)  # Split before opset 18
    return {**old_form.implied_attrs, **attrs}


def _bind_operands(
    state: ImportState, n: oir.Node, op: Op, s: Schema, old_form: OlderForm
) -> tuple[list[graph.Value | None], dict[str, Attr], dict[str, graph.Value]]:
    """Bind the operands and attributes of `op` by the names of ONNX's schema. Also return the
    operands of the file that became attributes."""
    attrs = _node_attributes(n, op, s, old_form)
    operands: list[graph.Value | None] = []
    bound: dict[str, graph.Value] = {}
    for position, v in enumerate(n.inputs):
        value = None if v is None else state.values[v]
        formal = s.operands[min(position, len(s.operands) - 1)]
        if formal.name not in op.attrs or formal.variadic:
            operands.append(value)
        elif value is not None:
            bound[formal.name] = value
            attrs[formal.name] = value_as_attr(state, value, formal.name)
            if op.name == "Range":
                attrs["dtype"] = value.type.dtype
    for key, name in old_form.attribute_operands.items():
        own = n.attributes.get(key)
        number = s.attributes[key].default if own is None else attribute_value(key, own)
        if number is None or number == old_form.defaults.get(key):
            continue
        first = operands[0] if operands else None
        if first is None or first.type.dtype is None:
            raise InferError(f"{key} of an operand of no known type")
        operands += [None] * (op.inputs.index(name) + 1 - len(operands))
        operands[op.inputs.index(name)] = graph.constant(
            np.array(number, to_numpy(first.type.dtype))
        )
    while operands and operands[-1] is None:
        operands.pop()
    return operands, attrs, bound


def _node_label(n: oir.Node) -> str:
    return n.name or next((v.name for v in n.outputs if v.name), n.op_type)


def _has_static_dims(dims: tuple[FileDim, ...] | None) -> bool:
    return dims is not None and all(isinstance(d, int) for d in dims)


def _import_opaque(state: ImportState, n: oir.Node) -> graph.Node:
    inputs = [None if v is None else state.values[v] for v in n.inputs]
    inputs += [state.values[v] for v in captured_values(n)]
    types: list[TensorType] = []
    told = [state.declared_type(v.name) if v.name else (None, None) for v in n.outputs]
    if any(not _has_static_dims(dims) for _, dims in told):
        own = infer_result_types(n, state.domains.get(n.domain, 0), inputs)
        told = (
            [
                b if a[1] is None or _has_static_dims(b[1]) else a
                for a, b in zip(told, own, strict=True)
            ]
            if own
            else told
        )
    if n.domain == ML:
        own_types = ml_result_types(n, inputs)
        told = [(a or c, b or d) for (a, b), (c, d) in zip(told, own_types, strict=True)]
    for i, (v, (dtype, dims)) in enumerate(zip(n.outputs, told, strict=True)):
        where = v.name or f"{n.name or n.op_type}_{i}"
        types.append(TensorType(dtype, state.symbols.shape(dims, where)))
    types = sequence_result_types(n, state.domains.get(n.domain, 0), inputs, types)
    made = graph.opaque_node(
        opaque_op(n.op_type, n.domain, OPS), inputs, Payload(n, _node_label(n)), types
    )
    for t in types:
        for d in t.shape or ():
            if isinstance(d, Size) and d.name not in state.size_bindings:
                state.size_producers.setdefault(d.name, made)
    return made
