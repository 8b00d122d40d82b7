"""`profile --why`: candidates with their costs, counted on their kernels, and the machine's
figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from superopt.compilation.cpu.explain_kernel import explanation_data, machine_figures
from superopt.kernels.algorithms.candidate_costs import explain_choice
from superopt.kernels.algorithms.kernel_work import cache_traffic, count_work
from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.algorithms.space import best_option, options
from superopt.kernels.loops.lower import lower_kernel
from superopt.kernels.loops.schedule import parse_schedule
from superopt.kernels.processor import XEON
from superopt.kernels.runtime.cpu_peak import CpuPeak
from superopt.kernels.runtime.engine import Machine
from superopt.report.compilation.kernel_explanation import explanation_text
from superopt.te.expr.dtype import F32
from superopt.te.expr.tensor import Tensor, compute, reduce_sum

MACHINE = Machine("sapphirerapids", "+avx512f", 64)
PEAK = CpuPeak(200e9, ((1 << 14, 400e9), (1 << 20, 100e9), (1 << 23, 30e9), (1 << 28, 10e9)))
FIGURES = machine_figures(MACHINE, 4, PEAK, (48 << 10, 2 << 20, 32 << 20))
A, B = Tensor("a", F32, (96, 512)), Tensor("b", F32, (512, 256))
PRODUCT = compute((96, 256), lambda i, j: reduce_sum(512, lambda k: A[i, k] * B[k, j]))


def product_problem() -> Problem:
    return Problem(PRODUCT, {}, {B}, 64, processor=XEON, threads=4)


def test_the_text(golden: Callable[[str, str], None]) -> None:
    p = product_problem()
    made = explanation_data(explain_choice(p, best_option(p), FIGURES), "MatMul y", 250e-6)
    made = replace(made, stored="STORE")
    golden("kernel-explanation.txt", explanation_text(made))


def test_a_tuned_option_is_named() -> None:
    p = product_problem()
    other = list(options(p))[3]
    made = explain_choice(p, other, FIGURES)
    assert made.chosen == other != made.default
    text = explanation_text(explanation_data(made, "MatMul y", 250e-6))
    assert f"chosen: {other}\n" in text
    assert f"without it: {made.default}" in text
    assert "superopt" in text.partition("kept in ")[2].partition(";")[0]


ROW_TIMES_B = "split(i1, 16); reorder(i0, i1.o, k0, i1.i); vectorize(i1.i)"
WORK = {  # schedule: FMAs, loads, stores, steps of loops, in vectors of 16
    ROW_TIMES_B: (96 * 16 * 512, 2 * 96 * 16 * 512, 96 * 16, 96 * (1 + 16 * 513)),
    "split(i1, 16); split(i1.o, 2); split(i0, 4); reorder(i1.o.o, i0.o, k0, i0.i, i1.o.i, i1.i);"
    " unroll(i0.i); unroll(i1.o.i); vectorize(i1.i)": (
        96 * 16 * 512, 8 * 24 * 512 * (4 + 2), 96 * 16, 8 * (1 + 24 * (1 + 512)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("schedule", WORK)
def test_work_is_counted(schedule: str) -> None:
    kernel = lower_kernel("k", [A, B], [PRODUCT], {PRODUCT: parse_schedule(schedule)})
    work = count_work(kernel, 16)
    assert (work.fmas, work.loads, work.stores, work.steps) == WORK[schedule]


def test_traffic_by_what_fits() -> None:
    """Rows times all of b: b stays in a cache that holds it and a row, and is read anew for each
    row in one that does not."""
    kernel = lower_kernel("k", [A, B], [PRODUCT], {PRODUCT: parse_schedule(ROW_TIMES_B)})
    a, b, c = 4 * 96 * 512, 4 * 512 * 256, 4 * 96 * 256
    assert cache_traffic(kernel, a + b + c) == 0
    assert cache_traffic(kernel, a + b + c - 1) == a + b + c
    assert cache_traffic(kernel, b + 4 * 512 + 4 * 256) == a + b + c
    assert cache_traffic(kernel, b // 2) == a + 96 * b + c
