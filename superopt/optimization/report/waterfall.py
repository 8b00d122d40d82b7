"""The stages from the original to the result: measured, or predicted by the costs of plans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from superopt.optimization.ablation import AblationResult, MeasuredStage
from superopt.optimization.optimization_result import OptimizationResult
from superopt.optimization.report.latencies import timed_latencies
from superopt.optimization.step_groups import FOLDING_TITLE
from superopt.report.data.attribution import PartKind, WaterfallStage

REST_TITLE = "not predicted"


def make_waterfall(result: OptimizationResult) -> tuple[WaterfallStage, ...]:
    """Return the stages; none for a model that did not change and is not compiled."""
    found = result.attribution
    if result.winner is None and not found.decisions_us:
        return ()
    ends = _Ends.of_result(result)
    if isinstance(found.ablation, AblationResult) and found.ablation.stages and ends.is_measured:
        return tuple(_measured_stages(found.ablation.stages, ends))
    return tuple(_predicted_stages(result, ends))


@dataclass(frozen=True, slots=True)
class _Ends:
    """The microseconds of the original, as it runs or is compiled without a search, and of the
    result; measured or predicted."""

    before_us: float
    after_us: float
    is_measured: bool

    @staticmethod
    def of_result(result: OptimizationResult) -> _Ends:
        before, after, _ = timed_latencies(result)
        if before is None or after is None:
            return _Ends(result.cost_before, result.cost_after, False)
        last = before if result.winner is None else after
        return _Ends(before.us_median, last.us_median, True)


def _measured_stages(stages: Sequence[MeasuredStage], ends: _Ends) -> Iterator[WaterfallStage]:
    """Yield stages that were timed in turns with the result."""
    for s in stages:
        if s.ratio is None:
            yield WaterfallStage(s.name, s.kind, ends.after_us, True, s.steps)
            continue
        low, us, high = (ends.after_us * x for x in (s.ratio.low, s.ratio.mid, s.ratio.high))
        yield WaterfallStage(s.name, s.kind, us, True, s.steps, (low, high))
    yield WaterfallStage("result", "result", ends.after_us, True)


def _predicted_stages(result: OptimizationResult, ends: _Ends) -> Iterator[WaterfallStage]:
    """Yield stages by the costs of plans, in proportion to the time of the original."""
    found = result.attribution
    if found.decisions_us:
        scale = ends.before_us / found.decisions_us[-1][1]
        for n, (title, us) in enumerate(found.decisions_us):
            is_last = n == len(found.decisions_us) - 1
            kind: PartKind = "decision" if n else "original"
            yield WaterfallStage(title, kind, us * scale, is_last and ends.is_measured)
    else:
        yield WaterfallStage("original", "original", ends.before_us, ends.is_measured)
        if not any(g.kind == "folding" for g in found.groups):
            yield WaterfallStage(FOLDING_TITLE, "folding", ends.before_us, False)
    us = ends.before_us
    for g, ratio in zip(found.groups, _group_ratios(result), strict=True):
        us = ends.before_us * ratio
        yield WaterfallStage(g.name, g.kind, us, False, len(g.numbers))
    if abs(us - ends.after_us) > 1e-6 * ends.before_us:
        yield WaterfallStage(REST_TITLE, "rest", ends.after_us, False)
    yield WaterfallStage("result", "result", ends.after_us, ends.is_measured)


def _group_ratios(result: OptimizationResult) -> list[float]:
    """Return the predicted times after each group of steps, over that before the first: of the
    graphs, or else by the sum of what the steps save."""
    found = result.attribution
    if found.groups_us:
        return [us / found.groups_us[0] for us in found.groups_us[1:]]
    saved = accumulate(g.saves_us for g in found.groups)
    return [max(1 - us / max(result.cost_before, 1e-9), 0.0) for us in saved]
