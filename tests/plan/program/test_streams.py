"""Steps on several streams: whatever streams they are put on, they run after what they need, and no
memory is used for two things at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superopt.kernels.cuda.launch import launch_on_streams, must_wait
from superopt.kernels.runtime.gpu_program import GpuProgram, KernelCall
from superopt.plan.program.buffer_assignment import BufferLife, assign_offsets
from superopt.plan.program.streams import (
    CROSS_STREAM_NS,
    MAX_TIME_RATIO,
    SAME_STREAM_OVERLAP_NS,
    Cost,
    StreamOrder,
    concurrency_spans,
    dependencies,
    finished_before,
    live_ranges,
    minimal_waits,
    schedule_streams,
)
from tests.support.breadth import examples
from tests.support.gpu.streams import Cuda, Stream, any_order


@dataclass(frozen=True)
class Steps:
    """A program: what each step reads and writes, by the numbers of buffers; and bytes of these."""

    reads: list[list[int]]
    writes: list[int]
    sizes: list[int]


@st.composite
def programs(draw: Callable[..., Any]) -> Steps:
    """Some steps write parts of one buffer; each reads some of what was written before."""
    count = draw(st.integers(1, 14))
    reads: list[list[int]] = []
    writes: list[int] = []
    for n in range(count):
        whole = draw(st.booleans()) and writes and writes[-1] not in {x for r in reads for x in r}
        writes.append(writes[-1] if whole else n)
        there = sorted({*writes[:-1]} - {writes[-1]})
        reads.append(draw(st.lists(st.sampled_from(there), max_size=3)) if there else [])
    sizes = draw(st.lists(st.integers(1, 400), min_size=count, max_size=count))
    return Steps(reads, writes, sizes)


@given(programs(), st.data())
@examples(200)
def test_nothing_begins_before_what_it_needs(p: Steps, data: Any) -> None:
    lanes = data.draw(st.lists(st.integers(0, 3), min_size=len(p.writes), max_size=len(p.writes)))
    needs = dependencies(p.reads, p.writes)
    order = minimal_waits(lanes, needs)
    done = finished_before(order)
    for n, some in enumerate(needs):
        assert all(done[n] >> m & 1 for m in some)
        assert all(order.streams[m] != lanes[n] for m in order.waits[n])
        for m in order.waits[n]:  # none that is for nothing
            fewer = tuple(w for w in order.waits[n] if w != m)
            less = StreamOrder(order.streams, (*order.waits[:n], fewer, *order.waits[n + 1 :]))
            assert not finished_before(less)[n] >> m & 1
    for n, (low, high) in enumerate(concurrency_spans(order)):
        beside = {m for m in range(len(done)) if m < n and not done[n] >> m & 1}
        beside |= {m for m in range(len(done)) if m > n and not done[m] >> n & 1}
        assert (low, high) == (min({n, *beside}), max({n, *beside}))


@pytest.mark.one_in(0)
@given(programs(), st.data(), st.integers(0, 2**31))
@examples(300)
def test_no_memory_is_used_for_two_things_at_once(p: Steps, data: Any, seed: int) -> None:
    """In whichever order steps end that the streams allow, each reads what was meant for it."""
    lanes = data.draw(st.lists(st.integers(0, 3), min_size=len(p.writes), max_size=len(p.writes)))
    order = minimal_waits(lanes, dependencies(p.reads, p.writes))
    used = live_ranges(p.reads, p.writes, order)
    own = [*used]
    at, memory, _, _ = assign_offsets([BufferLife(p.sizes[t], *used[t]) for t in own])
    place = {t: slice(a, a + p.sizes[t]) for t, a in zip(own, at, strict=True)}
    rng = np.random.default_rng(seed)
    for _ in range(3):
        held = np.full(memory, -1)
        for n in any_order(order, rng):
            for t in p.reads[n]:
                assert (held[place[t]] == t).all()
            held[place[p.writes[n]]] = p.writes[n]


@given(programs())
@examples(50)
def test_on_one_stream_buffers_are_in_use_from_their_first_to_their_last_step(p: Steps) -> None:
    alone = live_ranges(p.reads, p.writes)
    assert alone == live_ranges(
        p.reads, p.writes, minimal_waits([0] * len(p.writes), [()] * len(p.writes))
    )
    for t, (first, last) in alone.items():
        steps = [n for n, w in enumerate(p.writes) if w == t or t in p.reads[n]]
        assert (first, last) == (steps[0], steps[-1])


@given(programs(), st.data(), st.integers(1, 4))
@examples(100)
def test_schedules_of_any_costs(p: Steps, data: Any, most: int) -> None:
    costs = [
        Cost(data.draw(st.floats(1500, 90000)), data.draw(st.floats(0.01, 1.0))) for _ in p.writes
    ]
    needs = dependencies(p.reads, p.writes)
    order = schedule_streams(needs, costs, most)
    assert set(order.streams) <= set(range(most))
    assert order == minimal_waits(order.streams, needs)


FORK = [frozenset[int](), *[frozenset({0})] * 4, frozenset({1, 2, 3, 4})]  # four branches, joined


def test_it_pays_where_branches_leave_room() -> None:
    small, large = [Cost(10_000.0, 0.2)] * 6, [Cost(10_000.0, 1.0)] * 6
    assert len(set(schedule_streams(FORK, small, 4).streams)) == 4
    assert set(schedule_streams(FORK, large, 4).streams) == {0}
    assert set(schedule_streams(FORK, small, 1).streams) == {0}
    short = [Cost(CROSS_STREAM_NS / 8, 0.2)] * 6  # shorter than it takes to wait for another stream
    assert set(schedule_streams(FORK, short, 4).streams) == {0}
    chain = [frozenset[int](), *(frozenset({n}) for n in range(5))]
    assert set(schedule_streams(chain, small, 4).streams) == {0}
    assert 0 < SAME_STREAM_OVERLAP_NS < CROSS_STREAM_NS
    assert MAX_TIME_RATIO < 1


# --- what is asked of the device ---


@pytest.mark.parametrize("none", [(), (1,), (2,), (0, 3), (1, 2, 3)])
def test_events_between_streams(none: tuple[int, ...]) -> None:
    """Kernels run on their streams, after those that they wait for, also by calls that launch
    nothing; the streams beside the current one begin and end with it."""
    lanes, needs = [0, 1, 2, 1, 0, 2], [(), (0,), (0,), (2,), (1, 3), ()]
    order = minimal_waits(lanes, needs)
    cuda = Cuda(Stream(0, True))
    main = cuda.current

    class Function:
        def __init__(self, name: str) -> None:
            self.name = name

        def __getitem__(self, grid: Any) -> Any:
            def run(*given: Any, **how: Any) -> None:
                s = cuda.current
                assert s.begun
                cuda.log.append((self.name, s.number, s.over))
                s.over |= {self.name}

            return run

    calls = [KernelCall(None, (), 4, 3, *x) for x in order.steps]  # type: ignore[arg-type]
    launches: list[Any] = []
    numbers = []
    for n in range(len(calls)):
        parts = "ab" if n == 2 else "a"  # of two launches one after the other
        for part in () if n in none else parts:
            launches.append((f"{n}{part}", Function(f"{n}{part}"), 1, [], {}))
            numbers.append(n)
    beside = [Stream(1), Stream(2)]
    r = GpuProgram(tuple(calls), (), (), launches, tuple(numbers), side_streams=beside)
    launch_on_streams(r, cuda)
    made = [x[0] for x in launches]
    assert [x[0] for x in cuda.log] == made
    assert len(made) == 7 - len({*none}) - (2 in none)
    done = finished_before(order)
    for name, number, over in cuda.log:
        n = int(name[0])
        assert number == lanes[n]
        assert all(done[n] >> m & 1 for m in needs[n])
        assert {x for x in made if done[n] >> int(x[0]) & 1} <= over
    assert main.over == {x[0] for x in launches}


def test_what_does_not_begin_early() -> None:
    """A stream's first launch, and what waits for another stream; it is the next launch's business
    where a call launches nothing."""
    lanes, needs = [0, 1, 1, 0, 0, 0, 2, 2], [(), (0,), (), (1,), (3,), (), (), ()]
    order = minimal_waits(lanes, needs)
    assert order.waits == ((), (0,), (), (1,), (), (), (), ())
    calls = [KernelCall(None, (), 4, 3, *x) for x in order.steps]  # type: ignore[arg-type]
    assert must_wait(calls, [1, 2, 1, 1, 1, 1, 1, 1]) == [
        [False], [True, False], [False], [True], [False], [False], [True], [False],
    ]  # fmt: skip
    assert must_wait(calls, [1, 0, 2, 0, 0, 1, 0, 1]) == [
        [False], [], [True, False], [], [], [True], [], [True],
    ]  # fmt: skip
