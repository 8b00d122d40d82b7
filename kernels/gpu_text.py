"""Translate the tile-level form to Triton text: a function for each part of a kernel that is
launched.

    parallel loops around it   the programs, numbered along one dimension of the grid
    other loops                `for`; unrolled ones over tl.static_range
    a tile                     blocks over its axes (`values.py`)
    a register                 a variable; also a local buffer that is only used in whole tiles
    another local buffer       memory, of each program if only one launch uses it
    a product summed           tl.dot, if its three axes have blocks of at least 16 and it is of
                               floats of at most 32 bits; accumulators are float32

Unrolled loops around a single update are axes of its tile, too: a schedule says so which part of a
sum is a block. Float sums are then in another order. A 16-bit product is exact within a dot, where
te/domain.py rounds it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from superopt.kernels import gpu_values as gv
from superopt.kernels.gpu_ahead import ahead
from superopt.kernels.gpu_asked import asked
from superopt.kernels.gpu_blocks import DOT, NARROW
from superopt.kernels.gpu_functions import HALF, applied, cast, helpers, number, reduced
from superopt.kernels.gpu_short import shortened
from superopt.kernels.gpu_unroll import written_out
from superopt.kernels.gpu_values import Block, Writer
from superopt.kernels.tile import For, Kernel, Stmt, Store, Update, flat
from superopt.te.dtype import BF16, F16, F32, DType
from superopt.te.expr import Tensor
from superopt.te.fn import FOLDS, unit
from superopt.te.node import Apply, Axis, Expr, Load
from superopt.te.walk import loads

ROUND = 1024  # multiple of which an opaque 0 is added to indices, which keeps vectorization

# Wait before the first memory access until the previous launch has ended: its stores are visible,
# and its loads done. All programs of this launch run then; the next launch may begin.
EARLY = ("tl.extra.cuda.gdc_wait()", "tl.extra.cuda.gdc_launch_dependents()")
# the first loads of a block overlap with the stores of the one before
TURNS = "for pid in tl.range({}, {}, {}, flatten=True):"
# Triton 3.6's interpreter cannot convert a tensor to an int with numpy 2.4
ITEM = "tl.cast({}, tl.int32).handle.data.item()"

GRID = ("parallel", "block")  # loops whose iterations are programs
INDICES = 1 << 31  # Triton's ranges have 32 bits


@dataclass(frozen=True, slots=True)
class Launch:
    """A function of pointers to `buffers`, run as `programs` concurrent programs."""

    name: str
    programs: int
    buffers: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Printed:
    """A kernel in Triton: a module's text, its launches in order, and the sizes of its scratch
    buffers in memory, in elements."""

    source: str
    launches: tuple[Launch, ...]
    scratch: tuple[tuple[Tensor, int], ...]


def printed(
    kernel: Kernel, dots: str = "ieee", interpreted: bool = False, early: bool = False
) -> Printed:
    """Return the kernel as Triton text. dot_precision: of fp32 products. interpreted: for Triton's
    interpreter, whose bfloat16 dots multiply bit patterns. dependent_launch: programs may begin
    before the previous launch has ended, and wait for it themselves (from sm_90 on).

    Raises NotImplementedError, with the construct, for what Triton does not support: element types,
    scalar functions, too large blocks, registers used in parts, buffers of 2^31 elements.
    """
    for t in (*kernel.params, *(t for t, _ in kernel.scratch)):
        if _size(t) >= INDICES:
            raise NotImplementedError(f"{t.name}: {t.type} has indices of more than 32 bits")
    written, scratch = written_out(tuple(_plain(kernel.body)), kernel.scratch)
    parts = _parts(tuple(map(_tiled, written)))
    used = [{x.buffer for x in _uses(body)} for body in parts]
    how = dots, interpreted, early
    names = [kernel.name] if len(parts) == 1 else [f"{kernel.name}_{n}" for n in range(len(parts))]
    memory: dict[Tensor, int] = {}
    texts, launches = [], []
    for name, body, buffers in zip(names, parts, used, strict=True):
        axes, inner = _shared(body)
        programs = math.prod(a.size for a in axes)
        own = [t for t, _ in scratch if sum(t in u for u in used) == 1 and t in buffers]
        uses = list(_uses(inner))
        registers = frozenset(t for t in own if _variable([x for x in uses if x.buffer is t]))
        for t, scope in scratch:
            if t in buffers and t not in registers:
                if scope == "register":
                    raise NotImplementedError(f"register {t.name}: {t.type} is not one whole tile")
                memory[t] = _size(t) * (programs if t in own else 1)
        order = (*kernel.params, *memory, *(t for t, _ in kernel.tables))
        given = tuple(t for t in order if t in buffers)
        apart = [t for t in own if t in memory and programs > 1]
        fixed = frozenset(p.buffer for p in kernel.packs)
        # a program's own scratch serves one block only
        some = kernel.programs if 0 < kernel.programs < programs and not apart else 0
        turns = (some, programs) if some else None
        texts.append(_function(name, given, axes, inner, registers, apart, fixed, how, turns))
        launches.append(Launch(name, some or programs, given))
    short = dots != "ieee" or any(p.dtype in HALF for p in kernel.params)
    return Printed(_module(texts, short), tuple(launches), tuple(memory.items()))


def _size(t: Tensor) -> int:
    return math.prod(n for n in t.shape if isinstance(n, int))


def _module(texts: Sequence[str], short: bool) -> str:
    code = "\n\n\n".join(f"@triton.jit\n{t}" for t in texts)
    return f"import triton\nimport triton.language as tl\n{helpers(code, short)}\n\n{code}\n"


# --- launches, and the buffers they use ---


def _parts(body: Sequence[Stmt]) -> list[tuple[Stmt, ...]]:
    """Return the bodies to launch: each parallel loop, and each run of statements between them."""
    out: list[tuple[Stmt, ...]] = []
    for s in body:
        alone = isinstance(s, For) and s.kind in GRID
        if alone or not out or _shared(out[-1])[0]:
            out.append((s,))
        else:
            out[-1] = (*out[-1], s)
    return out


def _shared(body: tuple[Stmt, ...]) -> tuple[list[Axis], tuple[Stmt, ...]]:
    """Return the axes of the parallel loops around the whole body, and what is inside."""
    axes = []
    while len(body) == 1 and isinstance(body[0], For) and body[0].kind in GRID:
        axes.append(body[0].axis)
        body = body[0].body
    return axes, body


def _plain(body: Sequence[Stmt]) -> Iterator[Stmt]:
    """Yield statements without loops of one iteration, whose axis is 0 everywhere."""
    for s in body:
        if not isinstance(s, For):
            yield s
        elif s.axis.extent == 1 and s.kind not in GRID and s.until is None:
            yield from _plain(s.body)
        else:
            yield replace(s, body=tuple(_plain(s.body)))


def _tiled(s: Stmt) -> Stmt:
    """Turn unrolled loops around a single update into axes of its tile."""
    if not isinstance(s, For):
        return s
    body = tuple(map(_tiled, s.body))
    match body:
        case (Update(buffer, at) as u,) if s.kind == "unroll":
            if s.axis not in gv.hangs_on(Load(buffer, at, buffer.dtype), [s.axis]):
                return replace(u, over=(s.axis, *u.over))
    return replace(s, body=body)


@dataclass(frozen=True, slots=True)
class _Use:
    """A buffer at an index: the tile of the statement, the path of loops around, and the kind of
    access."""

    buffer: Tensor
    index: tuple[Expr, ...]
    tile: tuple[Axis, ...]
    path: tuple[int, ...]
    how: str


def _uses(body: Sequence[Stmt], path: tuple[int, ...] = ()) -> Iterator[_Use]:
    for n, s in enumerate(body):
        match s:
            case For():
                for x in () if s.until is None else loads(s.until):
                    yield _Use(x.tensor, x.index, (), path, "read")
                yield from _uses(s.body, (*path, n))
            case Store() | Update():
                over = s.over if isinstance(s, Update) else ()
                tile = (*s.axes, *over)
                for x in (y for e in (s.value, *s.index) for y in loads(e)):
                    yield _Use(x.tensor, x.index, tile, path, "read")
                how = "store" if isinstance(s, Store) else "update"
                yield _Use(s.buffer, s.index, s.axes, path, how)


def _variable(uses: Sequence[_Use]) -> bool:
    """True if all uses are whole tiles, after a store that precedes each of them."""
    first = uses[0]
    rank = len(gv.dimensions(first.buffer, first.index) or ())
    if first.how != "store":
        return False
    for x in uses:
        axes = gv.dimensions(x.buffer, x.index)
        if axes is None or len(axes) != rank or not set(axes) <= set(x.tile):
            return False
        if x.path[: len(first.path)] != first.path:
            return False
        if x.how != "read" and len(axes) < len(gv.proper(x.tile)):
            return False
    return True


# --- functions ---


def _function(
    name: str, buffers: Sequence[Tensor], axes: Sequence[Axis], body: Sequence[Stmt],
    registers: frozenset[Tensor], apart: Sequence[Tensor], fixed: frozenset[Tensor],
    how: tuple[str, bool, bool], turns: tuple[int, int] | None = None,
) -> str:  # fmt: skip
    """Return a function's text. private: scratch that each program has for itself. constants:
    prefetched early. settings: see `triton_text`. persistent: the number of programs, and of blocks
    they share."""
    dots, interpreted, early = how
    uses = list(_uses(body))
    stored = {x.buffer for x in uses if x.how != "read"}
    read = {x.buffer for x in uses if x.how != "store"}
    w = Writer(registers, frozenset(stored & read) - registers, dots, interpreted)
    w.stored = frozenset(stored)
    w.zeroed = registers - {s.buffer for s in flat(body) if not _copies(s, registers)}
    w.taken.add(name)
    given = ", ".join(w.buffer(t) for t in buffers)
    head = _numbered(w, axes, bool(apart))
    if turns is not None:
        head, numbered = [], head[1:]
        first = "tl.program_id(0)"
        programs, count = turns
        w.line(TURNS.format(ITEM.format(first) if interpreted else first, count, programs))
        w.depth += 1
        for x in numbered:
            w.line(x)
    for t in apart:
        far = math.prod(a.size for a in axes) * _size(t) >= 1 << 31
        head.append(f"{w.buffer(t)} += {'tl.cast(pid, tl.int64)' if far else 'pid'} * {_size(t)}")
    _body(w, body)
    head += [f"{n} = tl.arange(0, {gv.padded(a)})" for a, n in w.ranges.items()]
    if any(f"+ {gv.ZERO})" in x for x in w.lines):  # the grid has one dimension
        head.append(f"{gv.ZERO} = tl.program_id(1) * {ROUND}")
    if early and turns is None:
        head += asked(w, axes, {x.buffer: x.index for x in uses if x.buffer in fixed})
    head += EARLY if early else ()
    lines = [*(f"    {x}" for x in head), *w.lines]
    return "\n".join([f"def {name}({given}):", *(lines or ["    pass"])])


def _copies(s: Store | Update, registers: frozenset[Tensor]) -> bool:
    """True if a store copies memory, which is read as 0 beyond extents."""
    return isinstance(s, Store) and isinstance(s.value, Load) and s.value.tensor not in registers


def _numbered(w: Writer, axes: Sequence[Axis], needed: bool) -> list[str]:
    """Return the indices of the parallel loops from the program id; the last one varies fastest."""
    axes = gv.proper(axes)
    if not axes and not needed:
        return []
    lines = ["pid = tl.program_id(0)"]
    below = math.prod(a.size for a in axes)
    for n, a in enumerate(axes):
        w.names[a] = w.fresh(a.name)
        below //= a.size
        step = f"pid // {below}" if below > 1 else "pid"
        lines.append(f"{w.names[a]} = {step}" + (f" % {a.size}" if n else ""))
    return lines


def _body(w: Writer, body: Sequence[Stmt]) -> None:
    before = dict(w.early)
    for n, s in enumerate(body):
        if isinstance(s, For) and not w.early:
            ahead(w, body[n + 1 :])
        match s:
            case For(_, inner, "parallel" | "block"):
                raise NotImplementedError(f"the parallel loop {s.axis.name} is inside another one")
            case For(axis, inner, kind):
                w.names[axis] = w.fresh(axis.name)
                steps, end = "tl.static_range" if kind == "unroll" else "range", f"{axis.size}"
                if s.until is not None:
                    w.over(())
                    end = gv.value(w, s.until).text
                    end = ITEM.format(end) if w.interpreted else end
                w.line(f"for {w.names[axis]} in {steps}(0, {end}):")
                w.depth += 1
                w.known.clear()
                _body(w, inner)
                w.known.clear()
                w.depth -= 1
            case Store(buffer, at, new, axes):
                w.over(axes)
                new = shortened(new) if buffer.dtype in HALF else new
                gv.write(w, buffer, at, gv.value(w, new))
            case Update():
                _update(w, s)
    w.early = before


def _update(w: Writer, s: Update) -> None:
    kind = s.buffer.dtype
    found = _dot(s, w.interpreted)
    if found is not None:
        (summed,) = gv.proper(s.over)
        x, y = (_operand(w, e, tile, summed) for e, tile in found)
        w.over(s.axes)
        old = gv.whole(w, gv.read(w, s.buffer, s.index), kind)
        text = f'tl.dot({x}, {y}, {old}, input_precision="{w.dots}")'
        gv.write(w, s.buffer, s.index, Block(text, frozenset(w.tile)))
        return
    w.over((*s.axes, *s.over))
    term = gv.value(w, s.value)
    new = _reduced(w, s, Block(cast(term.text, s.value.dtype, kind), term.axes))
    w.over(s.axes)
    was = gv.read(w, s.buffer, s.index)
    text = applied(FOLDS[s.fn], [was.text, new.text], kind, kind)
    gv.write(w, s.buffer, s.index, Block(text, was.axes | new.axes))


def _reduced(w: Writer, s: Update, new: Block) -> Block:
    """Return the block reduced over the update's axes."""
    over = gv.proper(s.over)
    if not over:
        return new
    kind = s.buffer.dtype
    if not new.axes >= set(over):
        new = Block(gv.whole(w, new, kind), frozenset(w.tile))
    beyond = gv.within(w, frozenset(over))
    if beyond is not None:
        start = number(unit(s.fn, kind), kind)
        new = Block(f"tl.where({beyond.text}, {new.text}, {start})", new.axes | beyond.axes)
    text = new.text
    for n in range(len(w.tile) - 1, len(w.tile) - 1 - len(over), -1):
        text = reduced(s.fn, text, n, kind)
    return Block(text, new.axes - set(over))


# --- dots ---


_Operand = tuple[Expr, tuple[Axis, ...]]


def _dot(s: Update, interpreted: bool) -> tuple[_Operand, _Operand] | None:
    """Match a matrix product that tl.dot takes: its two factors with their tiles; None
    otherwise."""
    axes, over = gv.proper(s.axes), gv.proper(s.over)
    match s.fn, s.value, axes, over:
        case "sum", Apply("mul", (x, y)), (m, n), (k,):
            pass
        case _:
            return None
    x, y = _narrow(x, y, (F16,) if interpreted else HALF)
    if s.buffer.dtype != F32 or x.dtype not in (F16, BF16, F32):
        return None
    high, wide, deep = gv.shape((m, n, k))
    if min(high, deep) < DOT or wide < NARROW:
        return None
    hanging = [gv.hangs_on(e, (m, n, k)) for e in (x, y)]
    if hanging == [(n, k), (m, k)]:
        x, y = y, x
    elif hanging != [(m, k), (n, k)]:
        return None
    return (x, (m, k)), (y, (k, n))


def _narrow(x: Expr, y: Expr, kinds: Sequence[DType]) -> tuple[Expr, Expr]:
    """Return 16-bit operands without their cast to float32 for the product, which is exact within a
    dot."""
    match x, y:
        case Apply("cast", (a,), f), Apply("cast", (b,), g) if f == g == F32:
            if a.dtype == b.dtype and a.dtype in kinds:
                return a, b
    return x, y


def _operand(w: Writer, e: Expr, tile: tuple[Axis, ...], summed: Axis) -> str:
    """Return a factor of a dot, 0 beyond the extent of the summed axis."""
    w.over(tile)
    b = gv.value(w, e)
    text = gv.whole(w, b, e.dtype)
    inside = gv.within(w, frozenset((summed,)))
    if inside is None or (isinstance(e, Load) and e.tensor not in w.registers - w.zeroed):
        return text  # what is read is 0 there
    return f"tl.where({inside.text}, {text}, {number(0, e.dtype)})"
