"""The latencies of an original and of a result, from the times of a race."""

from __future__ import annotations

from superopt.cost.speedup import SpeedupInterval
from superopt.loading.package_versions import package_version
from superopt.optimization.optimization_result import OptimizationResult
from superopt.report.data.report import Interval, Latency


def timed_latencies(
    result: OptimizationResult,
) -> tuple[Latency | None, Latency | None, Interval | None]:
    """Return the latencies of the original and of the best candidate, and their ratio; None if they
    were not timed."""
    if not result.times or result.ratio is None:
        return None, None, None
    request = result.request
    runner = "onnxruntime" if request.target == "onnxruntime" else "superopt"
    runtime, machine = f"{runner} {package_version(runner)}", result.machine.text
    if request.target == "cuda" and request.timers is not None:
        runtime, machine = f"{runtime} in {request.precision}", request.timers.device
    a, b = (median_latency(t, request.threads, runtime, machine) for t in result.times)
    return a, b, ratio_interval(result.ratio)


def ratio_interval(ratio: SpeedupInterval) -> Interval:
    return (ratio.low, ratio.mid, ratio.high)


def median_latency(
    times_us: tuple[float, ...], threads: int, runtime: str, machine: str
) -> Latency:
    """Return the median of `times_us` and its 95 % confidence interval by order statistics."""
    ordered = sorted(times_us)
    n = len(ordered)
    reach = int(0.98 * n**0.5)  # 1.96 sqrt(n) / 2 ranks to either side
    low, high = max(0, n // 2 - reach), min(n - 1, n // 2 + reach)
    return Latency(ordered[n // 2], ordered[low], ordered[high], n, threads, runtime, machine)
