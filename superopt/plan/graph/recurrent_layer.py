"""LSTM, GRU and RNN layers: their parameters, and why kernels do not support a layer.

DynamicQuantizeLSTM of com.microsoft is an LSTM whose products are of 8-bit integers. ONNX Runtime
quantizes the state of all sequences, or of those of each thread, with one scale: kernels support
one sequence.

Layers are lowered to their steps: unrolled if there are few (recurrent_unroll.py), else, or if
their number is symbolic, as a loop (recurrent_loop.py). A GPU has no loops; there longer layers are
unrolled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from superopt.ir import graph
from superopt.ir.constant_values import is_constant
from superopt.ir.op import Payload
from superopt.ops.quantized.nbits import CONTRIB_DOMAIN
from superopt.plan.graph.recurrent_activations import (
    Activation,
    UnknownActivation,
    parse_activations,
)
from superopt.te.expr.dtype import F32, F64, I8, U8
from superopt.te.expr.node import Dim

# Steps of all directions together, up to which a layer is unrolled.
MAX_UNROLLED_STEPS, MAX_UNROLLED_STEPS_GPU = 8, 1024
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
# Activations of a direction, in the order of the attribute.
DEFAULT_ACTIVATIONS = {
    "LSTM": ("sigmoid", "tanh", "tanh"),
    "GRU": ("sigmoid", "tanh"),
    "RNN": ("tanh",),
}
# Indices of a node's inputs.
X, W, R, B, LENGTHS, H, C, P = range(8)
W_SCALE, W_ZERO, R_SCALE, R_ZERO = range(8, 12)  # of DynamicQuantizeLSTM
QUANTIZED_LAYER = "DynamicQuantizeLSTM"
BACKWARD = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


class Unsupported(NotImplementedError):
    """Why kernels do not support a recurrent layer."""


@dataclass(frozen=True, slots=True)
class Recurrent:
    """A recurrent layer.

    steps, batch: the sizes of x, which may be symbolic. hidden: elements of a state. backward: for
    each direction, whether it begins with the last step. activations: of each direction. clip: the
    bound on the arguments of activations, None for no bound. coupled: LSTM's input_forget.
    reset_after: GRU's linear_before_reset. batch_first: layout 1. has_varied_lengths: sequences may
    be shorter than the number of steps. is_quantized: products are of 8-bit integers. first_row:
    for a layer of a part of the sequences, the index of the first one; None for all of them.
    """

    node: graph.Node
    kind: str
    steps: Dim
    batch: Dim
    hidden: int
    backward: tuple[bool, ...]
    activations: tuple[tuple[Activation, ...], ...]
    clip: float | None
    coupled: bool
    reset_after: bool
    batch_first: bool
    has_varied_lengths: bool
    is_quantized: bool = False
    first_row: int | None = None

    @property
    def static_steps(self) -> int | None:
        """The number of steps of all directions together; None if it is symbolic."""
        return self.steps * len(self.backward) if isinstance(self.steps, int) else None

    def input(self, k: int) -> graph.Value | None:
        return self.node.inputs[k] if k < len(self.node.inputs) else None


def is_recurrent(n: graph.Node) -> bool:
    """True for an LSTM, GRU or RNN as read from the model."""
    return n.op.opaque and (_is_quantized(n) or (n.op.name in GATES and not n.op.domain))


def _is_quantized(n: graph.Node) -> bool:
    return n.op.name == QUANTIZED_LAYER and n.op.domain == CONTRIB_DOMAIN


def parse_layer(n: graph.Node, max_steps: int | None = None) -> Recurrent:
    """Return the layer of a node. max_steps: for a target without loops, which supports plain
    layers only.

    Raises Unsupported if kernels do not support it.
    """
    attributes = {k: a.value for k, a in model_node(n).attributes.items()}
    batch_first = bool(attributes.get("layout", 0))
    x, r = (_three_sizes(n.inputs[k] if k < len(n.inputs) else None) for k in (X, R))
    static = [d for d in r or () if isinstance(d, int)]
    if x is None or not isinstance(x[2], int) or len(static) != 3:
        raise Unsupported("a shape that is known only at run time")
    steps, batch = (x[1], x[0]) if batch_first else (x[0], x[1])
    is_quantized = _is_quantized(n)
    kind = "LSTM" if is_quantized else n.op.name
    count, hidden = static[0], static[1 if is_quantized else 2]
    backward = BACKWARD.get(str(attributes.get("direction", "forward")), ())
    if steps == 0 or 0 in static:
        raise Unsupported("it has no steps or no state")
    try:
        functions = parse_activations(attributes, DEFAULT_ACTIVATIONS[kind] * count)
    except UnknownActivation as e:
        raise Unsupported(str(e)) from None
    each = len(DEFAULT_ACTIVATIONS[kind])
    out = Recurrent(
        n, kind, steps, batch, hidden, backward,
        tuple(functions[d * each : (d + 1) * each] for d in range(count)),
        float(attributes["clip"]) if attributes.get("clip") else None,
        bool(attributes.get("input_forget", 0)),
        bool(attributes.get("linear_before_reset", 0)),
        batch_first,
        not _has_full_lengths(n.inputs[LENGTHS] if len(n.inputs) > LENGTHS else None, steps),
        is_quantized,
    )  # fmt: skip
    _check_types(out)
    if len(backward) != count or attributes.get("hidden_size", hidden) != hidden:
        raise Unsupported("its direction or hidden_size does not fit the shape of R")
    _check_shapes(out, x[2])
    if is_quantized:
        _check_quantized(out, max_steps)
    if max_steps is not None:
        if out.static_steps is None or out.static_steps > max_steps:
            raise Unsupported(f"more than {max_steps} steps: {_step_count_text(steps, count)}")
        _check_plain(out)
    return out


def unsupported_layer_reason(n: graph.Node, max_steps: int | None = None) -> str:
    """Return why kernels do not support a recurrent layer; an empty string if they do."""
    try:
        parse_layer(n, max_steps)
    except Unsupported as e:
        return f"{n.op.name}: {e}"
    return ""


def model_node(n: graph.Node) -> Any:
    """Return the node of the model's file, with its attributes and outputs."""
    payload = n.attr("payload")
    assert isinstance(payload, Payload)
    return payload.content


def _step_count_text(steps: Dim, directions: int) -> str:
    return f"{steps}" if directions == 1 else f"{steps} in each of {directions} directions"


def _three_sizes(v: graph.Value | None) -> tuple[Dim, ...] | None:
    """Return the three sizes of a value; None where their number is unknown."""
    shape = None if v is None else v.type.shape
    return shape if len(shape or ()) == 3 else None


def _has_full_lengths(lengths: graph.Value | None, steps: Dim) -> bool:
    """True if all sequences are known to have the full length."""
    if lengths is None:
        return True
    return (
        isinstance(steps, int)
        and isinstance(lengths, graph.Constant)
        and bool(np.all(lengths.load() == steps))
    )


def _check_types(r: Recurrent) -> None:
    others = (LENGTHS, *((W, R, W_ZERO, R_ZERO) if r.is_quantized else ()))
    inputs = [v for k, v in enumerate(r.node.inputs) if v is not None and k not in others]
    kinds = {v.type.dtype for v in inputs}
    if len(kinds) > 1 or kinds - {F32, F64}:
        shown = ", ".join(sorted(map(str, kinds)))
        raise Unsupported(f"its element types are {shown}; kernels take float32 or float64")


def _check_shapes(r: Recurrent, size: int) -> None:
    """size: elements of x in a step."""
    d, gates = len(r.backward), GATES[r.kind] * r.hidden
    state = (r.batch, d, r.hidden) if r.batch_first else (d, r.batch, r.hidden)
    wanted: Mapping[int, Sequence[Dim]] = {
        W: (d, gates, size), R: (d, gates, r.hidden), B: (d, 2 * gates), LENGTHS: (r.batch,),
        H: state, C: state, P: (d, 3 * r.hidden),
    }  # fmt: skip
    if r.is_quantized:
        wanted = {**wanted, W: (d, size, gates), R: (d, r.hidden, gates)}
    y = (r.batch, r.steps, d, r.hidden) if r.batch_first else (r.steps, d, r.batch, r.hidden)
    given = [(r.input(k), shape) for k, shape in wanted.items()]
    named = [bool(v.name) for v in model_node(r.node).outputs]  # unnamed outputs are unused
    types = zip(named, r.node.types, (y, state, state), strict=False)
    made = [t.shape == shape for name, t, shape in types if name and t.dtype]
    if not all(made) or not all(v is None or v.type.shape == shape for v, shape in given):
        raise Unsupported("the shapes of its inputs and results do not fit each other")


def _check_quantized(r: Recurrent, max_steps: int | None) -> None:
    """Raise Unsupported for a layer of integers whose products have no fast kernels, or whose
    results depend on threads."""
    if max_steps is not None:
        raise Unsupported("products of 8-bit integers on this target")
    if r.batch != 1 or r.has_varied_lengths or r.batch_first:
        raise Unsupported("several sequences, which onnxruntime quantizes by threads")
    held = [r.input(k) for k in (W, R, W_SCALE, R_SCALE, W_ZERO, R_ZERO)]
    if any(v is None for v in held[:4]) or not all(v is None or is_constant(v, {}) for v in held):
        raise Unsupported("weights, scales or zero points that are not constant")
    if any(v is not None and v.type.dtype not in (I8, U8) for v in (*held[:2], *held[4:])):
        raise Unsupported("weights of more than 8 bits")


def _check_plain(r: Recurrent) -> None:
    """Raise Unsupported for an option that a target without loops does not support."""
    usual = DEFAULT_ACTIVATIONS[r.kind]
    reasons = {
        "peepholes": r.input(P) is not None,
        "clip": r.clip is not None,
        "input_forget": r.coupled,
        "sequence_lens": r.has_varied_lengths,
        "activations": any(tuple(a.name for a in some) != usual for some in r.activations),
    }
    found = [name for name, has in reasons.items() if has]
    if found:
        raise Unsupported(f"{', '.join(found)} on this target")
