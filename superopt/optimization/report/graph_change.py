"""The model's nodes before and after an optimization, and which of them each step touched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, TypeVar

from superopt.ir import graph as ir_graph
from superopt.ir.substitute import ReplacementCycle, substitute_values
from superopt.onnx_io.import_.model import Model
from superopt.optimization.candidate import Candidate
from superopt.report.data.graph_change import GraphChange, GraphNode, StepNodes
from superopt.search.move import Step

MAX_NODES = 20_000  # of a drawn model
MAX_ATTRIBUTE_LETTERS = 60  # of one attribute's text
SHOWN_ATTRIBUTE_TYPES = ("INT", "FLOAT", "STRING", "INTS", "FLOATS", "STRINGS")

T = TypeVar("T")
Nodes = frozenset[ir_graph.Node]


@dataclass(frozen=True, slots=True)
class _History:
    """What is known of the nodes of one graph of the derivation.

    kept: the original's node that each unchanged node is; origin: the original's nodes that each
    node stands for; made_by, result_of: numbers of the steps that made a node, and of those that
    made nothing new and whose result it is.
    """

    kept: dict[ir_graph.Node, ir_graph.Node] = field(default_factory=dict)
    origin: dict[ir_graph.Node, Nodes] = field(default_factory=dict)
    made_by: dict[ir_graph.Node, frozenset[int]] = field(default_factory=dict)
    result_of: dict[ir_graph.Node, frozenset[int]] = field(default_factory=dict)

    def carry(self, old: ir_graph.Node, new: ir_graph.Node, before: _History) -> None:
        """Copy what is known of a node to the node that it is now."""
        _extend(self.origin, new, before.origin.get(old))
        _extend(self.made_by, new, before.made_by.get(old))
        _extend(self.result_of, new, before.result_of.get(old))
        if old in before.kept:
            self.kept.setdefault(new, before.kept[old])


@dataclass(frozen=True, slots=True)
class Trace:
    """What the steps of an optimization did to the original's nodes.

    names: the model's name of each value in the graphs of the derivation that stands for one of its
    values; regions: the original's nodes that each step, by its index, replaced; last: of the nodes
    of the last graph.
    """

    names: dict[ir_graph.Value, str]
    regions: dict[int, Nodes]
    last: _History


def _extend(
    table: dict[ir_graph.Node, frozenset[T]], n: ir_graph.Node, more: frozenset[T] | None
) -> None:
    if more is not None:
        table[n] = table.get(n, frozenset()) | more


def describe_graph_change(model: Model, winner: Candidate, trace: Trace) -> GraphChange | None:
    """Return both graphs as written to files, and the nodes of each step; None if they are too
    large."""
    files = [
        [(n, node) for n, node in enumerate(graph) if node.op_type != "Constant"]
        for graph in (model.source.model.graph, winner.source.model.graph)
    ]
    if max(map(len, files)) > MAX_NODES:
        return None
    steps, history, regions = winner.variant.steps, trace.last, trace.regions
    before, after = ({n: k for k, (n, _) in enumerate(nodes)} for nodes in files)
    old_place = {n: before[p] for n, p in _file_positions(model).items() if p in before}
    by_name = {v.name: n for n, node in files[1] for v in node.outputs if v.name}
    new_place = {
        n: after[by_name[name]] for n, name in winner.node_names.items() if name in by_name
    }
    found: dict[int, set[int]] = {k: set() for k in range(len(steps))}
    results: dict[int, set[int]] = {k: set() for k in range(len(steps))}
    for table, out in ((history.made_by, found), (history.result_of, results)):
        for n, numbers in table.items():
            for k in numbers if n in new_place else ():
                out[k].add(new_place[n])
    touched = set().union(*found.values())
    kept = {
        (old_place[old], new_place[n])
        for n, old in history.kept.items()
        if n in new_place and old in old_place and new_place[n] not in touched
    }
    return GraphChange(
        tuple(i.name for i in model.graph.inputs),
        tuple(v.name or "" for v in model.source.model.graph.outputs),
        tuple(_graph_node(node) for _, node in files[0]),
        tuple(_graph_node(node) for _, node in files[1]),
        tuple(sorted(kept)),
        tuple(
            StepNodes(
                tuple(sorted({old_place[n] for n in regions.get(k, ()) if n in old_place})),
                tuple(sorted(found[k] or results[k])),
            )
            for k in range(len(steps))
        ),
    )


def _file_positions(model: Model) -> dict[ir_graph.Node, int]:
    """Return the position in the file of the node that each node of the graph was imported
    from."""
    out = {n: origin.position for n, origin in model.origins.items()}
    for e in model.expansions:
        if e.carrier in model.origins:
            out |= dict.fromkeys(e.nodes, model.origins[e.carrier].position)
    return out


def _graph_node(node: Any) -> GraphNode:
    attributes = (
        f"{name}={str(a.value)[:MAX_ATTRIBUTE_LETTERS]}"
        for name, a in node.attributes.items()
        if a.type.name in SHOWN_ATTRIBUTE_TYPES
    )
    return GraphNode(
        node.name or "",
        node.op_type,
        tuple("" if v is None else v.name or "" for v in node.inputs),
        tuple(v.name or "" for v in node.outputs),
        ", ".join(attributes),
    )


# --- steps ----------------------------------------------------------------------------------------


def trace_steps(model: Model, steps: Sequence[Step]) -> Trace:
    """Follow the nodes and values of a model through the steps."""
    history = _History()
    for n in ir_graph.nodes(model.graph):
        history.kept[n] = n
        history.origin[n] = frozenset((n,))
    trace = Trace(dict(model.names), {}, history)
    numbered = enumerate(steps)
    for _, batch in groupby(numbered, key=lambda row: (id(row[1].before), id(row[1].after))):
        trace = _trace_batch(trace, list(batch))
    return trace


def _trace_batch(trace: Trace, batch: Sequence[tuple[int, Step]]) -> Trace:
    """Return the trace after steps that were applied at once."""
    history, regions, names = trace.last, trace.regions, trace.names
    before, after = batch[0][1].before, batch[0][1].after
    change = {v: w for _, step in batch for v, w in step.change.items()}
    try:
        image = substitute_values(before, change)[1]
    except ReplacementCycle:
        image = substitute_values(before, change, recursive=False)[1]
    for v, w in (*change.items(), *image.items()):
        if v in names:
            names.setdefault(w, names[v])
            names.setdefault(image.get(w, w), names[v])
    old, new = ir_graph.nodes(before), set(ir_graph.nodes(after))

    def now(n: ir_graph.Node) -> ir_graph.Node | None:
        """Return what `n` is in `after`; None if it is gone or replaced."""
        values = [v for v in ir_graph.results(n) if v not in change]
        made = ir_graph.producer(image.get(values[0], values[0])) if values else n
        return made if made in new else None

    known = set(old)
    out = _History()
    for n in old:
        survivor = now(n)
        if survivor is not None:
            out.carry(n, survivor, history)
    for number, step in batch:
        gone = _nodes_until(step.change, lambda n: n in known and now(n) is not None)
        roots = {p for v in step.change if (p := ir_graph.producer(v)) is not None}
        region = _union(history.origin, gone or roots)
        regions[number] = region
        steps = frozenset((number,)) | _union(history.made_by, gone)
        steps |= _union(history.result_of, gone)
        added = _nodes_until(step.change.values(), lambda n: n in known)
        made = {m for n in added if (m := ir_graph.producer(image.get(n, n))) in new}
        for m in made:
            out.kept.pop(m, None)
            _extend(out.origin, m, region)
            _extend(out.made_by, m, steps)
        if not made:
            for v in step.change.values():
                p = ir_graph.producer(image.get(v, v))
                if p is not None:
                    _extend(out.result_of, p, steps)
    return Trace(names, regions, out)


def _nodes_until(
    roots: Iterable[ir_graph.Value], stops: Callable[[ir_graph.Node], bool]
) -> set[ir_graph.Node]:
    """Return the nodes that compute `roots`, up to those for which `stops` is true."""
    out: set[ir_graph.Node] = set()
    stack = [ir_graph.producer(v) for v in roots]
    while stack:
        n = stack.pop()
        if n is None or n in out or stops(n):
            continue
        out.add(n)
        stack += [ir_graph.producer(v) for v in n.inputs if v is not None]
    return out


def _union(
    table: Mapping[ir_graph.Node, frozenset[T]], nodes: Iterable[ir_graph.Node]
) -> frozenset[T]:
    return frozenset[T]().union(*(table.get(n, frozenset()) for n in nodes))
