"""Matrix products on a GPU: blocks of the result and of the sum, and split-K if a result has too
few blocks for all multiprocessors. gemm_cost_model.py ranks the blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import log, prod, sqrt

import numpy as np

from superopt.kernels import contraction as co
from superopt.kernels.factor import placed, put, scattered
from superopt.kernels.gpu_blocks import (
    CACHE,
    DOT,
    MULTIPROCESSORS,
    NARROW,
    THIRD,
    block,
    each,
    elements_of,
    fused,
    side_by_side,
    stride,
    taken,
)
from superopt.kernels.nest import put_for
from superopt.kernels.option import Option
from superopt.kernels.problem import Choice, Problem
from superopt.kernels.schedule import (
    Fuse,
    Parallel,
    Primitive,
    Reorder,
    Schedule,
    Split,
    Unroll,
    Vectorize,
)
from superopt.kernels.transform import reduction
from superopt.te import index as ix
from superopt.te.expr import Tensor
from superopt.te.node import Apply, Axis, Dim, Expr, Load, Reduce
from superopt.te.walk import axes_of


@dataclass(frozen=True, slots=True)
class Matrix:
    """A sum of products as a matrix product: rows, columns and reduction_axes, each a group of
    fused axes, outermost first; batch: axes of both operands. epilogue_cost: of the epilogue, in
    erf per element; reads_each_row: the epilogue reads more for each row. is_swapped: the rows are
    those of the second operand, which has more."""

    c: co.Contraction
    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    over: tuple[Axis, ...]
    half: bool
    ends: float = 0.0
    sideways: bool = False
    beside: bool = False

    @property
    def sizes(self) -> tuple[int, int, int]:
        m, n, k = (prod(a.size for a in x) for x in (self.rows, self.columns, self.over))
        return m, n, k

    @property
    def windows(self) -> int:
        """The number of times each row element is read, in sums over image windows."""
        return self.sizes[2] // self.over[-1].size


def matrix_of(p: Problem, sideways: bool = False) -> Matrix | None:
    """Match a matrix product; None if there are too few rows, columns or terms for tensor cores.
    swapped: the few rows become columns, of which tensor cores need fewer."""
    c, found = co.contraction(p.tensor, p.constants, 1), reduction(p.tensor)
    if c is None or found is None or not c.of_a or not c.of_b:
        return None
    read = set[Axis]().union(*map(axes_of, c.a.index))
    if read & set(c.of_b):  # each group of columns reads rows of its own (grouped_gemm.py)
        return None
    order = side_by_side(p)
    # rows in groups that each read their own matrix (heads that share keys) are not fused with
    # others
    own = set[Axis]().union(*map(axes_of, c.b.index))
    rows = tuple(a for a in order if a in c.of_a and a not in own)
    columns = tuple(a for a in order if a in c.of_b)
    if sideways:
        rows, columns = columns, rows
    both = tuple(a for a in order if a not in (*rows, *columns))  # or of neither
    # channels innermost in channels-last images; axes of extent 1 do not matter
    over = sorted(found.axes, key=lambda a: (a.size > 1, stride(c.a, a, p.layouts) == 1))
    half = c.a.dtype.bits == 16
    assert p.tensor.body is not None
    ends, beside = _functions(p.tensor.body), _beside(p.tensor.body, rows)
    m = Matrix(c, both, rows, columns, tuple(over), half, ends, sideways, beside)
    if sideways:
        few = NARROW // 2 < m.sizes[1] <= NARROW and c.b.tensor in p.constants
        return m if few and len(over) == 1 and min(m.sizes[0], terms_of(m)) >= DOT else None
    return m if min(m.sizes[0], m.sizes[1], terms_of(m)) > DOT // 2 else None


def _functions(e: Expr) -> float:
    """Return the cost of the epilogue's functions, in erf; common subexpressions count once."""
    known: dict[int, float] = {}

    def visit(x: Expr) -> None:
        if isinstance(x, Apply) and id(x) not in known:
            known[id(x)] = COSTLY.get(x.fn, 0.0)
            for a in x.args:
                visit(a)

    visit(e)
    return sum(known.values())


def _beside(e: Expr, rows: Sequence[Axis]) -> bool:
    """True if something is read for each row, outside of the sum."""
    match e:
        case Load(_, index):
            return any(set(rows) & axes_of(i) for i in index)
        case Apply(_, args):
            return any(_beside(x, rows) for x in args)
    return False


def terms_of(m: Matrix, most: int = 64) -> int:
    """Return the terms of a block of the sum: along its last axis, or all axes if that is short. If
    no divisor fits, max_terms, with a masked last block; 0 if the sum is too short."""
    last = m.over[-1].size
    n = last if last >= DOT else m.sizes[2]
    if n < DOT:
        return n if n > DOT // 2 else 0
    tried = (block(n, x, DOT) for x in (most, 2 * most, 4 * most) if x <= LONGEST)
    return next(filter(None, tried), most)


LONGEST = 128  # of a block
# costs of epilogue functions, in erf
COSTLY = {"erf": 1.0, "tanh": 1.0, "sigmoid": 0.5, "exp": 0.5}


def multiplied(p: Problem, m: Matrix, o: Option) -> Choice:
    """Return the choice of an option for this product, with split-K or without."""
    own, made = p, None
    fixed = m.c.b.tensor in p.constants
    turned = fixed and (not m.half or m.sideways or o["columns"] < DOT)
    if turned:
        own, made = by_terms(p, m.c.b, m.over[-1], m.c.of_b)
        found = matrix_of(own, m.sideways)
        assert found is not None
        m = found
    packed = (m.c.b.tensor,) if fixed and not turned else ()
    t = own.tensor
    if o.algorithm == "split":
        how = split(own, m, o, packed)
    else:
        lies = None if own is p else scattered(t, own.layouts.get(t), t.axes, t.axes)
        how = Choice(o, t, {t: dot(m, o)}, packed, lies, programs=dict(o.knobs).get("programs", 0))
    return how if made is None else replace(how, made=made)


Made = Mapping[Tensor, tuple[Tensor, Callable[[np.ndarray], np.ndarray]]]


@lru_cache(maxsize=1 << 12)
def turned_of(t: Tensor, order: tuple[int, ...], shape: tuple[Dim, ...]) -> Tensor:
    """Return the constant with its dimensions in this order: one tensor for all readers."""
    return Tensor(f"{t.name}_turned", t.dtype, shape)


def transposed(array: np.ndarray, t: Tensor, order: Sequence[int]) -> np.ndarray:
    """Return a constant's array with its dimensions in this order."""
    shape = [n for n in t.shape if isinstance(n, int)]
    return np.ascontiguousarray(array.reshape(shape).transpose(order))


def by_terms(p: Problem, b: Load, last: Axis, columns: Sequence[Axis]) -> tuple[Problem, Made]:
    """Return the problem with a constant whose terms along `last` are contiguous, and the constants
    made. Tensor cores read 32-bit operands so, and Triton 3.6 sometimes transposes them wrongly in
    a pipelined loop; and a program with few results reads a contiguous range."""
    t = p.tensor
    first = [d for d, i in enumerate(b.index) if axes_of(i) & set(columns)]
    end = [d for d, i in enumerate(b.index) if last in axes_of(i) and d not in first]
    order = [*first, *(d for d in range(b.tensor.rank) if d not in (*first, *end)), *end]
    turned = turned_of(b.tensor, tuple(order), tuple(b.tensor.shape[d] for d in order))

    def make(array: np.ndarray) -> np.ndarray:
        return transposed(array, b.tensor, order)

    def read(e: Expr) -> Expr:
        match e:
            case Load(x, index, dtype) if x is b.tensor:
                return Load(turned, tuple(index[d] for d in order), dtype)
            case Apply(fn, args, dtype):
                return Apply(fn, tuple(map(read, args)), dtype)
            case Reduce(fn, axes, body, dtype):
                return Reduce(fn, axes, read(body), dtype)
        return e

    assert t.body is not None
    root = Tensor(t.name, t.dtype, t.shape, t.axes, read(t.body))
    layouts = {(root if x is t else x): y for x, y in p.layouts.items()}
    constants = {*p.constants, turned}
    return replace(p, tensor=root, layouts=layouts, constants=constants), {turned: (b.tensor, make)}


def dot(m: Matrix, o: Option) -> Schedule:
    """Return the schedule of a tl.dot option."""
    steps: list[Primitive] = [
        Reorder(tuple(a.name for a in (*m.batch, *m.rows, *m.columns, *m.over)))
    ]
    row, column = fused(steps, m.rows), fused(steps, m.columns)
    last = m.over[-1].size
    if last >= DOT:
        *window, k = [a.name for a in m.over]
    else:
        window, k, last = [], fused(steps, m.over), m.sizes[2]
    high, wide = min(o["rows"], m.sizes[0]), min(o["columns"], m.sizes[1])
    steps += [Split(row, high), Split(column, wide), taken(k, last, o["deep"])]
    outer = [*(a.name for a in m.batch), f"{row}.o", f"{column}.o"]
    lines = _lines(m, o)
    if lines > 1:
        steps.append(Split(f"{row}.o", lines))
        outer[-2:] = [f"{row}.o.o", f"{column}.o", f"{row}.o.i"]
    ends, apart = [f"{row}.i", f"{column}.i"], list[str]()
    for n, size in enumerate((high, wide)):
        if size % THIRD == 0 and size == o[("rows", "columns")[n]]:
            steps.append(Split(ends[n], size // THIRD))
            apart.append(f"{ends[n]}.o")
            ends[n] = f"{ends[n]}.i"
    inner = [f"{k}.i", *ends]
    steps.append(Reorder((*outer, *window, f"{k}.o", *apart, *inner)))
    for name in window[1:]:
        steps.append(Fuse(window[0], name))
        window[0] = f"{window[0]}_{name}"
    if window:
        steps.append(Fuse(window[0], f"{k}.o"))
    steps += [Parallel(x) for x in outer]
    steps += [Unroll(x) for x in apart]
    return (*steps, Unroll(f"{k}.i"), Unroll(ends[0]), Vectorize(ends[1]))


def _lines(m: Matrix, o: Option) -> int:
    """Return how many row blocks precede the next column block (grouped ordering): if operands
    exceed L2, concurrent blocks should read as little as possible."""
    rows, columns, terms = m.sizes
    gates, windows = dict(o.knobs).get("gates", 1), m.windows
    read = (rows / windows + gates * columns) * terms * m.c.b.dtype.bits / 8
    count = -(-rows // o["rows"])
    if read <= CACHE or count * -(-columns // o["columns"]) <= MULTIPROCESSORS:
        return 1
    best = sqrt(MULTIPROCESSORS * gates * o["columns"] / o["rows"])
    return min((n for n in range(1, count + 1) if count % n == 0), key=lambda n: abs(log(n / best)))


def split(p: Problem, m: Matrix, o: Option, packed: tuple[Tensor, ...]) -> Choice:
    """Return the choice with the sum's last axis in parts; the epilogue adds them."""
    t, found, parts = p.tensor, reduction(p.tensor), o["parts"]
    assert found is not None
    k = m.over[-1]
    n = k.size // parts
    if n * parts != k.size:
        raise ValueError(f"{o}: {k.size} terms do not split into {parts} equal parts")
    part, rest, again = Axis("part", parts), Axis(f"{k.name}r", n), Axis("part", parts)
    body = placed(found.body, {k: ix.as_index(part * n + rest)})
    over = tuple(rest if a == k else a for a in found.axes)
    order = side_by_side(p)
    axes = (part, *order)
    shape = tuple(a.extent for a in axes)
    before = Tensor("parts", found.dtype, shape, axes, Reduce("sum", over, body, found.dtype))
    buffer, held = Tensor("summed", found.dtype, shape), Tensor("held", found.dtype, t.shape)
    total = Reduce("sum", (again,), Load(buffer, (again, *order), found.dtype), found.dtype)
    assert t.body is not None
    root = Tensor(
        t.name, t.dtype, t.shape, t.axes, put(put_for(t.body, found, held, t.axes), held, total)
    )
    own = {x: y for x, y in p.layouts.items() if x != t}
    lies = p.layouts.get(t)
    inner = matrix_of(replace(p, tensor=before, layouts=own), m.sideways)
    assert inner is not None
    outer = replace(p, tensor=root, layouts=own if lies is None else {**own, root: lies})
    schedules = {before: dot(inner, o), root: each(outer, elements_of(t))}
    return Choice(
        o, root, schedules, packed, scattered(t, lies, t.axes, t.axes), {}, ((before, buffer),)
    )
