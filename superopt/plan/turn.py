"""Transpose operands of products into the order in which kernels read them.

Vectors run along the last axis of a product's result. If neighbours along that axis are not
neighbours in the operand that has it (the keys of attention), that operand is copied in another
order first. If nothing else reads the operand and it is no reduction, its producer writes that
order directly. The values of attention are transposed too where their rows lie far apart (heads
interleaved) and vector registers are few: rows that are a multiple of 1 KiB apart map to a few sets
of the L1 cache. Other products pack panels of such operands themselves
(kernels/algorithms/panel_packing.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import gcd

from superopt.kernels.contraction import FEWER, ROWS, Contraction, contraction, strides
from superopt.kernels.layout import Layout, Part
from superopt.kernels.transform import reduction
from superopt.te import index as ix
from superopt.te.expr import Tensor, compute
from superopt.te.node import Apply, Axis, Expr, Load, Reduce
from superopt.te.walk import axes_of, loads, parts

TURNED = "turned"


STEPS = 3  # tensors between a softmax and its reader, at most
MANY = 64  # result rows that read a matrix, from which on gathering its rows pays
LINE, LINES, WAYS = 64, 64, 8  # an L1 cache: bytes of a line, sets, lines of a set


def in_order_of_reading(
    current: Mapping[Tensor, Tensor], constants: Collection[Tensor], registers: int
) -> tuple[dict[Tensor, Tensor], set[Tensor]]:
    """Return the definitions with such copies inserted, and the copies. registers: the number of
    vector registers."""
    out: dict[Tensor, Tensor] = {}
    copies: set[Tensor] = set()
    for t, now in current.items():
        found = contraction(now, constants)
        far = found is not None and registers == FEWER and _soft(found.a.tensor, current)
        turned = None if found is None else _turned(now, found, constants, far)
        if turned is None or found is None:
            out[t] = now
            continue
        copy, load = turned
        out[copy] = copy
        copies.add(copy)
        assert now.body is not None
        body = _instead(now.body, found.b, load)
        out[t] = Tensor(now.name, now.dtype, now.shape, now.axes, body)
    return out, copies


def panels(current: Collection[Tensor], width: int) -> dict[Tensor, Layout]:
    """Return layouts in which these copies are read vector by vector: rows of a large power of two
    would all map to the same sets of the L1 cache."""
    out = {}
    for t in current:
        n, lanes = t.shape[-1] if t.rank else 0, max(width * 8 // t.dtype.bits, 1)
        if t.name == TURNED and t.rank > 1 and isinstance(n, int) and n % lanes == 0 and n > lanes:
            *others, row, last = range(t.rank)
            block = Part(last, lanes), Part(last, lanes, within=True)
            out[t] = Layout((*map(Part, others), block[0], Part(row), block[1]))
    return out


def _turned(
    t: Tensor, c: Contraction, constants: Collection[Tensor], far: bool
) -> tuple[Tensor, Load] | None:
    rows = [a.extent for a in c.of_a if isinstance(a.extent, int)]
    if not c.of_b or c.b.tensor in constants or max(rows, default=0) < ROWS:
        return None
    lane = c.of_b[-1]
    found = reduction(t)
    assert found is not None
    windows = t.rank > 2 and len(found.axes) > 1 and lane == t.axes[1]  # the channels of an image
    if not (windows or lane == t.axes[-1]):
        return None
    far = far and max(rows, default=0) >= MANY and _far(c.b, found.axes)
    if strides(c.b, lane) == 1 and not far:
        return None
    used = set[Axis]().union(*map(axes_of, c.b.index))
    over = (*c.both, *c.of_b[:-1], *found.axes)
    if not used <= {*over, lane}:
        return None  # a block index of a grouped product depends on an axis of the other operand
    others = [a for a in over if a in used and a != lane]
    axes = (*others, lane)

    def element(*i: Expr) -> Expr:
        env: dict[Expr, Expr] = dict(zip(axes, i, strict=True))
        return c.b.tensor[tuple(ix.substitute(e, env) for e in c.b.index)]

    copy = compute([a.extent for a in axes], element, name=TURNED)
    return copy, copy[axes]


def _soft(t: Tensor, current: Mapping[Tensor, Tensor]) -> bool:
    """True if `t` is the result of a softmax, searched over SOFTMAX_SEARCH_DEPTH tensors. Other
    products pack their panels themselves (`packing`)."""
    todo = [t]
    for _ in range(STEPS):
        bodies = [current[x].body for x in todo if x in current]
        if any(isinstance(e, Apply) and e.fn == "exp" for b in bodies if b for e in parts(b)):
            return True
        todo = [x.tensor for b in bodies if b for x in loads(b)]
    return False


def _far(b: Load, over: Sequence[Axis]) -> bool:
    """True if more rows map to one set of the L1 cache than it holds."""
    apart = strides(b, over[-1]) if len(over) == 1 else None
    if apart is None or not isinstance(over[-1].extent, int):
        return False
    size = apart * max(b.dtype.bits // 8, 1)
    places = LINES // gcd(size // LINE, LINES) if size and size % LINE == 0 else LINES
    return over[-1].extent > places * WAYS


def _instead(e: Expr, old: Load, new: Load) -> Expr:
    if e == old:
        return new
    match e:
        case Apply(fn, args, dtype):
            return Apply(fn, tuple(_instead(a, old, new) for a in args), dtype)
        case Reduce(fn, axes, body, dtype):
            return Reduce(fn, axes, _instead(body, old, new), dtype)
    return e
