"""Seeded choices cover their ranges."""

from random import Random

import pytest

from superopt.rules.trial.sample.draw import (
    MAX_ELEMENTS,
    Draw,
    PartialShape,
    RejectedChoice,
    Shape,
    Style,
    complete_like,
    divisors,
    draw_factors,
    draw_shape,
    full_shape,
    known_rank,
    least_rank,
)

SEEDS = range(400)


def draws_of(style: Style) -> list[Draw]:
    return [Draw(Random(seed), style) for seed in SEEDS]


@pytest.mark.parametrize(
    ("style", "bounds", "sizes"),
    [
        (Style(), (), range(2, 8)),
        (Style(), (1, 4), range(2, 5)),
        (Style(), (3, 4), (3, 4)),
        (Style(), (5, 4), (5,)),
        (Style(), (1, 1), (2,)),
        (Style(ones_share=0.5), (), range(1, 8)),
        (Style(ones_share=1.0), (), (1,)),
        (Style(ones_share=1.0), (2, 4), (2, 3, 4)),
        (Style(max_size=3), (), (2, 3)),
        (Style(max_size=1), (), (2,)),
        (Style(equal_sizes=True), (), (3,)),
        (Style(equal_sizes=True), (5, 7), (5,)),
        (Style(equal_sizes=True, max_size=2), (), (2,)),
    ],
)
def test_sizes(style: Style, bounds: tuple[int, ...], sizes: tuple[int, ...]) -> None:
    assert {d.size(*bounds) for d in draws_of(style)} == set(sizes)


@pytest.mark.parametrize(("low", "high"), [(0, 4), (2, 4), (0, 2), (2, 2)])
def test_the_wanted_rank_is_drawn_if_it_is_allowed(low: int, high: int) -> None:
    assert {d.rank(low, high) for d in draws_of(Style(rank=2))} == {2}


@pytest.mark.parametrize(
    ("rank", "bounds", "ranks"),
    [
        (None, (), {1, 2, 3, 4}),
        (None, (0, 0), {0}),
        (None, (2,), {2, 3, 4}),
        (0, (), {0}),
        (0, (1,), {1, 2, 3, 4}),
        (4, (), {4}),
        (4, (1, 3), {1, 2, 3}),
    ],
)
def test_ranks(rank: int | None, bounds: tuple[int, ...], ranks: set[int]) -> None:
    """Rank 0 is drawn only if it is wanted or nothing else is allowed."""
    assert {d.rank(*bounds) for d in draws_of(Style(rank=rank))} == ranks


def test_choices_of_a_part_are_any_and_often_at_the_beginning_or_the_end() -> None:
    parts = [d.subrange(3) for d in draws_of(Style())]
    assert set(parts) == {(a, b) for a in range(3) for b in range(a + 1, 4)}
    long = [d.subrange(100) for d in draws_of(Style())]
    assert 0.3 < sum(a == 0 for a, _ in long) / len(long) < 0.5
    assert 0.3 < sum(b == 100 for _, b in long) / len(long) < 0.5


def test_shapes_integers_and_items() -> None:
    assert {d.shape(2, 3) for d in draws_of(Style())} == {(a, b) for a in (2, 3) for b in (2, 3)}
    assert {len(d.shape(0)) for d in draws_of(Style())} == {0}
    assert {d.integer_below(3) for d in draws_of(Style())} == {0, 1, 2}
    assert {d.pick("ab") for d in draws_of(Style())} == {"a", "b"}
    with pytest.raises(RejectedChoice, match="below 0"):
        Draw(Random(0), Style()).integer_below(0)


def test_chances() -> None:
    assert sum(d.chance(0.3) for d in draws_of(Style())) == pytest.approx(120, abs=25)
    assert not any(d.chance(0) for d in draws_of(Style()))
    assert all(d.chance(1) for d in draws_of(Style()))


@pytest.mark.parametrize(
    ("shape", "full"), [(None, None), ((2, None), None), ((2, 3), (2, 3)), ((), ())]
)
def test_full_shape(shape: PartialShape, full: Shape | None) -> None:
    assert full_shape(shape) == full


def test_known_rank() -> None:
    assert known_rank(None, (2, None), (3,)) == 2
    assert known_rank(None) is None


@pytest.mark.parametrize(
    ("axes", "rank"), [((), 1), ((0,), 1), ((2,), 3), ((-1,), 1), ((-3,), 3), ((1, -4), 4)]
)
def test_least_rank(axes: tuple[int, ...], rank: int) -> None:
    assert least_rank(*axes) == rank


def test_a_shape_is_completed_from_one_aligned_at_the_end() -> None:
    draw = Draw(Random(0), Style(equal_sizes=True))
    assert complete_like(None, (5, 6), draw) == (5, 6)
    assert complete_like((None, 7), (5, 6), draw) == (5, 7)
    assert complete_like((None,), (5, 6), draw) == (6,)
    assert complete_like((None, None, None), (5, 6), draw) == (3, 5, 6)


def test_a_shape_is_completed_by_sizes_between_bounds() -> None:
    found = {draw_shape((1, None), d, 3, low=4, high=5) for d in draws_of(Style())}
    assert found == {(1, 4), (1, 5)}
    assert {len(draw_shape(None, d, 3)) for d in draws_of(Style())} == {3}
    ones = {draw_shape((None,), d, 0) for d in draws_of(Style(ones_share=0.5))}
    assert ones == {(n,) for n in range(1, 8)}


@pytest.mark.parametrize(
    ("n", "expected"),
    [(1, [1]), (7, [1, 7]), (12, [1, 2, 3, 4, 6, 12]), (16, [1, 2, 4, 8, 16]), (0, [])],
)
def test_divisors(n: int, expected: list[int]) -> None:
    assert divisors(n) == expected


def test_huge_tensors_are_rejected() -> None:
    assert divisors(MAX_ELEMENTS)[-1] == MAX_ELEMENTS == 2**32
    with pytest.raises(RejectedChoice, match="elements"):
        divisors(MAX_ELEMENTS + 1)


@pytest.mark.parametrize(
    ("count", "rank", "shapes"),
    [
        (6, 2, {(1, 6), (6, 1), (2, 3), (3, 2)}),
        (6, 1, {(6,)}),
        (1, 0, {()}),
        (0, 2, {(0, 0)}),
        (4, 3, {(1, 1, 4), (1, 4, 1), (4, 1, 1), (1, 2, 2), (2, 1, 2), (2, 2, 1)}),
    ],
)
def test_factors_are_any(count: int, rank: int, shapes: set[Shape]) -> None:
    assert {draw_factors(count, rank, d) for d in draws_of(Style())} == shapes


def test_a_scalar_has_one_element() -> None:
    with pytest.raises(RejectedChoice, match="2 elements in no axis"):
        draw_factors(2, 0, Draw(Random(0), Style()))
