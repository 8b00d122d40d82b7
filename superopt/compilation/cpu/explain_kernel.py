"""`profile --why`: the candidates of a kernel with their costs, and the machine's figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from superopt.compilation.cpu.native_segment import NativeSegment
from superopt.cost.cache_folders import store_path
from superopt.errors import UsageError
from superopt.kernels.algorithms.candidate_costs import (
    TERMS,
    Explanation,
    MachineFigures,
    explain_choice,
)
from superopt.kernels.processor import FMAS_PER_CYCLE
from superopt.kernels.runtime.cpu_peak import CpuPeak, data_caches, measure_cpu_peak
from superopt.kernels.runtime.engine import Machine
from superopt.plan.program.program import Program
from superopt.report.compilation.kernel_explanation import CandidateCost, KernelExplanation
from superopt.report.compilation.profile import KernelProfile, Profile

if TYPE_CHECKING:
    from superopt.compilation.cpu.code_generator import CpuCodeGenerator
    from superopt.compilation.model.executable import Executable

DEFAULT_CACHES = (32 << 10, 1 << 20, 32 << 20)  # where the system does not tell
CACHE_NAMES = ("L1", "L2", "L3")


def explain_kernel(exe: Executable, profile: Profile, kernel: str) -> KernelExplanation:
    """Return why a kernel of a profile has its schedule. kernel: its number in the table, from 1,
    or a part of its label.

    Raises UsageError if there is no such kernel, several, or one without candidates.
    """
    n, part = _find_kernel(profile, kernel)
    calls = _profiled_calls(exe, dict(profile.sizes))
    found = calls[n] if n < len(calls) else None
    if found is None:
        raise UsageError(
            f"kernel {kernel} ({part.label}) has no candidates", f"it is {part.how}",
            "name a kernel that was generated for an algorithm",
        )  # fmt: skip
    program, key = found
    generator: CpuCodeGenerator = exe.compiler.generator  # type: ignore[assignment]
    peak = measure_cpu_peak(generator.machine, generator.threads)
    figures = machine_figures(generator.machine, generator.threads, peak, data_caches())
    made = explain_choice(program.problems[key], program.options[key], figures)
    return explanation_data(made, part.label, part.seconds)


def _find_kernel(p: Profile, kernel: str) -> tuple[int, KernelProfile]:
    """Return the position of a kernel in the profile, and its row."""
    slowest = sorted(range(len(p.parts)), key=lambda n: -p.parts[n].seconds)
    if kernel.isdecimal():
        if not 1 <= int(kernel) <= len(slowest):
            raise UsageError(
                f"no kernel {kernel}", f"the profile has {len(slowest)}",
                "give its number in the table, from 1 for the slowest",
            )  # fmt: skip
        n = slowest[int(kernel) - 1]
        return n, p.parts[n]
    found = [n for n in slowest if kernel.lower() in p.parts[n].label.lower()]
    if len(found) != 1:
        some = ", ".join(p.parts[n].label for n in found[:4]) or "none has it in its label"
        raise UsageError(
            f"{len(found)} kernels are named {kernel}", some,
            "give its number in the table, from 1 for the slowest, or more of its label",
        )  # fmt: skip
    return found[0], p.parts[found[0]]


def _profiled_calls(exe: Executable, sizes: Mapping[str, int]) -> list[tuple[Program, str] | None]:
    """Return the program and problem of each row of a profile; None for rows without candidates."""
    exe = exe.executable_for(sizes)
    out: list[tuple[Program, str] | None] = []
    for step in exe.variant(sizes):
        if not isinstance(step, NativeSegment):
            out.append(None)
            continue
        program = step.static_code.program
        out += [(program, key) if key else None for key in program.call_problems]
    return out


def machine_figures(
    machine: Machine, threads: int, peak: CpuPeak, caches: tuple[int, ...]
) -> MachineFigures:
    """Return the figures of a machine, with where they come from."""
    sizes = (*caches[:3], *DEFAULT_CACHES[len(caches[:3]) :])
    # the rate of a level is that of a buffer twice as large as the one before
    read = peak.bandwidth(2 * sizes[0]), peak.bandwidth(2 * sizes[1]), peak.memory_bandwidth
    rates = ", ".join(
        f"{name} {rate / 1e9:.0f} GB/s"
        for name, rate in zip(("L2", "L3", "memory"), read, strict=True)
    )
    sizes_text = ", ".join(f"{n} {_size_text(s)}" for n, s in zip(CACHE_NAMES, sizes, strict=True))
    where = "from the operating system" if len(caches) >= 3 else "assumed where it does not tell"
    sources = (
        f"FMAs {peak.flops / 1e9:.0f} GFLOP/s, {rates}, of {threads} thread"
        f"{'s' * (threads != 1)}: measured in this run, not kept",
        f"caches {sizes_text}: {where}",
        f"{FMAS_PER_CYCLE} FMAs, as many loads and half as many stores a cycle: assumed",
        f"costs by which algorithms predict: the row {machine.processor.name!r} of"
        f" kernels/processor.py, shipped; chosen by LLVM's name {machine.cpu} and its features",
    )
    return MachineFigures(peak.flops / (2 * machine.width // 4), sizes, read, threads, sources)


def _size_text(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def explanation_data(e: Explanation, kernel: str, seconds: float) -> KernelExplanation:
    """Return an explanation as plain data."""
    candidates = (
        CandidateCost(str(c.option), c.predicted, c.seconds, c.bound, c.chunks)
        for c in e.candidates
    )
    return KernelExplanation(
        kernel, e.tensor, seconds, str(e.chosen), str(e.default), str(store_path(None)), TERMS,
        tuple(candidates), e.rejected, e.limits, e.figures.sources,
    )  # fmt: skip
