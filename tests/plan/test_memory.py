"""Where buffers lie: those in use at once are apart, and borders stay as they are."""

from hypothesis import given
from hypothesis import strategies as st

from superopt.plan.memory import ALIGNED, Life, offsets

LIVES = st.lists(
    st.builds(
        lambda size, first, length, keeps: Life(size, first, first + length, keeps),
        st.integers(0, 500), st.integers(0, 8), st.integers(0, 4),
        st.sampled_from([None, None, "a", "b"]),
    ),
    max_size=14,
)  # fmt: skip


@given(LIVES)
def test_what_is_in_use_at_once_is_apart(lives: list[Life]) -> None:
    at, top = offsets(lives)
    for n, (a, x) in enumerate(zip(at, lives, strict=True)):
        assert a % ALIGNED == 0
        assert a + x.bytes <= top
        for b, y in zip(at[:n], lives[:n], strict=True):
            together = x.first <= y.last and y.first <= x.last
            overlap = a < b + y.bytes and b < a + x.bytes
            assert not (overlap and (together or x.keeps != y.keeps))


def test_memory_is_shared() -> None:
    at, top = offsets([Life(64, 0, 1), Life(64, 1, 2), Life(64, 2, 3), Life(64, 3, 4)])
    assert top == 128
    assert at[0] == at[2] != at[1] == at[3]
