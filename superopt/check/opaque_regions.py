"""Cut a graph at its opaque nodes: their results become inputs, their operands outputs.

The semantics of an opaque node is unknown and may be random. So two graphs are compared region by
region: both get the same results of their opaque nodes, and must compute the same operands of these
nodes and the same outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from superopt.check.random_inputs import Feeds, concrete_type, index_limit, random_array
from superopt.ir import graph as ir_graph
from superopt.ir.op import Attr


class UnmatchedOpaqueNode(ValueError):
    """An opaque node of one graph has no single counterpart in the other."""


@dataclass(frozen=True, slots=True)
class ObservedValue:
    """A value that a rewrite must preserve: an output of the model, or an operand of an opaque
    node.

    value: in the graph before it was cut.
    """

    name: str
    value: ir_graph.Value
    is_output: bool


@dataclass(frozen=True, slots=True)
class Regions:
    """The original, cut at its opaque nodes.

    observed: the values to preserve; graph: without opaque nodes, its outputs are the observed
    values; opaque_results: for each opaque node (by its payload) the inputs that stand for its
    results.
    """

    observed: tuple[ObservedValue, ...]
    graph: ir_graph.Graph
    opaque_results: Mapping[Attr, tuple[ir_graph.Input, ...]]


def opaque_nodes(graph: ir_graph.Graph) -> list[ir_graph.Node]:
    """Return the nodes without a tensor expression, in order."""
    return [n for n in ir_graph.nodes(graph) if n.op.opaque]


def opaque_key(n: ir_graph.Node) -> Attr:
    """Return the key that identifies an opaque node across rewrites."""
    return n.attr("payload")


def cut_at_opaque_nodes(original: ir_graph.Graph, names: Sequence[str]) -> Regions:
    """Cut `original`, whose outputs have the names `names`."""
    taken = {i.name for i in original.inputs}
    free: dict[Attr, tuple[ir_graph.Input, ...]] = {}
    places = [ObservedValue(name, v, True) for name, v in zip(names, original.outputs, strict=True)]
    for n in opaque_nodes(original):
        key = opaque_key(n)
        made: list[ir_graph.Input] = []
        for k, result in enumerate(ir_graph.results(n)):
            name = f"result {k} of {key}"
            while name in taken:
                name += "'"
            taken.add(name)
            made.append(ir_graph.Input(name, result.type))
        free[key] = tuple(made)
        for k, v in enumerate(n.inputs):
            if v is not None and v.type.dtype is not None:
                places.append(ObservedValue(f"input {k} of {key}", v, False))
    return Regions(
        tuple(places), _replace_opaque_results(original, [p.value for p in places], free), free
    )


def cut_candidate(
    regions: Regions, candidate: ir_graph.Graph
) -> tuple[ir_graph.Graph, tuple[ir_graph.Value | None, ...]]:
    """Return `candidate` cut at the same opaque nodes, and its (uncut) observed values.

    The graph has the outputs of the regions' graph. If the candidate lacks an observed value,
    because nothing reads the opaque node any more, the original's own value is the output, and the
    observed value is None. Raises UnmatchedOpaqueNode for an opaque node that is new or duplicated.
    """
    mine: dict[Attr, ir_graph.Node] = {}
    for n in opaque_nodes(candidate):
        key = opaque_key(n)
        if key in mine or key not in regions.opaque_results:
            raise UnmatchedOpaqueNode(f"{n.op.title} {key} is in the rewritten graph twice, or new")
        mine[key] = n
    found: list[ir_graph.Value | None] = list(candidate.outputs)
    for key, n in _opaque_nodes_by_key(regions):
        other = mine.get(key)
        for k, v in enumerate(n.inputs):
            if v is not None and v.type.dtype is not None:
                found.append(None if other is None else other.inputs[k])
    if len(found) != len(regions.observed):
        raise UnmatchedOpaqueNode("the rewritten graph has another number of outputs")
    wanted = [p.value if v is None else v for p, v in zip(regions.observed, found, strict=True)]
    done = _replace_opaque_results(candidate, wanted, regions.opaque_results)
    kept = zip(done.outputs, regions.graph.outputs, found, strict=True)
    outputs = tuple(theirs if v is None else ours for ours, theirs, v in kept)
    return ir_graph.Graph(regions.graph.inputs, outputs), tuple(found)


def _opaque_nodes_by_key(regions: Regions) -> list[tuple[Attr, ir_graph.Node]]:
    """Return every opaque node of the original with its key, in the order of the observed
    values."""
    roots = [p.value for p in regions.observed]
    found = {opaque_key(n): n for n in ir_graph.nodes(roots) if n.op.opaque}
    return [(key, found[key]) for key in regions.opaque_results]


def _replace_opaque_results(
    graph: ir_graph.Graph,
    wanted: Sequence[ir_graph.Value],
    opaque_results: Mapping[Attr, tuple[ir_graph.Input, ...]],
) -> ir_graph.Graph:
    change: dict[ir_graph.Value, ir_graph.Value] = {}
    for n in ir_graph.nodes(wanted):
        if n.op.opaque:
            change.update(zip(ir_graph.results(n), opaque_results[opaque_key(n)], strict=True))
    inputs = (*graph.inputs, *(i for some in opaque_results.values() for i in some))
    return ir_graph.replace(ir_graph.Graph(inputs, tuple(wanted)), change)


def draw_opaque_results(
    regions: Regions, feed: Feeds, unknown_sizes: Sequence[str], seed: int
) -> dict[str, np.ndarray]:
    """Return random results of opaque nodes, for when no runtime computes them.

    unknown_sizes: symbolic sizes that only such results define; each gets a small number. Results
        without a known rank and non-tensors get no value, and what depends on them cannot be
        checked.
    """
    sizes = {**feed.sizes, **{name: 3 + k % 3 for k, name in enumerate(unknown_sizes)}}
    found: dict[str, np.ndarray] = {}
    for number, inputs in enumerate(regions.opaque_results.values()):
        rng = np.random.default_rng((seed, number))
        for i in inputs:
            if i.type.shape is None:
                continue
            try:
                t = concrete_type(i.type, sizes)
                found[i.name] = random_array(t, "normal", index_limit(regions.graph, i, sizes), rng)
            except (KeyError, TypeError, ValueError):
                continue
    return found
