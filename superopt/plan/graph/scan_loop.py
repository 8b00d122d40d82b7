"""Lower Scan and Loop nodes whose number of steps is a size to loop nodes (loop_node.py).

Kernels compute their bodies if each operator has a kernel and all shapes are known. A Loop node
must always run to its end: the condition is true at the start and the body does not change it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast
from weakref import WeakKeyDictionary

import numpy as np

from superopt.ir import graph
from superopt.ir.constant_values import is_constant
from superopt.ir.evaluate import evaluate
from superopt.ir.op import Payload
from superopt.ir.substitute import substitute_values
from superopt.onnx_io.import_.loop_bodies import UnreadableBody, body_graph
from superopt.plan.graph.loop_node import LoopSpec, make_loop
from superopt.plan.graph.recurrent_step import make_node
from superopt.te.expr.node import Dim
from superopt.te.expr.tensor import TensorType

SCAN_SINCE = 9  # the opset version from which on Scan has no batch axis
MAX_LOOP_STEPS = 1 << 20  # of a Loop node: a larger count means "no limit"


class UnsupportedLoop(NotImplementedError):
    """Why a node is not lowered to a loop."""


@dataclass(frozen=True, slots=True)
class ScanLoop:
    """A node as a loop. states: the initial states. slices: tensors of slices, with the axis along
    which they are sliced. axes: for results made of slices, the axis of the slices."""

    spec: LoopSpec
    states: tuple[graph.Value, ...]
    slices: tuple[tuple[graph.Value, int], ...]
    axes: tuple[int, ...]


_ANALYSED: WeakKeyDictionary[graph.Node, ScanLoop | str] = WeakKeyDictionary()


def is_scan_or_loop(n: graph.Node) -> bool:
    """True for a Scan or Loop as read from the model."""
    return n.op.name in ("Scan", "Loop") and n.op.domain == "" and n.op.opaque


def unsupported_loop_reason(n: graph.Node) -> str:
    """Return why such a node is not lowered to a loop; an empty string if it is."""
    if n not in _ANALYSED:
        try:
            _ANALYSED[n] = _analyse_scan(n) if n.op.name == "Scan" else _analyse_loop(n)
        except (UnsupportedLoop, UnreadableBody) as e:
            _ANALYSED[n] = f"{n.op.name}: {e}"
    found = _ANALYSED[n]
    return found if isinstance(found, str) else ""


def loop_body(n: graph.Node) -> graph.Graph:
    """Return the graph that one step of such a node computes."""
    return _analysed_loop(n).spec.body


def lower_scan_or_loop(n: graph.Node) -> list[graph.Value]:
    """Return the results of a node that is lowered to a loop."""
    s = _analysed_loop(n)
    slices = [_move_axis(v, axis, 0) for v, axis in s.slices]
    outs = s.spec.body.outputs[s.spec.states :]
    stacked = [TensorType(v.type.dtype, (s.spec.steps, *(v.type.shape or ()))) for v in outs]
    made = make_loop(s.spec, s.states, slices, stacked, n.op.name)
    last, rows = made[: s.spec.states], made[s.spec.states :]
    return [*last, *(_move_axis(v, 0, axis) for v, axis in zip(rows, s.axes, strict=True))]


def _analysed_loop(n: graph.Node) -> ScanLoop:
    assert not unsupported_loop_reason(n)
    s = _ANALYSED[n]
    assert isinstance(s, ScanLoop)
    return s


def _move_axis(v: graph.Value, axis: int, target: int) -> graph.Value:
    """Return the value with an axis moved."""
    if axis == target:
        return v
    order = [k for k in range(len(v.type.shape or ())) if k != axis]
    return make_node("Transpose", v, perm=(*order[:target], axis, *order[target:]))


def _analyse_scan(n: graph.Node) -> ScanLoop:
    node = _model_node(n)
    _check_version(node)
    a = {k: x.value for k, x in node.attributes.items()}
    count = len(node.inputs)
    given = list(n.inputs[:count])
    if any(v is None for v in given):
        raise UnsupportedLoop("an input is missing")
    values = cast("list[graph.Value]", given)
    sliced = int(a["num_scan_inputs"])
    states, scans = values[: count - sliced], values[count - sliced :]
    results = len(n.types) - len(states)
    axes = _normalize_axes(a.get("scan_input_axes"), [len(_known_shape(v.type)) for v in scans])
    lengths = {_known_shape(v.type)[k] for v, k in zip(scans, axes, strict=True)}
    if len(lengths) != 1 or 0 in lengths:
        raise UnsupportedLoop("it has no steps, or inputs have different lengths")
    parts = [_without_axis(v.type, k) for v, k in zip(scans, axes, strict=True)]
    body = body_graph(node, [*(v.type for v in states), *parts], n.inputs[count:])
    _check_body(body, states, len(states) + results)
    backward = _parse_directions(a.get("scan_input_directions"), sliced)
    ranks = [len(_known_shape(v.type)) + 1 for v in body.outputs[len(states) :]]
    out_axes = _normalize_axes(a.get("scan_output_axes"), ranks)
    out_backward = _parse_directions(a.get("scan_output_directions"), results)
    what = LoopSpec(body, lengths.pop(), len(states), backward, out_backward)
    return ScanLoop(what, tuple(states), tuple(zip(scans, axes, strict=True)), tuple(out_axes))


def _analyse_loop(n: graph.Node) -> ScanLoop:
    node = _model_node(n)
    count = len(node.inputs)
    trip, condition, *states = n.inputs[:count]
    if not isinstance(trip, graph.Constant) or (steps := int(trip.load())) > MAX_LOOP_STEPS:
        raise UnsupportedLoop("its number of steps is known only at run time")
    if condition is not None and not (
        isinstance(condition, graph.Constant) and condition.load().all()
    ):
        raise UnsupportedLoop("whether it begins is known only at run time")
    if steps < 1 or any(v is None for v in states):
        raise UnsupportedLoop("it has no steps or an input is missing")
    values = cast("list[graph.Value]", states)
    number, on = TensorType(trip.type.dtype, ()), graph.constant(np.array(True))
    read = body_graph(node, [number, on.type, *(v.type for v in values)], n.inputs[count:])
    step, condition_in, *own = read.inputs
    goes_on, *outs = substitute_values(read, {condition_in: on}, recursive=False)[0].outputs
    if not is_constant(goes_on, {}) or not evaluate(graph.Graph((), (goes_on,)), {})[0].all():
        raise UnsupportedLoop("its body may end the loop")
    body = graph.Graph((*own, step), tuple(outs))
    _check_body(body, values, len(n.types))
    numbers = graph.constant(np.arange(steps, dtype=trip.load().dtype))
    results = len(outs) - len(values)
    what = LoopSpec(body, steps, len(values), (False,), (False,) * results)
    return ScanLoop(what, tuple(values), ((numbers, 0),), (0,) * results)


def _model_node(n: graph.Node) -> Any:
    payload = n.attr("payload")
    assert isinstance(payload, Payload)
    return payload.content


def _check_version(node: Any) -> None:
    version = node.graph.opset_imports.get("", 0) if hasattr(node.graph, "opset_imports") else 0
    if version < SCAN_SINCE:
        raise UnsupportedLoop(f"opset {version}, in which Scan has a batch axis")


def _check_body(body: graph.Graph, states: Sequence[graph.Value], outputs: int) -> None:
    """Raise UnsupportedLoop if a step returns other types than the next one takes."""
    if len(body.outputs) != outputs:
        raise UnsupportedLoop(f"its body returns {len(body.outputs)} values; expected {outputs}")
    for before, after in zip(states, body.outputs, strict=False):
        if before.type != after.type:
            raise UnsupportedLoop(f"a state of {before.type} becomes one of {after.type}")
    if any(n.op.name in ("LSTM", "GRU", "RNN", "Scan", "Loop") for n in graph.nodes(body)):
        raise UnsupportedLoop("its body contains a loop")


def _known_shape(t: TensorType) -> tuple[Dim, ...]:
    if t.shape is None:
        raise UnsupportedLoop(f"a shape that is known only at run time: {t}")
    return t.shape


def _without_axis(t: TensorType, axis: int) -> TensorType:
    shape = _known_shape(t)
    return TensorType(t.dtype, (*shape[:axis], *shape[axis + 1 :]))


def _normalize_axes(axes: Sequence[int] | None, ranks: Sequence[int]) -> list[int]:
    """Return non-negative axes of tensors with these ranks."""
    return [a % rank for a, rank in zip(axes or [0] * len(ranks), ranks, strict=True)]


def _parse_directions(flags: Sequence[int] | None, count: int) -> tuple[bool, ...]:
    """Return for each tensor whether its slices are in reverse order."""
    return tuple(map(bool, flags or [0] * count))
