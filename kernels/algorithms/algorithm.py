"""The `Algorithm` protocol: one way to compute a problem's tensor on a target.

    recognise   the parts of the problem that the algorithm needs, or None
    options     the algorithm with its knobs, estimated fastest first
    predict     the best option and its estimated time
    schedule    the kernels of an option: tensors with schedules, layouts, constants

Each algorithm is a value of this type, in the file of its name; table.py lists them by target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from superopt.kernels.algorithms.problem import Choice, Problem
from superopt.kernels.loops.option import Option

Match = TypeVar("Match")
GENERAL_TIME = 1.0  # relative time of a target's general algorithm for a computation


@dataclass(frozen=True, slots=True)
class Prediction:
    """The option of an algorithm that is estimated to be the fastest.

    relative_time: its estimated time over that of the target's general algorithm for the
    computation (register tiles for a contraction, for example), divided by the ratio below which
    the algorithm paid in measurements. The least is the default; of equals, the first in the table.
    """

    option: Option
    relative_time: float = GENERAL_TIME


@dataclass(frozen=True, slots=True)
class Algorithm(Generic[Match]):
    """An algorithm.

    names: of its options. computes: for readers of the table. predict: None if the first option is
    as good as the general algorithm; returns None if the algorithm is not expected to pay, so that
    only measurements choose it. exclusive: where it is recognised, the rows below do not apply.
    uses_vendor_library: part of it is a call of a vendor's library. replaces_sums: the sum is
    computed in another order or form, with other rounding. schedule_symbolic: schedules an option
    of the problem at the example sizes for the problem of symbolic sizes, or returns None if it
    cannot; None if the schedule of the example applies, or there is none. limits: yields what
    bounds the block sizes of an option, a sentence each.
    """

    names: tuple[str, ...]
    computes: str
    recognise: Callable[[Problem], Match | None]
    options: Callable[[Problem, Match], Iterable[Option]]
    schedule: Callable[[Problem, Match, Option], Choice]
    predict: Callable[[Problem, Match], Prediction | None] | None = None
    exclusive: bool = False
    uses_vendor_library: bool = False
    replaces_sums: bool = False
    schedule_symbolic: Callable[[Problem, Option], Choice | None] | None = None
    limits: Callable[[Problem, Match, Option], Iterable[str]] | None = None

    def prediction(self, p: Problem, match: Match) -> Prediction | None:
        """Return the best option with its estimated time; None if it is not expected to pay."""
        if self.predict is not None:
            return self.predict(p, match)
        first = next(iter(self.options(p, match)), None)
        return None if first is None else Prediction(first)


def expect_no_gain(p: Problem, match: Match) -> None:
    """Predict that an algorithm does not pay: only measurements choose it."""


def kib(size: float) -> str:
    """Return a number of bytes in KiB, for `limits`."""
    return f"{size / 1024:.0f} KiB"
