"""Attention by blocks of keys: rows of a softmax, multiplied with a matrix, that are never whole.

    s[i, j] = sum(q[i, c] * k[j, c] for c)
    x[i, j]                                     of s[i, j]: scaled, masked
    y[i, d] = sum(exp(x[i, j] - most[i]) * v[j, d] for j), multiplied or divided by what is of
              sum(exp(x[i, j] - most[i]) for j)

`most` is the largest x of a row so far; where a block has a larger one, the sums are multiplied by
exp(most - new): Milakov and Gimelshein, arXiv:1805.02867, algorithm 3; Dao et al., FlashAttention,
arXiv:2205.14135, section 3.1. That is the rule `attention-step`, which is proved for all sizes.

Of few rows and many keys parts of the keys are for different programs, and another kernel adds
what they leave: the rule `attention-in-parts`. The kernels are online_kernel.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from superopt.kernels.factor import put
from superopt.kernels.nest import put_for
from superopt.kernels.transform import reduction
from superopt.te import index as ix
from superopt.te.dtype import BOOL, F32, DType
from superopt.te.expr import Tensor, select
from superopt.te.inline import placed
from superopt.te.node import Apply, Axis, Const, Expr, Index, Load, Reduce
from superopt.te.walk import axes_of, loads, reductions

FEW = 16  # rows that blocks have at least
LEAST, MOST = 8, 256  # numbers of a query, and of a row of the result


@dataclass(frozen=True, slots=True)
class Online:
    """y = out(sum(exp(x - most) * v) for j), where x is of sum(q * k for c): expressions over the
    axes of `t`, j and c, in which `held` stands for a sum. over: what all is multiplied with, or
    divided by (`fn`), of the sum `total`. heads: where there are few rows, an axis of which `share`
    neighbours read the same keys, so that they are rows, too."""

    t: Tensor
    i: Axis
    d: Axis
    j: Axis
    c: Axis
    q: Expr
    k: Expr
    x: Expr
    v: Expr
    out: Expr
    fn: str
    over: Expr
    total: Tensor
    held: Tensor
    heads: Axis | None = None
    share: int = 1

    @property
    def rows(self) -> int:
        """That read the same keys."""
        return self.i.size * self.share

    @property
    def short(self) -> DType:
        """Of which kind values are in memory."""
        return bare(self.v).dtype


def online(t: Tensor) -> Online | None:
    """What `t` is, if it is such a product, of stages that are computed with it."""
    found = reduction(t)
    if t.body is None or found is None or found.fn != "sum" or len(found.axes) != 1:
        return None
    (j,) = found.axes
    ones: dict[Axis, Expr] = {a: ix.as_index(0) for a in t.axes if a.extent == 1}
    match placed(found.body, ones):
        case Apply("mul", (Load(Tensor(body=Expr())) as p, v)):
            pass
        case Apply("mul", (v, Load(Tensor(body=Expr())) as p)):
            pass
        case _:
            return None
    guard, weights = _guarded(_opened(p))
    soft = None if j in hangs(guard) else _softmax(weights, j)
    product = None if soft is None else _product(soft[0])
    if soft is None or product is None:
        return None
    _, fn, over, total = soft
    x, q, k, c, held = product
    if j in hangs(q):
        q, k = k, q
    own = [a for a in t.axes if a.extent != 1]
    rows = [a for a in own if a in hangs(q) and a not in hangs(k) | hangs(v)]
    columns = [a for a in own if a in hangs(v) and a not in hangs(x) | hangs(q) | hangs(k)]
    sizes = [a.size for a in (c, *columns)]
    rows = rows or [a for a in t.axes if a.extent == 1][-1:]
    if not rows or len(columns) != 1 or j in hangs(q) or j not in hangs(k) or j not in hangs(v):
        return None
    if not all(LEAST <= n <= MOST for n in sizes) or any(
        x.tensor.body is not None
        for e in (x, q, k, v, guard)
        for x in loads(e)
        if x.tensor is not held
    ):
        return None
    whole = placed(found, ones)
    assert isinstance(whole, Reduce)
    kept = select(guard, held[()], Const(0, F32))  # nothing of all rows is nothing of their sum
    out = put(put_for(placed(t.body, ones), whole, held, ()), held, kept)
    i = max(rows, key=lambda a: a.size)
    made = Online(t, i, columns[0], j, c, q, k, x, v, out, fn, over, total, held)
    for a in own if i.size < FEW else ():
        share = 1 if a in (i, columns[0]) else shared(a, (k, v))
        if share > 1 and a.size % share == 0:
            return replace(made, heads=a, share=share)
    return made


def shared(a: Axis, some: Sequence[Expr]) -> int:
    """How many neighbours along an axis read the same; 1 where that is not said by a quotient."""
    found: set[int] = set()

    def visit(e: Expr) -> None:
        match e:
            case Axis():
                found.update([1] if e == a else [])
            case Apply("floordiv", (Axis() as x, Const(n))) if x == a:
                found.add(int(n))
            case Apply(_, args) | Load(_, args):
                for inner in args:
                    visit(inner)
            case Index(element, bound):
                visit(element)
                visit(bound)

    for e in some:
        visit(e)
    return found.pop() if len(found) == 1 else 1


def _opened(e: Expr) -> Expr:
    """With what is computed of elements in it; sums stay."""
    match e:
        case Load(t, at) if t.body is not None and reduction(t) is None:
            return _opened(placed(t.body, dict(zip(t.axes, at, strict=True))))
        case Apply(fn, args, dtype):
            return Apply(fn, tuple(map(_opened, args)), dtype)
    return e


def _guarded(p: Expr) -> tuple[Expr, Expr]:
    """Which rows have weights, where p says so (ONNX's Attention: those of which some key is not
    masked), and these."""
    match p:
        case Apply("select", (guard, weights, Const(0))):
            return guard, weights
    return Const(1, BOOL), p


def _softmax(p: Expr, j: Axis) -> tuple[Expr, str, Expr, Tensor] | None:
    """x, where p is exp(x - its largest of a row) multiplied with, or divided by, what is of the
    sum of that; this, and the sum."""
    match p:
        case Apply("mul" | "div" as fn, (Apply("exp") as e, over)):
            pass
        case Apply("mul" as fn, (over, Apply("exp") as e)):
            pass
        case _:
            return None
    sums = {x for x in loads(over) if x.tensor.body is not None}
    match e:
        case Apply("exp", (Apply("sub", (x, Load() as most)),)) if len(sums) == 1:
            (total,) = sums
            if _row(most, "max", j) == x and _row(total, "sum", j) == e and j not in hangs(over):
                return x, fn, over, total.tensor
    return None


def _row(e: Load, fn: str, j: Axis) -> Expr | None:
    """What is summed, or the largest is taken of, along j."""
    match e.tensor.body:
        case Reduce(f, (over,), body) if f == fn and over.extent == j.extent:
            return _opened(
                placed(body, {**dict(zip(e.tensor.axes, e.index, strict=True)), over: j})
            )
    return None


def _product(x: Expr) -> tuple[Expr, Expr, Expr, Axis, Tensor] | None:
    """x with `held` for the product in it; its factors, and what it goes over."""
    some = {y for y in loads(x) if y.tensor.body is not None}
    if len(some) != 1:
        return None
    (scores,) = some
    s = scores.tensor
    assert s.body is not None
    body = placed(s.body, dict(zip(s.axes, scores.index, strict=True)))
    found = reductions(body)
    match found:
        case [Reduce("sum", (c,), Apply("mul", (q, k)), dtype)] if dtype == F32:
            held = Tensor("held", F32, ())
            inner = put_for(body, found[0], held, ())
            return put(x, s, inner), q, k, c, held
    return None


def hangs(e: Expr) -> set[Axis]:
    """The axes on which a value hangs, or what it reads does."""
    return axes_of(e) | {a for x in loads(e) for a in axes_of(x)}


def bare(e: Expr) -> Expr:
    """What is read as it lies in memory, where that is a shorter float."""
    match e:
        case Apply("cast", (x,), dtype) if dtype == F32 and x.dtype.is_float:
            return x
    return e
