"""Check calls: operators of ONNX's own domain and local functions.

onnx's checker skips names that were once experimental operators, and does not compare calls of a
local function with its signature.
"""

from graphlib import CycleError, TopologicalSorter
from typing import TypeAlias

import onnx
import onnx.defs

from superopt.errors import ModelError
from superopt.onnx_io.check.checker_errors import missing_operator_error
from superopt.onnx_io.read.protos import NamedBody, nested_bodies, node_label, top_level_bodies
from superopt.onnx_io.read.skeleton import MAX_NODES, too_many_nodes_error

_Callee: TypeAlias = tuple[str, str, str]  # domain, name, overload


def check_calls(model: onnx.ModelProto, label: str) -> None:
    """Raise ModelError for an operator that ai.onnx does not have, or for an invalid call."""
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    for place in top_level_bodies(model):
        importer = place.body if isinstance(place.body, onnx.FunctionProto) else model
        versions = {opset.domain or "ai.onnx": opset.version for opset in importer.opset_import}
        version = versions.get("ai.onnx", 1)
        checked: set[str] = set()
        for inner in nested_bodies([place]):
            for node in inner.body.node:
                what = f"{label}: node {node_label(node)} is not valid"
                function = functions.get(_callee(node))
                if function is not None:
                    _check_call(node, function, what)
                elif node.domain in ("", "ai.onnx") and node.op_type not in checked:
                    checked.add(node.op_type)
                    if not _operator_exists(node.op_type, version):
                        raise missing_operator_error(node.op_type, version, what)


def _operator_exists(op_type: str, version: int) -> bool:
    try:
        onnx.defs.get_schema(op_type, min(version, 2**31 - 1), "")
    except onnx.defs.SchemaError:
        return False
    return True


def _check_call(node: onnx.NodeProto, function: onnx.FunctionProto, what: str) -> None:
    for kind, given, taken in (
        ("inputs", node.input, function.input),
        ("outputs", node.output, function.output),
    ):
        if len(given) > len(taken):
            raise ModelError(
                what,
                f"it has {len(given)} {kind}, and the local function {function.name!r} "
                f"has {len(taken)}",
                "correct the call, or the function",
            )


def check_expanded_size(model: onnx.ModelProto, label: str) -> int:
    """Return the number of nodes after inlining all local functions.

    Nested functions can double the count at each level, and shape inference inlines them. Raises
    ModelError if there are more than MAX_NODES, or if functions are recursive.
    """
    calls: dict[_Callee, list[_Callee]] = {}
    for place in top_level_bodies(model):
        if isinstance(place.body, onnx.FunctionProto):
            calls[place.body.domain, place.body.name, place.body.overload] = _callees(place)
    sizes: dict[_Callee, int] = {}
    try:
        edges = {key: {callee for callee in calls[key] if callee in calls} for key in calls}
        for key in TopologicalSorter(edges).static_order():
            sizes[key] = min(sum(sizes.get(callee, 1) for callee in calls[key]), MAX_NODES + 1)
    except CycleError as error:
        ring = [name for _, name, _ in error.args[1]]
        raise ModelError(
            f"{label}: local functions call each other in a ring",
            " -> ".join(reversed(ring)),
            "a function of a model must not call itself, directly or through others",
        ) from None
    total = sum(sizes.get(callee, 1) for callee in _callees(NamedBody(model.graph, "the graph", 0)))
    if total > MAX_NODES:
        raise too_many_nodes_error(label, expanded=True)
    return total


def _callees(place: NamedBody) -> list[_Callee]:
    """Return the callee of each node, subgraphs included."""
    return [_callee(node) for inner in nested_bodies([place]) for node in inner.body.node]


def _callee(node: onnx.NodeProto) -> _Callee:
    return node.domain, node.op_type, node.overload
