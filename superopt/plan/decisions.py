"""Kernel decisions that can be left out of a plan, to measure what each kind of them gains."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from superopt.kernels.loops.layout import Layout
from superopt.plan.program.plan import Settings
from superopt.plan.program.target import Target
from superopt.te.expr.tensor import Tensor

KernelDecision = Literal[
    "simplification", "fusion", "layouts", "algorithms", "schedules", "libraries", "streams"
]
# In the order in which a waterfall adds them.
KERNEL_DECISIONS: Mapping[KernelDecision, str] = {
    "simplification": "simplification by the compiler's own rules",
    "fusion": "fusion of operators into kernels",
    "layouts": "image layouts",
    "algorithms": "Winograd and Strassen",
    "schedules": "tuned schedules",
    "libraries": "vendor libraries",
    "streams": "concurrent streams",
}
CPU_DECISIONS: tuple[KernelDecision, ...] = (
    "simplification", "fusion", "layouts", "algorithms", "schedules",
)  # fmt: skip
GPU_DECISIONS: tuple[KernelDecision, ...] = (
    "simplification", "fusion", "layouts", "schedules", "libraries", "streams",
)  # fmt: skip


def decision_titles(decisions: Sequence[KernelDecision]) -> dict[str, str]:
    """Return the titles of these kinds of decisions, in this order."""
    return {name: KERNEL_DECISIONS[name] for name in decisions}


def leave_out(settings: Settings, decisions: Collection[KernelDecision]) -> Settings:
    """Return settings of plans without these kinds of decisions; but for "simplification", which is
    before the plan (`simplify_graph`), and "libraries", which are options of kernels
    (`gpu_settings`)."""
    if "fusion" in decisions:
        settings = replace(settings, fuses_operators=False)
    if "layouts" in decisions:
        target: Target = replace(settings.target, assign_layouts=_row_major_layouts)
        settings = replace(settings, target=target)
    if "algorithms" in decisions:
        settings = replace(settings, allow_winograd=False)
    if "schedules" in decisions:
        settings = replace(settings, options={})
    if "streams" in decisions:
        settings = replace(settings, target=replace(settings.target, assign_streams=None))
    return settings


def _row_major_layouts(
    definitions: Mapping[Tensor, Tensor],
    outputs: Sequence[Tensor],
    parts: Mapping[Tensor, Sequence[object]],
) -> dict[Tensor, Layout]:
    return {}
