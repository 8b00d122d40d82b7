"""Guards that follow from others, and tiles that fit in all sizes of a level."""

import pytest

from superopt.te.expr.node import Size
from superopt.te.expr.symbolic_int import (
    SizeEnvironment,
    extent,
    fitting_factor,
    is_in_range,
    least_at_level,
    level_guards,
    symbolic_sizes,
)

N = Size("n")


def guards(environment: SizeEnvironment) -> set[str]:
    return {f"{'' if holds else 'not '}{g}" for g, holds in environment.guards.items()}


def test_what_follows_from_a_guard_is_no_guard() -> None:
    with symbolic_sizes({"n": 150}) as environment:
        n = extent(N)
        assert n >= 64
        assert n >= 16
        assert not n < 30
        assert n != 0
        assert -(-n // 80) != 0
        assert not -(-n // 16) < 4
    assert guards(environment) == {"(64 <= n)"}


def test_a_guard_on_quotients_bounds_the_size() -> None:
    with symbolic_sizes({"n": 150}) as environment:
        n = extent(N)
        assert -(-n // 16) >= 5
        assert n >= 65
        assert len(environment.guards) == 1
        assert n >= 66
    assert len(environment.guards) == 2


def test_equality_decides_all_comparisons() -> None:
    with symbolic_sizes({"n": 7}) as environment:
        n = extent(N)
        assert n == 7
        assert n < 8
        assert n > 6
        assert n * 2 == 14
    assert len(environment.guards) == 1


def test_an_index_is_in_range_only_where_guards_say_so() -> None:
    with symbolic_sizes({"n": 150}):
        n = extent(N)
        assert not is_in_range(N - 64, N)
        assert n >= 64
        assert is_in_range(N - 64, N)
    assert not is_in_range(N - 64, N)


@pytest.mark.parametrize(
    ("size", "factor", "fits", "least", "greatest"),
    [
        (150, 30, 30, 64, None),
        (150, 100, 64, 64, None),
        (64, 64, 64, 64, None),
        (63, 30, 16, 16, 63),
        (37, 13, 13, 16, 63),
        (15, 6, 6, 8, 15),
        (15, 12, 8, 8, 15),
        (7, 6, 4, 4, 7),
        (3, 3, 2, 2, 3),
        (1, 4, 1, 1, 1),
    ],
)
def test_tiles_fit_in_the_sizes_of_a_level(
    size: int, factor: int, fits: int, least: int, greatest: int | None
) -> None:
    with symbolic_sizes({"n": size}) as environment:
        n = extent(N)
        assert least_at_level(n) == least
        assert not environment.guards
        assert fitting_factor(factor, n) == fits
    assert environment.ranges.greatest.get("n") == greatest
    assert environment.ranges.least.get("n", 1) <= least


def test_cheap_kernels_do_not_bound_sizes() -> None:
    with symbolic_sizes({"n": 37}) as environment:
        with level_guards(False):
            assert fitting_factor(13, extent(N)) == 13
        assert not environment.ranges.greatest
        fitting_factor(13, extent(N))
        assert environment.ranges.greatest == {"n": 63}
