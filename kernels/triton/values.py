"""Emit the values of a tile as Triton text: blocks over the tile's axes, indices, loads and stores.

A tile of r axes is a block of rank r. A value that does not depend on an axis has extent 1 there,
so that blocks of one tile always broadcast; one that depends on none is a scalar. Block extents are
powers of two: others are rounded up, and what lies beyond is masked in loads, stores and
reductions. An axis of one step is dropped: its index is 0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

from superopt.kernels.llvm.address import flat_index, merge_div_mod
from superopt.kernels.triton.functions import (
    FIRST_OPERAND_TYPED,
    POWER_TEMPLATES,
    cast_text,
    constant_text,
    function_text,
    triton_type,
    typed_constant,
)
from superopt.kernels.triton.guards import needs_guard
from superopt.kernels.triton.writer import ZERO_NAME, Block, Writer, block_shape, padded_extent
from superopt.te.analysis import affine
from superopt.te.analysis.walk import index_axes, loads
from superopt.te.expr import index as te_index
from superopt.te.expr.dtype import BOOL, F32, F64, I8, I32, I64, INDEX, U8, DType
from superopt.te.expr.node import Apply, Axis, Const, Expr, Index, Load, Size
from superopt.te.expr.symbolic_int import is_nonnegative
from superopt.te.expr.tensor import Tensor

# --- blocks ---


def expand_block(tile: Sequence[Axis], text: str, axes: Sequence[Axis]) -> str:
    """Return a block over some axes of the tile expanded to the tile's rank."""
    if not axes or len(tile) == len(axes):
        return text
    return f"{text}[{', '.join(':' if a in axes else 'None' for a in tile)}]"


def full_block(w: Writer, b: Block, dtype: DType) -> str:
    """Return a value for each element of the tile."""
    if b.axes == set(w.tile) and w.tile:
        return b.text
    how = f"tl.full({block_shape(w.tile)}, {b.text}, {triton_type(dtype)})"
    return f"tl.broadcast_to({b.text}, {block_shape(w.tile)})" if b.axes else how


def padded_axes(axes: Sequence[Axis]) -> tuple[Axis, ...]:
    """Return the axes that are padded."""
    return tuple(a for a in axes if not isinstance(a.extent, int) or padded_extent(a) != a.extent)


def bounds_mask(w: Writer, axes: frozenset[Axis]) -> Block | None:
    """Return the mask of these axes' extents; None if none is padded."""
    some = padded_axes([a for a in w.tile if a in axes])
    tests = [f"({_axis_block(w, a).text} < {extent_text(w, a)})" for a in some]
    return Block(" & ".join(tests), frozenset(some)) if tests else None


def extent_text(w: Writer, a: Axis) -> str:
    return emit_index(w, te_index.as_index(a.extent)).text


def limits_mask(w: Writer, index: Sequence[Expr]) -> Block | None:
    """Return the mask of the statement's limits of axes that an index depends on; None if there
    are none."""
    own = set[Axis]().union(*map(index_axes, index))
    found: Block | None = None
    for i, n in w.limits:
        if own & index_axes(i):
            place, end = emit_index(w, i), emit_index(w, n)
            found = combine_masks(w, found, Block(f"({place.text} < {end.text})", place.axes))
    return found


def combine_masks(w: Writer, a: Block | None, b: Block | None) -> Block | None:
    if a is None or b is None:
        return a or b
    some = broadcast_scalar_masks(w, [a, b])
    return Block(f"{some[0].text} & {some[1].text}", a.axes | b.axes)


def broadcast_scalar_masks(w: Writer, masks: Sequence[Block]) -> list[Block]:
    """Return masks of which scalars are broadcast, if others are blocks. Triton would do so, but
    its interpreter then makes an integer of a scalar test, which is no mask."""
    if all(b.axes for b in masks) or not any(b.axes for b in masks):
        return list(masks)
    ones = (1,) * len(w.tile)
    number = "(tl.full({}, tl.cast({}, tl.int32), tl.int32) != 0)"
    return [b if b.axes else replace(b, text=number.format(ones, b.text)) for b in masks]


# --- values ---


def emit_value(w: Writer, e: Expr, guard: Block | None = None) -> Block:
    """Emit `e` over the tile; where the guard fails, nothing is loaded for it."""
    if e.dtype == INDEX:
        return emit_index(w, e, guard)
    match e:
        case Const(v, dtype):
            return Block(constant_text(v, dtype))
        case Load(buffer, at):
            return emit_load(w, buffer, at, guard)
        case Apply("select", (test, Load(buffer, at), Const(v, dtype))) if (
            buffer not in w.registers
        ):
            return emit_load(
                w,
                buffer,
                at,
                combine_masks(w, emit_value(w, test, guard), guard),
                constant_text(v, dtype),
            )
        case Apply("select", (test, yes, no), dtype):
            where = emit_value(w, test, guard)
            other = Block(f"({where.text} == 0)", where.axes)
            some = [
                emit_value(
                    w,
                    x,
                    combine_masks(w, own, guard) if needs_guard(x, test, w.registers) else guard,
                )
                for x, own in ((yes, where), (no, other))
            ]
            return _function_block("select", [where, *some], dtype, dtype)
        case Apply("tf32", (Load(buffer, at),)) if buffer in w.registers:
            # no bitwise operation first: ptxas drops such products (machine_code_check.py)
            total = emit_load(w, buffer, at, guard)  # begins with +0, so it is never -0
            return _function_block("tf32", [replace(total, text=f"{total.text} + 0.0")], F32, F32)
        case Apply("pow", (x, Const(n)), dtype) if n in POWER_TEMPLATES and dtype in (F32, F64):
            base = emit_value(w, x, guard)
            return Block(POWER_TEMPLATES[n].format(base.text), base.axes)
        case Apply("cast", (Apply("sub", (Apply("cast", (x,)), Const(128))),), dtype) if (
            x.dtype == U8 and dtype == I8
        ):
            b = emit_value(w, x, guard)
            return replace(b, text=f"tl.cast({b.text} ^ 128, tl.int8, bitcast=True)")
        case Apply(fn, args, dtype):
            known = all(isinstance(a, Const) for a in args)
            some = [emit_value(w, a, guard) for a in args]
            if known:  # else Python would compute it
                kinds = [I64 if a.dtype == INDEX else a.dtype for a in args]
                some = [Block(typed_constant(b.text, t)) for t, b in zip(kinds, some, strict=True)]
            elif fn in FIRST_OPERAND_TYPED and isinstance(args[0], Const):
                some[0] = Block(typed_constant(some[0].text, args[0].dtype))
            kind = args[0].dtype
            return _function_block(
                fn, broadcast_scalar_masks(w, some) if kind == BOOL else some, kind, dtype
            )
    raise NotImplementedError(f"{type(e).__name__} in a tile: {e}")


def _function_block(fn: str, blocks: Sequence[Block], kind: DType, dtype: DType) -> Block:
    axes = frozenset[Axis]().union(*(b.axes for b in blocks))
    return Block(function_text(fn, [b.text for b in blocks], kind, dtype), axes)


# --- indices ---


def emit_index(w: Writer, e: Expr, guard: Block | None = None) -> Block:
    """Emit an index: scalar terms first. It has 32 bits, as Triton's ranges do, if these hold all
    terms."""
    terms: list[Block] = []
    p = te_index.polynomial(merge_div_mod(e) or e)
    wide = _needs_64_bits(p)
    for atoms, c in p.items():
        if any(isinstance(a, Axis) and a.extent == 1 for a in atoms):
            continue
        some = [_index_atom(w, a, guard) for a in atoms]
        texts = [b.text for b in some] + ([str(c)] if c != 1 or not atoms else [])
        if atoms and wide:
            texts[0] = f"tl.cast({texts[0]}, tl.int64)"
        terms.append(Block(" * ".join(texts), frozenset[Axis]().union(*(b.axes for b in some))))
    if not terms:
        return Block("0")
    terms.sort(key=lambda b: len(b.axes) > 0)
    text = " + ".join(b.text for b in terms)
    axes = frozenset[Axis]().union(*(b.axes for b in terms))
    return Block(f"({text})" if len(terms) > 1 else text, axes)


def _needs_64_bits(p: te_index.Poly) -> bool:
    """True if its terms or partial sums may exceed 32 bits. Unknown terms come from data, at most a
    size: indices of a tensor of fewer than 2^31 elements."""
    most = 0
    for atoms, c in p.items():
        known = affine.interval(te_index.as_index(te_index.from_polynomial({atoms: c})))
        most += max(map(abs, known)) if known is not None else 0
    return most >= 1 << 31


def _axis_block(w: Writer, a: Axis) -> Block:
    if a in w.tile:
        if a not in w.ranges:
            w.ranges[a] = w.fresh(a.name)
        name = expand_block(w.tile, w.ranges[a], (a,))
        return Block(f"({name} + {ZERO_NAME})" if w.div_mod_depth else name, frozenset((a,)))
    return Block("0" if a.extent == 1 else w.names[a])


def _index_atom(w: Writer, a: Expr, guard: Block | None) -> Block:
    match a:
        case Axis():
            return _axis_block(w, a)
        case Size(name):
            return Block(w.size(name))
        case Index(element, bound):
            at = emit_value(w, element, guard)
            if element.dtype.bits < 32:  # which may not hold the bound
                at = Block(cast_text(at.text, element.dtype, I32), at.axes)
            some = [at, emit_index(w, bound, guard)]
            return _format_blocks("_wrapped({0}, {1})", some)
        case Apply("floordiv" | "mod" as fn, (x, Const(n) as y)) if n > 0:
            known = affine.interval(x)
            if known is None and _is_nonnegative(x):
                known = 0, 0
            # Triton truncates, and assumes remainders of contiguous values to be contiguous, also
            # if some are negative: then a multiple of the divisor is added
            least = 0 if known is None else min(known[0] // n, 0)
            w.div_mod_depth += 1
            some = [emit_index(w, te_index.as_index(x - least * n), guard), emit_index(w, y, guard)]
            w.div_mod_depth -= 1
            if known is None:
                rest = "_floored({0}, {1})"
                return _format_blocks(
                    f"(({{0}} - {rest}) // {{1}})" if fn == "floordiv" else rest, some
                )
            if fn == "mod":
                return _format_blocks("({0} % {1})", some)
            return _format_blocks(f"({{0}} // {{1}} + {least})" if least else "({0} // {1})", some)
        case Apply("floordiv" | "mod" as fn, (x, y)) if _is_nonnegative(x):  # y is at least 1
            w.div_mod_depth += 1
            some = [emit_index(w, x, guard), emit_index(w, y, guard)]
            w.div_mod_depth -= 1
            return _format_blocks("({0} // ({1}))" if fn == "floordiv" else "({0} % ({1}))", some)
        case Apply("min" | "max" as fn, args):
            return _format_blocks(
                f"tl.{fn}imum({{0}}, {{1}})", [emit_index(w, x, guard) for x in args]
            )
    raise NotImplementedError(f"index {a}")


def _is_nonnegative(x: Expr) -> bool:
    """True if an index is at least 0, whatever the sizes are that the guards admit."""
    low, _ = te_index.bounds(x)
    return (low is not None and low >= 0) or is_nonnegative(x)


def _format_blocks(template: str, blocks: Sequence[Block]) -> Block:
    axes = frozenset[Axis]().union(*(b.axes for b in blocks))
    return Block(template.format(*(b.text for b in blocks)), axes)


# --- memory and registers ---


def emit_load(
    w: Writer, buffer: Tensor, index: Sequence[Expr], guard: Block | None = None, fallback: str = ""
) -> Block:
    """Emit a load; where the guard fails, the value is `fallback`, or arbitrary."""
    if buffer in w.registers:
        return _register_block(w, buffer, index)
    place = emit_index(w, flat_index(buffer, index), guard)
    pointer = f"{w.buffer(buffer)} + {place.text}"
    found = hoisted_load(w, pointer, guard)
    if found is not None and not fallback:
        return found
    mask = combine_masks(w, guard, bounds_mask(w, place.axes))
    mask = combine_masks(w, mask, limits_mask(w, index))
    mask = broadcast_scalar_masks(w, [mask, place])[0] if mask else None
    axes = place.axes | (mask.axes if mask else frozenset())
    if axes != place.axes:
        sizes = tuple(padded_extent(a) if a in axes else 1 for a in w.tile)
        pointer = f"tl.broadcast_to({pointer}, {sizes})"
    rest = f", mask={mask.text}, other={fallback or 0}" if mask else ""
    text = f"tl.load({pointer}{rest})"
    key = w.tile, text
    if key not in w.known_loads:
        w.loads += 1
        w.known_loads[key] = w.fresh(f"v{w.loads}")
        w.line(f"{w.known_loads[key]} = {text}")
    return Block(w.known_loads[key], axes)


def hoisted_load(w: Writer, address: str, guard: Block | None) -> Block | None:
    """Return the hoisted load of an address, unconditional or with this guard."""
    whens = ("", guard.text) if guard else ("",)
    return next((x for when in whens if (x := w.hoisted.get((address, when, w.tile)))), None)


def _register_block(w: Writer, buffer: Tensor, index: Sequence[Expr]) -> Block:
    """Return a register as a block of the tile."""
    axes = tile_axes(buffer, index)
    assert axes is not None
    ordered = [a for a in w.tile if a in axes]
    text = _permute_text(w.buffer(buffer), axes, ordered)
    return Block(expand_block(w.tile, text, ordered), frozenset(axes))


def _permute_text(text: str, axes: Sequence[Axis], ordered: Sequence[Axis]) -> str:
    """Return a block over `axes` permuted to `ordered`."""
    if list(axes) == list(ordered):
        return text
    return f"tl.permute({text}, {tuple(axes.index(a) for a in ordered)})"


def emit_store(w: Writer, buffer: Tensor, index: Sequence[Expr], new_value: Block) -> None:
    """Emit a store for each element of the tile."""
    if buffer in w.registers:
        axes = tile_axes(buffer, index)
        assert axes is not None
        text = _permute_text(full_block(w, new_value, buffer.dtype), w.tile, axes)
        w.line(f"{w.buffer(buffer)} = {text}")
        old = re.compile(rf"\b{w.buffer(buffer)}\b")  # loads whose index or mask uses it
        w.known_loads = {k: v for k, v in w.known_loads.items() if not old.search(k[1])}
        return
    place = emit_index(w, flat_index(buffer, index))
    if place.axes != set(w.tile):
        raise NotImplementedError(
            f"{buffer.name}[{', '.join(map(str, index))}] is stored once for each of "
            f"{', '.join(a.name for a in w.tile)}: the index must depend on all of them"
        )
    mask = combine_masks(w, bounds_mask(w, place.axes), limits_mask(w, index))
    mask = broadcast_scalar_masks(w, [mask, place])[0] if mask else None
    rest = f", mask={mask.text}" if mask else ""
    w.known_loads.clear()
    # other threads of the program may read before and after
    around = ["tl.debug_barrier()"] if buffer in w.read_and_stored else []
    store = f"tl.store({w.buffer(buffer)} + {place.text}, {new_value.text}{rest})"
    w.lines += ["    " * w.depth + x for x in (*around, store, *around)]


def tile_axes(buffer: Tensor, index: Sequence[Expr]) -> tuple[Axis, ...] | None:
    """Return the axes of a tile that covers the buffer, by dimension, without those of extent 1; or
    the one axis along which all of it is read in order. None for any other index."""
    found = []
    for i, n in zip(index, buffer.shape, strict=True):
        if isinstance(n, int) and n == 1:
            continue
        if not isinstance(i, Axis) or i.extent != n or i in found:
            return _one_axis(buffer, index)
        found.append(i)
    return tuple(found)


def _one_axis(buffer: Tensor, index: Sequence[Expr]) -> tuple[Axis] | None:
    zero: dict[Expr, Expr] = {
        a: te_index.as_index(0) for i in index for a in index_axes(i) if a.extent == 1
    }
    flat = te_index.substitute(flat_index(buffer, index), zero)
    match merge_div_mod(flat) or flat:
        case Axis(_, extent) as one if extent == math.prod(map(te_index.dim, buffer.shape)):
            return (one,)
    return None


def dependent_axes(e: Expr, tile: Sequence[Axis]) -> tuple[Axis, ...]:
    """Return the axes of a tile that a value or its indices depend on."""
    found = index_axes(e) | {a for x in loads(e) for a in index_axes(x)}
    return tuple(a for a in tile if a in found)
