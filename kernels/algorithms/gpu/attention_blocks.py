"""Options of online attention on a GPU: blocks of rows and keys, and the number of key splits if
rows are few: a decoding step has one row per head, which reads all keys."""

from __future__ import annotations

from collections.abc import Iterator

from superopt.kernels.algorithms.algorithm import Algorithm
from superopt.kernels.algorithms.build import input_buffers
from superopt.kernels.algorithms.gpu.blocks import (
    ADD_PARTS_NS,
    LAUNCH_NS,
    MAX_BLOCKS_PER_SM,
    MAX_WARPS_PER_SM,
    MEMORY_BYTES_PER_NS,
    MULTIPROCESSORS,
    PARTIAL_BYTES_PER_NS,
    REGISTER_BLOCK_ELEMENTS,
    SHARED_MEMORY_BYTES,
    SM_BYTES_PER_NS,
    result_elements,
)
from superopt.kernels.algorithms.gpu.gemm_cost_model import BlockTiming
from superopt.kernels.algorithms.gpu.online_attention_kernel import (
    EXTRA_COLUMNS,
    combine_parts_kernel,
    combined_result,
    online_attention_kernel,
    partial_results,
)
from superopt.kernels.algorithms.online_attention import (
    OnlineAttention,
    match_online_attention,
)
from superopt.kernels.algorithms.problem import Choice, Problem, remember_match
from superopt.kernels.loops.option import Option
from superopt.kernels.triton.dot_limits import MIN_DOT_EXTENT
from superopt.te.expr.tensor import Tensor

# Rows and keys of a block, warps and stages: for fp16 and bf16; for fp32 with enough row blocks for
# half of the multiprocessors, and with fewer. Best first, by 792 measurements of 12 attentions. The
# choice takes 1 and 3 % more than the best of those.
FP16_BLOCKS = (
    (64, 64, 4, 3), (64, 128, 4, 3), (128, 64, 4, 2), (128, 128, 8, 3), (128, 64, 8, 3),
    (128, 32, 8, 3), (64, 128, 4, 2), (64, 64, 4, 2), (32, 64, 4, 3), (16, 128, 4, 3),
)  # fmt: skip
MANY_ROW_BLOCKS = (
    (128, 32, 8, 3), (128, 64, 8, 2), (128, 64, 8, 3), (128, 32, 4, 3), (64, 128, 4, 2),
    (32, 64, 4, 2), (64, 64, 4, 2), (64, 32, 4, 3),
)  # fmt: skip
FEW_ROW_BLOCKS = (
    (32, 128, 4, 2), (32, 64, 4, 2), (16, 128, 4, 2), (32, 64, 4, 3), (16, 64, 4, 3),
    (64, 64, 4, 2), (64, 32, 4, 3),
)  # fmt: skip
MAX_SHORT_KEYS = 512  # keys up to which a 16-bit block has many of them


KEY_PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # numbers of key parts
MAX_PARTS_TRIED = 4  # for each block
# Lower bound of a step, ns: two products and a softmax that depend on each other. 96 blocks of four
# steps take 5.8 us.
MIN_STEP_NS = 1000.0
SPLIT_COST_FACTOR = 1.15  # assumed slowdown of split keys: step times are only estimates


@remember_match
def recognise_online_attention(p: Problem) -> OnlineAttention | None:
    """Match a softmax times a matrix."""
    return match_online_attention(p.tensor) if p.row_axes else None


def attention_options(p: Problem, a: OnlineAttention) -> Iterator[Option]:
    """Yield options, best first; with key splits by estimated time, if some multiprocessors would
    be idle otherwise."""
    n, length, width = a.rows, a.j.size, a.d.size
    blocks = result_elements(a.tensor) // (n * width) * -(-n // 128)
    if a.value_dtype.bits == 16:
        many = 128 if length <= MAX_SHORT_KEYS and width == 64 else 64
        best = sorted(FP16_BLOCKS, key=lambda b: b[1] != many)
    elif blocks < MULTIPROCESSORS // 2:
        best = [*FEW_ROW_BLOCKS]
    elif length <= 128:
        best = sorted(MANY_ROW_BLOCKS, key=lambda b: b[0] != 64)
    else:
        best = (
            sorted(MANY_ROW_BLOCKS, key=lambda b: b[1] != 64) if width <= 64 else [*MANY_ROW_BLOCKS]
        )
    high, long = (max(MIN_DOT_EXTENT, 1 << (x - 1).bit_length()) for x in (n, length))
    fitting = [(min(rows, high), min(keys, long), *rest) for rows, keys, *rest in best]
    ways = {b: _part_counts(a, *b) for b in dict.fromkeys(fitting)}
    for turn in range(MAX_PARTS_TRIED):
        for (rows, keys, warps, waiting), parts in ways.items():
            if turn < len(parts):
                more = {"parts": parts[turn]} if parts[turn] > 1 else {}
                yield Option.make(
                    "online_attention", rows=rows, keys=keys, warps=warps, stages=waiting, **more
                )


def schedule_online_attention(p: Problem, a: OnlineAttention, o: Option) -> Choice:
    """Return the choice of an option."""
    rows, keys, parts = o["rows"], o["keys"], dict(o.knobs).get("parts", 1)
    t = a.tensor
    if parts == 1:
        kernel = online_attention_kernel(a, input_buffers(t), p.layouts, rows, keys)
        return Choice(o, t, kernels={t: kernel})
    before = partial_results(a, parts)
    held = Tensor("parts", before.dtype, before.shape)
    root = combined_result(a, held)
    kernels = {
        before: online_attention_kernel(
            a, input_buffers(before), p.layouts, rows, keys, parts=before
        ),
        root: combine_parts_kernel(a, held, input_buffers(root), p.layouts),
    }
    return Choice(o, root, producers=((before, held),), kernels=kernels)


ONLINE_ATTENTION = Algorithm(
    ("online_attention",), "attention: online softmax over blocks of keys, split keys",
    recognise_online_attention, attention_options, schedule_online_attention, exclusive=True,
)  # fmt: skip


def _part_counts(a: OnlineAttention, rows: int, keys: int, warps: int, stages: int) -> list[int]:
    """Return the key splits to try, each of whole key blocks, best first, with 1 last; only [1] if
    there are enough row blocks for all multiprocessors."""
    steps = -(-a.j.size // keys)
    if _block_count(a, rows) >= MULTIPROCESSORS:
        return [1]
    some = dict.fromkeys(-(-steps // -(-steps // n)) for n in KEY_PARTS)
    best = sorted(some, key=lambda n: _estimated_ns(a, rows, keys, warps, stages, n))[
        :MAX_PARTS_TRIED
    ]
    return best if 1 in best else [*best[: MAX_PARTS_TRIED - 1], 1]


def _block_count(a: OnlineAttention, rows: int) -> int:
    return result_elements(a.tensor) // (a.rows * a.d.size) * -(-a.rows // rows)


def _estimated_ns(
    a: OnlineAttention, rows: int, keys: int, warps: int, stages: int, parts: int
) -> float:
    """Return the estimated time in ns: the steps of a block's keys, each bounded by latency and by
    the bandwidth of the concurrent blocks; in total at least the time to read K and V; plus
    writing, reading and combining partial results."""
    width, length, size = a.d.size, a.j.size, a.value_dtype.bits // 8
    read = keys * (width + a.c.size) * size
    near = max(
        1,
        min(
            SHARED_MEMORY_BYTES // (stages * read),
            MAX_WARPS_PER_SM // warps,
            REGISTER_BLOCK_ELEMENTS[True] // (rows * width),
            MAX_BLOCKS_PER_SM,
        ),
    )
    steps = -(-length // (keys * parts))
    one = BlockTiming(steps, read / SM_BYTES_PER_NS, MIN_STEP_NS, near, rows * width)
    blocks = parts * _block_count(a, rows)
    each = result_elements(a.tensor) // (
        a.rows * width
    )  # batches and heads, each with keys of its own
    time = LAUNCH_NS + max(one.total_ns(blocks), each * length * read / keys / MEMORY_BYTES_PER_NS)
    if parts == 1:
        return time
    time += (
        ADD_PARTS_NS + parts * each * a.rows * (width + EXTRA_COLUMNS) * 8 / PARTIAL_BYTES_PER_NS
    )
    return time * SPLIT_COST_FACTOR
