"""`profile` on a GPU: the time of each kernel alone, its lower bound, and the vendor library that
computes it, if any."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from superopt.compilation.cuda.segments import GpuSegment
from superopt.compilation.fallback.session_segment import OrtSegment, ValueArrays
from superopt.compilation.frontend.profile_inputs import given_or_random_inputs
from superopt.compilation.model.steps import run_step
from superopt.ir import graph
from superopt.kernels.algorithms.space import build_choice
from superopt.kernels.llvm import operation_count
from superopt.kernels.runtime.gpu_device import GpuPeak, device_name, measure_gpu_peak
from superopt.kernels.runtime.gpu_timer import measure_ms, warm_up
from superopt.kernels.triton.module import vendor_name
from superopt.plan.graph.partition import segment_graph
from superopt.plan.lowering.provenance import inherit_names
from superopt.plan.program.call_operations import count_call_operations
from superopt.report.compilation.profile import KernelProfile, Profile

if TYPE_CHECKING:
    from superopt.compilation.model.executable import Executable

MIN_RUNS, MAX_RUNS = 3, 50  # runs


def profile(
    exe: Executable, inputs: Mapping[str, Any] | None, shapes: Mapping[str, int], seconds: float
) -> Profile:
    """Time each kernel alone, repeatedly, by device events, and the whole model.

    inputs: by name; None to draw random ones, for the symbolic sizes in `shapes`. Raises UsageError
    if none can be drawn.
    """
    inputs = given_or_random_inputs(exe.model, inputs, shapes, seconds)
    exe.run(inputs)
    sizes = exe.infer_sizes(exe.input_arrays(inputs))
    made = exe.variant(sizes)
    device = exe.device.torch_device  # type: ignore[attr-defined]
    most = measure_gpu_peak(device, exe.precision)
    launches = sum(len(p.gpu_program.launches) for p in made.kernel_steps)
    runs = max(MIN_RUNS, min(MAX_RUNS, round(seconds / max(launches, 1) / 1e-3)))
    runs = 1 if device == "cpu" else runs  # the interpreter's times are meaningless
    rows: list[KernelProfile] = []
    total = 0.0
    env: ValueArrays = dict(zip(made.model.graph.inputs, exe.input_arrays(inputs), strict=True))
    for step in made.steps:
        begin = time.perf_counter()
        run_step(step, env, exe.device)
        if not isinstance(step, GpuSegment):
            spent = time.perf_counter() - begin
            total += spent
            nodes = (
                step.segment.nodes
                if isinstance(step, OrtSegment)
                else graph.nodes(step.load_graph())
            )
            label = made.model.names.get(graph.result(nodes[-1], 0), "") if nodes else ""
            ops = tuple(n.op.title for n in nodes)
            how = "onnxruntime, on the CPU"
            rows.append(KernelProfile(label, ops, "", how, spent, 0, 0, 0, 0.0, 0.0))
            continue
        warm_up(step.gpu_program)
        rows += _kernel_rows(exe, step, most, runs)
        total += measure_ms(step.gpu_program, samples=runs) * 1e-3
    return Profile(
        exe.model.source.label, tuple(sizes.items()), 0, device_name(device), runs, total,
        most.flops, ((0, most.bandwidth),), tuple(rows), exe.precision,
    )  # fmt: skip


def _kernel_rows(
    exe: Executable, step: GpuSegment, peak: GpuPeak, runs: int
) -> list[KernelProfile]:
    program, r = step.program, step.gpu_program
    come = program.provenance
    assert come is not None
    names = inherit_names(segment_graph(step.segment), come.graph, exe.model.names)
    spent: dict[int, float] = {}
    for n, launch in zip(r.call_numbers, r.launches, strict=True):
        spent[n] = spent.get(n, 0.0) + measure_ms(r.with_launches(launch), samples=runs) * 1e-3
    out = []
    counts = count_call_operations(program, partial(build_choice, target="cuda"))
    for n, key in enumerate(program.call_problems):
        result = program.call_results[n]
        value = come.value_of(result)
        option = program.options[key]
        what = program.kernels[program.kernel_calls()[n].function].library
        told = [
            *([vendor_name(what)] if what else []),
            *([] if counts[n].is_last else ["its first step"]),
        ]
        how = f"{option}: {', '.join(told)}" if told else str(option)
        t, moved = program.problems[key].tensor, 0
        if counts[n].is_main:
            moved = sum(operation_count.count_bytes(t, program.problems[key].constants))
        ops = tuple(x.op.title for x in come.nodes_of(result)) or (result.name,)
        label = "" if value is None else names.get(value, "")
        own, model = counts[n].own, counts[n].model
        arithmetic, memory = own / peak.flops, moved / peak.bandwidth
        out.append(
            KernelProfile(
                label, ops, str(t.type), how, spent.get(n, 0.0),
                own, model, moved, arithmetic, memory,
            )
        )  # fmt: skip
    return out
