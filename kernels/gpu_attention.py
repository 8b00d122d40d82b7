"""Options of online attention on a GPU: blocks of rows and keys, and the number of key splits if
rows are few: a decoding step has one row per head, which reads all keys."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from superopt.kernels.gpu_blocks import (
    AGAIN,
    BYTES,
    DOT,
    MEMORY,
    MOST,
    MULTIPROCESSORS,
    PARTIAL,
    ROOM,
    SHARED,
    START,
    WARPS,
    count,
)
from superopt.kernels.gpu_ranking import Steps
from superopt.kernels.online import Online
from superopt.kernels.online_kernel import BESIDE, added, adding, kernel, parted
from superopt.kernels.option import Option
from superopt.kernels.problem import Choice
from superopt.te.expr import Tensor

# Rows and keys of a block, warps and stages: for fp16 and bf16; for fp32 with enough row blocks for
# half of the multiprocessors, and with fewer. Best first, by 792 measurements of 12 attentions. The
# choice takes 1 and 3 % more than the best of those.
HALVES = (
    (64, 64, 4, 3), (64, 128, 4, 3), (128, 64, 4, 2), (128, 128, 8, 3), (128, 64, 8, 3),
    (128, 32, 8, 3), (64, 128, 4, 2), (64, 64, 4, 2), (32, 64, 4, 3), (16, 128, 4, 3),
)  # fmt: skip
MANY = (
    (128, 32, 8, 3), (128, 64, 8, 2), (128, 64, 8, 3), (128, 32, 4, 3), (64, 128, 4, 2),
    (32, 64, 4, 2), (64, 64, 4, 2), (64, 32, 4, 3),
)  # fmt: skip
SOME = (
    (32, 128, 4, 2), (32, 64, 4, 2), (16, 128, 4, 2), (32, 64, 4, 3), (16, 64, 4, 3),
    (64, 64, 4, 2), (64, 32, 4, 3),
)  # fmt: skip
SHORT = 512  # keys up to which a 16-bit block has many of them


PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # numbers of key parts
TRIED = 4  # for each block
# Lower bound of a step, ns: two products and a softmax that depend on each other. 96 blocks of four
# steps take 5.8 us.
STEP = 1000.0
CAREFUL = 1.15  # assumed slowdown of split keys: step times are only estimates


def attending(a: Online) -> Iterator[Option]:
    """Yield options, best first; with key splits by estimated time, if some multiprocessors would
    be idle otherwise."""
    n, length, width = a.rows, a.j.size, a.d.size
    blocks = count(a.t) // (n * width) * -(-n // 128)
    if a.short.bits == 16:
        many = 128 if length <= SHORT and width == 64 else 64
        best = sorted(HALVES, key=lambda b: b[1] != many)
    elif blocks < MULTIPROCESSORS // 2:
        best = [*SOME]
    elif length <= 128:
        best = sorted(MANY, key=lambda b: b[0] != 64)
    else:
        best = sorted(MANY, key=lambda b: b[1] != 64) if width <= 64 else [*MANY]
    high, long = (max(DOT, 1 << (x - 1).bit_length()) for x in (n, length))
    fitting = [(min(rows, high), min(keys, long), *rest) for rows, keys, *rest in best]
    ways = {b: _parts(a, *b) for b in dict.fromkeys(fitting)}
    for turn in range(TRIED):
        for (rows, keys, warps, waiting), parts in ways.items():
            if turn < len(parts):
                more = {"parts": parts[turn]} if parts[turn] > 1 else {}
                yield Option.of("online", rows=rows, keys=keys, warps=warps, stages=waiting, **more)


def attended(a: Online, o: Option) -> Choice:
    """Return the choice of an option."""
    made = partial(kernel, a, rows=o["rows"], keys=o["keys"])
    parts = dict(o.knobs).get("parts", 1)
    if parts == 1:
        return Choice(o, a.t, direct={a.t: made})
    before = parted(a, parts)
    held = Tensor("parts", before.dtype, before.shape)
    root = added(a, held)
    direct = {before: partial(made, parts=before), root: partial(adding, a, held)}
    return Choice(o, root, first=((before, held),), direct=direct)


def _parts(a: Online, rows: int, keys: int, warps: int, waiting: int) -> list[int]:
    """Return the key splits to try, each of whole key blocks, best first, with 1 last; only [1] if
    there are enough row blocks for all multiprocessors."""
    steps = -(-a.j.size // keys)
    if _blocks(a, rows) >= MULTIPROCESSORS:
        return [1]
    some = dict.fromkeys(-(-steps // -(-steps // n)) for n in PARTS)
    best = sorted(some, key=lambda n: _time(a, rows, keys, warps, waiting, n))[:TRIED]
    return best if 1 in best else [*best[: TRIED - 1], 1]


def _blocks(a: Online, rows: int) -> int:
    return count(a.t) // (a.rows * a.d.size) * -(-a.rows // rows)


def _time(a: Online, rows: int, keys: int, warps: int, waiting: int, parts: int) -> float:
    """Return the estimated time in ns: the steps of a block's keys, each bounded by latency and by
    the bandwidth of the concurrent blocks; in total at least the time to read K and V; plus
    writing, reading and combining partial results."""
    width, length, size = a.d.size, a.j.size, a.short.bits // 8
    read = keys * (width + a.c.size) * size
    near = max(
        1, min(SHARED // (waiting * read), WARPS // warps, ROOM[True] // (rows * width), MOST)
    )
    steps = -(-length // (keys * parts))
    one = Steps(steps, read / BYTES, STEP, near, rows * width)
    blocks = parts * _blocks(a, rows)
    each = count(a.t) // (a.rows * width)  # batches and heads, each with keys of its own
    time = START + max(one.all(blocks), each * length * read / keys / MEMORY)
    if parts == 1:
        return time
    time += AGAIN + parts * each * a.rows * (width + BESIDE) * 8 / PARTIAL
    return time * CAREFUL
