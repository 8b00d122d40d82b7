"""The wide tables of which only some cases run by default; the others get the marker `breadth`.

`pytest` alone must end within 6 minutes on two cores. What is listed here took most of the time:
each number is the share of a function's cases that stay, 1 in so many; 0: none does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import pytest

GOLDEN_RATIO = (1 + 5**0.5) / 2
ONE_IN: Mapping[str, int] = {}


def function_of(nodeid: str) -> str:
    """`kernels/test_pool.py::test_sums` of `tests/kernels/test_pool.py::test_sums[3-f32]`."""
    return nodeid.removeprefix("tests/").partition("[")[0]


def runs_by_default(number: int, one_in: int) -> bool:
    """True of about one in so many numbers from 0 on, of 0 itself, and of none with 0.

    The multiples of the golden ratio are spread evenly, and in step with no other count: of crossed
    tables all rows and columns are among those that run.
    """
    return one_in > 0 and number * GOLDEN_RATIO % 1 * one_in < 1


def mark_breadth(items: Iterable[pytest.Item]) -> None:
    """Give the marker to the cases of ONE_IN that do not run by default."""
    before = Counter[str]()
    for item in items:
        name = function_of(item.nodeid)
        if name in ONE_IN and not runs_by_default(before[name], ONE_IN[name]):
            item.add_marker(pytest.mark.breadth)
        before[name] += 1
