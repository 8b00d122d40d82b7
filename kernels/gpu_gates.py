"""Gated products (plan/gated.py) on a GPU: several products of one operand, combined into one
result, in one kernel with an accumulator block for each, or one after the other.

    gated  one kernel: the shared operand is read once, and gates are never in memory
    apart  gates are kernels of their own, or cuBLAS's; the last product reads them

All kernels of `apart` have the same loops, and `gated` merges them: the statements of the gates
precede those of the last product, and their results stay in registers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf, prod

from superopt.kernels import contraction as co
from superopt.kernels.address import flat_index, rejoined
from superopt.kernels.built import Built, built, operands
from superopt.kernels.gpu_blocks import MEMORY, STAGES
from superopt.kernels.gpu_library import NAME, library, offered
from superopt.kernels.gpu_products import Matrix, matrix_of, multiplied
from superopt.kernels.gpu_ranking import blocks, varied
from superopt.kernels.layout import Layout, Scatter
from superopt.kernels.option import Option
from superopt.kernels.problem import Choice, Problem
from superopt.kernels.tile import For, Kernel, Stmt, Store
from superopt.kernels.transform import reduction
from superopt.te.dtype import F32
from superopt.te.expr import Tensor, cast
from superopt.te.inline import placed
from superopt.te.node import Apply, Axis, Expr, Load, Reduce
from superopt.te.walk import loads, reductions

TRIED = 3  # of each kind, before the others
MOST = 8  # of one kernel
SURE = 1.1  # required gain for more than two products, for which the cost model was not measured


@dataclass(frozen=True, slots=True)
class Gate:
    """A gate as a problem of its own, and the buffer of its result if that is in memory."""

    problem: Problem
    held: Tensor


@dataclass(frozen=True, slots=True)
class Gated:
    """The gates, and the problem that reads them, a product of the same sizes."""

    gates: tuple[Gate, ...]
    last: Problem
    matrix: Matrix

    @property
    def count(self) -> int:
        """The number of products."""
        return len(self.gates) + 1


def read_so(now: Tensor, g: Tensor) -> bool:
    """True if `result` is a reduction and reads `g` elementwise outside of it."""
    return reduction(now) is not None and read_at(now, g)


def read_at(now: Tensor, g: Tensor) -> bool:
    """True if each element of `g` is read for the same element of the result, and in no
    reduction."""
    if now.body is None or any(x.tensor is g for r in reductions(now.body) for x in loads(r)):
        return False
    some = [x for x in loads(now.body) if x.tensor is g]
    return now.shape == g.shape and all(_own(x, now) for x in some)


def _own(x: Load, now: Tensor) -> bool:
    places = zip(x.index, now.axes, now.shape, strict=True)
    return all(i == a or n == 1 for i, a, n in places)


def alike(now: Tensor, gate: Tensor, constants: Collection[Tensor]) -> bool:
    """True if both are products of the same operand with constant matrices of one dtype, over axes
    of equal sizes."""
    a, b = (co.contraction(t, constants, 1) for t in (now, _renamed(gate, now)))
    if a is None or b is None or a.a != b.a or not a.of_a or not a.of_b:
        return False
    known = a.b.tensor in constants and b.b.tensor in constants
    return known and a.b.index == b.b.index and a.b.dtype == b.b.dtype


def _renamed(gate: Tensor, now: Tensor) -> Tensor:
    """Return the gate over the axes of the other product."""
    own, other = reduction(now), reduction(gate)
    assert gate.body is not None
    if own is None or other is None or [a.size for a in own.axes] != [a.size for a in other.axes]:
        return gate
    over = dict(zip(other.axes, own.axes, strict=True))
    env: dict[Axis, Expr] = dict(zip(gate.axes, now.axes, strict=True))

    def go(e: Expr) -> Expr:
        match e:
            case Reduce(fn, _, body, dtype) if e == other:
                return Reduce(fn, own.axes, placed(body, {**env, **over}), dtype)
            case Apply(fn, args, dtype):
                return Apply(fn, tuple(map(go, args)), dtype)
        return placed(e, env)

    return Tensor(gate.name, gate.dtype, now.shape, now.axes, go(gate.body))


def gated_of(p: Problem) -> Gated | None:
    """Match the gates of a problem; None if it has none."""
    t = p.tensor
    if p.lead or t.body is None or t in p.layouts:
        return None
    some = dict.fromkeys(x.tensor for x in loads(t.body) if x.tensor.body is not None)
    if not some or not all(read_so(t, g) and alike(t, g, p.constants) for g in some):
        return None
    gates = {g: _gate(p, g) for g in some}
    last = replace(p, tensor=_with(t, {g: gate.held for g, gate in gates.items()}))
    m = matrix_of(last)
    if m is None or any(matrix_of(gate.problem) is None for gate in gates.values()):
        return None
    return Gated(tuple(gates.values()), last, m)


def _gate(p: Problem, g: Tensor) -> Gate:
    """Return the gate over the result's axes, in 16 bits if its operands have 16."""
    t, gate = p.tensor, _renamed(g, p.tensor)
    c = co.contraction(gate, p.constants, 1)
    assert c is not None
    assert gate.body is not None
    kind = c.b.dtype if c.b.dtype.bits == 16 else gate.dtype
    short = Tensor("gate", kind, t.shape, t.axes, cast(gate.body, kind))
    return Gate(replace(p, tensor=short), Tensor("held", kind, t.shape))


def _with(t: Tensor, held: Mapping[Tensor, Tensor]) -> Tensor:
    """Return the result reading gates from their buffers."""

    def read(e: Expr) -> Expr:
        match e:
            case Load(x, _, dtype) if x in held:
                return cast(Load(held[x], t.axes, held[x].dtype), dtype)
            case Apply(fn, args, dtype):
                return Apply(fn, tuple(map(read, args)), dtype)
        return e

    assert t.body is not None
    return Tensor(t.name, t.dtype, t.shape, t.axes, read(t.body))


def worth(g: Gated, half: bool) -> int:
    """Return how many products to fuse into one kernel; the others are one kernel before it, as
    horizontally fused columns (plan/joint.py), with split-K if that is faster. is_16_bit: of the
    operands."""
    m = replace(g.matrix, half=half)

    def taken(n: int) -> float:
        rest = g.count - n
        before = _best(_beside(m, rest)) + rest * _between(m) if rest else 0.0
        return (before + _best(m, n)) * (SURE if n > 2 else 1.0)

    n = min(range(g.count, 0, -1), key=taken)
    return n if n == 1 or joins(g) else 1


def together(g: Gated, half: bool, which: Axis) -> bool:
    """True if one kernel for all products, of both halves along `axis`, is estimated to be faster
    than one for all but the last product and another for that."""
    m = replace(g.matrix, half=half)
    one = replace(m, batch=tuple(a for a in m.batch if a != which))
    after = _best(one, g.count - 1) * SURE + _best(one) + _between(one)
    return worth(g, half) == g.count and _best(m, g.count) * SURE < after


def _best(m: Matrix, gates: int = 1) -> float:
    """Return the best estimated time, ns."""
    return min((time for time, _ in blocks(m, gates)), default=inf)


def _beside(m: Matrix, n: int) -> Matrix:
    """Return n horizontally fused products."""
    return replace(m, columns=(Axis("gate", n), *m.columns))


def _between(m: Matrix) -> float:
    """Return the time to read a gate, ns."""
    size = prod(m.sizes[:2]) * prod(a.size for a in m.batch)
    return size * (2 if m.half else 4) / MEMORY


def ways(g: Gated, vendor: bool) -> Iterator[Option]:
    """Yield options, by estimated time."""
    m, n = g.matrix, g.count
    one = sorted(blocks(m, n), key=lambda x: x[0]) if joins(g) else []
    each = sorted((x for x in blocks(m) if x[1].algorithm == "dot"), key=lambda x: x[0])
    some = [(time, o, "gated") for time, o in one] + [
        (n * time + (n - 1) * _between(m), o, "apart") for time, o in each
    ]
    first = [x for kind in (one, each) for _, x in kind[:TRIED]]
    ranked = sorted(some, key=lambda x: (x[1] not in first, x[0]))
    theirs = Option("apart", (*each[0][1].knobs, ("gates", n), (NAME, 1)))
    offers = vendor and all(_theirs(gate, theirs) is not None for gate in g.gates)
    for waiting, more_warps in ((STAGES, 0), (STAGES - 1, 1)):
        for k, (_, o, name) in enumerate(ranked):
            knobs = {**dict(varied(o, waiting, more_warps).knobs), "gates": n}
            yield Option(name, tuple(knobs.items()))
            if k == 0 and waiting == STAGES and offers:
                yield theirs


def _theirs(gate: Gate, o: Option) -> Choice | None:
    """Return a gate by cuBLAS, if it has no epilogue; else None."""
    m = matrix_of(gate.problem)
    made = None if m is None or offered(gate.problem, m) is None else library(gate.problem, m, o)
    return None if made is None or made.first else made


def joins(g: Gated) -> bool:
    """True if the kernels can be merged loop by loop."""
    one = next((o for _, o in blocks(g.matrix, g.count)), None)
    made = None if one is None else chosen(g, Option("gated", one.knobs))
    if made is None:
        return False
    try:
        made.direct[made.root](operands(made.root), g.last.layouts)
    except NotImplementedError:
        return False
    return True


def chosen(g: Gated, o: Option) -> Choice | None:
    """Return the choice of an option; None if cuBLAS does not have the product."""
    last = multiplied(g.last, g.matrix, o)
    if o.algorithm == "gated":
        return _together(g, last, o)
    firsts = []
    for gate in g.gates:
        m = matrix_of(gate.problem)
        assert m is not None
        own = _theirs(gate, o) if NAME in dict(o.knobs) else multiplied(gate.problem, m, o)
        if own is None:
            return None
        firsts.append(own)
    every = (*firsts, last)
    return replace(
        last, option=o,
        schedules={t: s for x in every for t, s in x.schedules.items()},
        packed=tuple(t for x in every for t in x.packed),
        made={t: s for x in every for t, s in x.made.items()},
        direct={t: s for x in every for t, s in x.direct.items()},
        first=tuple((x.root, gate.held) for x, gate in zip(firsts, g.gates, strict=True)),
    )  # fmt: skip


def _wide(t: Tensor) -> Tensor:
    """Return the tensor without the final cast to a narrower dtype."""
    match t.body:
        case Apply("cast", (x,), dtype) if dtype == t.dtype and x.dtype == F32:
            return Tensor(t.name, F32, t.shape, t.axes, x)
    return t


def _together(g: Gated, last: Choice, o: Option) -> Choice:
    """Return the choice of one merged kernel; see _fused_kernel. Its root records what it reads and
    computes."""
    after, made = last.root, dict(last.made)
    gates: list[Built] = []
    inner: dict[Tensor, Expr] = {}
    for gate in g.gates:
        wide = replace(gate.problem, tensor=_wide(gate.problem.tensor))
        m = matrix_of(wide)
        assert m is not None
        own = multiplied(wide, m, o)
        made |= own.made
        assert own.root.body is not None
        inner[gate.held] = own.root.body
        gates.append(built(wide, own)[0])

    def put(e: Expr) -> Expr:
        match e:
            case Load(x) if x in inner:
                return cast(inner[x], x.dtype)
            case Apply(fn, args, dtype):
                return Apply(fn, tuple(map(put, args)), dtype)
        return e

    assert after.body is not None
    root = Tensor(after.name, after.dtype, after.shape, after.axes, put(after.body))
    held = tuple(gate.held for gate in g.gates)
    return Choice(
        o, root, made=made,
        direct={root: partial(_one, gates, built(g.last, last)[0], held)},
    )  # fmt: skip


def _one(
    gates: Sequence[Built], last: Built, held: Sequence[Tensor], given: Sequence[Tensor],
    layouts: Mapping[Tensor, Layout | Scatter],
) -> Kernel:  # fmt: skip
    """Merge kernels into one of `inputs`. gate_buffers: the tensors through which the last one
    reads the gates."""
    every = (*gates, last)
    buffers = dict(zip(last.reads, last.kernel.params, strict=False))
    outs = {g.kernel.params[-1]: buffers.pop(x) for g, x in zip(gates, held, strict=True)}
    body, registers = _merged([x.kernel.body for x in every], outs)
    same: dict[Tensor, Tensor] = {}
    for g in gates:
        for x, buffer in zip(g.reads, g.kernel.params, strict=False):
            same[buffer] = buffers.setdefault(x, buffer)
            if same[buffer].shape != buffer.shape:
                raise NotImplementedError(f"{x.name} is read in two layouts")
    params = (*(buffers[x] for x in given), last.kernel.params[-1])
    scratch = (*(x for k in every for x in k.kernel.scratch), *((r, "register") for r in registers))
    packs = {p.buffer: p for k in every for p in k.kernel.packs if p.buffer in params}
    body = tuple(_reading(s, same) for s in body)
    return Kernel("kernel", params, body, scratch, packs=tuple(packs.values()))


def _merged(
    bodies: Sequence[Sequence[Stmt]], outs: Mapping[Tensor, Tensor]
) -> tuple[tuple[Stmt, ...], list[Tensor]]:
    """Merge statements loop by loop. Gates' stores to `outs` become registers, which are returned
    too, and the last product reads these."""
    kept: dict[Tensor, tuple[tuple[Expr, ...], Load]] = {}

    def go(some: Sequence[Sequence[Stmt]]) -> Iterator[Stmt]:
        if len({len(x) for x in some}) > 1:
            raise NotImplementedError("the products have different statements")
        for level in zip(*some, strict=True):
            loops = [s for s in level if isinstance(s, For)]
            if len({(s.axis, s.kind) for s in loops}) > 1:
                names = " and ".join(dict.fromkeys(s.axis.name for s in loops))
                raise NotImplementedError(f"the loops {names} differ")
            if len(loops) == len(level) and loops[0].kind != "unroll":
                yield replace(loops[0], body=tuple(go([s.body for s in loops])))
            else:
                yield from map(one, level)

    def one(s: Stmt) -> Stmt:
        if isinstance(s, Store) and s.buffer in outs:
            gate = Tensor("gate", s.buffer.dtype, tuple(a.extent for a in s.axes))
            kept[outs[s.buffer]] = s.index, Load(gate, s.axes, gate.dtype)
            return Store(gate, s.axes, s.value, s.axes)
        return replace(s, value=_held(s.value, kept)) if isinstance(s, Store) else s

    body = tuple(go(bodies))
    return body, [x.tensor for _, x in kept.values()]


def _held(e: Expr, kept: Mapping[Tensor, tuple[tuple[Expr, ...], Load]]) -> Expr:
    """Return `e` reading gates from registers. kept: each gate's store index, and the register
    load."""
    match e:
        case Load(x, at) if x in kept:
            place, read = kept[x]
            if _flat(x, at) != _flat(x, place):
                raise NotImplementedError("the products are stored in different orders")
            return read
        case Apply("cast", (Load(x) as load,), dtype) if x in kept:
            return cast(_held(load, kept), dtype)
        case Apply(fn, args, dtype):
            return Apply(fn, tuple(_held(a, kept) for a in args), dtype)
    return e


def _flat(t: Tensor, at: Sequence[Expr]) -> Expr:
    """Return the offset in canonical form, however rows are made of axes."""
    flat = flat_index(t, at)
    return rejoined(flat) or flat


def _reading(s: Stmt, same: Mapping[Tensor, Tensor]) -> Stmt:
    """Return the statement with buffers that both kernels read unified."""

    def go(e: Expr) -> Expr:
        match e:
            case Load(x, index, dtype):
                return Load(same.get(x, x), tuple(map(go, index)), dtype)
            case Apply(fn, args, dtype):
                return Apply(fn, tuple(map(go, args)), dtype)
        return e

    match s:
        case For():
            return replace(s, body=tuple(_reading(x, same) for x in s.body))
    return replace(s, value=go(s.value), index=tuple(map(go, s.index)))
