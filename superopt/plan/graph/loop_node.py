"""The loop node: repeats a body, as ONNX's Scan does, for a number of steps that is a size.

operands   the initial states; tensors of which the body reads one slice in each step: as many
           elements as the body's input, contiguous, one slice after the other; loop invariants
body       a graph from states, slices and invariants to the next states and to slices
results    the final states; tensors of the slices that the body returns

Slices that do not divide a tensor overlap in the last step. A body is compiled once, whatever the
number of steps (linking/link.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from superopt.ir import graph
from superopt.ir.constant_values import is_constant
from superopt.ir.op import Op, Payload
from superopt.ir.substitute import substitute_values
from superopt.te.expr.node import Dim
from superopt.te.expr.tensor import TensorType

LOOP_OP = Op("Loop", None, domain=None)


@dataclass(frozen=True, slots=True)
class LoopSpec:
    """What a loop node repeats.

    body: its inputs are states, slices and invariants, its outputs the next states and slices.
    steps: at least 1. states: their number. reads_backward, writes_backward: for each tensor of
    slices, whether step k uses the slice that is k before the last.
    """

    body: graph.Graph
    steps: Dim
    states: int
    reads_backward: tuple[bool, ...]
    writes_backward: tuple[bool, ...]

    def slices(self) -> tuple[graph.Value, ...]:
        """Return the values of the body that are slices, first read, then written."""
        read = self.body.inputs[self.states : self.states + len(self.reads_backward)]
        return (*read, *self.body.outputs[self.states :])


def loop_spec(n: graph.Node) -> LoopSpec:
    """Return what a loop node repeats."""
    payload = n.attr("payload")
    assert isinstance(payload, Payload)
    assert isinstance(payload.content, LoopSpec)
    return payload.content


def make_loop(
    spec: LoopSpec,
    states: Sequence[graph.Value],
    slices: Sequence[graph.Value],
    stacked: Sequence[TensorType],
    label: str,
) -> list[graph.Value]:
    """Return the results of a loop. Outer values that the body reads become operands, except those
    computed from constants only. stacked: the types of results made of slices. label: the operator
    that it replaces, for reports."""
    inputs = spec.body.inputs
    outer = _captured_values(spec.body)
    inner = [graph.Input(f"outer{n}", v.type) for n, v in enumerate(outer)]
    body = graph.Graph((*inputs, *inner), spec.body.outputs)
    body = substitute_values(body, dict(zip(outer, inner, strict=True)), recursive=False)[0]
    final = [v.type for v in spec.body.outputs[: spec.states]]
    payload = Payload(replace(spec, body=body), label)
    return list(
        graph.results(
            graph.opaque_node(LOOP_OP, (*states, *slices, *outer), payload, (*final, *stacked))
        )
    )


def _captured_values(body: graph.Graph) -> list[graph.Value]:
    """Return the outer values that a body reads and that are not computed from constants."""
    own, known = set(body.inputs), dict[graph.Node, bool]()
    inside: dict[graph.Node, bool] = {}

    def hangs(v: graph.Value | None) -> bool:
        """True if a value depends on the body's inputs."""
        p = None if v is None else graph.producer(v)
        return v in own or (p is not None and inside.get(p, False))

    for n in graph.nodes(body):
        inside[n] = any(map(hangs, n.inputs))
    found: dict[graph.Value, None] = {}
    for v in (*(v for n in inside if inside[n] for v in n.inputs), *body.outputs):
        if v is None or v in own or is_constant(v, known):
            continue
        p = graph.producer(v)
        if p is None or not inside[p]:
            found[v] = None
    return list(found)
