"""Branches that are alike as one: the same regions, of few steps."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from superopt.ir import graph
from superopt.partial.regions import bit_sets, stacked_branches
from superopt.partial.regions.composition import Composer
from superopt.partial.regions.equality import Comparison
from superopt.partial.regions.find import find_regions
from superopt.partial.regions.nested_sums import share_nested_sums
from superopt.partial.regions.points import Points
from superopt.partial.regions.term_sets import float_constants
from superopt.te.analysis.walk import share_subexpressions, subexpressions
from superopt.te.expr.node import Load
from tests.support.partial.regions import apply, bodies, by_floats, given_, pool, truth

Made = Callable[[graph.Value], graph.Value]
K = given_("k", 2, 2, 3, 3)
PADS = (1, 1, 1, 1)


def conv(x: graph.Value, k: graph.Value = K) -> graph.Value:
    return apply("Conv", x, k, pads=PADS)


def relu(x: graph.Value) -> graph.Value:
    return apply("Relu", x)


def images(count: int, side: int = 3) -> list[graph.Value]:
    return [given_(f"x{n}", 1, 2, side, side) for n in range(count)]


def joined(*some: graph.Value, axis: int = 3) -> graph.Value:
    return apply("Concat", *some, axis=axis)


def cut(x: graph.Value, row: int, column: int, side: int) -> graph.Value:
    begins = (row * side, column * side)
    ends = tuple(b + side for b in begins)
    return apply("Slice", x, starts=begins, ends=ends, axes=(2, 3))


def grid(make: Made, x: graph.Value, order: list[int]) -> graph.Value:
    """Of nine parts of an image, put together in this order."""
    made = [make(cut(x, n // 3, n % 3, 3)) for n in order]
    return joined(*(joined(*made[n : n + 3]) for n in (0, 3, 6)), axis=2)


def some_pairs() -> list[tuple[graph.Value, graph.Value]]:
    x, whole = images(6), given_("w", 1, 2, 9, 9)
    kernels = [given_(f"k{n}", 2, 2, 3, 3) for n in range(6)]
    out = [(joined(*map(make, x)), make(joined(*x))) for make in (conv, pool, relu, lambda v: v)]
    out += [(make(whole), grid(make, whole, list(range(9)))) for make in (conv, pool)]
    swapped = [x[n] for n in (0, 1, 3, 2, 4, 5)]
    out += [(joined(*map(conv, x)), conv(joined(*swapped)))]
    out += [(grid(relu, whole, [0, 1, 2, 3, 5, 4, 6, 7, 8]), relu(whole))]
    each = [conv(v, k) for v, k in zip(x, kernels, strict=True)]
    out += [(joined(*each), joined(*each[:3], *(conv(v, kernels[0]) for v in x[3:])))]
    mixed = [(relu, pool, conv)[n % 3](v) for n, v in enumerate(x)]
    out += [(joined(*mixed), relu(joined(*x))), (joined(*mixed, axis=2), pool(joined(*x, axis=2)))]
    sums = [apply("Add", v, x[n - 1]) for n, v in enumerate(x)]
    out += [(joined(*sums), apply("Add", joined(*x), joined(x[5], *x[:5])))]
    return out


PAIRS = some_pairs()


@pytest.mark.one_in(12)
@pytest.mark.parametrize("n", range(len(PAIRS)))
def test_the_same_regions(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = PAIRS[n]
    found = find_regions(a, b)
    right = truth(a, b) if found.chance is not None else by_floats(a, b, 300)
    np.testing.assert_array_equal(found.mask(), right)
    monkeypatch.setattr(stacked_branches, "MIN_BRANCHES", 1 << 20)
    assert find_regions(a, b).mask().tolist() == found.mask().tolist()


@pytest.mark.one_in(0)
def test_random_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of parts in any order, and some of which are made in another way."""
    rng = random.Random(0)
    ways: list[Made] = [conv, relu, pool, lambda v: apply("Neg", v), lambda v: apply("Add", v, v)]
    for _ in range(40):
        x = images(rng.randint(4, 8), rng.randint(1, 3))
        make, other = rng.choices(ways, k=2)
        some = [make if rng.random() < 0.7 else other for _ in x]
        axis = rng.choice((2, 3))
        order = [*x] if rng.random() < 0.6 else rng.sample(x, len(x))
        a = joined(*(f(v) for f, v in zip(some, x, strict=True)), axis=axis)
        b = make(joined(*order, axis=axis))
        found = find_regions(a, b).mask()
        with monkeypatch.context() as m:
            m.setattr(stacked_branches, "MIN_BRANCHES", 1 << 20)
            assert (find_regions(a, b).mask() == found).all()


@pytest.mark.parametrize("make", [conv, pool, relu])
def test_a_join_of_many_is_as_large_as_one_of_few(make: Made) -> None:
    """But for the conditions: 32 branches took 80 to 180 ms."""
    counts = []
    for n in (8, 32):
        x = images(n)
        axes, some = bodies(joined(*map(make, x)), make(joined(*x)))
        made = Comparison.from_bodies(axes, share_subexpressions(some))
        counts.append(
            [sum(isinstance(e, Load) for e in subexpressions(b)) for b in made.full_bodies]
        )
    assert counts[0] == counts[1]
    assert max(map(max, counts)) <= 4


def test_inputs_in_several_places_of_branches_are_several_stacks() -> None:
    x, k = images(6), [given_(f"q{n}", 1, 2, 3, 3) for n in range(6)]
    a = joined(*(apply("Mul", v, w) for v, w in zip(x, k, strict=True)))
    _, some = bodies(a, a)
    stacks = {
        e.tensor
        for b in stacked_branches.stack_branches(some)
        for e in subexpressions(b)
        if isinstance(e, Load)
    }
    assert len(stacks) == 2


def test_sets_bit_by_bit_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    for side in (9, 40):  # 3,200 terms are too many
        t = Composer().tensor(pool(pool(pool(given_("x", 1, 2, side, side)))))
        assert t.body is not None
        (own,) = share_nested_sums([t.body])
        numbers = float_constants([t.body])
        places = np.array(list(np.ndindex(1, 2, side, side)))
        counts: list[int] = []
        united = bit_sets.BitSets.deduplicate

        def counted(self: bit_sets.BitSets, x: np.ndarray) -> np.ndarray:
            counts.append(len(self.bit_of_term))  # noqa: B023
            return united(self, x)  # noqa: B023

        with monkeypatch.context() as m:
            m.setattr(bit_sets.BitSets, "deduplicate", counted)
            found = Points(3, numbers=numbers).values(own, t.axes, places)
            assert (max(counts, default=0) > 0) == (side == 9)
            m.setattr("superopt.partial.regions.points.is_pure_extremum", lambda _: False)
            np.testing.assert_array_equal(
                Points(3, numbers=numbers).values(own, t.axes, places), found
            )


def test_an_index_in_several_kinds_of_branches_is_a_number_of_each() -> None:
    """The branches that read y and those that read z have the same indices, of other places."""
    y, z = given_("y", 4, 6), given_("z", 6, 6)
    both = joined(y, z, axis=0)
    twice = joined(both, both, axis=1)
    assert find_regions(twice, apply("Tile", both, repeats=(1, 2))).equal_share == 1
    left = apply("Slice", both, starts=(0,), ends=(3,), axes=(1,))
    moved = joined(left, left, both, axis=1)
    np.testing.assert_array_equal(find_regions(twice, moved).mask(), truth(twice, moved))
