"""Where the difference between two models comes from: plain data for charts and tables."""

from dataclasses import dataclass
from typing import Literal

# folding: also simplification, by rules that are applied without a search; decisions: of kernels,
# by a compiler; rest: what was not predicted.
PartKind = Literal["original", "folding", "decision", "rule", "rest", "result"]


@dataclass(frozen=True, slots=True)
class WaterfallStage:
    """A stage on the way from the original to the result: each adds something to the one before.

    us: of a run of the model at this stage. is_measured: else the costs of the plan predict it, in
    proportion to what is measured. interval_us: of a stage that was timed in turns with the result.
    steps: rewrites that it adds; those that depend on a later stage
    count there.
    """

    name: str
    kind: PartKind
    us: float
    is_measured: bool
    steps: int = 0
    interval_us: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class AblatedPart:
    """The result without one part.

    steps: rewrites that were left out; dependent: further ones, which depend on them. ratio: of the
    latency without the part to that of the result, above 1 if the part pays: low, median, high;
    None if it was not timed. predicted: this ratio by the costs of the plan, if nothing could be
    timed. note: why there is none, or what else was left out.
    """

    name: str
    kind: PartKind
    steps: int
    dependent: int
    ratio: tuple[float, float, float] | None
    predicted: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Ablation:
    """The result without each of its parts, timed in turns in one process. rounds: of each part's
    comparison, at least; sessions: in which the models were loaded again. notes: what could not be
    left out."""

    parts: tuple[AblatedPart, ...]
    rounds: int
    sessions: int
    notes: tuple[str, ...] = ()
