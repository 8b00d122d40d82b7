"""The numerical check of a model in a report."""

from __future__ import annotations

from superopt.check.numeric import Checked
from superopt.report.data import CheckResult, OutputError


def check_result(checked: Checked | None) -> CheckResult | None:
    """Return the check as plain data: for every output the largest error over all inputs."""
    if checked is None:
        return None
    worst: dict[str, OutputError] = {}
    for r in checked.results:
        c = r.compared
        held = worst.get(r.place)
        if held is None or c.max_error > held.max_error or (c.failure and held.passed):
            worst[r.place] = OutputError(
                r.place, c.max_error, c.mean_error, c.p99_error,
                c.original_max, c.original_mean, c.original_p99,
                c.rtol, c.atol, not c.failure, c.failure or f"inputs: {r.kind}",
            )  # fmt: skip
    return CheckResult(
        not checked.failures,
        len(set(checked.sets)),
        tuple(worst.values()),
        checked.method,
        checked.skipped,
    )
