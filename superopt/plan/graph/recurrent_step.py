"""One step of an LSTM, GRU or RNN as graph operators, by ONNX's equations.

Tensors have directions first: states [directions, batch, hidden], inputs of a step [directions,
batch, gates * hidden].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from superopt.ir import graph
from superopt.ir.op import Attr
from superopt.ops import OPS
from superopt.ops.movement.slicing import PAST_START
from superopt.plan.graph.recurrent_activations import apply_activation, scalar_like
from superopt.plan.graph.recurrent_layer import (
    GATES,
    LENGTHS,
    R_SCALE,
    R_ZERO,
    W_SCALE,
    W_ZERO,
    B,
    P,
    R,
    Recurrent,
    W,
    X,
)
from superopt.te.expr.dtype import F32, I32, DType, to_numpy
from superopt.te.expr.node import Dim

State = tuple[graph.Value, graph.Value | None]
QUANTIZED_STATE = (R, R_SCALE, R_ZERO)  # operands of the product with the state


def make_node(name: str, *inputs: graph.Value | None, **attrs: Attr) -> graph.Value:
    return graph.node(OPS[name], inputs, **attrs)


def slice_axis(x: graph.Value, axis: int, start: int, end: int) -> graph.Value:
    return make_node("Slice", x, axes=(axis,), starts=(start,), ends=(end,), steps=(1,))


def axis_element(x: graph.Value, axis: int, k: int) -> graph.Value:
    """Return element k of an axis, without the axis."""
    return make_node("Squeeze", slice_axis(x, axis, k, k + 1), axes=(axis,))


def reversed_along(x: graph.Value, axis: int) -> graph.Value:
    return make_node("Slice", x, axes=(axis,), starts=(-1,), ends=(PAST_START,), steps=(-1,))


def concat(values: Sequence[graph.Value], axis: int) -> graph.Value:
    return values[0] if len(values) == 1 else make_node("Concat", *values, axis=axis)


def select_directions(x: graph.Value | None, ds: Sequence[int]) -> graph.Value | None:
    """Return the part of an operand that belongs to these directions."""
    return None if x is None else slice_axis(x, 0, ds[0], ds[-1] + 1)


def select_sequences(r: Recurrent, v: graph.Value, axis: int) -> graph.Value:
    """Return the part of a value that belongs to the layer's sequences. axis: the batch axis."""
    if r.first_row is None:
        return v
    assert isinstance(r.batch, int)
    return slice_axis(v, axis, r.first_row, r.first_row + r.batch)


def initial_state(r: Recurrent, k: int, ds: Sequence[int]) -> graph.Value | None:
    """Return the initial state that is input number k, [directions, batch, hidden]; None for
    zeros."""
    state = r.input(k)
    if state is not None and r.batch_first:
        state = make_node("Transpose", state, perm=(1, 0, 2))
    return None if state is None else select_directions(select_sequences(r, state, 1), ds)


def zero_state(r: Recurrent, directions: int) -> graph.Value:
    x = r.input(X)
    assert x is not None
    assert x.type.dtype is not None
    if isinstance(r.batch, int):
        zeros = np.zeros((directions, r.batch, r.hidden), to_numpy(x.type.dtype))
        return graph.constant(zeros)
    shape = (directions, r.batch, r.hidden)
    return make_node("ConstantOfShape", input=shape, value=0.0, dtype=x.type.dtype)


def projections(r: Recurrent, ds: Sequence[int]) -> tuple[list[graph.Value], graph.Value | None]:
    """Return, for each direction, the products of all inputs with W, with biases: [steps, 1, batch,
    gates * hidden], in the order of x; and the bias that a GRU adds to the product with its state
    before the reset, [directions, 1, hidden]."""
    x = layer_input(r)
    some, added = [], []
    for d in ds:
        given, rest = projection(r, d, x)
        added += [] if rest is None else [make_node("Unsqueeze", rest, axes=(0, 1))]
        some.append(make_node("Unsqueeze", given, axes=(1,)))
    return some, concat(added, 0) if added else None


def layer_input(r: Recurrent) -> graph.Value:
    """Return x as [steps, batch, size]."""
    x = r.input(X)
    assert x is not None
    return select_sequences(r, make_node("Transpose", x, perm=(1, 0, 2)) if r.batch_first else x, 1)


def projection(r: Recurrent, d: int, x: graph.Value) -> tuple[graph.Value, graph.Value | None]:
    """Return the product of rows of x with W of a direction, with biases; and what a GRU adds to
    the product with its state before the reset, [hidden]."""
    w, b = r.input(W), r.input(B)
    assert w is not None
    if r.is_quantized:
        given = quantized_product(x, *(_direction_operand(r, k, d) for k in (W, W_SCALE, W_ZERO)))
    else:
        given = make_node("MatMul", x, make_node("Transpose", axis_element(w, 0, d), perm=(1, 0)))
    if b is None:
        return given, None
    bias, rest = _biases(r, axis_element(b, 0, d))
    return make_node("Add", given, bias), rest


def _direction_operand(r: Recurrent, k: int, d: int) -> graph.Value | None:
    """Return the part of an operand that belongs to a direction, without the axis."""
    v = r.input(k)
    return None if v is None else axis_element(v, 0, d)


def quantized_product(
    x: graph.Value,
    w: graph.Value | None,
    scale: graph.Value | None,
    zero: graph.Value | None,
) -> graph.Value:
    """Return the product of float rows, which are quantized to 8 bits by the range of them all, and
    of integers, as DynamicQuantizeLSTM defines it."""
    quantized = graph.node(OPS["DynamicQuantizeLinear"], [x])
    x8, x_scale, x_zero = graph.results(quantized)
    product = make_node("MatMulInteger", x8, w, x_zero, zero)
    return make_node("Mul", make_node("Cast", product, to=F32), make_node("Mul", x_scale, scale))


def _biases(r: Recurrent, both: graph.Value) -> tuple[graph.Value, graph.Value | None]:
    n = GATES[r.kind] * r.hidden
    of_x, of_h = slice_axis(both, 0, 0, n), slice_axis(both, 0, n, 2 * n)
    if not (r.kind == "GRU" and r.reset_after):
        return make_node("Add", of_x, of_h), None
    reset = 2 * r.hidden
    gates = make_node("Add", slice_axis(of_x, 0, 0, reset), slice_axis(of_h, 0, 0, reset))
    return make_node("Concat", gates, slice_axis(of_x, 0, reset, n), axis=0), slice_axis(
        of_h, 0, reset, n
    )


def step_mask(r: Recurrent) -> graph.Value | None:
    """Return whether a sequence has a step, [steps, 1, batch, 1]; None if all sequences have all
    steps."""
    lengths = r.input(LENGTHS)
    if not r.has_varied_lengths or lengths is None:
        return None
    numbers = make_node("Unsqueeze", step_numbers(r.steps, I32), axes=(1, 2, 3))
    return make_node(
        "Less", numbers, make_node("Unsqueeze", select_sequences(r, lengths, 0), axes=(0, 1, 3))
    )


def step_numbers(steps: Dim, dtype: DType) -> graph.Value:
    """Return 0, 1, ..., steps - 1."""
    if isinstance(steps, int):
        return graph.constant(np.arange(steps, dtype=to_numpy(dtype)))
    return make_node("Range", start=0, limit=steps, delta=1, dtype=dtype)


def last_state(r: Recurrent, state: graph.Value) -> graph.Value:
    """Return a state after the last step, [directions, batch, hidden]; zeros for empty sequences,
    as in onnxruntime."""
    lengths = r.input(LENGTHS)
    if not r.has_varied_lengths or lengths is None:
        return state
    none = graph.constant(np.zeros((1, 1, 1), np.int32))
    some = make_node("Less", none, make_node("Unsqueeze", lengths, axes=(0, 2)))
    return make_node("Where", some, state, scalar_like(0.0, state))


@dataclass(frozen=True, slots=True)
class RecurrentCell:
    """What a step needs besides its input and state, for directions with the same activations.

    matrix: the matrix that multiplies the state, [directions, hidden, gates * hidden]. added: what
    a GRU adds to that product. peepholes: [directions, 1, 3 * hidden]. separate: each gate is a
    product of its own, for targets that fuse these; else the gates are one product.
    """

    r: Recurrent
    directions: tuple[int, ...]
    matrix: graph.Value
    added: graph.Value | None
    peepholes: graph.Value | None
    separate: bool = False

    def clipped_activation(self, number: int, x: graph.Value) -> graph.Value:
        """Return activation function `number` of a clipped gate sum."""
        bound = self.r.clip
        if bound is not None:
            x = make_node("Clip", x, scalar_like(-bound, x), scalar_like(bound, x))
        return self.activation(number, x)

    def activation(self, number: int, x: graph.Value) -> graph.Value:
        return apply_activation(self.r.activations[self.directions[0]][number], x)

    def step(
        self, x: graph.Value, h: graph.Value | None, c: graph.Value | None, on: graph.Value | None
    ) -> State:
        """Return the states after a step. on: true for the sequences that have this step."""
        new_h, new_c = _STEPS[self.r.kind](self, x, h, c)
        if on is None:
            return new_h, new_c
        before = zero_state(self.r, len(self.directions))
        kept_h = make_node("Where", on, new_h, before if h is None else h)
        if new_c is None:
            return kept_h, None
        return kept_h, make_node("Where", on, new_c, before if c is None else c)

    def gate_slice(self, x: graph.Value, first: int, end: int) -> graph.Value:
        """Return elements of the gates [begin, end)."""
        n = self.r.hidden
        return x if end - first == GATES[self.r.kind] else slice_axis(x, 2, first * n, end * n)

    def state_product(self, h: graph.Value, first: int, end: int) -> graph.Value:
        if self.r.is_quantized:  # an LSTM, which multiplies by all gates at a time
            operands = (_direction_operand(self.r, k, *self.directions) for k in QUANTIZED_STATE)
            return quantized_product(h, *operands)
        return make_node("MatMul", h, self.gate_slice(self.matrix, first, end))

    def gate_sums(self, x: graph.Value, h: graph.Value | None, count: int) -> list[graph.Value]:
        """Return the sums of the first gates: contributions of x and of the state."""
        if h is None:
            return [self.gate_slice(x, k, k + 1) for k in range(count)]
        if self.separate:
            return [
                make_node("Add", self.gate_slice(x, k, k + 1), self.state_product(h, k, k + 1))
                for k in range(count)
            ]
        s, n = (
            make_node("Add", self.gate_slice(x, 0, count), self.state_product(h, 0, count)),
            self.r.hidden,
        )
        return [slice_axis(s, 2, k * n, (k + 1) * n) if count > 1 else s for k in range(count)]

    def add_peephole(self, s: graph.Value, number: int, c: graph.Value | None) -> graph.Value:
        """Return a gate's sum with the peephole term of the cell state."""
        if self.peepholes is None or c is None:
            return s
        n = self.r.hidden
        weights = slice_axis(self.peepholes, 2, number * n, (number + 1) * n)
        return make_node("Add", s, make_node("Mul", weights, c))


def make_cell(
    r: Recurrent, ds: Sequence[int], added: graph.Value | None, separate: bool
) -> RecurrentCell:
    m, p = select_directions(r.input(R), ds), select_directions(r.input(P), ds)
    assert m is not None
    peepholes = None if p is None else make_node("Unsqueeze", p, axes=(1,))
    matrix = m if r.is_quantized else make_node("Transpose", m, perm=(0, 2, 1))
    return RecurrentCell(r, tuple(ds), matrix, added, peepholes, separate)


def _lstm(
    cell_: RecurrentCell, x: graph.Value, h: graph.Value | None, c: graph.Value | None
) -> State:
    i, o, f, given = cell_.gate_sums(x, h, 4)
    i = cell_.clipped_activation(0, cell_.add_peephole(i, 0, c))
    if cell_.r.coupled:
        f = make_node("Sub", scalar_like(1.0, i), i)
    else:
        f = cell_.clipped_activation(0, cell_.add_peephole(f, 2, c))
    new = make_node("Mul", i, cell_.clipped_activation(1, given))
    c = new if c is None else make_node("Add", make_node("Mul", f, c), new)
    o = cell_.clipped_activation(0, cell_.add_peephole(o, 1, c))
    # onnxruntime and OpenVINO do not clip the cell state either.
    return make_node("Mul", o, cell_.activation(2, c)), c


def _gru(
    cell_: RecurrentCell, x: graph.Value, h: graph.Value | None, _: graph.Value | None
) -> State:
    h = zero_state(cell_.r, len(cell_.directions)) if h is None else h
    if cell_.r.reset_after and not cell_.separate:
        p = cell_.state_product(h, 0, 3)
        s = make_node("Add", cell_.gate_slice(x, 0, 2), cell_.gate_slice(p, 0, 2))
        sums = [cell_.gate_slice(s, k, k + 1) for k in range(2)]
    else:
        sums = cell_.gate_sums(x, h, 2)
    z, reset = (cell_.clipped_activation(0, s) for s in sums)
    if cell_.r.reset_after:
        q = cell_.state_product(h, 2, 3) if cell_.separate else cell_.gate_slice(p, 2, 3)
        q = make_node("Mul", reset, q if cell_.added is None else make_node("Add", q, cell_.added))
    else:
        q = cell_.state_product(make_node("Mul", reset, h), 2, 3)
    new = cell_.clipped_activation(1, make_node("Add", cell_.gate_slice(x, 2, 3), q))
    return make_node(
        "Add", new, make_node("Mul", z, make_node("Sub", h, new))
    ), None  # z h + (1 - z) new


def _rnn(
    cell_: RecurrentCell, x: graph.Value, h: graph.Value | None, _: graph.Value | None
) -> State:
    return cell_.clipped_activation(0, cell_.gate_sums(x, h, 1)[0]), None


_STEPS: dict[str, Callable[..., State]] = {"LSTM": _lstm, "GRU": _gru, "RNN": _rnn}


def layer_results(
    r: Recurrent, ys: list[graph.Value], hs: list[graph.Value], cs: list[graph.Value]
) -> list[graph.Value]:
    """Return Y, Y_h and Y_c from those of each direction: [steps, 1, batch, hidden] in the order of
    x, and [1, batch, hidden]."""
    out = [concat(ys, 1), last_state(r, concat(hs, 0))]
    out += [last_state(r, concat(cs, 0))] if r.kind == "LSTM" else []
    if r.batch_first:
        perms = ((2, 0, 1, 3), (1, 0, 2), (1, 0, 2))
        out = [make_node("Transpose", v, perm=p) for v, p in zip(out, perms, strict=False)]
    return out
