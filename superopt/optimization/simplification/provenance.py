"""Names and metadata of what simplification made: weights are named after those that they replace,
and the metadata of nodes and of the model names the rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from superopt.ir import graph as ir_graph
from superopt.onnx_io.export.exporter import ExportedModel, export_with_names
from superopt.onnx_io.import_.model import Model
from superopt.optimization.candidate import find_node_names
from superopt.optimization.report.graph_change import trace_steps
from superopt.search.improve import Variant

RULES_KEY = "superopt.rules"  # in metadata_props
NODE_METADATA_SINCE_IR_VERSION = 10


def export_with_provenance(model: Model, variant: Variant, folded: ir_graph.Graph) -> ExportedModel:
    """Return the ONNX model of a folded variant, with provenance, and the names of its values."""
    bases = _folded_weight_names(model, variant.graph, folded)
    made, names = export_with_names(model, folded, constant_bases=bases, keep_constant_nodes=False)
    if variant.steps:
        counts = Counter(s.rule for s in variant.steps)
        made.metadata_props[RULES_KEY] = ", ".join(f"{n} x {r}" for r, n in sorted(counts.items()))
    if (made.ir_version or 0) >= NODE_METADATA_SINCE_IR_VERSION:
        rules = _rules_by_value_name(model, variant, folded, names)
        for node in made.graph:
            used = {r for v in node.outputs if v.name for r in rules.get(v.name, ())}
            if used:
                node.metadata_props[RULES_KEY] = ", ".join(sorted(used))
    return made, names


def _rules_by_value_name(
    model: Model, variant: Variant, folded: ir_graph.Graph, names: dict[ir_graph.Value, str]
) -> dict[str, frozenset[str]]:
    """Return the rules that made the node of each value of the file, by the value's name."""
    made_by = trace_steps(model, variant.steps).last.made_by
    written = find_node_names(variant.graph, folded, names)
    return {
        written[n]: frozenset(variant.steps[i].rule for i in steps)
        for n, steps in made_by.items()
        if written.get(n)
    }


def _folded_weight_names(
    model: Model, graph: ir_graph.Graph, folded: ir_graph.Graph
) -> dict[ir_graph.Constant, str]:
    """Return a name for each constant that was folded: that of the largest one that it was computed
    from, with `_folded`."""
    found: dict[ir_graph.Constant, str] = {}
    seen: set[tuple[ir_graph.Value, ir_graph.Value]] = set()
    pending = list(zip(graph.outputs, folded.outputs, strict=True))
    while pending:
        pair = pending.pop()
        v, w = pair
        if v is w or pair in seen:
            continue
        seen.add(pair)
        if isinstance(w, ir_graph.Constant):
            sources = [c for c in _constants_above(v) if model.names.get(c)]
            if sources:
                largest = max(sources, key=lambda c: (c.nbytes, model.names[c]))
                found.setdefault(w, f"{model.names[largest]}_folded")
            continue
        n, m = ir_graph.producer(v), ir_graph.producer(w)
        if n is not None and m is not None:
            pending += [
                (a, b)
                for a, b in zip(n.inputs, m.inputs, strict=True)
                if a is not None and b is not None
            ]
    return found


def _constants_above(value: ir_graph.Value) -> Iterator[ir_graph.Constant]:
    pending, seen = [value], {value}
    while pending:
        v = pending.pop()
        if isinstance(v, ir_graph.Constant):
            yield v
        fresh = [w for w in ir_graph.operands(v) if w not in seen]
        seen.update(fresh)
        pending += fresh
