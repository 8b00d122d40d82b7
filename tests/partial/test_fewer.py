"""Sums over fewer places: which axes they are over is told by the sums themselves."""

from __future__ import annotations

from collections.abc import Mapping

from superopt.ir import graph as g
from superopt.partial.composed import Composed
from superopt.partial.fewer import shortened, thinned
from superopt.partial.points import terms
from superopt.te.inline import placed
from superopt.te.node import Apply, Axis, Expr, Load, Reduce
from tests.partial.test_regions import apply, given_


def body(v: g.Value) -> Expr:
    found = Composed().tensor(v).body
    assert found is not None
    return found


def conv(channels: int, kernel: int) -> g.Value:
    x, k = given_("x", 1, channels, 8, 8), given_("k", 5, channels, kernel, kernel)
    return apply("Conv", x, k, pads=(1, 1, 1, 1))


def renamed(e: Expr, names: Mapping[str, str]) -> Expr:
    """With other names for the axes of sums."""
    match e:
        case Axis(name, extent):
            return Axis(names.get(name, name), extent)
        case Reduce(fn, axes, inner, dtype):
            own = {a.name: f"{names.get(a.name, 'sum-' + a.name)}" for a in axes}
            some = tuple(Axis(own[a.name], a.extent) for a in axes)
            return Reduce(fn, some, renamed(inner, {**names, **own}), dtype)
        case Apply(fn, args, dtype):
            return Apply(fn, tuple(renamed(a, names) for a in args), dtype)
        case Load(t, index, dtype):
            return Load(t, tuple(renamed(i, names) for i in index), dtype)
    return e


def test_channels_as_many_as_places_of_the_window() -> None:
    """Are channels: two of three are enough, and of a window none."""
    e = body(conv(3, 3))
    assert terms(e) == 3 * 9
    (short,) = shortened([e])
    assert terms(short) == 2 * 9


def test_axes_of_any_name() -> None:
    e = renamed(body(conv(64, 3)), {})
    assert all(a.name.startswith("sum-") for a in sums(e))
    for fewer, most in ((shortened, 2 * 9), (thinned, 2 * 4)):
        (some,) = fewer([e])
        assert terms(some) == most
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
    both = Composed()
    one = both.tensor(apply("Conv", x, k, pads=(1, 1, 1, 1)))
    other = both.tensor(apply("Conv", part, m, pads=(1, 1, 1, 1)))
    assert one.body is not None
    assert other.body is not None
    some = [one.body, placed(other.body, dict(zip(other.axes, one.axes, strict=True)))]
    assert [*map(terms, shortened(some))] == [*map(terms, some)]
