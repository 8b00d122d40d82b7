"""The wide tables of which only some cases run by default; the others get the marker `breadth`.

`pytest` alone must end within 5 minutes on two cores, and wide tables took most of the time. Two
markers say which cases of a test function stay:

- `one_in(n)`: one in so many, spread evenly; 0: none.
- `round_robin(n)`: of a crossed table whose last parameter has n values, mostly precisions, one
  case of each combination of the other parameters, with those values in turn.

Single tests that take seconds have the marker `ci` instead: CI runs all of them.

A property test draws a quarter of its examples by default: of the 100 that hypothesis draws, or of
those that `examples` names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import count

import pytest
from hypothesis import settings

DEFAULT_EXAMPLES = 100  # of a property test that names no number
SOME_EXAMPLES = 25
MIN_EXAMPLES = 10  # of a test that has as many
GOLDEN_RATIO = (1 + 5**0.5) / 2


def runs_by_default(number: int, one_in: int) -> bool:
    """True of about one in so many numbers from 0 on, of 0 itself, and of none with 0.

    The multiples of the golden ratio are spread evenly, and in step with no other count: of crossed
    tables all rows and columns are among those that run.
    """
    return one_in > 0 and number * GOLDEN_RATIO % 1 * one_in < 1


def is_in_turn(number: int, values: int) -> bool:
    """True of one number in each `values` in a row: the 0th of the first, the 1st of the next."""
    return number % values == number // values % values


def argument_of(item: pytest.Item, marker: str) -> int:
    """The argument of the item's marker of this name; 1 where it has none."""
    found = item.get_closest_marker(marker)
    return 1 if found is None else found.args[0]


def mark_breadth(items: Iterable[pytest.Item]) -> None:
    """Give the marker `breadth` to the cases that do not run by default.

    Slow ones do not count, and have a marker of their own.
    """
    before = Counter[str]()
    in_turns: dict[str, int] = {}
    for item in items:
        if item.get_closest_marker("slow") is not None:
            continue
        name = item.nodeid.partition("[")[0]
        number = before[name]
        in_turns[name] = argument_of(item, "round_robin")
        if not (
            runs_by_default(number, argument_of(item, "one_in"))
            and is_in_turn(number, in_turns[name])
        ):
            item.add_marker(pytest.mark.breadth)
        before[name] += 1
    for name, values in in_turns.items():
        assert values == 1 or before[name] >= values**2, f"a value never has its turn: {name}"


def select_shard(items: Iterable[pytest.Item], shard: int, shards: int) -> list[pytest.Item]:
    """The items without the marker, and of those with it every `shards`-th, from `shard` on.

    Over shards 0 to `shards` - 1 each item with the marker is selected once."""
    wide = count()
    return [
        item
        for item in items
        if item.get_closest_marker("breadth") is None or next(wide) % shards == shard
    ]


def draws_all_examples(markers: str, shard: int) -> bool:
    """True if a run with this `-m` draws all examples of property tests: with the marker `breadth`,
    and in the first of several shards."""
    return "not breadth" not in markers and shard == 0


def examples(count: int) -> settings:
    """A decorator of a property test that draws so many examples, or fewer by default."""
    share = settings.default.max_examples / DEFAULT_EXAMPLES
    return settings(max_examples=max(round(count * share), min(count, MIN_EXAMPLES)))
