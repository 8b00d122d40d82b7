"""One step of an LSTM, GRU or RNN as graph operators, by ONNX's equations.

Tensors have directions first: states [directions, batch, hidden], inputs of a step [directions,
batch, gates * hidden].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from superopt.ir import graph as g
from superopt.ir.op import Attr
from superopt.ops import OPS
from superopt.ops.slicing import PAST_START
from superopt.plan.activations import applied, scalar
from superopt.plan.recurrent import GATES, LENGTHS, B, P, R, Recurrent, W, X
from superopt.te.dtype import to_numpy

State = tuple[g.Value, g.Value | None]


def do(name: str, *inputs: g.Value | None, **attrs: Attr) -> g.Value:
    return g.node(OPS[name], inputs, **attrs)


def part(x: g.Value, axis: int, begin: int, end: int) -> g.Value:
    return do("Slice", x, axes=(axis,), starts=(begin,), ends=(end,), steps=(1,))


def element(x: g.Value, axis: int, k: int) -> g.Value:
    """Return element k of an axis, without the axis."""
    return do("Squeeze", part(x, axis, k, k + 1), axes=(axis,))


def reversed_along(x: g.Value, axis: int) -> g.Value:
    return do("Slice", x, axes=(axis,), starts=(-1,), ends=(PAST_START,), steps=(-1,))


def concat(some: Sequence[g.Value], axis: int) -> g.Value:
    return some[0] if len(some) == 1 else do("Concat", *some, axis=axis)


def of_directions(x: g.Value | None, ds: Sequence[int]) -> g.Value | None:
    """Return the part of an operand that belongs to these directions."""
    return None if x is None else part(x, 0, ds[0], ds[-1] + 1)


def of_rows(r: Recurrent, v: g.Value, axis: int) -> g.Value:
    """Return the part of a value that belongs to the layer's sequences. axis: the batch axis."""
    if r.first_row is None:
        return v
    return part(v, axis, r.first_row, r.first_row + r.batch)


def initial(r: Recurrent, k: int, ds: Sequence[int]) -> g.Value | None:
    """Return the initial state that is input number k, [directions, batch, hidden]; None for
    zeros."""
    state = r.input(k)
    if state is not None and r.batch_first:
        state = do("Transpose", state, perm=(1, 0, 2))
    return None if state is None else of_directions(of_rows(r, state, 1), ds)


def zeros(r: Recurrent, directions: int) -> g.Value:
    x = r.input(X)
    assert x is not None
    assert x.type.dtype is not None
    return g.constant(np.zeros((directions, r.batch, r.hidden), to_numpy(x.type.dtype)))


def projections(r: Recurrent, ds: Sequence[int]) -> tuple[list[g.Value], g.Value | None]:
    """Return, for each direction, the products of all inputs with W, with biases: [steps, 1, batch,
    gates * hidden], in the order of x; and the bias that a GRU adds to the product with its state
    before the reset, [directions, 1, hidden]."""
    x = inputs(r)
    some, added = [], []
    for d in ds:
        given, rest = projection(r, d, x)
        added += [] if rest is None else [do("Unsqueeze", rest, axes=(0, 1))]
        some.append(do("Unsqueeze", given, axes=(1,)))
    return some, concat(added, 0) if added else None


def inputs(r: Recurrent) -> g.Value:
    """Return x as [steps, batch, size]."""
    x = r.input(X)
    assert x is not None
    return of_rows(r, do("Transpose", x, perm=(1, 0, 2)) if r.batch_first else x, 1)


def projection(r: Recurrent, d: int, x: g.Value) -> tuple[g.Value, g.Value | None]:
    """Return the product of rows of x with W of a direction, with biases; and what a GRU adds to
    the product with its state before the reset, [hidden]."""
    w, b = r.input(W), r.input(B)
    assert w is not None
    given = do("MatMul", x, do("Transpose", element(w, 0, d), perm=(1, 0)))
    if b is None:
        return given, None
    bias, rest = _biases(r, element(b, 0, d))
    return do("Add", given, bias), rest


def _biases(r: Recurrent, both: g.Value) -> tuple[g.Value, g.Value | None]:
    n = GATES[r.kind] * r.hidden
    of_x, of_h = part(both, 0, 0, n), part(both, 0, n, 2 * n)
    if not (r.kind == "GRU" and r.reset_after):
        return do("Add", of_x, of_h), None
    reset = 2 * r.hidden
    gates = do("Add", part(of_x, 0, 0, reset), part(of_h, 0, 0, reset))
    return do("Concat", gates, part(of_x, 0, reset, n), axis=0), part(of_h, 0, reset, n)


def mask(r: Recurrent) -> g.Value | None:
    """Return whether a sequence has a step, [steps, 1, batch, 1]; None if all sequences have all
    steps."""
    lengths = r.input(LENGTHS)
    if not r.varied or lengths is None:
        return None
    steps = g.constant(np.arange(r.steps, dtype=np.int32).reshape(-1, 1, 1, 1))
    return do("Less", steps, do("Unsqueeze", of_rows(r, lengths, 0), axes=(0, 1, 3)))


def last_state(r: Recurrent, state: g.Value) -> g.Value:
    """Return a state after the last step, [directions, batch, hidden]; zeros for empty sequences,
    as in onnxruntime."""
    lengths = r.input(LENGTHS)
    if not r.varied or lengths is None:
        return state
    none = g.constant(np.zeros((1, 1, 1), np.int32))
    some = do("Less", none, do("Unsqueeze", lengths, axes=(0, 2)))
    return do("Where", some, state, scalar(0.0, state))


@dataclass(frozen=True, slots=True)
class Cell:
    """What a step needs besides its input and state, for directions with the same activations.

    matrix: the matrix that multiplies the state, [directions, hidden, gates * hidden]. added: what
    a GRU adds to that product. peepholes: [directions, 1, 3 * hidden]. separate: each gate is a
    product of its own, for targets that fuse these; else the gates are one product.
    """

    r: Recurrent
    directions: tuple[int, ...]
    matrix: g.Value
    added: g.Value | None
    peepholes: g.Value | None
    separate: bool = False

    def activate(self, number: int, x: g.Value) -> g.Value:
        """Return activation function `number` of a clipped gate sum."""
        bound = self.r.clip
        if bound is not None:
            x = do("Clip", x, scalar(-bound, x), scalar(bound, x))
        return self.unbounded(number, x)

    def unbounded(self, number: int, x: g.Value) -> g.Value:
        return applied(self.r.activations[self.directions[0]][number], x)

    def step(self, x: g.Value, h: g.Value | None, c: g.Value | None, on: g.Value | None) -> State:
        """Return the states after a step. on: true for the sequences that have this step."""
        new_h, new_c = _STEPS[self.r.kind](self, x, h, c)
        if on is None:
            return new_h, new_c
        before = zeros(self.r, len(self.directions))
        kept_h = do("Where", on, new_h, before if h is None else h)
        if new_c is None:
            return kept_h, None
        return kept_h, do("Where", on, new_c, before if c is None else c)

    def gates(self, x: g.Value, begin: int, end: int) -> g.Value:
        """Return elements of the gates [begin, end)."""
        n = self.r.hidden
        return x if end - begin == GATES[self.r.kind] else part(x, 2, begin * n, end * n)

    def product(self, h: g.Value, begin: int, end: int) -> g.Value:
        return do("MatMul", h, self.gates(self.matrix, begin, end))

    def sums(self, x: g.Value, h: g.Value | None, count: int) -> list[g.Value]:
        """Return the sums of the first gates: contributions of x and of the state."""
        if h is None:
            return [self.gates(x, k, k + 1) for k in range(count)]
        if self.separate:
            return [
                do("Add", self.gates(x, k, k + 1), self.product(h, k, k + 1)) for k in range(count)
            ]
        s, n = do("Add", self.gates(x, 0, count), self.product(h, 0, count)), self.r.hidden
        return [part(s, 2, k * n, (k + 1) * n) if count > 1 else s for k in range(count)]

    def peep(self, s: g.Value, number: int, c: g.Value | None) -> g.Value:
        """Return a gate's sum with the peephole term of the cell state."""
        if self.peepholes is None or c is None:
            return s
        n = self.r.hidden
        weights = part(self.peepholes, 2, number * n, (number + 1) * n)
        return do("Add", s, do("Mul", weights, c))


def cell(r: Recurrent, ds: Sequence[int], added: g.Value | None, separate: bool) -> Cell:
    m, p = of_directions(r.input(R), ds), of_directions(r.input(P), ds)
    assert m is not None
    peepholes = None if p is None else do("Unsqueeze", p, axes=(1,))
    return Cell(r, tuple(ds), do("Transpose", m, perm=(0, 2, 1)), added, peepholes, separate)


def _lstm(own: Cell, x: g.Value, h: g.Value | None, c: g.Value | None) -> State:
    i, o, f, given = own.sums(x, h, 4)
    i = own.activate(0, own.peep(i, 0, c))
    if own.r.coupled:
        f = do("Sub", scalar(1.0, i), i)
    else:
        f = own.activate(0, own.peep(f, 2, c))
    new = do("Mul", i, own.activate(1, given))
    c = new if c is None else do("Add", do("Mul", f, c), new)
    o = own.activate(0, own.peep(o, 1, c))
    # onnxruntime and OpenVINO do not clip the cell state either.
    return do("Mul", o, own.unbounded(2, c)), c


def _gru(own: Cell, x: g.Value, h: g.Value | None, _: g.Value | None) -> State:
    h = zeros(own.r, len(own.directions)) if h is None else h
    if own.r.reset_after and not own.separate:
        p = own.product(h, 0, 3)
        s = do("Add", own.gates(x, 0, 2), own.gates(p, 0, 2))
        sums = [own.gates(s, k, k + 1) for k in range(2)]
    else:
        sums = own.sums(x, h, 2)
    z, reset = (own.activate(0, s) for s in sums)
    if own.r.reset_after:
        q = own.product(h, 2, 3) if own.separate else own.gates(p, 2, 3)
        q = do("Mul", reset, q if own.added is None else do("Add", q, own.added))
    else:
        q = own.product(do("Mul", reset, h), 2, 3)
    new = own.activate(1, do("Add", own.gates(x, 2, 3), q))
    return do("Add", new, do("Mul", z, do("Sub", h, new))), None  # z h + (1 - z) new


def _rnn(own: Cell, x: g.Value, h: g.Value | None, _: g.Value | None) -> State:
    return own.activate(0, own.sums(x, h, 1)[0]), None


_STEPS: dict[str, Callable[..., State]] = {"LSTM": _lstm, "GRU": _gru, "RNN": _rnn}


def results(r: Recurrent, ys: list[g.Value], hs: list[g.Value], cs: list[g.Value]) -> list[g.Value]:
    """Return Y, Y_h and Y_c from those of each direction: [steps, 1, batch, hidden] in the order of
    x, and [1, batch, hidden]."""
    out = [concat(ys, 1), last_state(r, concat(hs, 0))]
    out += [last_state(r, concat(cs, 0))] if r.kind == "LSTM" else []
    if r.batch_first:
        perms = ((2, 0, 1, 3), (1, 0, 2), (1, 0, 2))
        out = [do("Transpose", v, perm=p) for v, p in zip(out, perms, strict=False)]
    return out
