"""Where buffers of symbolic sizes lie: those in use at once are apart, whatever the sizes."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from superopt.plan.program.buffer_assignment import ALIGNMENT_BYTES
from superopt.plan.program.symbolic_buffers import SymbolicLife, Words, assign_slots
from superopt.te.expr import index
from superopt.te.expr.node import Size
from superopt.te.expr.symbolic_int import extent, symbolic_sizes

N, M = Size("n"), Size("m")
BYTES = (4, 60, 640, N, N * 4, N * 4 + 12, N * M * 4, M * 400, N * N, (N * -1) // 16 * -64)
LIVES = st.lists(
    st.tuples(st.sampled_from(BYTES), st.integers(0, 8), st.integers(0, 4)), max_size=12
)
SIZES = st.fixed_dictionaries({"n": st.integers(1, 5000), "m": st.integers(1, 5000)})


@given(LIVES, SIZES, st.lists(SIZES, min_size=4, max_size=4))
def test_live_buffers_do_not_overlap_at_any_sizes(
    given_lives: list[tuple[int, int, int]],
    hints: dict[str, int],
    others: list[dict[str, int]],
) -> None:
    with symbolic_sizes(hints) as environment:
        lives = [
            SymbolicLife(extent(size), first, first + length) for size, first, length in given_lives
        ]
        offsets, total = assign_slots(lives)
    assert not environment.guards
    for sizes in (hints, *others):
        end = index.evaluate(total, sizes)
        places = []
        for (size, first, length), at in zip(given_lives, offsets, strict=True):
            begin = index.evaluate(at, sizes)
            assert begin % ALIGNMENT_BYTES == 0
            places.append((begin, begin + index.evaluate(size, sizes), first, first + length))
            assert 0 <= begin <= places[-1][1] <= end
        for (a, a_end, *a_steps), (b, b_end, *b_steps) in combinations(places, 2):
            at_once = a_steps[0] <= b_steps[1] and b_steps[0] <= a_steps[1]
            assert not at_once or a_end <= b or b_end <= a


def test_buffers_of_disjoint_lives_share_a_slot_of_the_larger_one() -> None:
    with symbolic_sizes({"n": 100, "m": 10}):
        lives = [SymbolicLife(extent(N * 64), 0, 1), SymbolicLife(extent(M * 64), 2, 3)]
        (first, second), total = assign_slots(lives)
    assert first == second
    for n, m in ((1, 7), (7, 1)):
        assert index.evaluate(total, {"n": n, "m": m}) == 7 * 64


def test_equal_values_are_one_word_after_the_sizes() -> None:
    words = Words([N, M])
    assert [words.number(v) for v in (N * 4, M, N * 4, 7)] == [2, 3, 2, 4]
    assert [index.evaluate(w, {"n": 5, "m": 3}) for w in words.values] == [5, 3, 20, 3, 7]
