"""LSTM, GRU and RNN as their steps, one after the other: so they have kernels as the rest does,
what is between steps is fused, and products with the inputs of all steps are one.

Where the number of steps is known and not large, and the node asks for nothing unusual (other
functions, clipping, peepholes, sequences of several lengths).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from superopt.ir import graph as g
from superopt.ir.op import Attr, Payload
from superopt.ir.substitute import replace_all
from superopt.ops import OPS
from superopt.ops.slicing import PAST_START
from superopt.te.dtype import F32, F64, to_numpy

# In both directions together: their number is that of calls. On a GPU more, for what it would run
# elsewhere takes far longer, and steps have one kernel (views.py).
STEPS, STEPS_GPU = 256, 1024
NEAR = 2**18  # bytes of matrices of both directions that stay in the second cache, with all else
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
USUAL = {"LSTM": ["sigmoid", "tanh", "tanh"], "GRU": ["sigmoid", "tanh"], "RNN": ["tanh"]}
# Their inputs, by place; peepholes are another one of LSTM's.
X, W, R, B, LENGTHS, H, C = range(7)


@dataclass(frozen=True, slots=True)
class Recurrent:
    """Such a node. steps, batch, size: of x; hidden: elements of the state; backward: for each
    direction, does it begin at the end? apart: GRU's linear_before_reset. first: are batches the
    first dimension of x, and of states?"""

    node: g.Node
    kind: str
    steps: int
    batch: int
    hidden: int
    backward: tuple[bool, ...]
    apart: bool
    first: bool

    def input(self, k: int) -> g.Value | None:
        return self.node.inputs[k] if k < len(self.node.inputs) else None


def recurrent(n: g.Node, most: int = STEPS) -> Recurrent | None:
    """The node, where its steps can be written out, up to so many."""
    if n.op.name not in GATES or n.op.domain or not n.op.opaque:
        return None
    payload = n.attr("payload")
    assert isinstance(payload, Payload)
    said = {k: a.value for k, a in cast(Any, payload.content).attributes.items()}
    first = bool(said.get("layout", 0))
    x, r = (_known(n.inputs[k] if k < len(n.inputs) else None) for k in (X, R))
    if x is None or r is None:
        return None
    steps, batch = (x[1], x[0]) if first else (x[0], x[1])
    if not steps or 0 in r:
        return None
    count, _, hidden = r
    direction = said.get("direction", "forward")
    backward = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
    told = [str(f).lower() for f in said.get("activations", ())]
    usual = not told or told == USUAL[n.op.name] * count
    plain = usual and "clip" not in said and not said.get("input_forget", 0)
    out = Recurrent(
        n, n.op.name, steps, batch, hidden, backward.get(str(direction), ()),
        bool(said.get("linear_before_reset", 0)), first,
    )  # fmt: skip
    whole = len(out.backward) == count and _whole(out.input(LENGTHS), steps)
    kinds = {v.type.dtype for k, v in enumerate(n.inputs) if v is not None and k != LENGTHS}
    if not plain or not whole or len(n.inputs) > 7 or len(kinds) > 1 or kinds - {F32, F64}:
        return None
    if said.get("hidden_size", hidden) != hidden or not _fits(out, x[2]):
        return None
    return out if steps * count <= most else None


def _fits(r: Recurrent, size: int) -> bool:
    """Have all inputs and results the shapes that the sizes of x and of the state ask for? size:
    elements of x in a step."""
    d, gates = len(r.backward), GATES[r.kind] * r.hidden
    state = (r.batch, d, r.hidden) if r.first else (d, r.batch, r.hidden)
    wanted = {
        W: (d, gates, size), R: (d, gates, r.hidden), B: (d, 2 * gates), LENGTHS: (r.batch,),
        H: state, C: state,
    }  # fmt: skip
    y = (r.batch, r.steps, d, r.hidden) if r.first else (r.steps, d, r.batch, r.hidden)
    given = [(r.input(k), shape) for k, shape in wanted.items()]
    made = [t.shape == s for t, s in zip(r.node.types, (y, state, state), strict=False) if t.dtype]
    return all(made) and all(v is None or v.type.shape == shape for v, shape in given)


def _known(v: g.Value | None) -> tuple[int, ...] | None:
    """The three sizes of a value, where they are known."""
    shape = None if v is None else v.type.shape
    out = tuple(d for d in shape or () if isinstance(d, int))
    return out if len(out) == 3 == len(shape or ()) else None


def _whole(lengths: g.Value | None, steps: int) -> bool:
    """Are all sequences as long as there are steps?"""
    if lengths is None:
        return True
    return isinstance(lengths, g.Constant) and bool(np.all(lengths.load() == steps))


def unrolled(graph: g.Graph, threads: int = 1, gates: bool = False) -> g.Graph:
    """The graph with the steps of such nodes written out. gates: is each one of a step a product of
    its own, which may be one kernel with what is made of them (gated.py)? Else they are one."""
    while True:
        some = (recurrent(n, STEPS_GPU if gates else STEPS) for n in g.nodes(graph))
        found = next((r for r in some if r is not None), None)
        if found is None:
            return graph
        results = g.results(found.node)
        matrix = found.input(R)
        assert matrix is not None and matrix.type.dtype is not None  # noqa: PT018
        bytes_ = matrix.type.dtype.bits // 8
        size = bytes_ * len(found.backward) * GATES[found.kind] * found.hidden**2
        made = _written(found, threads > 1 or size <= NEAR, gates)
        graph = replace_all(graph, dict(zip(results, made, strict=False)))


def _do(name: str, *inputs: g.Value | None, **attrs: Attr) -> g.Value:
    return g.node(OPS[name], inputs, **attrs)


def _part(x: g.Value, axis: int, begin: int, end: int) -> g.Value:
    return _do("Slice", x, axes=(axis,), starts=(begin,), ends=(end,), steps=(1,))


def _at(x: g.Value, axis: int, k: int) -> g.Value:
    """What is left of a dimension is not there."""
    return _do("Squeeze", _part(x, axis, k, k + 1), axes=(axis,))


def _turned(x: g.Value, axis: int) -> g.Value:
    return _do("Slice", x, axes=(axis,), starts=(-1,), ends=(PAST_START,), steps=(-1,))


def _written(r: Recurrent, together: bool, gates: bool) -> list[g.Value]:
    """Y, Y_h and Y_c. Step k of a direction that begins at the end is that many before the last.

    together: both directions are one computation, of which two threads have one each; else they
    come after each other, so that the matrix of one stays in a core's second cache.
    """
    every = tuple(range(len(r.backward)))
    some = [_directions(r, ds, gates) for ds in ([every] if together else [(d,) for d in every])]
    ys, hs, cs = zip(*some, strict=True)
    ways = [_part(y, 1, d, d + 1) for y in ys for d in range(len(every) // len(ys))]
    ways = [_turned(v, 0) if back else v for v, back in zip(ways, r.backward, strict=True)]
    out = [_joined(ways, 1), _joined(hs, 0)]
    out += [_joined(cs, 0)] if r.kind == "LSTM" else []
    perms = ((2, 0, 1, 3), (1, 0, 2), (1, 0, 2))
    if r.first:
        out = [_do("Transpose", v, perm=p) for v, p in zip(out, perms, strict=False)]
    return out


def _directions(
    r: Recurrent, ds: Sequence[int], gates: bool
) -> tuple[g.Value, g.Value, g.Value | None]:
    """The states after each step of these directions, and the last ones."""
    h, c = (_chosen(_first(r, r.input(k)), ds) for k in (H, C))
    given, added = _products(r, ds)
    m = _chosen(r.input(R), ds)
    assert m is not None
    own = _Own(r, _do("Transpose", m, perm=(0, 2, 1)), added, gates)
    states = []
    for k in range(r.steps):
        h, c = _STEPS[r.kind](own, _at(given, 0, k), h, c)
        states.append(_do("Unsqueeze", h, axes=(0,)))
    assert h is not None
    return _joined(states, 0), h, c


def _chosen(x: g.Value | None, ds: Sequence[int]) -> g.Value | None:
    return None if x is None else _part(x, 0, ds[0], ds[-1] + 1)


def _first(r: Recurrent, state: g.Value | None) -> g.Value | None:
    return _do("Transpose", state, perm=(1, 0, 2)) if r.first and state is not None else state


def _joined(some: Sequence[g.Value], axis: int) -> g.Value:
    return some[0] if len(some) == 1 else _do("Concat", *some, axis=axis)


def _products(r: Recurrent, ds: Sequence[int]) -> tuple[g.Value, g.Value | None]:
    """By step and direction what comes from x, with biases; and what a GRU adds to the product with
    its state before it is reset."""
    x, w, b = r.input(X), r.input(W), r.input(B)
    assert x is not None
    assert w is not None
    x = _do("Transpose", x, perm=(1, 0, 2)) if r.first else x
    some, own = [], []
    for d in ds:
        given = _do("MatMul", x, _do("Transpose", _at(w, 0, d), perm=(1, 0)))
        if b is not None:
            bias, rest = _biases(r, _at(b, 0, d))
            given = _do("Add", given, bias)
            own += [] if rest is None else [_do("Unsqueeze", rest, axes=(0, 1))]
        given = _turned(given, 0) if r.backward[d] else given
        some.append(_do("Unsqueeze", given, axes=(1,)))
    return _joined(some, 1), _joined(own, 0) if own else None


def _biases(r: Recurrent, both: g.Value) -> tuple[g.Value, g.Value | None]:
    n = GATES[r.kind] * r.hidden
    of_x, of_h = _part(both, 0, 0, n), _part(both, 0, n, 2 * n)
    if not r.apart:
        return _do("Add", of_x, of_h), None
    reset = 2 * r.hidden
    gates = _do("Add", _part(of_x, 0, 0, reset), _part(of_h, 0, 0, reset))
    return _do("Concat", gates, _part(of_x, 0, reset, n), axis=0), _part(of_h, 0, reset, n)


State = tuple[g.Value, g.Value | None]


@dataclass(frozen=True, slots=True)
class _Own:
    """What a step multiplies its state with: the matrix, by direction; what a GRU adds to that
    product; is each gate a product of its own?"""

    r: Recurrent
    matrix: g.Value
    added: g.Value | None
    gates: bool

    def some(self, x: g.Value, begin: int, end: int) -> g.Value:
        """The columns of these gates."""
        n = self.r.hidden
        return x if end - begin == GATES[self.r.kind] else _part(x, 2, begin * n, end * n)

    def product(self, h: g.Value, begin: int, end: int) -> g.Value:
        return _do("MatMul", h, self.some(self.matrix, begin, end))

    def sums(self, x: g.Value, h: g.Value | None, count: int) -> list[g.Value]:
        """Of the first gates: what comes from x, and from the state."""
        if h is None:
            return [self.some(x, k, k + 1) for k in range(count)]
        if self.gates:
            return [
                _do("Add", self.some(x, k, k + 1), self.product(h, k, k + 1)) for k in range(count)
            ]
        s, n = _do("Add", self.some(x, 0, count), self.product(h, 0, count)), self.r.hidden
        return [_part(s, 2, k * n, (k + 1) * n) if count > 1 else s for k in range(count)]


def _lstm(own: _Own, x: g.Value, h: g.Value | None, c: g.Value | None) -> State:
    *gates, given = own.sums(x, h, 4)
    i, o, f = (_do("Sigmoid", s) for s in gates)
    new = _do("Mul", i, _do("Tanh", given))
    c = new if c is None else _do("Add", _do("Mul", f, c), new)
    return _do("Mul", o, _do("Tanh", c)), c


def _gru(own: _Own, x: g.Value, h: g.Value | None, _: g.Value | None) -> State:
    h = _zeros(own.r, x) if h is None else h
    if own.r.apart and not own.gates:
        p = own.product(h, 0, 3)
        s = _do("Add", own.some(x, 0, 2), own.some(p, 0, 2))
        sums = [own.some(s, k, k + 1) for k in range(2)]
    else:
        sums = own.sums(x, h, 2)
    z, reset = (_do("Sigmoid", s) for s in sums)
    if own.r.apart:
        q = own.product(h, 2, 3) if own.gates else own.some(p, 2, 3)
        q = _do("Mul", reset, q if own.added is None else _do("Add", q, own.added))
    else:
        q = own.product(_do("Mul", reset, h), 2, 3)
    new = _do("Tanh", _do("Add", own.some(x, 2, 3), q))
    return _do("Add", new, _do("Mul", z, _do("Sub", h, new))), None  # z h + (1 - z) new


def _rnn(own: _Own, x: g.Value, h: g.Value | None, _: g.Value | None) -> State:
    return _do("Tanh", own.sums(x, h, 1)[0]), None


def _zeros(r: Recurrent, x: g.Value) -> g.Value:
    assert x.type.dtype is not None
    return g.constant(np.zeros((1, r.batch, r.hidden), to_numpy(x.type.dtype)))


_STEPS: dict[str, Callable[..., State]] = {"LSTM": _lstm, "GRU": _gru, "RNN": _rnn}
