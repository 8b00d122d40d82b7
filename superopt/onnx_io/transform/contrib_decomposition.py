"""Rewrite models: decompose ONNX Runtime's contrib operators (contrib_ops.py) and inline local
functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
import onnx.inliner
import onnx_ir as oir
from onnx import helper

from superopt.onnx_io.check.checker_server import run_checker
from superopt.onnx_io.read.protos import all_bodies, replace_nodes
from superopt.onnx_io.read.source import Source
from superopt.onnx_io.transform.contrib_ops import (
    CONTRIB_BEFORE_OPSET,
    DECOMPOSITIONS,
    MIN_OPSET,
    NodeBuilder,
    NoDecomposition,
)
from superopt.ops.quantized.nbits import CONTRIB_DOMAIN

Shapes = Mapping[str, Sequence[object]]
CHECK_SECONDS = 3  # of the checker's, for a small model
# Metadata of a node that stands for part of another one: the first result of that one.
REPLACES_KEY = "superopt.replaces"
OPERATOR_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", CONTRIB_DOMAIN)
OTHER_FLOAT_TYPES = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16, onnx.TensorProto.DOUBLE)


def decompose_contrib_ops(source: Source) -> Source | None:
    """Return the model with its contrib operators decomposed, except those without a decomposition;
    None if none is decomposed."""
    model = source.skeleton.shared_proto
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)
    if not any(_is_contrib(n, opset) for n in model.graph.node):
        return None
    model = source.skeleton.new_proto()
    graph = model.graph
    kinds = any(w.data_type in OTHER_FLOAT_TYPES for w in graph.initializer)
    kinds |= any(v.type.tensor_type.elem_type in OTHER_FLOAT_TYPES for v in graph.input)
    shapes = {w.name: tuple(w.dims) for w in graph.initializer}
    known = _inferred_shapes(model) if any(n.op_type == "Attention" for n in graph.node) else {}
    if known is None:
        return None
    asked: list[tuple[str, int, str]] = []
    parts = [
        _decompose_node(n, NodeBuilder(opset, kinds, shapes, n.output[0], known, asked))
        if n.output
        else None
        for n in graph.node
    ]
    if not any(parts):
        return None
    pairs = zip(graph.node, parts, strict=True)
    replace_nodes(graph, [m for n, some in pairs for m in some or [n]])
    if asked or not all(v.type.tensor_type.HasField("shape") for v in graph.output):
        found = _infer_shapes(model)
        if found is None or not _meets_rank_checks(_value_shapes(found), asked):
            return None
        for v, inferred in zip(graph.output, found.output, strict=True):
            v.CopyFrom(inferred)  # shapes that are left out, as of what nobody knew
    return source.with_proto(model)


def replaced_result(node: oir.Node) -> str | None:
    """Return the first result of the contrib operator that this node is a part of, or None."""
    return node.metadata_props.get(REPLACES_KEY)


def inline_functions(source: Source) -> Source | None:
    """Inline the local functions of a valid model; None if it has none, one of another opset, or
    one in a domain of onnxruntime's operators: where a function and an operator share a name,
    onnxruntime runs the operator."""
    functions = source.skeleton.shared_proto.functions
    if not functions or any(f.domain in OPERATOR_DOMAINS for f in functions):
        return None
    model = source.skeleton.new_proto()
    _state_defaults(model)
    flat = onnx.inliner.inline_local_functions(model)
    if flat.functions:
        return None
    return source.with_proto(flat)


def _state_defaults(model: onnx.ModelProto) -> None:
    """Add to each call of a local function the attributes that it leaves at the function's
    defaults, which onnx.inliner does not read."""
    defaults = {(f.domain, f.name, f.overload): f.attribute_proto for f in model.functions}
    for place in all_bodies(model):
        for node in place.body.node:
            stated = {a.name for a in node.attribute}
            absent = defaults.get((node.domain, node.op_type, node.overload), ())
            node.attribute.extend(a for a in absent if a.name not in stated)


def _is_contrib(node: onnx.NodeProto, opset: int) -> bool:
    """True for a contrib operator. Some of them have the name of an ONNX operator."""
    before = CONTRIB_BEFORE_OPSET.get(node.op_type, 0) if node.domain in ("", "ai.onnx") else 0
    return node.domain == CONTRIB_DOMAIN or opset < before


def _decompose_node(node: onnx.NodeProto, m: NodeBuilder) -> list[onnx.NodeProto] | None:
    """Return the nodes that replace a contrib node; None for other nodes, and those without a
    decomposition."""
    if not _is_contrib(node, m.opset) or node.op_type not in DECOMPOSITIONS or m.opset < MIN_OPSET:
        return None
    checks = len(m.rank_checks)
    try:
        _add_decomposition(m, node)
    except (ValueError, TypeError, LookupError, ArithmeticError):  # of odd attributes
        del m.rank_checks[checks:]
        return None
    for part in m.nodes:
        part.metadata_props.add(key=REPLACES_KEY, value=node.output[0])
    return m.nodes


def _add_decomposition(m: NodeBuilder, node: onnx.NodeProto) -> None:
    """Add the decomposition of a node. Raises NoDecomposition, or what odd attributes raise."""
    most, more, how = DECOMPOSITIONS[node.op_type]
    results = [k for k, name in enumerate(node.output) if name]
    if len(node.input) > most or not {*results} <= {0, *more}:
        raise NoDecomposition(f"{node.op_type} of {len(node.input)} inputs, results {results}")
    attrs = {a.name: _decode_bytes(helper.get_attribute_value(a)) for a in node.attribute}
    how(m, [*node.input, *[""] * (most - len(node.input))], attrs, node.output)


def _decode_bytes(value: object) -> object:
    return value.decode() if isinstance(value, bytes) else value


def _infer_shapes(model: onnx.ModelProto) -> onnx.GraphProto | None:
    """Return the graph with types inferred by onnx; None if the inference does not survive it
    (forked_checker.py)."""
    said = run_checker(model.SerializeToString(), CHECK_SECONDS + len(model.graph.node) // 20_000)
    if said is not None and not said.from_checker:
        return None
    try:
        return onnx.shape_inference.infer_shapes(model).graph
    except Exception:  # of several types
        return None


def _inferred_shapes(model: onnx.ModelProto) -> Shapes | None:
    found = _infer_shapes(model)
    return None if found is None else _value_shapes(found)


def _value_shapes(graph: onnx.GraphProto) -> Shapes:
    """Return the dims of each value: numbers, names, and None where unknown."""
    kinds = {v.name: v.type.tensor_type for v in (*graph.value_info, *graph.input)}
    some = {n: t.shape.dim for n, t in kinds.items() if t.HasField("shape")}
    out = {n: [d.dim_value or d.dim_param or None for d in dims] for n, dims in some.items()}
    return {**out, **{w.name: list(w.dims) for w in graph.initializer}}


def _meets_rank_checks(
    known: Mapping[str, Sequence[object]], rank_checks: Sequence[tuple[str, int, str]]
) -> bool:
    for name, rank, other in rank_checks:
        own, like = known.get(name, ()), known.get(other, (None,))
        if len(own) != rank or (other and (own[0] is None or own[0] != like[0])):
            return False
    return True
