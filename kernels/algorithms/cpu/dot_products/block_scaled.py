"""Products with weights of few bits whose rows may be rounded to 8 bits, by dot products of bytes.

    y[m, n] = sum(x[m, b, k] * ((q[b, k, n] - z[b, n]) * s[b, n]))      0 <= q < 2^bits

    t[m, b] = max(|x[m, b, k]|) / 127                      the step of a row's block
    r[m, b, k] = round(x[m, b, k] / t[m, b])               within -127 .. 127
    p[m, n, b] = sum(q[b, k, n] * r[m, b, k])              exact, in int32
    y[m, n] = sum((p[m, n, b] - z[b, n] * sum(r[m, b, k])) * (t[m, b] * s[b, n]))

These are the roundings of ONNX Runtime at `accuracy_level` 4: symmetric, for each row and block of
weights. |x - t r| <= t / 2, so y differs by at most sum(t / 2 * |q - z| * s), and by float32's
rounding.

A word has 32 / bits weights of a column. Every (8 / bits)-th of them are the bytes of a plane,
`(word >> bits * plane) & mask`, which VPDPBUSD multiplies by four r, packed alike in a word.
Weights are packed as by the algorithms for float32 (block_scaled_gemm.py), so that programs for all
sizes share them. r, t and the sums of r are computed by kernels before.

A block with an infinity has an infinite step and r = 127 there, so that its product is infinite of
the right sign, or NaN by a weight of 0; NaN in a block makes the row's results NaN. Two infinities
in one block may give an infinity of either sign where their sum is NaN.
"""

from __future__ import annotations

from collections.abc import Iterator

from superopt.kernels.algorithms.algorithm import Algorithm, Prediction
from superopt.kernels.algorithms.cpu.block_scaled_gemm import (
    PANEL_VECTORS,
    BlockScaledProduct,
    match_block_scaled,
    row_count,
    tile_axis,
    with_sum,
)
from superopt.kernels.algorithms.problem import Choice, Problem, remember_match
from superopt.kernels.llvm.dot_products.bytes import VECTOR_LANES
from superopt.kernels.llvm.dot_products.products import DOT_BYTES
from superopt.kernels.loops.option import Option
from superopt.kernels.loops.schedule import (
    ComputeAt,
    Parallel,
    Primitive,
    Reorder,
    Schedule,
    Split,
    Unroll,
    Vectorize,
)
from superopt.kernels.processor import AMX_INT8, AVX512_VNNI, AVX_VNNI
from superopt.te.analysis.inline import substitute_axes
from superopt.te.analysis.walk import loads, reductions
from superopt.te.expr import index as te_index
from superopt.te.expr.dtype import F32, I32, U32
from superopt.te.expr.node import Apply, Axis, Const, Expr, Reduce
from superopt.te.expr.tensor import Tensor, apply, cast, const

NAME = "block_int8"
MIN_ROWS = 2  # one row takes as long as reading weights, with float32, too
ROW_TILES = (4, 6, 3, 2)  # rows of a register tile, best first
MIN_PARTS_PER_THREAD = 4
BYTES, MAX_INT8 = 4, 127
LEAST_MAXIMUM = 1e-35  # of a block, so that its step is no subnormal number
LEAST_FACTOR = 1.2e-38  # turns infinities, and no other floats, into 127
RELATIVE_TIME = 0.5  # of block_gemm's: on a Xeon (family 6, model 207)
INSTRUCTIONS = {AMX_INT8: AVX512_VNNI, AVX512_VNNI: AVX512_VNNI, AVX_VNNI: AVX_VNNI}


@remember_match
def recognise(p: Problem) -> BlockScaledProduct | None:
    """Match a block-scaled product of several rows that may be rounded, where the roundings of
    Winograd and Strassen are allowed, too."""
    found = match_block_scaled(p.tensor)
    if found is None or not found.rounds_rows or not p.allow_winograd:
        return None
    read = {x.tensor for e in (found.q, found.s) for x in loads(e)}
    fits = read <= set(p.constants) and p.integer_instructions in INSTRUCTIONS
    fits &= row_count(p.tensor) >= MIN_ROWS and _bit_fields(found) is not None
    fits &= found.inner[-1].size % BYTES == 0
    fits &= p.lanes in VECTOR_LANES.get(INSTRUCTIONS.get(p.integer_instructions, ""), ())
    return found if fits and p.tensor.axes[-1].size >= p.lanes else None


def _bit_fields(found: BlockScaledProduct) -> tuple[Expr, int, Expr] | None:
    """Return the words, the bits of a field and the zero points of a product's weights."""
    match found.q:
        case Apply("sub", (q, zero)):
            pass
        case _:
            return None
    match q:
        case Apply("cast", (Apply("bitand", (Apply("shr", (words, _)), Const(mask))),)) if (
            words.dtype == U32
        ):
            return words, int(mask).bit_length(), zero
    return None


def options(p: Problem, found: BlockScaledProduct) -> Iterator[Option]:
    """Yield options, best first."""
    m = tile_axis(p.tensor)
    size = 1 if m is None else m.size
    for rows in dict.fromkeys(min(n, size) for n in ROW_TILES):
        yield Option.make(NAME, rows=rows)


def predict(p: Problem, found: BlockScaledProduct) -> Prediction:
    """Return the first option."""
    return Prediction(next(options(p, found)), RELATIVE_TIME)


def schedule(p: Problem, found: BlockScaledProduct, option: Option) -> Choice:
    """Return the choice of an option."""
    rounding = _rounded_rows(p, found)
    steps, rows, sums = (buffer for _, buffer in rounding)
    schedules = {t: _row_schedule(p, t) for t, _ in rounding}
    root, own = _product(p, found, option["rows"], steps, rows, sums)
    packed = tuple(dict.fromkeys(x.tensor for e in (found.q, found.s) for x in loads(e)))
    return Choice(
        option, root, {**schedules, **own}, packed, producers=rounding,
        instructions=INSTRUCTIONS[p.integer_instructions],
    )  # fmt: skip


def schedule_symbolic(p: Problem, option: Option) -> Choice | None:
    """Return the choice of an option for a product of symbolic sizes."""
    found = match_block_scaled(p.tensor)
    return None if found is None else schedule(p, found, option)


def _stage(name: str, axes: tuple[Axis, ...], body: Expr) -> tuple[Tensor, Tensor]:
    """Return the tensor of an expression over axes, and the buffer that it is read from."""
    own = tuple(Axis(f"i{d}", a.extent) for d, a in enumerate(axes))
    moved = substitute_axes(body, dict(zip(axes, own, strict=True)))
    shape = tuple(a.extent for a in own)
    return Tensor(name, moved.dtype, shape, own, moved), Tensor(name, moved.dtype, shape)


def _rounded_rows(p: Problem, found: BlockScaledProduct) -> tuple[tuple[Tensor, Tensor], ...]:
    """Return steps, words of rounded rows and the sums of these, with their buffers."""
    fields = _bit_fields(found)
    assert fields is not None
    word, field = found.inner
    planes = field.size // BYTES
    axes = (*p.tensor.axes[:-1], found.block)
    most = Reduce("max", found.inner, apply("abs", found.x), F32)
    step = apply("max", most, const(LEAST_MAXIMUM, F32)) * const(1 / MAX_INT8, F32)
    step_stage = _stage("steps", axes, step)
    step = step_stage[1][axes]
    factor = apply("max", const(1, F32) / step, const(LEAST_FACTOR, F32))

    def rounded(x: Expr) -> Expr:
        q = apply("min", apply("max", x * factor, const(-MAX_INT8, F32)), const(MAX_INT8, F32))
        return apply("round", q)

    plane = Axis("plane", planes)
    packed: Expr | None = None
    for byte in range(BYTES):
        x = substitute_axes(found.x, {field: te_index.as_index(plane + byte * planes)})
        q = apply("bitand", apply("bitcast", cast(rounded(x), I32), dtype=U32), const(255, U32))
        q = apply("shl", q, const(8 * byte, U32)) if byte else q
        packed = q if packed is None else apply("bitor", packed, q)
    assert packed is not None
    total = Reduce("sum", found.inner, rounded(found.x), F32)
    return (
        step_stage,
        _stage("rows", (*axes, word, plane), packed),
        _stage("row_sums", axes, total),
    )


def _row_schedule(p: Problem, t: Tensor) -> Schedule:
    """Return the schedule of steps, rounded rows or their sums."""
    assert t.body is not None
    steps: list[Primitive] = [Vectorize(r.axes[-1].name) for r in reductions(t.body)]
    if p.threads > 1:
        steps += [Parallel(a.name) for a in t.axes[: p.tensor.rank - 1]]
    return tuple(steps)


def _product(
    p: Problem, found: BlockScaledProduct, tile_rows: int, steps: Tensor, rows: Tensor, sums: Tensor
) -> tuple[Tensor, dict[Tensor, Schedule]]:
    """Return the tensor over rounded rows, and its schedules."""
    t = p.tensor
    fields = _bit_fields(found)
    assert fields is not None
    words, bits, zero = fields
    word, field = found.inner
    plane = Axis("plane", field.size // BYTES)
    axes, block_axes = (*t.axes, found.block), (*t.axes[:-1], found.block)
    mask = sum(((1 << bits) - 1) << 8 * k for k in range(BYTES))
    shift = cast(te_index.as_index(plane * bits), U32)
    bytes_ = apply("bitand", apply("shr", words, shift), const(mask, U32)) if bits < 8 else words
    dots = Apply(DOT_BYTES, (bytes_, rows[(*block_axes, word, plane)]), I32)
    partial_sums, _ = _stage("partial", axes, Reduce("sum", (word, plane), dots, I32))
    total = cast(partial_sums[axes], F32) - zero * sums[block_axes]
    scaled = total * (steps[block_axes] * found.s)
    root = with_sum(t, found.reduce, Reduce("sum", (found.block,), scaled, F32))

    columns, n, m = t.axes[-1].size, t.axes[-1].name, tile_axis(t)
    lanes = min(p.lanes, columns)
    panel = min(PANEL_VECTORS * lanes, columns // lanes * lanes)
    how: list[Primitive] = [Split(n, panel), Split(f"{n}.i", lanes)]
    outer, tile = [a.name for a in t.axes[:-1] if a != m], [f"{n}.i.o", f"{n}.i.i"]
    if m is not None:
        how.append(Split(m.name, tile_rows))
        outer, tile = [*outer, f"{m.name}.o"], [f"{m.name}.i", *tile]
    how += [Reorder((f"{n}.o", *outer, found.block.name, *tile)), *map(Unroll, tile[:-1])]
    how += [Vectorize(tile[-1]), Parallel(f"{n}.o")]
    if m is not None and columns < MIN_PARTS_PER_THREAD * p.threads * panel:
        how += [Parallel(x) for x in outer]

    own = partial_sums.axes
    names = dict(zip((a.name for a in t.axes), (a.name for a in own), strict=False))
    inner = [names[a.name] for a in t.axes[:-1] if a == m]
    others = [names[a.name] for a in t.axes[:-1] if a != m]
    n = names[n]
    tile = [*inner, f"{n}.o", f"{n}.i"]
    partial_schedule: Schedule = (
        Split(n, lanes), Reorder((*others, own[-1].name, word.name, plane.name, *tile)),
        *map(Unroll, (word.name, plane.name, *tile[:-1])), Vectorize(tile[-1]),
        ComputeAt(root.name, found.block.name),
    )  # fmt: skip
    return root, {root: tuple(how), partial_sums: partial_schedule}


BLOCK_SCALED_INT8 = Algorithm(
    (NAME,),
    "products with weights of few bits, of rows rounded to 8 bits",
    recognise,
    options,
    schedule,
    predict,
    schedule_symbolic=schedule_symbolic,
)
