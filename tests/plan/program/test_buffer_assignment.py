"""Where buffers lie: those in use at once are apart, and borders stay as they are."""

from hypothesis import given
from hypothesis import strategies as st

from superopt.plan.program.buffer_assignment import (
    ALIGNMENT_BYTES,
    MIN_CLEAR_SAVING,
    MIN_CLEARED_BYTES,
    BufferLife,
    assign_offsets,
)

LIVES = st.lists(
    st.builds(
        lambda size, first, length, keeps, clear: BufferLife(
            size, first, first + length, keeps, clear
        ),
        st.sampled_from([0, 60, 500, MIN_CLEARED_BYTES, 3 * MIN_CLEARED_BYTES]),
        st.integers(0, 8),
        st.integers(0, 4),
        st.sampled_from([None, None, "a", "b"]),
        st.sampled_from([None, 0, MIN_CLEARED_BYTES // 4, MIN_CLEARED_BYTES]),
    ),
    max_size=14,
)


@given(LIVES)
def test_live_buffers_do_not_overlap(lives: list[BufferLife]) -> None:
    at, top, cleared, kept = assign_offsets(lives)

    def told(n: int) -> bool:
        """May its memory be anybody's?"""
        return lives[n].contents is None or n in cleared

    assert all(lives[n].clear_bytes is not None for n in cleared)
    for n, (a, x) in enumerate(zip(at, lives, strict=True)):
        assert a % ALIGNMENT_BYTES == 0
        assert a + x.bytes <= top
        assert (a + x.bytes <= kept) if not told(n) else a >= kept
        for m, (b, y) in enumerate(zip(at[:n], lives[:n], strict=True)):
            together = x.first <= y.last and y.first <= x.last
            overlap = a < b + y.bytes and b < a + x.bytes
            unlike = x.contents != y.contents and not (told(n) and told(m))
            assert not (overlap and (together or unlike))


def test_memory_is_shared() -> None:
    at, top, _, kept = assign_offsets(
        [BufferLife(64, 0, 1), BufferLife(64, 1, 2), BufferLife(64, 2, 3), BufferLife(64, 3, 4)]
    )
    assert (top, kept) == (128, 0)
    assert at[0] == at[2] != at[1] == at[3]


def test_borders_are_written_anew_where_that_is_less() -> None:
    """Two pictures of one kind, not at once with what has no border."""
    size = 4 * MIN_CLEARED_BYTES

    def placed(clear: int | None) -> tuple[int, set[int]]:
        pictures = [BufferLife(size, 0, 1, "a", clear), BufferLife(size, 4, 5, "a", clear)]
        _, top, cleared, _ = assign_offsets([*pictures, BufferLife(size, 2, 3)])
        return top, cleared

    few = size // (2 * MIN_CLEAR_SAVING)
    assert placed(few) == (size, {0, 1})
    assert placed(few + 1) == (2 * size, set())
    assert placed(None) == (2 * size, set())
