"""Which cases of wide tables run by default."""

import itertools
from typing import Any

import pytest
from hypothesis import settings

from tests.support import breadth
from tests.support.breadth import (
    draws_all_examples,
    examples,
    is_in_turn,
    runs_by_default,
    select_shard,
)


@pytest.mark.parametrize("one_in", [1, 2, 3, 4, 5, 7, 8, 10, 16, 20, 40])
def test_how_many_cases_run(one_in: int) -> None:
    for count in range(1, 500):
        kept = sum(runs_by_default(n, one_in) for n in range(count))
        assert abs(kept - count / one_in) <= 3
        assert kept >= 1


def test_no_case_runs_of_a_function_that_does_not() -> None:
    assert not any(runs_by_default(n, 0) for n in range(10))


def test_all_columns_of_a_crossed_table_run() -> None:
    cases = itertools.product(range(9), range(2), range(5))
    kept = [case for n, case in enumerate(cases) if runs_by_default(n, 4)]
    assert len(kept) < 25
    for column, size in enumerate((9, 2, 5)):
        assert {case[column] for case in kept} == set(range(size))


@pytest.mark.parametrize(("combinations", "values"), [(9, 2), (5, 4), (34, 3)])
def test_the_values_of_a_last_parameter_take_turns(combinations: int, values: int) -> None:
    cases = itertools.product(range(combinations), range(values))
    kept = [case for n, case in enumerate(cases) if is_in_turn(n, values)]
    assert [combination for combination, _ in kept] == list(range(combinations))
    assert {value for _, value in kept} == set(range(values))


def test_the_marker_is_given_to_what_is_wide(request: pytest.FixtureRequest) -> None:
    marks = {
        "wide": pytest.mark.one_in(4),
        "long": pytest.mark.one_in(0),
        "small": None,
        "crossed": pytest.mark.round_robin(2),
    }
    items = []
    for name, mark in marks.items():
        for n in range(8):
            items.append(Case.from_parent(request.node.parent, name=f"{name}[{n}]"))
            if mark is not None:
                items[-1].add_marker(mark)
    slow = Case.from_parent(request.node.parent, name="crossed[8]")
    slow.add_marker(pytest.mark.round_robin(2))
    slow.add_marker("slow")
    breadth.mark_breadth([slow, *items, slow])
    assert slow.get_closest_marker("breadth") is None
    assert items[0].get_closest_marker("breadth") is None
    marked = [i.name for i in items if i.get_closest_marker("breadth") is not None]
    assert [sum(name in m for m in marked) for name in marks] == [5, 8, 0, 4]


def test_each_wide_case_is_in_one_shard(request: pytest.FixtureRequest) -> None:
    items = [Case.from_parent(request.node.parent, name=f"test_x[{n}]") for n in range(20)]
    for item in items[5:]:
        item.add_marker(pytest.mark.breadth)
    shards = [select_shard(items, shard, 4) for shard in range(4)]
    assert all(shard[:5] == items[:5] for shard in shards)
    wide = [item for shard in shards for item in shard[5:]]
    assert sorted(wide, key=items.index) == items[5:]


@pytest.mark.parametrize(
    ("markers", "shard", "every"),
    [
        ("not slow and not breadth and not ci", 0, False),
        ("not slow", 0, True),
        ("not slow", 3, False),
        ("", 0, True),
    ],
)
def test_which_runs_draw_all_examples(markers: str, shard: int, every: bool) -> None:
    assert draws_all_examples(markers, shard) == every


@pytest.mark.parametrize(
    ("profile", "counts"), [(100, {200: 200, 12: 12, 8: 8}), (25, {200: 50, 12: 10, 8: 8})]
)
def test_how_many_examples_are_drawn(profile: int, counts: dict[int, int]) -> None:
    before = settings.get_current_profile_name()
    settings.register_profile("examples", max_examples=profile)
    try:
        settings.load_profile("examples")
        assert {n: examples(n).max_examples for n in counts} == counts
    finally:
        settings.load_profile(before)


class Case(pytest.Item):
    """An item whose id is its name."""

    def __init__(self, name: str, **kwargs: Any) -> None:
        super().__init__(name, nodeid=name, **kwargs)

    def runtest(self) -> None:
        raise AssertionError
