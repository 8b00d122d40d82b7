"""The numerical check of a model in a report."""

from __future__ import annotations

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
        if held is None or c.max_error > held.max_error or (c.failure and held.passed):
            worst[r.place] = OutputError(
                r.place, c.max_error, c.mean_error, c.p99_error,
                c.original_max, c.original_mean, c.original_p99,
                c.rtol, c.atol, not c.failure, c.failure or f"inputs: {r.kind}",
            )  # fmt: skip
    return CheckResult(
        not check.failures,
        len(set(check.input_sets)),
        tuple(worst.values()),
        check.method,
        check.skipped,
    )
