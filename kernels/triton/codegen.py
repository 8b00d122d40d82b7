"""Translate the tile-level form to Triton text: a function for each part of a kernel that is
launched.

    parallel loops around it   the programs, numbered along one dimension of the grid
    other loops                `for`; unrolled ones over tl.static_range
    a tile                     blocks over its axes (`writer.py`, `values.py`)
    a register                 a variable; also a local buffer that is only used in whole tiles
    another local buffer       memory, of each program if only one launch uses it
    a product summed           tl.dot (`dots.py`), if its three axes have blocks of at least 16
                               and it is of floats of at most 32 bits, with float32 accumulators, or
                               of int8, with int32 ones

Unrolled loops around a single update are axes of its tile, too: a schedule says so which part of a
sum is a block. Float sums are then in another order. A 16-bit product is exact within a dot, where
te/eval/domain.py rounds it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from superopt.kernels.loops.tile import For, Kernel, Stmt, Store, Update, flat_statements
from superopt.kernels.triton import values
from superopt.kernels.triton.dots import dot_operand, match_dot
from superopt.kernels.triton.functions import (
    FLOAT16_DTYPES,
    cast_text,
    constant_text,
    function_text,
    helper_functions,
    reduction_text,
)
from superopt.kernels.triton.l2_prefetch import l2_prefetch_lines
from superopt.kernels.triton.load_hoisting import hoist_loads
from superopt.kernels.triton.narrow_stores import narrow_value
from superopt.kernels.triton.unroll import unroll_loops
from superopt.kernels.triton.writer import ZERO_NAME, Block, Writer, non_unit_axes, padded_extent
from superopt.te.analysis.walk import loads
from superopt.te.expr import index as te_index
from superopt.te.expr.dtype import I32
from superopt.te.expr.functions import REDUCTION_COMBINERS, identity_element
from superopt.te.expr.node import Axis, Expr, Load
from superopt.te.expr.symbolic_int import hint, is_symbolic
from superopt.te.expr.tensor import Tensor

ZERO_MULTIPLE = 1024  # multiple of which an opaque 0 is added to indices, which keeps vectorization

# Wait before the first memory access until the previous launch has ended: its stores are visible,
# and its loads done. All programs of this launch run then; the next launch may begin.
DEPENDENT_LAUNCH_LINES = ("tl.extra.cuda.gdc_wait()", "tl.extra.cuda.gdc_launch_dependents()")
# the first loads of a block overlap with the stores of the one before
PERSISTENT_LOOP = "for pid in tl.range({}, {}, {}, flatten=True):"
# Triton 3.6's interpreter cannot convert a tensor to an int with numpy 2.4
INTERPRETER_ITEM = "tl.cast({}, tl.int32).handle.data.item()"

MAX_BUFFER_ELEMENTS = 1 << 31  # Triton's ranges have 32 bits
# of buffers of symbolic sizes: blocks may pass the end
MAX_SYMBOLIC_ELEMENTS = 1 << 30


@dataclass(frozen=True, slots=True)
class Launch:
    """A function of pointers to `buffers`, then of the symbolic sizes named `sizes`, run as
    `programs` concurrent programs."""

    name: str
    programs: int
    buffers: tuple[Tensor, ...]
    sizes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TritonText:
    """A kernel in Triton: a module's text, its launches in order, and the sizes of its scratch
    buffers in memory, in elements."""

    source: str
    launches: tuple[Launch, ...]
    scratch: tuple[tuple[Tensor, int], ...]


def triton_text(
    kernel: Kernel,
    dot_precision: str = "ieee",
    interpreted: bool = False,
    dependent_launch: bool = False,
) -> TritonText:
    """Return the kernel as Triton text. dot_precision: of fp32 products. interpreted: for Triton's
    interpreter, whose bfloat16 dots multiply bit patterns. dependent_launch: programs may begin
    before the previous launch has ended, and wait for it themselves (from sm_90 on).

    Raises NotImplementedError, with the construct, for what Triton does not support: element types,
    scalar functions, too large blocks, registers used in parts, buffers of 2^31 elements. What
    depends on symbolic sizes must be in the context of te/expr/symbolic_int.py.
    """
    for t in (*kernel.params, *(t for t, _ in kernel.scratch)):
        count = _element_count(t)
        if count >= (MAX_SYMBOLIC_ELEMENTS if is_symbolic(count) else MAX_BUFFER_ELEMENTS):
            raise NotImplementedError(f"{t.name}: {t.type} has indices of more than 32 bits")
    written, scratch = unroll_loops(tuple(_without_unit_loops(kernel.body)), kernel.scratch)
    parts = _launch_bodies(tuple(map(_merge_unrolled, written)))
    used = [{x.buffer for x in _buffer_uses(body)} for body in parts]
    how = dot_precision, interpreted, dependent_launch
    names = [kernel.name] if len(parts) == 1 else [f"{kernel.name}_{n}" for n in range(len(parts))]
    memory: dict[Tensor, int] = {}
    texts, launches = [], []
    for name, body, buffers in zip(names, parts, used, strict=True):
        axes, inner = _grid_axes(body)
        programs = math.prod(a.size for a in axes)
        own = [t for t, _ in scratch if sum(t in u for u in used) == 1 and t in buffers]
        uses = list(_buffer_uses(inner))
        registers = frozenset(t for t in own if _is_register([x for x in uses if x.buffer is t]))
        for t, scope in scratch:
            if t in buffers and t not in registers:
                if scope == "register":
                    raise NotImplementedError(f"register {t.name}: {t.type} is not one whole tile")
                memory[t] = _element_count(t) * (programs if t in own else 1)
        order = (*kernel.params, *memory, *(t for t, _ in kernel.tables))
        given = tuple(t for t in order if t in buffers)
        apart = [t for t in own if t in memory and programs > 1]
        fixed = frozenset(p.buffer for p in kernel.packs)
        # a program's own scratch serves one block only
        some = kernel.programs if 0 < kernel.programs < hint(programs) and not apart else 0
        text, sizes = _function_text(
            name, given, axes, inner, registers, apart, fixed, how, kernel.sizes, some
        )
        texts.append(text)
        launches.append(Launch(name, some or programs, given, sizes))
    short = dot_precision != "ieee" or any(p.dtype in FLOAT16_DTYPES for p in kernel.params)
    return TritonText(
        _module_text(texts, short, interpreted), tuple(launches), tuple(memory.items())
    )


def _element_count(t: Tensor) -> int:
    return math.prod(t.sizes)


def _module_text(texts: Sequence[str], reduced_precision: bool, interpreted: bool) -> str:
    code = "\n\n\n".join(f"@triton.jit\n{t}" for t in texts)
    helpers = helper_functions(code, reduced_precision, interpreted)
    return f"import triton\nimport triton.language as tl\n{helpers}\n\n{code}\n"


# --- launches, and the buffers they use ---


def _launch_bodies(body: Sequence[Stmt]) -> list[tuple[Stmt, ...]]:
    """Return the bodies to launch: each parallel loop, and each run of statements between them."""
    out: list[tuple[Stmt, ...]] = []
    for s in body:
        alone = isinstance(s, For) and s.kind == "parallel"
        if alone or not out or _grid_axes(out[-1])[0]:
            out.append((s,))
        else:
            out[-1] = (*out[-1], s)
    return out


def _grid_axes(body: tuple[Stmt, ...]) -> tuple[list[Axis], tuple[Stmt, ...]]:
    """Return the axes of the parallel loops around the whole body, and what is inside."""
    axes = []
    while len(body) == 1 and isinstance(body[0], For) and body[0].kind == "parallel":
        axes.append(body[0].axis)
        body = body[0].body
    return axes, body


def _without_unit_loops(body: Sequence[Stmt]) -> Iterator[Stmt]:
    """Yield statements without loops of one iteration, whose axis is 0 everywhere."""
    for s in body:
        if not isinstance(s, For):
            yield s
        elif s.axis.extent == 1 and s.kind != "parallel" and s.until is None:
            yield from _without_unit_loops(s.body)
        else:
            yield replace(s, body=tuple(_without_unit_loops(s.body)))


def _merge_unrolled(s: Stmt) -> Stmt:
    """Turn unrolled loops around a single update into axes of its tile."""
    if not isinstance(s, For):
        return s
    body = tuple(map(_merge_unrolled, s.body))
    match body:
        case (Update(buffer, at) as u,) if s.kind == "unroll":
            if s.axis not in values.dependent_axes(Load(buffer, at, buffer.dtype), [s.axis]):
                return replace(u, over=(s.axis, *u.over))
    return replace(s, body=body)


@dataclass(frozen=True, slots=True)
class _BufferUse:
    """A buffer at an index: the tile of the statement, the path of loops around, and the kind of
    access."""

    buffer: Tensor
    index: tuple[Expr, ...]
    tile: tuple[Axis, ...]
    path: tuple[int, ...]
    kind: str


def _buffer_uses(body: Sequence[Stmt], path: tuple[int, ...] = ()) -> Iterator[_BufferUse]:
    for n, s in enumerate(body):
        match s:
            case For():
                for x in () if s.until is None else loads(s.until):
                    yield _BufferUse(x.tensor, x.index, (), path, "read")
                yield from _buffer_uses(s.body, (*path, n))
            case Store() | Update():
                over = s.over if isinstance(s, Update) else ()
                tile = (*s.axes, *over)
                for x in (y for e in (s.value, *s.index) for y in loads(e)):
                    yield _BufferUse(x.tensor, x.index, tile, path, "read")
                how = "store" if isinstance(s, Store) else "update"
                yield _BufferUse(s.buffer, s.index, s.axes, path, how)


def _is_register(uses: Sequence[_BufferUse]) -> bool:
    """True if all uses are whole tiles, after a store that precedes each of them."""
    first = uses[0]
    rank = len(values.tile_axes(first.buffer, first.index) or ())
    if first.kind != "store":
        return False
    for x in uses:
        axes = values.tile_axes(x.buffer, x.index)
        if axes is None or len(axes) != rank or not set(axes) <= set(x.tile):
            return False
        if x.path[: len(first.path)] != first.path:
            return False
        if x.kind != "read" and len(axes) < len(non_unit_axes(x.tile)):
            return False
    return True


# --- functions ---


def _function_text(
    name: str, buffers: Sequence[Tensor], axes: Sequence[Axis], body: Sequence[Stmt],
    registers: frozenset[Tensor], private: Sequence[Tensor], constants: frozenset[Tensor],
    settings: tuple[str, bool, bool], sizes: Sequence[str] = (), persistent: int = 0,
) -> tuple[str, tuple[str, ...]]:  # fmt: skip
    """Return a function's text, and those of `sizes` that are its parameters. private: scratch that
    each program has for itself. constants: prefetched early. settings: see `triton_text`.
    persistent: the number of programs that share the blocks; 0: each has one."""
    dots, interpreted, early = settings
    uses = list(_buffer_uses(body))
    stored = {x.buffer for x in uses if x.kind != "read"}
    read = {x.buffer for x in uses if x.kind != "store"}
    w = Writer(registers, frozenset(stored & read) - registers, dots, interpreted)
    w.stored = frozenset(stored)
    w.zeroed = registers - {s.buffer for s in flat_statements(body) if not _is_copy(s, registers)}
    w.taken.add(name)
    head = _program_indices(w, axes, bool(private))
    if persistent:
        head, numbered = [], head[1:]
        first, count = "tl.program_id(0)", _extent_text(w, math.prod(a.size for a in axes))
        first = INTERPRETER_ITEM.format(first) if interpreted else first
        w.line(PERSISTENT_LOOP.format(first, count, persistent))
        w.depth += 1
        for x in numbered:
            w.line(x)
    for t in private:
        each = _element_count(t)
        total = math.prod(a.size for a in axes) * each
        pid = "tl.cast(pid, tl.int64)" if is_symbolic(total) or total >= 1 << 31 else "pid"
        head.append(f"{w.buffer(t)} += {pid} * {_size_text(w, each)}")
    _emit_body(w, body)
    head += [f"{n} = tl.arange(0, {padded_extent(a)})" for a, n in w.ranges.items()]
    if any(f"+ {ZERO_NAME})" in x for x in w.lines):  # the grid has one dimension
        head.append(f"{ZERO_NAME} = tl.program_id(1) * {ZERO_MULTIPLE}")
    if early and not persistent:
        head += l2_prefetch_lines(
            w, axes, {x.buffer: x.index for x in uses if x.buffer in constants}
        )
    head += DEPENDENT_LAUNCH_LINES if early else ()
    lines = [*(f"    {x}" for x in head), *w.lines]
    own = tuple(s for s in sizes if s in w.sizes)
    given = ", ".join([*(w.buffer(t) for t in buffers), *(w.sizes[s] for s in own)])
    return "\n".join([f"def {name}({given}):", *(lines or ["    pass"])]), own


def _size_text(w: Writer, n: int) -> str:
    """Return a factor or a divisor."""
    text = values.emit_index(w, te_index.as_index(n)).text
    return f"({text})" if is_symbolic(n) else text


def _extent_text(w: Writer, n: int) -> str:
    """Return the end of a range."""
    text = _size_text(w, n)
    return INTERPRETER_ITEM.format(text) if w.interpreted and is_symbolic(n) else text


def _is_copy(s: Store | Update, registers: frozenset[Tensor]) -> bool:
    """True if a store copies memory, which is read as 0 beyond extents."""
    return isinstance(s, Store) and isinstance(s.value, Load) and s.value.tensor not in registers


def _program_indices(w: Writer, axes: Sequence[Axis], needed: bool) -> list[str]:
    """Return the indices of the parallel loops from the program id; the last one varies fastest."""
    axes = non_unit_axes(axes)
    if not axes and not needed:
        return []
    lines = ["pid = tl.program_id(0)"]
    for n, a in enumerate(axes):
        w.names[a] = w.fresh(a.name)
        below = math.prod(x.size for x in axes[n + 1 :])
        step = "pid" if isinstance(below, int) and below == 1 else f"pid // {_size_text(w, below)}"
        lines.append(f"{w.names[a]} = {step}" + (f" % {_size_text(w, a.size)}" if n else ""))
    return lines


def _emit_body(w: Writer, body: Sequence[Stmt]) -> None:
    before = dict(w.hoisted)
    for n, s in enumerate(body):
        if isinstance(s, For) and not w.hoisted:
            hoist_loads(w, body[n + 1 :])
            w.limits = ()
        match s:
            case For(_, inner, "parallel"):
                raise NotImplementedError(f"the parallel loop {s.axis.name} is inside another one")
            case For(begin=Expr()):
                raise NotImplementedError(f"the loop {s.axis.name} begins at {s.begin}")
            case For(axis, inner, kind):
                w.names[axis] = w.fresh(axis.name)
                is_fixed = isinstance(axis.extent, int)
                steps = "tl.static_range" if kind == "unroll" and is_fixed else "range"
                end = _extent_text(w, axis.size)
                if s.until is not None:
                    w.begin_tile(())
                    end = values.emit_value(w, s.until).text
                    end = INTERPRETER_ITEM.format(end) if w.interpreted else end
                w.line(f"for {w.names[axis]} in {steps}(0, {end}):")
                w.depth += 1
                w.known_loads.clear()
                _emit_body(w, inner)
                w.known_loads.clear()
                w.depth -= 1
            case Store(buffer, at, new, axes, limits):
                w.limits = limits
                w.begin_tile(axes)
                new = narrow_value(new) if buffer.dtype in FLOAT16_DTYPES else new
                values.emit_store(w, buffer, at, values.emit_value(w, new))
            case Update():
                w.limits = s.limits
                _emit_update(w, s)
        w.limits = ()
    w.hoisted = before


def _emit_update(w: Writer, s: Update) -> None:
    kind = s.buffer.dtype
    found = match_dot(s, w.interpreted)
    if found is not None:
        (summed,) = non_unit_axes(s.over)
        x, y = (dot_operand(w, e, tile, summed) for e, tile in found)
        w.begin_tile(s.axes)
        old = values.full_block(w, values.emit_load(w, s.buffer, s.index), kind)
        how = "out_dtype=tl.int32" if kind == I32 else f'input_precision="{w.dot_precision}"'
        text = f"tl.dot({x}, {y}, {old}, {how})"
        values.emit_store(w, s.buffer, s.index, Block(text, frozenset(w.tile)))
        return
    w.begin_tile((*s.axes, *s.over))
    term = values.emit_value(w, s.value)
    new = _emit_reduction(w, s, Block(cast_text(term.text, s.value.dtype, kind), term.axes))
    w.begin_tile(s.axes)
    was = values.emit_load(w, s.buffer, s.index)
    text = function_text(REDUCTION_COMBINERS[s.fn], [was.text, new.text], kind, kind)
    values.emit_store(w, s.buffer, s.index, Block(text, was.axes | new.axes))


def _emit_reduction(w: Writer, s: Update, new: Block) -> Block:
    """Return the block reduced over the update's axes."""
    over = non_unit_axes(s.over)
    if not over:
        return new
    kind = s.buffer.dtype
    if not new.axes >= set(over):
        new = Block(values.full_block(w, new, kind), frozenset(w.tile))
    beyond = values.bounds_mask(w, frozenset(over))
    if beyond is not None:
        start = constant_text(identity_element(s.fn, kind), kind)
        new = Block(f"tl.where({beyond.text}, {new.text}, {start})", new.axes | beyond.axes)
    text = new.text
    for n in range(len(w.tile) - 1, len(w.tile) - 1 - len(over), -1):
        text = reduction_text(s.fn, text, n, kind)
    return Block(text, new.axes - set(over))
