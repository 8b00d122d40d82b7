"""Which classes of sizes are compiled ahead of calls at other sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest

from superopt.compilation.model.compile_class import compile_levels


class RecordedClasses:
    """Classes that have none of the sizes, and record for which they are compiled."""

    def __init__(self) -> None:
        self.examples: list[dict[str, int]] = []

    def admits(self, sizes: Mapping[str, int]) -> bool:
        return False

    def compile(self, compiler: object, sizes: Mapping[str, int]) -> None:
        self.examples.append(dict(sizes))


@pytest.mark.parametrize(
    ("length", "lengths", "compiled"),
    [
        (100, (100, 100), set()),  # calls have one length
        (100, (40, 200), {128, 64, 32, 16, 15, 8}),
        (3, (1, 3), {15, 8, 7, 4, 2, 1}),
        (3, (1, 9), {32, 16, 15, 8, 7, 4, 2, 1}),
    ],
)
def test_levels_near_to_the_sizes_of_calls_are_compiled(
    length: int, lengths: tuple[int, int], compiled: set[int]
) -> None:
    classes, ranges = RecordedClasses(), {"batch": (1, 1), "length": lengths}
    sizes = {"batch": 1, "length": length}
    assert [*compile_levels(cast(Any, None), cast(Any, classes), sizes, ranges)] == []
    found = [example["length"] for example in classes.examples]
    assert {*found} == compiled
    assert all(example["batch"] == 1 for example in classes.examples)
