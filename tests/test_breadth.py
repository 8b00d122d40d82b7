"""Which cases of wide tables run by default."""

import ast
import itertools
from pathlib import Path
from typing import Any

import pytest

from tests import breadth
from tests.breadth import ONE_IN, ROUND_ROBIN, is_in_turn, runs_by_default, select_shard

LISTED = [*ONE_IN, *ROUND_ROBIN]


def functions(path: Path) -> set[str]:
    return {n.name for n in ast.walk(ast.parse(path.read_text("utf-8"))) if hasattr(n, "name")}


@pytest.mark.parametrize("file", sorted({name.partition("::")[0] for name in LISTED}))
def test_what_is_listed_is_there(file: str, root: Path) -> None:
    """A test that was renamed would else run with all of its cases."""
    known = functions(root / "tests" / file)
    listed = {name.partition("::")[2] for name in LISTED if name.startswith(f"{file}::")}
    assert listed <= known


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


def test_the_marker_is_given_to_what_is_listed(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed, none, other = "a.py::test_wide", "a.py::test_long", "a.py::test_small"
    crossed = "a.py::test_crossed"
    monkeypatch.setattr(breadth, "ONE_IN", {listed: 4, none: 0})
    monkeypatch.setattr(breadth, "ROUND_ROBIN", {crossed: 2})
    names = [f"tests/{f}[{n}]" for f in (listed, none, other, crossed) for n in range(8)]
    items = [Case.from_parent(request.node.parent, name=name) for name in names]
    slow = Case.from_parent(request.node.parent, name=f"tests/{crossed}[8]")
    slow.add_marker("slow")
    breadth.mark_breadth([slow, *items, slow])
    assert slow.get_closest_marker("breadth") is None
    marked = [i.name for i in items if i.get_closest_marker("breadth") is not None]
    assert names[0] not in marked
    assert [sum(f in name for name in marked) for f in (listed, none, other, crossed)] == [
        5,
        8,
        0,
        4,
    ]


def test_each_wide_case_is_in_one_shard(request: pytest.FixtureRequest) -> None:
    items = [Case.from_parent(request.node.parent, name=f"test_x[{n}]") for n in range(20)]
    for item in items[5:]:
        item.add_marker(pytest.mark.breadth)
    shards = [select_shard(items, shard, 4) for shard in range(4)]
    assert all(shard[:5] == items[:5] for shard in shards)
    wide = [item for shard in shards for item in shard[5:]]
    assert sorted(wide, key=items.index) == items[5:]


class Case(pytest.Item):
    """An item whose id is its name."""

    def __init__(self, name: str, **kwargs: Any) -> None:
        super().__init__(name, nodeid=name, **kwargs)

    def runtest(self) -> None:
        raise AssertionError
