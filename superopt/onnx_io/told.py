"""Rewrite models: decompose ONNX Runtime's contrib operators (contrib_ops.py) and inline local
functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
import onnx.inliner
import onnx_ir as oir
from onnx import helper

from superopt.onnx_io.checker import complaint
from superopt.onnx_io.contrib import DOMAIN, LEAST, TOLD, UNDER_ONNX, Maker, Untold
from superopt.onnx_io.protos import bodies, with_nodes
from superopt.onnx_io.source import Source

Shapes = Mapping[str, Sequence[object]]
SECONDS = 3  # of the checker's, for a small model
# Metadata of a node that stands for part of another one: the first result of that one.
REPLACES = "superopt.replaces"
OPERATOR_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", DOMAIN)
KINDS = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16, onnx.TensorProto.DOUBLE)


def told(source: Source) -> Source | None:
    """Return the model with its contrib operators decomposed; None if it has none, or one without a
    decomposition."""
    model = source.skeleton.message
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)
    if not any(_own(n, opset) for n in model.graph.node):
        return None
    model = source.skeleton.proto()
    graph = model.graph
    kinds = any(w.data_type in KINDS for w in graph.initializer)
    kinds |= any(v.type.tensor_type.elem_type in KINDS for v in graph.input)
    shapes = {w.name: tuple(w.dims) for w in graph.initializer}
    known = _shapes(model) if any(n.op_type == "Attention" for n in graph.node) else {}
    if known is None:
        return None
    asked: list[tuple[str, int, str]] = []
    nodes: list[onnx.NodeProto] = []
    try:
        for node in graph.node:
            if not _own(node, opset):
                nodes.append(node)
                continue
            made = Maker(opset, kinds, shapes, node.output[0], known, asked)
            _tell(made, node)
            for part in made.nodes:
                part.metadata_props.add(key=REPLACES, value=node.output[0])
            nodes += made.nodes
    except (Untold, ValueError, TypeError, LookupError, ArithmeticError):  # of odd attributes
        return None
    with_nodes(graph, nodes)
    if asked or not all(v.type.tensor_type.HasField("shape") for v in graph.output):
        found = _inferred(model)
        if found is None or not _as_asked(_dims(found), asked):
            return None
        for v, inferred in zip(graph.output, found.output, strict=True):
            v.CopyFrom(inferred)  # shapes that are left out, as of what nobody knew
    return source.instead(model)


def replaced(node: oir.Node) -> str | None:
    """Return the first result of the contrib operator that this node is a part of, or None."""
    return node.metadata_props.get(REPLACES)


def inlined(source: Source) -> Source | None:
    """Inline the local functions of a valid model; None if it has none, one of another opset, or
    one in a domain of onnxruntime's operators: where a function and an operator share a name,
    onnxruntime runs the operator."""
    functions = source.skeleton.message.functions
    if not functions or any(f.domain in OPERATOR_DOMAINS for f in functions):
        return None
    model = source.skeleton.proto()
    _state_defaults(model)
    flat = onnx.inliner.inline_local_functions(model)
    if flat.functions:
        return None
    return source.instead(flat)


def _state_defaults(model: onnx.ModelProto) -> None:
    """Add to each call of a local function the attributes that it leaves at the function's
    defaults, which onnx.inliner does not read."""
    defaults = {(f.domain, f.name, f.overload): f.attribute_proto for f in model.functions}
    for place in bodies(model):
        for node in place.body.node:
            stated = {a.name for a in node.attribute}
            absent = defaults.get((node.domain, node.op_type, node.overload), ())
            node.attribute.extend(a for a in absent if a.name not in stated)


def _own(node: onnx.NodeProto, opset: int) -> bool:
    """True for a contrib operator. Some of them have the name of an ONNX operator."""
    before = UNDER_ONNX.get(node.op_type, 0) if node.domain in ("", "ai.onnx") else 0
    return node.domain == DOMAIN or opset < before


def _tell(m: Maker, node: onnx.NodeProto) -> None:
    """Add the decomposition of a node. Raises NoDecomposition."""
    if node.op_type not in TOLD or m.opset < LEAST:
        raise Untold(node.op_type)
    most, more, how = TOLD[node.op_type]
    results = [k for k, name in enumerate(node.output) if name]
    if len(node.input) > most or not {*results} <= {0, *more}:
        raise Untold(f"{node.op_type} of {len(node.input)} inputs, results {results}")
    attrs = {a.name: _plain(helper.get_attribute_value(a)) for a in node.attribute}
    how(m, [*node.input, *[""] * (most - len(node.input))], attrs, node.output)


def _plain(value: object) -> object:
    return value.decode() if isinstance(value, bytes) else value


def _inferred(model: onnx.ModelProto) -> onnx.GraphProto | None:
    """Return the graph with types inferred by onnx; None if the inference does not survive it
    (forked_checker.py)."""
    said = complaint(model.SerializeToString(), SECONDS + len(model.graph.node) // 20_000)
    if said is not None and not said.said:
        return None
    try:
        return onnx.shape_inference.infer_shapes(model).graph
    except Exception:  # of several types
        return None


def _shapes(model: onnx.ModelProto) -> Shapes | None:
    found = _inferred(model)
    return None if found is None else _dims(found)


def _dims(graph: onnx.GraphProto) -> Shapes:
    """Return the dims of each value: numbers, names, and None where unknown."""
    kinds = {v.name: v.type.tensor_type for v in (*graph.value_info, *graph.input)}
    some = {n: t.shape.dim for n, t in kinds.items() if t.HasField("shape")}
    out = {n: [d.dim_value or d.dim_param or None for d in dims] for n, dims in some.items()}
    return {**out, **{w.name: list(w.dims) for w in graph.initializer}}


def _as_asked(known: Mapping[str, Sequence[object]], asked: Sequence[tuple[str, int, str]]) -> bool:
    for name, rank, other in asked:
        own, like = known.get(name, ()), known.get(other, (None,))
        if len(own) != rank or (other and (own[0] is None or own[0] != like[0])):
            return False
    return True
