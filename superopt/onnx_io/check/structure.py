"""Check names: every value is assigned once, before it is used, and there are no cycles.

onnx's checker finds the same errors, but its messages do not say whether a value has no producer, a
later one, or one that depends on the value itself.
"""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field

import onnx

from superopt.errors import ModelError
from superopt.onnx_io.read.protos import (
    Body,
    NamedBody,
    all_bodies,
    node_label,
    node_subgraphs,
    top_level_bodies,
)

MAX_SUBGRAPH_DEPTH = 24  # subgraphs inside subgraphs; protobuf itself gives up at 33
_MAX_COMPARED_NAMES = 5000  # names, when looking for the one that was meant


@dataclass(slots=True, eq=False)
class _Scope:
    """A body that encloses the node being checked."""

    place: NamedBody
    known: dict[str, str] = field(default_factory=dict)  # name -> what it is, for messages
    node_index: int = 0  # the node that is being checked


def check_names(model: onnx.ModelProto, label: str) -> None:
    """Raise ModelError for the first name that is undefined, used too early or defined twice."""
    for place in top_level_bodies(model):
        _check_body((_Scope(place),), label)


def check_depth(model: onnx.ModelProto, label: str) -> None:
    """Raise ModelError if subgraphs are nested deeper than MAX_SUBGRAPH_DEPTH."""
    for place in all_bodies(model):
        if place.depth > MAX_SUBGRAPH_DEPTH:
            raise ModelError(
                f"{label}: subgraphs are nested too deep",
                f"{place.name} is {place.depth} deep, and the limit is {MAX_SUBGRAPH_DEPTH}",
                "unnest the control flow of the model",
            )


def _check_body(scopes: tuple[_Scope, ...], label: str) -> None:
    """Check the innermost scope, its subgraphs included."""
    scope = scopes[-1]
    body, where, known = scope.place.body, scope.place.name, scope.known
    for role, names in _initial_names(body):
        for name in names:
            if known.get(name) == role:
                raise _duplicate_error(label, where, name, f"it is the name of two {role}s")
            known.setdefault(name, role)
    for scope.node_index, node in enumerate(body.node):
        for name in node.input:
            if name and not any(name in outer.known for outer in scopes):
                raise _unknown_name_error(scopes, name, label)
        for place in node_subgraphs(node, scope.place.depth) if node.attribute else ():
            _check_body((*scopes, _Scope(place)), label)
        this = f"node {node_label(node)}"
        for name in node.output:
            for outer in scopes if name else ():
                if (before := outer.known.get(name)) is not None:
                    raise _duplicate_error(label, where, name, f"{before} and {this} both give it")
            known[name] = this
    for name in _output_names(body):
        if name not in known:
            raise ModelError(
                f"{label}: output {name!r} of {where} is not produced",
                _suggestion(name, known)
                or f"none of its {len(body.node)} nodes has such an output",
                "export the model again, or name an output that a node produces",
            )


def _initial_names(body: Body) -> list[tuple[str, Iterable[str]]]:
    """Return the names defined before the first node, by their role."""
    if isinstance(body, onnx.FunctionProto):
        return [("input", body.input)]
    return [
        ("input", (info.name for info in body.input)),
        ("initializer", (tensor.name for tensor in body.initializer)),
        ("sparse initializer", (sparse.values.name for sparse in body.sparse_initializer)),
    ]


def _output_names(body: Body) -> list[str]:
    if isinstance(body, onnx.FunctionProto):
        return list(body.output)
    return [info.name for info in body.output]


def _duplicate_error(label: str, where: str, name: str, why: str) -> ModelError:
    return ModelError(
        f"{label}: {name!r} is given twice in {where}",
        why,
        "rename one of them: in ONNX every value is assigned exactly once",
    )


def _unknown_name_error(scopes: tuple[_Scope, ...], name: str, label: str) -> ModelError:
    """Return the error for a name that the node at scopes[-1] cannot read: a cycle, a wrong order,
    or an undefined name."""
    inner = scopes[-1]
    reader = f"node {node_label(inner.place.body.node[inner.node_index])} of {inner.place.name}"
    for scope in reversed(scopes):
        nodes = scope.place.body.node
        producer_of = {out: i for i, node in enumerate(nodes) for out in node.output if out}
        if name not in producer_of:
            continue
        producer = producer_of[name]
        cycle = _cycle_path(scope, producer_of, producer, scope.node_index)
        if cycle is not None:
            shown = [node_label(nodes[i]) for i in cycle]
            if len(shown) > 6:
                shown = [*shown[:3], "...", *shown[-2:]]
            return ModelError(
                f"{label}: {scope.place.name} has a cycle",
                f"each of these nodes reads the next: {' -> '.join([*shown, shown[0]])}",
                "export the model again: a graph must not feed a node's output back to its input",
            )
        return ModelError(
            f"{label}: the nodes of {scope.place.name} are not in order",
            f"{reader} reads {name!r}, which node {node_label(nodes[producer])} gives only later",
            "sort the nodes topologically (onnx_ir's Graph.sort does)",
        )
    everything = {known: "" for scope in scopes for known in scope.known}
    return ModelError(
        f"{label}: {reader} reads {name!r}, which does not exist",
        _suggestion(name, everything) or "no input, initializer or node has this name",
        "export the model again, or connect the input to a value of the graph",
    )


def _cycle_path(
    scope: _Scope, producer_of: dict[str, int], start: int, goal: int
) -> list[int] | None:
    """Return the nodes on a path from `goal` to `start`, each read by the one before, or None."""
    nodes = scope.place.body.node
    came_from = {start: start}
    todo = [start]
    while todo:
        index = todo.pop()
        if index == goal:
            path = [index]
            while path[-1] != start:
                path.append(came_from[path[-1]])
            return path[::-1]
        for name in _read_names(nodes[index], scope.place.depth):
            before = producer_of.get(name)
            if before is not None and before not in came_from:
                came_from[before] = index
                todo.append(before)
    return None


def _read_names(node: onnx.NodeProto, depth: int) -> list[str]:
    """Return the node's inputs and all names read in its subgraphs."""
    names = list(node.input)
    todo = node_subgraphs(node, depth)
    while todo:
        place = todo.pop()
        for inner in place.body.node:
            names += inner.input
            todo += node_subgraphs(inner, place.depth)
    return names


def _suggestion(name: str, known: dict[str, str]) -> str:
    """Return a suggestion for a misspelled name, or an empty string."""
    near = difflib.get_close_matches(name, known, 1) if len(known) <= _MAX_COMPARED_NAMES else []
    return f"there is no such value; did you mean {near[0]!r}?" if near else ""
