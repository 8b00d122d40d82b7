"""Schedule the steps of a program on several streams: the stream of each step, the steps that it
waits for, and the live ranges of buffers.

Small kernels leave most of a GPU idle; independent branches run concurrently, each on its own
stream. The predicted time and occupancy of kernels decide (cost/gpu_features.py), by list
scheduling (Graham, Bounds on multiprocessing timing anomalies, 1969), for a machine that is full
when the running kernels fill it, and where a dependency between two streams takes longer than one
within a stream, whose launches overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from superopt.cost.gpu_features import predict_time, problem_numbers
from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.loops.option import Option

T = TypeVar("T", bound=Hashable)
# In ns, guessed, not measured: the delay of a step that waits for another stream; the overlap with
# its predecessor in the same stream; and the time ratio below which several streams are used.
CROSS_STREAM_NS, SAME_STREAM_OVERLAP_NS, MAX_TIME_RATIO = 1500.0, 500.0, 0.95


@dataclass(frozen=True, slots=True)
class StreamOrder:
    """streams: the stream of each step; steps of one stream run in order. waits: steps of other
    streams that must finish before each step begins."""

    streams: tuple[int, ...]
    waits: tuple[tuple[int, ...], ...]

    @property
    def steps(self) -> list[tuple[int, tuple[int, ...]]]:
        """Return (stream, waits) of each step."""
        return [*zip(self.streams, self.waits, strict=True)]


AssignStreams = Callable[
    [Sequence[Iterable[Hashable]], Sequence[Hashable], Sequence[tuple[Problem, Option]]],
    StreamOrder,
]


@dataclass(frozen=True, slots=True)
class Cost:
    """The predicted time of a step in ns, and the share of the GPU that it occupies."""

    ns: float
    share: float


def dependencies(
    reads: Sequence[Iterable[Hashable]], writes: Sequence[Hashable]
) -> list[frozenset[int]]:
    """Return the earlier steps that must finish before each step: writers of what it reads, and
    readers of what it writes. Several steps may write parts of one buffer in any order; a step that
    writes over another's result also reads it."""
    writers: dict[Hashable, list[int]] = {}
    readers: dict[Hashable, list[int]] = {}
    out = []
    for n, (some, target) in enumerate(zip(reads, writes, strict=True)):
        needs = set(readers.get(target, ()))
        for x in some:
            needs.update(writers.get(x, ()))
            readers.setdefault(x, []).append(n)
        writers.setdefault(target, []).append(n)
        out.append(frozenset(needs - {n}))
    return out


def minimal_waits(lanes: Sequence[int], needs: Sequence[Collection[int]]) -> StreamOrder:
    """Return the order with the fewest waits."""
    last: dict[int, int] = {}
    done: list[int] = []
    waits = []
    for n, (lane, some) in enumerate(zip(lanes, needs, strict=True)):
        before = last.get(lane)
        over = 0 if before is None else done[before] | 1 << before
        own = []
        for m in sorted(some, reverse=True):
            if not over >> m & 1:
                own.append(m)
                over |= done[m] | 1 << m
        waits.append(tuple(own))
        done.append(over)
        last[lane] = n
    return StreamOrder(tuple(lanes), tuple(waits))


def finished_before(order: StreamOrder) -> list[int]:
    """Return for each step the steps that have finished when it begins, as a bit set."""
    last: dict[int, int] = {}
    done: list[int] = []
    for n, (lane, waits) in enumerate(zip(order.streams, order.waits, strict=True)):
        over = 0
        for m in (*waits, *([last[lane]] if lane in last else [])):
            over |= done[m] | 1 << m
        done.append(over)
        last[lane] = n
    return done


def concurrency_spans(order: StreamOrder) -> list[tuple[int, int]]:
    """Return for each step the first and last step that may run concurrently, including itself.
    Buffers of steps whose spans are disjoint are never live at once."""
    done = finished_before(order)
    out = [(n, n) for n in range(len(done))]
    for n, over in enumerate(done):
        for m in range(n):
            if not over >> m & 1:
                out[n] = (min(out[n][0], m), out[n][1])
                out[m] = (out[m][0], max(out[m][1], n))
    return out


def live_ranges(
    reads: Sequence[Iterable[T]], writes: Sequence[T], order: StreamOrder | None = None
) -> dict[T, tuple[int, int]]:
    """Return the first and last step during which each written buffer is live; with several
    streams, including concurrent steps."""
    beside = [(n, n) for n in range(len(writes))] if order is None else concurrency_spans(order)
    out: dict[T, tuple[int, int]] = {}
    for own, target in zip(beside, writes, strict=True):
        low, high = out.get(target, own)
        out[target] = (min(low, own[0]), max(high, own[1]))
    for (first, last), some in zip(beside, reads, strict=True):
        for x in some:
            if x in out:
                low, high = out[x]
                out[x] = (min(low, first), max(high, last))
    return out


def schedule_streams(
    needs: Sequence[Collection[int]], costs: Sequence[Cost], max_streams: int
) -> StreamOrder:
    """Return an order on up to `max_streams` streams, if that should be faster than one stream."""
    return minimal_waits(_place_on_streams(needs, costs, max_streams)[0], needs)


def makespan_ns(needs: Sequence[Collection[int]], costs: Sequence[Cost], max_streams: int) -> float:
    """Return the predicted ns of all steps in the order of `schedule_streams`."""
    return _place_on_streams(needs, costs, max_streams)[1]


def _place_on_streams(
    needs: Sequence[Collection[int]], costs: Sequence[Cost], max_streams: int
) -> tuple[list[int], float]:
    """Return the stream of each step, and when the last one ends."""
    lanes: list[int] = []
    ends: list[float] = []
    running: list[tuple[float, float, float]] = []
    free = [0.0] * max_streams
    one = sum(c.ns for c in costs) - SAME_STREAM_OVERLAP_NS * max(len(costs) - 1, 0)
    if max_streams == 1:
        return [0] * len(costs), one
    for some, cost in zip(needs, costs, strict=True):
        found = []
        for lane in range(max_streams):
            alone = all(lanes[m] == lane for m in some)
            ready = max(
                [free[lane], *(ends[m] + CROSS_STREAM_NS * (lanes[m] != lane) for m in some)]
            )
            if free[lane] and alone:
                ready -= SAME_STREAM_OVERLAP_NS
            at = _earliest_start(running, ready, cost)
            follows = max(some, default=-1) >= 0 and lanes[max(some)] == lane
            found.append((at + cost.ns, not follows, lane))
        end, _, lane = min(found)
        running.append((end - cost.ns, end, cost.share))
        lanes.append(lane)
        ends.append(end)
        free[lane] = end
    last = max(ends, default=0.0)
    return ([0] * len(costs), one) if last > MAX_TIME_RATIO * one else (lanes, last)


def _earliest_start(
    running: Sequence[tuple[float, float, float]], ready: float, cost: Cost
) -> float:
    """Return the first time from `ready` on at which the GPU has capacity for a step until it
    ends."""
    beside = [x for x in running if x[1] > ready]
    for at in sorted({ready, *(end for _, end, _ in beside)}):
        own = [x for x in beside if x[0] < at + cost.ns and x[1] > at]
        starts = {at, *(begin for begin, _, _ in own if begin > at)}
        most = max(sum(s for begin, end, s in own if begin <= t < end) for t in starts)
        if most + cost.share <= 1.0 + 1e-9 or not own:
            return at
    return ready


def gpu_streams(
    reads: Sequence[Iterable[Hashable]], writes: Sequence[Hashable],
    solutions: Sequence[tuple[Problem, Option]], max_streams: int,
) -> StreamOrder:  # fmt: skip
    """Return an order by the predicted times of kernels."""
    costs = []
    for problem, option in solutions:
        found = predict_time(problem_numbers(problem), option)
        costs.append(Cost(found.total_ns, found.gpu_share))
    return schedule_streams(dependencies(reads, writes), costs, max_streams)
