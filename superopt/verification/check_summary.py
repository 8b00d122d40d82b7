"""The numerical check of a model in a report."""

from __future__ import annotations

from superopt.check.compare import Comparison
from superopt.check.numeric_check import CheckOutcome
from superopt.report.data.report import CheckResult, OutputError


def summarize_check(check: CheckOutcome | None) -> CheckResult | None:
    """Return the check as plain data: for every output the largest error over all inputs."""
    if check is None:
        return None
    worst: dict[str, OutputError] = {}
    for r in check.results:
        c = r.compared
        held = worst.get(r.place)
        if held is None or _severity(c) > (not held.passed, held.steps or 0, held.max_error):
            worst[r.place] = OutputError(
                r.place, c.max_error, c.mean_error, c.p99_error,
                c.original_max, c.original_mean, c.original_p99,
                c.rtol, c.atol, not c.failure, c.failure or f"inputs: {r.kind}",
                c.rms, c.steps, None if c.steps is None else c.original_steps,
            )  # fmt: skip
    return CheckResult(
        not check.failures,
        len(set(check.input_sets)),
        tuple(worst.values()),
        check.method,
        check.skipped,
    )


def _severity(c: Comparison) -> tuple[bool, int, float]:
    return bool(c.failure), c.steps or 0, c.max_error
