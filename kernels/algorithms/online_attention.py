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
their results: the rule `attention-in-parts`. The kernels are in gpu/online_attention_kernel.py and
cpu/attention/streaming_kernel.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from superopt.kernels.loops.loop_nest import replace_reduction
from superopt.kernels.loops.loop_transforms import reduction
from superopt.kernels.loops.substitution import replace_loads
from superopt.te.analysis.inline import substitute_axes
from superopt.te.analysis.walk import index_axes, loads, reductions
from superopt.te.expr import index
from superopt.te.expr.dtype import BOOL, F32, DType
from superopt.te.expr.node import Apply, Axis, Const, Expr, Index, Load, Reduce
from superopt.te.expr.tensor import Tensor, compare, const, select

MIN_BLOCK_ROWS = 16  # of a block
MIN_HEAD_SIZE, MAX_HEAD_SIZE = 8, 256  # of queries and of values
MINUS_INFINITY = const(float("-inf"), F32)


@dataclass(frozen=True, slots=True)
class OnlineAttention:
    """y = epilogue(sum(exp(score - most) * v) for j), where score is of sum(q * k for c):
    expressions over the axes of `tensor`, j and c, in which `placeholder` stands for a sum.
    normalizer: the factor or divisor (`normalizer_fn`), of the sum `total`. shared_heads: for few
    rows, an axis of which `heads_per_key` neighbours read the same keys, so that they are rows,
    too."""

    tensor: Tensor
    i: Axis
    d: Axis
    j: Axis
    c: Axis
    q: Expr
    k: Expr
    score: Expr
    v: Expr
    epilogue: Expr
    normalizer_fn: str
    normalizer: Expr
    total: Tensor
    placeholder: Tensor
    shared_heads: Axis | None = None
    heads_per_key: int = 1

    @property
    def rows(self) -> int:
        """The number of rows that read the same keys."""
        return self.i.size * self.heads_per_key

    @property
    def value_dtype(self) -> DType:
        """The dtype of values in memory."""
        return without_widening(self.v).dtype


def match_online_attention(t: Tensor) -> OnlineAttention | None:
    """Match an attention with its stages; None if `t` is none."""
    found = reduction(t)
    if t.body is None or found is None or found.fn != "sum" or len(found.axes) != 1:
        return None
    (j,) = found.axes
    ones: dict[Axis, Expr] = {a: index.as_index(0) for a in t.axes if a.extent == 1}
    match substitute_axes(found.body, ones):
        case Apply("mul", (Load(Tensor(body=Expr())) as p, v)):
            pass
        case Apply("mul", (v, Load(Tensor(body=Expr())) as p)):
            pass
        case _:
            return None
    guard, weights = _split_guard(_inline_elements(p))
    soft = None if j in dependent_axes(guard) else _match_softmax(weights, j)
    product = None if soft is None else _match_score_product(soft[0])
    if soft is None or product is None:
        return None
    _, fn, over, total = soft
    x, q, k, c, held = product
    if j in dependent_axes(q):
        q, k = k, q
    own = [a for a in t.axes if a.extent != 1]
    rows = [
        a for a in own if a in dependent_axes(q) and a not in dependent_axes(k) | dependent_axes(v)
    ]
    columns = [
        a
        for a in own
        if a in dependent_axes(v)
        and a not in dependent_axes(x) | dependent_axes(q) | dependent_axes(k)
    ]
    sizes = [a.size for a in (c, *columns)]
    rows = rows or [a for a in t.axes if a.extent == 1][-1:]
    if (
        not rows
        or len(columns) != 1
        or j in dependent_axes(q)
        or j not in dependent_axes(k)
        or j not in dependent_axes(v)
    ):
        return None
    if not all(MIN_HEAD_SIZE <= n <= MAX_HEAD_SIZE for n in sizes) or any(
        x.tensor.body is not None
        for e in (x, q, k, v, guard)
        for x in loads(e)
        if x.tensor is not held
    ):
        return None
    whole = substitute_axes(found, ones)
    assert isinstance(whole, Reduce)
    kept = select(guard, held[()], Const(0, F32))  # a masked row's total is 0, too
    out = replace_loads(
        replace_reduction(substitute_axes(t.body, ones), whole, held, ()), held, kept
    )
    i = max(rows, key=lambda a: a.size)
    made = OnlineAttention(t, i, columns[0], j, c, q, k, x, v, out, fn, over, total, held)
    for a in own if i.size < MIN_BLOCK_ROWS else ():
        share = 1 if a in (i, columns[0]) else shared_neighbours(a, (k, v))
        if share > 1 and a.size % share == 0:
            return replace(made, shared_heads=a, heads_per_key=share)
    return made


def shared_neighbours(a: Axis, expressions: Sequence[Expr]) -> int:
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

    for e in expressions:
        visit(e)
    return found.pop() if len(found) == 1 else 1


def _inline_elements(e: Expr) -> Expr:
    """Return `e` with elementwise stages inlined; reductions stay."""
    match e:
        case Load(t, at) if t.body is not None and reduction(t) is None:
            return _inline_elements(substitute_axes(t.body, dict(zip(t.axes, at, strict=True))))
        case Apply(fn, args, dtype):
            return Apply(fn, tuple(map(_inline_elements, args)), dtype)
    return e


def _split_guard(p: Expr) -> tuple[Expr, Expr]:
    """Return the condition for a row to have weights (ONNX's Attention: some key is not masked;
    true by default), and the weights."""
    match p:
        case Apply("select", (guard, weights, Const(0))):
            return guard, weights
    return Const(1, BOOL), p


def _match_softmax(p: Expr, j: Axis) -> tuple[Expr, str, Expr, Tensor] | None:
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
            if (
                _match_row_reduction(most, "max", j) == x
                and _match_row_reduction(total, "sum", j) == e
                and j not in dependent_axes(over)
            ):
                return x, fn, over, total.tensor
    return None


def _match_row_reduction(e: Load, fn: str, j: Axis) -> Expr | None:
    """Return what is reduced along j."""
    match e.tensor.body:
        case Reduce(f, (over,), body) if f == fn and over.extent == j.extent:
            return _inline_elements(
                substitute_axes(body, {**dict(zip(e.tensor.axes, e.index, strict=True)), over: j})
            )
    return None


def _match_score_product(x: Expr) -> tuple[Expr, Expr, Expr, Axis, Tensor] | None:
    """Match the product in x: x with a placeholder for it, its factors, its axis, the
    placeholder."""
    some = {y for y in loads(x) if y.tensor.body is not None}
    if len(some) != 1:
        return None
    (scores,) = some
    s = scores.tensor
    assert s.body is not None
    body = substitute_axes(s.body, dict(zip(s.axes, scores.index, strict=True)))
    found = reductions(body)
    match found:
        case [Reduce("sum", (c,), Apply("mul", (q, k)), dtype)] if dtype == F32:
            held = Tensor("held", F32, ())
            inner = replace_reduction(body, found[0], held, ())
            return replace_loads(x, s, inner), q, k, c, held
    return None


def dependent_axes(e: Expr) -> set[Axis]:
    """Return the axes that a value or its indices depend on."""
    return index_axes(e) | {a for x in loads(e) for a in index_axes(x)}


def without_widening(e: Expr) -> Expr:
    """Return the operand of a cast from a narrower float, as it is in memory."""
    match e:
        case Apply("cast", (x,), dtype) if dtype == F32 and x.dtype.is_float:
            return x
    return e


def attention_result(
    a: OnlineAttention, substitute: Callable[[Expr], Expr], sums: Expr, total: Expr
) -> Expr:
    """Return the result of the sums of products and the total of exponentials."""
    over = replace_loads(substitute(a.normalizer), a.total, total)
    return replace_loads(
        substitute(a.epilogue), a.placeholder, Apply(a.normalizer_fn, (sums, over), F32)
    )


def finite_maximum(maximum: Load) -> Expr:
    """Return the maximum, or 0 for a fully masked row so far: exp(-inf - -inf) would be NaN."""
    return select(compare("eq", maximum, MINUS_INFINITY), const(0, F32), maximum)
