"""Sums over fewer places: which axes they are over is told by the sums themselves."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from superopt.ir import graph
from superopt.partial.regions.composition import Composer
from superopt.partial.regions.points import term_count
from superopt.partial.regions.shortened_sums import (
    canonical_places,
    interchangeable_columns,
    shorten_sums,
    thin_windows,
)
from superopt.te.analysis.inline import substitute_axes
from superopt.te.expr.node import Apply, Axis, Expr, Load, Reduce
from tests.support.partial.regions import apply, given_


def body(v: graph.Value) -> Expr:
    found = Composer().tensor(v).body
    assert found is not None
    return found


def conv(channels: int, kernel: int) -> graph.Value:
    x, k = given_("x", 1, channels, 8, 8), given_("k", 5, channels, kernel, kernel)
    return apply("Conv", x, k, pads=(1, 1, 1, 1))


def other_names(e: Expr, names: Mapping[str, str]) -> Expr:
    """With other names for the axes of sums."""
    match e:
        case Axis(name, extent):
            return Axis(names.get(name, name), extent)
        case Reduce(fn, axes, inner, dtype):
            own = {a.name: f"{names.get(a.name, 'sum-' + a.name)}" for a in axes}
            some = tuple(Axis(own[a.name], a.extent) for a in axes)
            return Reduce(fn, some, other_names(inner, {**names, **own}), dtype)
        case Apply(fn, args, dtype):
            return Apply(fn, tuple(other_names(a, names) for a in args), dtype)
        case Load(t, index, dtype):
            return Load(t, tuple(other_names(i, names) for i in index), dtype)
    return e


def test_channels_as_many_as_places_of_the_window() -> None:
    """Are channels: two of three are enough, and of a window none."""
    e = body(conv(3, 3))
    assert term_count(e) == 3 * 9
    (short,) = shorten_sums([e], ())
    assert term_count(short) == 2 * 9


def test_axes_of_any_name() -> None:
    e = other_names(body(conv(64, 3)), {})
    assert all(a.name.startswith("sum-") for a in sums(e))
    for (some,), most in ((shorten_sums([e], ()), 2 * 9), (thin_windows([e]), 2 * 4)):
        assert term_count(some) == most
        assert inside(some) == set(sums(some))


def sums(e: Expr) -> list[Axis]:
    match e:
        case Reduce(_, axes, inner):
            return [*axes, *sums(inner)]
        case Apply(_, args):
            return [a for x in args for a in sums(x)]
    return []


def inside(e: Expr) -> set[Axis]:
    """Axes of sums that are read by."""
    match e:
        case Axis(name):
            return {e} if name.startswith("sum-") else set()
        case Reduce(_, _, inner):
            return inside(inner)
        case Apply(_, args) | Load(_, args):
            return set().union(*map(inside, args))
    return set()


def test_channels_that_one_program_reads_a_part_of_stay() -> None:
    x, k, m = given_("x", 1, 6, 8, 8), given_("k", 5, 6, 3, 3), given_("m", 5, 3, 3, 3)
    part = apply("Slice", x, starts=(0,), ends=(3,), axes=(1,))
    both = Composer()
    one = both.tensor(apply("Conv", x, k, pads=(1, 1, 1, 1)))
    other = both.tensor(apply("Conv", part, m, pads=(1, 1, 1, 1)))
    assert one.body is not None
    assert other.body is not None
    some = [one.body, substitute_axes(other.body, dict(zip(other.axes, one.axes, strict=True)))]
    assert [*map(term_count, shorten_sums(some, one.axes))] == [*map(term_count, some)]


def test_a_kernel_that_is_read_again() -> None:
    """Its channels are of one kind, of which four are read by a product: of the result, and three
    of sums."""
    x, k = given_("x", 1, 64, 8, 8), given_("k", 64, 64, 1, 1)
    made = x
    for _ in range(3):
        made = apply("Conv", made, k)
    t = Composer().tensor(made)
    assert t.body is not None
    assert term_count(t.body) == 64**3
    assert ([1], 4) in interchangeable_columns([t.body], t.axes)
    (short,) = shorten_sums([t.body], t.axes)
    assert term_count(short) == 4**3


@given(st.lists(st.tuples(*[st.integers(0, 9)] * 4), min_size=1, max_size=9), st.integers(3, 6))
def test_places_that_are_alike(some: list[tuple[int, ...]], count: int) -> None:
    """Which of the axes of a kind are at the same place stays, and others stay as they are."""
    places = np.array(some)
    out = canonical_places(places, [([0, 1, 3], count)])
    np.testing.assert_array_equal(out[:, 2], places[:, 2])
    for old, new in zip(places[:, (0, 1, 3)], out[:, (0, 1, 3)], strict=True):
        assert new.max() < count
        np.testing.assert_array_equal(old[:, None] == old, new[:, None] == new)
