"""`profile`: the time of each kernel of a compiled model, and its lower bound on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from superopt.compilation.cpu.native_segment import NativeSegment
from superopt.compilation.fallback.session_segment import OrtSegment, ValueArrays
from superopt.compilation.frontend.profile_inputs import given_or_random_inputs
from superopt.compilation.model.control_flow.dynamic_if import ControlFlow
from superopt.cost.machine import this_machine
from superopt.errors import UsageError
from superopt.ir import graph
from superopt.kernels.algorithms.cpu.dot_products.gemm import BF16_ALGORITHMS, INT8_ALGORITHMS
from superopt.kernels.algorithms.space import build_choice
from superopt.kernels.llvm import operation_count
from superopt.kernels.llvm.calls import Call, Loop
from superopt.kernels.runtime.amx import integer_instructions
from superopt.kernels.runtime.cpu_peak import CpuPeak, buffer_sizes, measure_cpu_peak
from superopt.loading.representative_sizes import explain_default_sizes
from superopt.plan.graph.partition import segment_graph
from superopt.plan.lowering.provenance import inherit_names
from superopt.plan.program.call_operations import count_call_operations
from superopt.plan.program.execute import TimedProgram, time_calls
from superopt.plan.program.program import Program
from superopt.report.compilation.profile import KernelProfile, Profile
from superopt.report.formatting import phrases
from superopt.te.expr.dtype import F64

if TYPE_CHECKING:
    from superopt.compilation.cpu.code_generator import CpuCodeGenerator
    from superopt.compilation.model.classes.runtime_sizes import RuntimeSizedSegment
    from superopt.compilation.model.executable import Executable
from superopt.compilation.model.classes.runtime_sizes import RuntimeSizedSegment
from superopt.compilation.model.steps import Step

MIN_RUNS = 5  # runs


@dataclass(slots=True)
class _TimedStep:
    """A step of the model, and the seconds of its calls in each run."""

    step: Step
    timed_program: TimedProgram | None
    seconds: list[np.ndarray] = field(default_factory=list)

    def run(self, env: ValueArrays) -> None:
        if isinstance(self.step, NativeSegment) and self.timed_program is not None:
            self.step.run(env, self.timed_program)
            self.seconds.append(self.timed_program.seconds.copy())
            return
        begin = time.perf_counter()
        self.step.run(env)
        self.seconds.append(np.array([time.perf_counter() - begin]))


def profile(
    exe: Executable,
    inputs: Mapping[str, np.ndarray] | None = None,
    shapes: Mapping[str, int] | None = None,
    seconds: float = 2.0,
    stop: Callable[[], bool] = lambda: False,
) -> Profile:
    """Run the model for `seconds`, timing each kernel; times are medians.

    inputs: by name; None to draw random ones, for the symbolic sizes in `shapes`. Raises UsageError
    if none can be drawn.
    """
    feeds = given_or_random_inputs(exe.model, inputs, shapes or {}, seconds)
    if inputs is not None:
        return _profile_inputs(exe, feeds, seconds, stop)
    with explain_default_sizes(exe.model, shapes or {}):
        return _profile_inputs(exe, feeds, seconds, stop)


def _profile_inputs(
    exe: Executable, feeds: Mapping[str, np.ndarray], seconds: float, stop: Callable[[], bool]
) -> Profile:
    arrays = exe.input_arrays(feeds)
    sizes = exe.infer_sizes(arrays)
    exe.run(feeds)  # decides which nodes run in onnxruntime
    if (other := exe.executable_for(sizes)) is not exe:
        return replace(_profile_inputs(other, feeds, seconds, stop), sizes=tuple(sizes.items()))
    first, *_ = (*exe.variant(sizes), None)
    if isinstance(first, ControlFlow):
        return _profile_control_flow(exe, first, arrays, seconds, stop)
    generator = _generator(exe)
    with exe.lock:
        lanes = [
            _TimedStep(
                s,
                time_calls(s.static_code, generator.machine, generator.object_folder)
                if isinstance(s, NativeSegment)
                else None,
            )
            for s in exe.variant(sizes)
        ]
        end, runs = time.monotonic() + seconds, 0
        while lanes and (runs < MIN_RUNS or (time.monotonic() < end and not stop())):
            env: ValueArrays = dict(zip(exe.model.graph.inputs, arrays, strict=True))
            for lane in lanes:
                lane.run(env)
            runs += 1
    most = _machine_peak(exe, [lane.step for lane in lanes])
    parts = tuple(p for lane in lanes for p in _step_rows(exe, lane, most))
    total = [sum(float(lane.seconds[n].sum()) for lane in lanes) for n in range(runs)]
    return Profile(
        exe.model.source.label,
        tuple(sizes.items()),
        generator.threads,
        this_machine().text,
        runs,
        float(np.median(total)) if total else 0.0,
        most.flops,
        most.bandwidths,
        parts,
        bf16_flops=most.bf16_flops,
        int8_flops=most.int8_flops,
    )


def _profile_control_flow(
    exe: Executable, b: ControlFlow, arrays: Sequence[Any], seconds: float, stop: Callable[[], bool]
) -> Profile:
    """Profile the programs that these inputs select, each run by itself."""
    parts = [*b.selected_executables(dict(zip(b.input_names, arrays, strict=True)))]
    some = [_profile_inputs(part, own, seconds / len(parts), stop) for part, own in parts]
    return replace(
        some[-1],
        model=exe.model.source.label,
        runs=min(p.runs for p in some),
        seconds=sum(p.seconds for p in some),
        parts=tuple(part for p in some for part in p.parts),
    )


def _generator(exe: Executable) -> CpuCodeGenerator:
    return exe.compiler.generator  # type: ignore[return-value]


def _machine_peak(exe: Executable, steps: Sequence[object]) -> CpuPeak:
    generator = _generator(exe)
    programs = [s.code.program for s in steps if isinstance(s, NativeSegment)]
    algorithms = {o.algorithm for p in programs for o in p.options.values()}
    how = integer_instructions(generator.machine) if algorithms & INT8_ALGORITHMS else ""
    try:
        return measure_cpu_peak(
            generator.machine, generator.threads, generator.bf16_instructions, how
        )
    except MemoryError:
        needs = generator.threads * buffer_sizes(generator.threads)[-1]
        raise UsageError(
            "no memory to measure this machine's peak rates", f"that takes {needs} bytes",
            "give the process more memory, or use fewer threads",
        ) from None  # fmt: skip


def _step_rows(exe: Executable, lane: _TimedStep, peak: CpuPeak) -> list[KernelProfile]:
    median = np.median(np.stack(lane.seconds), axis=0)
    if not isinstance(lane.step, NativeSegment):
        step, how = lane.step, "onnxruntime"
        if isinstance(step, OrtSegment | RuntimeSizedSegment):
            nodes = step.segment.nodes
            how = how if isinstance(step, OrtSegment) else "sizes of a run"
        else:
            nodes = tuple(graph.nodes(step.load_graph()))  # type: ignore[union-attr]
        name = exe.model.names.get(graph.result(nodes[-1], 0), "") if nodes else ""
        ops = tuple(n.op.title for n in nodes)
        return [KernelProfile(name, ops, "", how, float(median[0]), 0, 0, 0, 0.0, 0.0)]
    return _kernel_rows(exe, lane.step, median, peak)


def _kernel_rows(
    exe: Executable, step: NativeSegment, median: np.ndarray, peak: CpuPeak
) -> list[KernelProfile]:
    program = step.code.program
    come = program.provenance
    assert come is not None
    names = inherit_names(segment_graph(step.segment), come.graph, exe.model.names)
    # An embedding table is read in part. `held` counts all constants that are read: whether they
    # fit a cache decides their bandwidth.
    problems = [program.problems[key] for key in program.call_problems if key]
    held = sum(operation_count.count_bytes(p.tensor, p.constants)[0] for p in problems)
    out = []
    counts = count_call_operations(program, build_choice)
    for n, key in enumerate(program.call_problems):
        if not key:
            part = _loop_row if n in program.loop_bodies else _scatter_row
            out.append(part(program, n, float(median[n]), peak))
            continue
        result = program.call_results[n]
        nodes = come.nodes_of(result)
        value = come.value_of(result)
        how = str(program.options[key])
        count = counts[n]
        t = program.problems[key].tensor
        fixed, other = 0, 0
        if count.is_main:
            fixed, other = operation_count.count_bytes(t, program.problems[key].constants)
        rate = peak.flops / 2 if t.dtype == F64 else peak.flops
        if program.options[key].algorithm in BF16_ALGORITHMS:
            rate, fixed = peak.bf16_flops, fixed // 2
        if program.options[key].algorithm in INT8_ALGORITHMS:
            rate = peak.int8_flops
        arithmetic = count.own / rate
        memory = fixed / peak.bandwidth(held) + other / peak.bandwidth(other)
        if not count.is_last:  # a call that reads nothing zeroes the border of its result
            call = program.calls[n]
            border = isinstance(call, Call) and len(call.arguments) == 1
            how += ": its border" if border else ": its first step"
        shown = tuple(x.op.title for x in nodes) or (result.name,)
        name = "" if value is None else names.get(value, "")
        out.append(
            KernelProfile(
                name, shown, str(t.type), how, float(median[n]),
                count.own, count.model, fixed + other, arithmetic, memory,
            )
        )  # fmt: skip
    return out


def _loop_row(program: Program, n: int, seconds: float, peak: CpuPeak) -> KernelProfile:
    """Return the row of call `n`, which is a loop: the work of all its steps. Bytes are those that
    the kernels of a step read and write, which stay in a cache."""
    loop, bodies = program.calls[n], program.loop_bodies[n]
    assert isinstance(loop, Loop)
    count, model_count, moved, arithmetic = 0, 0, 0, 0.0
    ops: dict[str, None] = {}
    for body in bodies:
        rows = zip(
            body.call_problems,
            body.call_results,
            count_call_operations(body, build_choice),
            strict=True,
        )
        for key, result, call in rows:
            p = body.problems[key]
            count += loop.steps * call.own
            model_count += loop.steps * call.model
            rate = peak.flops / 2 if p.tensor.dtype == F64 else peak.flops
            arithmetic += loop.steps * call.own / rate
            if call.is_main:
                moved += loop.steps * sum(operation_count.count_bytes(p.tensor, p.constants))
            if body.provenance is not None:
                ops |= dict.fromkeys(x.op.name for x in body.provenance.nodes_of(result))
    kernels = sum(len(body.calls) for body in bodies)
    lanes = "" if len(bodies) == 1 else f" in {len(bodies)} lanes"
    how = (
        f"loop of {phrases.count_text(loop.steps, 'step')}{lanes}: "
        f"{phrases.count_text(kernels, 'kernel')}"
    )
    shown = str(program.call_results[n].type)
    memory = moved / peak.bandwidth(moved // loop.steps)
    return KernelProfile(
        "", tuple(ops), shown, how, seconds, count, model_count, moved, arithmetic, memory
    )


def _scatter_row(program: Program, n: int, seconds: float, peak: CpuPeak) -> KernelProfile:
    """Return the row of call `n`, which is a scatter: all its buffers are read or written."""
    call = program.calls[n]
    assert isinstance(call, Call)
    buffers = program.kernels[call.function].params
    sizes = [[d for d in t.shape if isinstance(d, int)] for t in buffers]
    widths = (max(t.dtype.bits // 8, 1) for t in buffers)
    moved = sum(prod(shape) * width for shape, width in zip(sizes, widths, strict=True))
    shown, memory = str(program.call_results[n].type), moved / peak.bandwidth(moved)
    return KernelProfile("", ("Scatter",), shown, "scatter", seconds, 0, 0, moved, 0.0, memory)
