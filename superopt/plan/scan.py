"""Lower Scan and Loop nodes with a known number of steps to loop nodes (loop_node.py).

Kernels compute their bodies if each operator has a kernel and all shapes are static. A Loop node
must always run to its end: the condition is true at the start and the body does not change it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast
from weakref import WeakKeyDictionary

import numpy as np

from superopt.ir import graph as g
from superopt.ir.constancy import is_constant
from superopt.ir.evaluate import evaluate
from superopt.ir.op import Payload
from superopt.ir.substitute import substituted
from superopt.onnx_io.bodies import Unreadable, body_graph
from superopt.plan.loops import Repeat, loop
from superopt.plan.recurrent_steps import do
from superopt.te.expr import TensorType

SCAN_SINCE = 9  # the opset version from which on Scan has no batch axis
MAX_LOOP_STEPS = 1 << 20  # of a Loop node: a larger count means "no limit"


class Unlooped(NotImplementedError):
    """Why a node is not lowered to a loop."""


@dataclass(frozen=True, slots=True)
class Scan:
    """A node as a loop. states: the initial states. slices: tensors of slices, with the axis along
    which they are sliced. axes: for results made of slices, the axis of the slices."""

    what: Repeat
    states: tuple[g.Value, ...]
    slices: tuple[tuple[g.Value, int], ...]
    axes: tuple[int, ...]


_KNOWN: WeakKeyDictionary[g.Node, Scan | str] = WeakKeyDictionary()


def is_scan(n: g.Node) -> bool:
    """True for a Scan or Loop as read from the model."""
    return n.op.name in ("Scan", "Loop") and n.op.domain == "" and n.op.opaque


def why_no_loop(n: g.Node) -> str:
    """Return why such a node is not lowered to a loop; an empty string if it is."""
    if n not in _KNOWN:
        try:
            _KNOWN[n] = _scan(n) if n.op.name == "Scan" else _loop(n)
        except (Unlooped, Unreadable) as e:
            _KNOWN[n] = f"{n.op.name}: {e}"
    found = _KNOWN[n]
    return found if isinstance(found, str) else ""


def body_of(n: g.Node) -> g.Graph:
    """Return the graph that one step of such a node computes."""
    return _known(n).what.body


def scan_loop(n: g.Node) -> list[g.Value]:
    """Return the results of a node that is lowered to a loop."""
    s = _known(n)
    slices = [_moved(v, axis, 0) for v, axis in s.slices]
    outs = s.what.body.outputs[s.what.states :]
    stacked = [TensorType(v.type.dtype, (s.what.steps, *(v.type.shape or ()))) for v in outs]
    made = loop(s.what, s.states, slices, stacked, n.op.name)
    last, rows = made[: s.what.states], made[s.what.states :]
    return [*last, *(_moved(v, 0, axis) for v, axis in zip(rows, s.axes, strict=True))]


def _known(n: g.Node) -> Scan:
    assert not why_no_loop(n)
    s = _KNOWN[n]
    assert isinstance(s, Scan)
    return s


def _moved(v: g.Value, axis: int, to: int) -> g.Value:
    """Return the value with an axis moved."""
    if axis == to:
        return v
    order = [k for k in range(len(v.type.shape or ())) if k != axis]
    return do("Transpose", v, perm=(*order[:to], axis, *order[to:]))


def _scan(n: g.Node) -> Scan:
    node = _file_node(n)
    _check_version(node)
    a = {k: x.value for k, x in node.attributes.items()}
    count = len(node.inputs)
    given = list(n.inputs[:count])
    if any(v is None for v in given):
        raise Unlooped("an input is missing")
    values = cast("list[g.Value]", given)
    sliced = int(a["num_scan_inputs"])
    states, scans = values[: count - sliced], values[count - sliced :]
    results = len(n.types) - len(states)
    axes = _axes(a.get("scan_input_axes"), [len(_shape(v.type)) for v in scans])
    lengths = {_shape(v.type)[k] for v, k in zip(scans, axes, strict=True)}
    if len(lengths) != 1 or 0 in lengths:
        raise Unlooped("it has no steps, or inputs have different lengths")
    parts = [_without_axis(v.type, k) for v, k in zip(scans, axes, strict=True)]
    body = body_graph(node, [*(v.type for v in states), *parts], n.inputs[count:])
    _check(body, states, len(states) + results)
    backward = _directions(a.get("scan_input_directions"), sliced)
    ranks = [len(_shape(v.type)) + 1 for v in body.outputs[len(states) :]]
    out_axes = _axes(a.get("scan_output_axes"), ranks)
    out_backward = _directions(a.get("scan_output_directions"), results)
    what = Repeat(body, lengths.pop(), len(states), backward, out_backward)
    return Scan(what, tuple(states), tuple(zip(scans, axes, strict=True)), tuple(out_axes))


def _loop(n: g.Node) -> Scan:
    node = _file_node(n)
    count = len(node.inputs)
    trip, condition, *states = n.inputs[:count]
    if not isinstance(trip, g.Constant) or (steps := int(trip.load())) > MAX_LOOP_STEPS:
        raise Unlooped("its number of steps is known only at run time")
    if condition is not None and not (isinstance(condition, g.Constant) and condition.load().all()):
        raise Unlooped("whether it begins is known only at run time")
    if steps < 1 or any(v is None for v in states):
        raise Unlooped("it has no steps or an input is missing")
    values = cast("list[g.Value]", states)
    number, on = TensorType(trip.type.dtype, ()), g.constant(np.array(True))
    read = body_graph(node, [number, on.type, *(v.type for v in values)], n.inputs[count:])
    step, condition_in, *own = read.inputs
    goes_on, *outs = substituted(read, {condition_in: on}, inside=False)[0].outputs
    if not is_constant(goes_on, {}) or not evaluate(g.Graph((), (goes_on,)), {})[0].all():
        raise Unlooped("its body may end the loop")
    body = g.Graph((*own, step), tuple(outs))
    _check(body, values, len(n.types))
    numbers = g.constant(np.arange(steps, dtype=trip.load().dtype))
    results = len(outs) - len(values)
    what = Repeat(body, steps, len(values), (False,), (False,) * results)
    return Scan(what, tuple(values), ((numbers, 0),), (0,) * results)


def _file_node(n: g.Node) -> Any:
    payload = n.attr("payload")
    assert isinstance(payload, Payload)
    return payload.content


def _check_version(node: Any) -> None:
    version = node.graph.opset_imports.get("", 0) if hasattr(node.graph, "opset_imports") else 0
    if version < SCAN_SINCE:
        raise Unlooped(f"opset {version}, in which Scan has a batch axis")


def _check(body: g.Graph, states: Sequence[g.Value], outputs: int) -> None:
    """Raise UnsupportedLoop if a step returns other types than the next one takes."""
    if len(body.outputs) != outputs:
        raise Unlooped(f"its body returns {len(body.outputs)} values; expected {outputs}")
    for before, after in zip(states, body.outputs, strict=False):
        if before.type != after.type:
            raise Unlooped(f"a state of {before.type} becomes one of {after.type}")
    if any(n.op.name in ("LSTM", "GRU", "RNN", "Scan", "Loop") for n in g.nodes(body)):
        raise Unlooped("its body contains a loop")


def _shape(t: TensorType) -> tuple[int, ...]:
    shape = tuple(d for d in t.shape or () if isinstance(d, int))
    if t.shape is None or len(shape) < len(t.shape):
        raise Unlooped(f"a shape that is known only at run time: {t}")
    return shape


def _without_axis(t: TensorType, axis: int) -> TensorType:
    shape = _shape(t)
    return TensorType(t.dtype, (*shape[:axis], *shape[axis + 1 :]))


def _axes(given: Sequence[int] | None, ranks: Sequence[int]) -> list[int]:
    """Return non-negative axes of tensors with these ranks."""
    return [a % rank for a, rank in zip(given or [0] * len(ranks), ranks, strict=True)]


def _directions(given: Sequence[int] | None, count: int) -> tuple[bool, ...]:
    """Return for each tensor whether its slices are in reverse order."""
    return tuple(map(bool, given or [0] * count))
