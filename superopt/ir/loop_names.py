"""The names of a loop's values, which calls of a cached model need, too."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoopNames:
    """The names of a loop's values. trip, condition: what bounds it; "" if it has none. states: the
    initial states. captured: outer values that the body reads. finals, stacked: the results, "" if
    unused. body_inputs: the step's number, the condition and the states within the body.
    body_outputs: the condition, the states and the slices."""

    trip: str
    condition: str
    states: tuple[str, ...]
    captured: tuple[str, ...]
    finals: tuple[str, ...]
    stacked: tuple[str, ...]
    body_inputs: tuple[str, ...]
    body_outputs: tuple[str, ...]
