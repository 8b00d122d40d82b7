"""Online attention, by blocks of keys: a softmax times a matrix, with no row of scores ever
complete.

    s[i, j] = sum(q[i, c] * k[j, c] for c)
    x[i, j]                                     of s[i, j]: scaled, masked
    y[i, d] = sum(exp(x[i, j] - most[i]) * v[j, d] for j), multiplied or divided by a function of
              sum(exp(x[i, j] - most[i]) for j)

`most` is the running maximum of a row; if a block raises it, the sums are multiplied by exp(most -
new): Milakov and Gimelshein, arXiv:1805.02867, algorithm 3; Dao et al., FlashAttention,
arXiv:2205.14135, section 3.1. This is the rule `attention-step`, proved for all sizes.

For few rows and many keys, parts of the keys go to different programs, and another kernel combines
their results: the rule `attention-in-parts`. The kernels are in online_attention_kernel.py.
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

FEW = 16  # of a block
LEAST, MOST = 8, 256  # of queries and of values


@dataclass(frozen=True, slots=True)
class Online:
    """y = epilogue(sum(exp(score - most) * v) for j), where score is of sum(q * k for c):
    expressions over the axes of `tensor`, j and c, in which `placeholder` stands for a sum.
    normalizer: the factor or divisor (`normalizer_fn`), of the sum `total`. shared_heads: for few
    rows, an axis of which `heads_per_key` neighbours read the same keys, so that they are rows,
    too."""

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
        """The number of rows that read the same keys."""
        return self.i.size * self.share

    @property
    def short(self) -> DType:
        """The dtype of values in memory."""
        return bare(self.v).dtype


def online(t: Tensor) -> Online | None:
    """Match an attention with its stages; None if `t` is none."""
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
    kept = select(guard, held[()], Const(0, F32))  # a masked row's total is 0, too
    out = put(put_for(placed(t.body, ones), whole, held, ()), held, kept)
    i = max(rows, key=lambda a: a.size)
    made = Online(t, i, columns[0], j, c, q, k, x, v, out, fn, over, total, held)
    for a in own if i.size < FEW else ():
        share = 1 if a in (i, columns[0]) else shared(a, (k, v))
        if share > 1 and a.size % share == 0:
            return replace(made, heads=a, share=share)
    return made


def shared(a: Axis, some: Sequence[Expr]) -> int:
    """Return how many neighbours along an axis read the same elements; 1 if no quotient says so."""
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
    """Return `e` with elementwise stages inlined; reductions stay."""
    match e:
        case Load(t, at) if t.body is not None and reduction(t) is None:
            return _opened(placed(t.body, dict(zip(t.axes, at, strict=True))))
        case Apply(fn, args, dtype):
            return Apply(fn, tuple(map(_opened, args)), dtype)
    return e


def _guarded(p: Expr) -> tuple[Expr, Expr]:
    """Return the condition for a row to have weights (ONNX's Attention: some key is not masked;
    true by default), and the weights."""
    match p:
        case Apply("select", (guard, weights, Const(0))):
            return guard, weights
    return Const(1, BOOL), p


def _softmax(p: Expr, j: Axis) -> tuple[Expr, str, Expr, Tensor] | None:
    """Match p = exp(x - its row maximum) times, or over, a function of the row sum: x, the function
    name, the normalizer, and the sum's tensor."""
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
    """Return what is reduced along j."""
    match e.tensor.body:
        case Reduce(f, (over,), body) if f == fn and over.extent == j.extent:
            return _opened(
                placed(body, {**dict(zip(e.tensor.axes, e.index, strict=True)), over: j})
            )
    return None


def _product(x: Expr) -> tuple[Expr, Expr, Expr, Axis, Tensor] | None:
    """Match the product in x: x with a placeholder for it, its factors, its axis, the
    placeholder."""
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
    """Return the axes that a value or its indices depend on."""
    return axes_of(e) | {a for x in loads(e) for a in axes_of(x)}


def bare(e: Expr) -> Expr:
    """Return the operand of a cast from a narrower float, as it is in memory."""
    match e:
        case Apply("cast", (x,), dtype) if dtype == F32 and x.dtype.is_float:
            return x
    return e
