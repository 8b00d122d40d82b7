"""The outputs of a program, and the tensors that must be in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from superopt.ir import graph as ir_graph
from superopt.plan.lowering.graph_tensors import GraphTensors
from superopt.plan.lowering.image_layouts import blocked_layouts
from superopt.plan.lowering.polyphase import WrittenParts
from superopt.te.analysis.walk import reductions
from superopt.te.expr.node import Const
from superopt.te.expr.tensor import Tensor, compute


def materialized_tensors(outputs: Sequence[Tensor], tensors: GraphTensors) -> set[Tensor]:
    """Return the tensors that must be in memory."""
    positions = {x.positions for x in tensors.placements.values() if x.positions.body is not None}
    return {*outputs, *(x.tensor for some in tensors.parts.values() for x in some), *positions}


def output_tensors(graph: ir_graph.Graph, tensors: GraphTensors) -> list[Tensor]:
    """Return a separate tensor for each output."""
    out: list[Tensor] = []
    for v in graph.outputs:
        t = tensors.leaf(v)
        if v in tensors.memories and tensors.memories[v].after not in out:
            out.append(tensors.memories[v].after)
            continue
        if isinstance(t, Const):
            held = t
            t = compute(tuple(v.type.shape or ()), lambda *i: held, name="copy")  # noqa: B023
        elif t in out or (t.body is None and t not in tensors.parts):
            source = t
            t = compute(source.shape, lambda *i: source[i], name="copy")  # noqa: B023
        out.append(t)
    return out


def copy_image_outputs(
    outputs: Sequence[Tensor],
    current: Mapping[Tensor, Tensor],
    parts: WrittenParts,
) -> tuple[list[Tensor], dict[Tensor, Tensor]]:
    """Return outputs and definitions in which an output of windowed reductions is computed in an
    image layout and then copied."""
    images = blocked_layouts(current, (), parts)
    out: list[Tensor] = []
    more = dict(current)
    for t in outputs:
        own = [x.tensor for x in parts.get(t, ())] or [t]
        found = [r for x in own if x in current for r in reductions(current[x].body)]
        if t in images and any(len(r.axes) > 1 for r in found):
            copy = compute(t.shape, lambda *i, t=t: t[i], name="copy")
            more[copy] = copy
            out.append(copy)
        else:
            out.append(t)
    return out, more
