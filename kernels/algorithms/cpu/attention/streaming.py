"""Streaming attention on the CPU: an online softmax (online_attention.py) over blocks of keys, with
the scores of a strip of rows in the L1 cache.

A causal mask bounds the keys of each strip, so that what is behind the diagonal is not computed.
"""

from __future__ import annotations

from collections.abc import Iterator

from superopt.kernels.algorithms.algorithm import Algorithm, Prediction, kib
from superopt.kernels.algorithms.build import input_buffers
from superopt.kernels.algorithms.causal_mask import causal_skip
from superopt.kernels.algorithms.contraction import axis_stride
from superopt.kernels.algorithms.cpu.attention.blocks import Blocks
from superopt.kernels.algorithms.cpu.attention.operand_bounds import (
    operand_bounds,
    operand_bounds_kernel,
)
from superopt.kernels.algorithms.cpu.attention.streaming_kernel import streaming_attention_kernel
from superopt.kernels.algorithms.online_attention import (
    OnlineAttention,
    match_online_attention,
)
from superopt.kernels.algorithms.problem import Choice, Problem, remember_match
from superopt.kernels.loops.option import Option
from superopt.te.analysis.walk import loads, subexpressions
from superopt.te.expr.dtype import F32, I64
from superopt.te.expr.node import Apply, Axis, Load
from superopt.te.expr.tensor import Tensor, cast

TILE_ROWS = 6  # of a register tile: 24 accumulators in 4 vectors, 12 in 2
UNIT = 64  # keys that a mask bounds at a time
MIN_ROWS = 24  # of queries, from which on blocks of rows pay
MAX_VALUE_VECTORS = {True: 2, False: 4}  # of a register tile, for few registers or many
# Rows of a block and of a strip, and keys of a step, best first: on a Xeon (family 6, model 167)
# they take equal time within 4 % for 1024 keys of 64 elements.
BLOCKS = ((48, 24, 256), (96, 24, 256), (96, 48, 128), (48, 12, 256), (96, 24, 512), (48, 24, 128))
# Relative to complete rows: 0.75 to 0.9 for 512 to 4096 keys without a mask, and half of that with
# a causal one.
RELATIVE_TIME = 0.85


def fits_streaming(t: Tensor, lanes: int) -> bool:
    """True if `t` is an attention that streaming computes. lanes: elements of a vector."""
    return _match_streaming(t, lanes) is not None


def _match_streaming(t: Tensor, lanes: int) -> OnlineAttention | None:
    """Match an attention with enough rows and keys for a tile, in which vectors run along keys and
    values."""
    a = match_online_attention(t) if t.dtype == F32 else None
    if a is None or a.shared_heads is not None or a.d.size % lanes:
        return None
    if a.i.size < MIN_ROWS or a.j.size < UNIT or _has_valid_keys(a):
        return None
    is_read = isinstance(a.q, Load) and _is_vector(a.k, a.j) and _is_vector(a.v, a.d)
    return a if is_read and a.q.dtype == F32 else None


def _has_valid_keys(a: OnlineAttention) -> bool:
    """True if keys are hidden from a number in memory on: complete rows end there
    (superopt/plan/rewrites/matmul/valid_keys.py)."""
    key = cast(a.j, I64)
    found = (e for e in subexpressions(a.score) if isinstance(e, Apply) and e.fn == "lt")
    return any(e.args[0] == key and any(True for _ in loads(e.args[1])) for e in found)


def _is_vector(e: object, axis: Axis) -> bool:
    """True if neighbours along the axis are neighbours in memory."""
    return isinstance(e, Load) and e.dtype == F32 and axis_stride(e, axis) == 1


@remember_match
def recognise_streaming(p: Problem) -> OnlineAttention | None:
    """Match a softmax times a matrix; None where sums must not be reordered."""
    if not p.row_axes or not p.allow_winograd:
        return None
    return _match_streaming(p.tensor, p.lanes)


def streaming_options(p: Problem, a: OnlineAttention) -> Iterator[Option]:
    """Yield options, best first."""
    some = (_fitting_blocks(a, *blocks) for blocks in BLOCKS)
    for rows, strip, keys in dict.fromkeys(some):
        yield Option.make("streaming", rows=rows, strip=strip, keys=keys)


def _fitting_blocks(a: OnlineAttention, rows: int, strip: int, keys: int) -> tuple[int, int, int]:
    """Return blocks of no more rows and keys than there are."""
    high = min(rows, a.i.size // TILE_ROWS * TILE_ROWS)
    return high, strip if high % strip == 0 else high, min(keys, -(-a.j.size // UNIT) * UNIT)


def predict_streaming(p: Problem, a: OnlineAttention) -> Prediction:
    """Return the best option."""
    return Prediction(next(streaming_options(p, a)), RELATIVE_TIME)


def kernel_blocks(p: Problem, a: OnlineAttention, o: Option) -> Blocks:
    """Return the blocks of an option."""
    most = MAX_VALUE_VECTORS[p.processor.has_few_registers]
    vectors = a.d.size // p.lanes
    return Blocks(
        rows=o["rows"],
        strip=o["strip"],
        keys=o["keys"],
        unit=UNIT,
        tile_rows=TILE_ROWS,
        score_vectors=most,
        value_vectors=max(n for n in range(1, most + 1) if vectors % n == 0),
        lanes=p.lanes,
        unrolled_terms=p.processor.unrolled_terms,
    )


def schedule_streaming(p: Problem, a: OnlineAttention, o: Option) -> Choice:
    """Return the choice of an option."""
    blocks, t = kernel_blocks(p, a, o), a.tensor
    skip = causal_skip(a.score, a.i, a.j, Load(a.placeholder, (), F32))
    if skip is None:
        kernel = streaming_attention_kernel(a, input_buffers(t), p.layouts, blocks)
        return Choice(o, t, kernels={t: kernel})
    before = operand_bounds(a)
    held = Tensor("bounds", before.dtype, before.shape)
    root = _with_read(t, held)
    inputs = input_buffers(root)
    kernels = {
        before: operand_bounds_kernel(a, before, input_buffers(before), p.layouts, blocks),
        root: streaming_attention_kernel(a, inputs, p.layouts, blocks, skip, held),
    }
    return Choice(o, root, producers=((before, held),), kernels=kernels)


def schedule_symbolic_streaming(p: Problem, o: Option) -> Choice | None:
    """Return the choice of an option for symbolic sizes: for no fewer rows than a block has."""
    a = recognise_streaming(p)
    return None if a is None or a.i.size < o["rows"] else schedule_streaming(p, a, o)


def _with_read(t: Tensor, x: Tensor) -> Tensor:
    """Return a tensor whose body also records that `x` is read."""
    assert t.body is not None
    read = x[(0,) * x.rank]
    return Tensor(t.name, t.dtype, t.shape, t.axes, Apply("add", (t.body, read), t.dtype))


def streaming_limits(p: Problem, a: OnlineAttention, o: Option) -> Iterator[str]:
    """Yield what bounds the blocks of an option."""
    b = kernel_blocks(p, a, o)
    accumulators = b.tile_rows * max(b.score_vectors, b.value_vectors)
    registers, size = p.processor.vector_registers, p.tensor.dtype.bits // 8
    yield (
        f"register tiles of {b.tile_rows} rows x {b.score_vectors} vectors of keys, and x"
        f" {b.value_vectors} of values: {accumulators} accumulators of {registers} registers"
    )
    scores = b.strip * (b.keys + 2 * b.unit) * size
    values = b.unit * max(a.c.size, a.d.size) * size
    yield (
        f"strips of {b.strip} rows x {b.keys} keys: {kib(scores)} of scores, beside {b.unit} keys"
        f" or values of {kib(values)}, in L1"
    )
    yield f"a causal mask bounds keys {b.unit} at a time, for each strip of rows"
    yield f"parts of {b.rows} rows: keys and values are read from L2 or L3 once for each"


STREAMING = Algorithm(
    ("streaming",), "attention: online softmax over blocks of keys, scores in L1",
    recognise_streaming, streaming_options, schedule_streaming, predict_streaming,
    schedule_symbolic=schedule_symbolic_streaming, limits=streaming_limits,
)  # fmt: skip
