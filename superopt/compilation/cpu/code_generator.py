"""Code generation for the CPU: plans of segments, and their kernels as machine code (LLVM)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from superopt.compilation.cpu.device import CpuDevice
from superopt.compilation.cpu.explain_kernel import explain_kernel
from superopt.compilation.cpu.library.export_library import export_library
from superopt.compilation.cpu.machine_code import compile_ahead
from superopt.compilation.cpu.native_segment import NativeSegment, SymbolicSegment
from superopt.compilation.cpu.profile import profile
from superopt.compilation.cpu.segment_program import plan_segment_program
from superopt.compilation.cpu.tune_kernels import tune_program
from superopt.compilation.frontend.allowed_transforms import ALL_TRANSFORMS, AllowedTransforms
from superopt.compilation.frontend.graph_ports import (
    check_window_sizes,
    numpy_dtype,
    static_shape,
)
from superopt.compilation.frontend.input_arrays import Sizes
from superopt.compilation.model.classes.class_program import plan_class_program, with_planned_sizes
from superopt.compilation.model.compiler import Compiler, out_of_memory_error
from superopt.compilation.model.device import CodeGenerator, Progress
from superopt.compilation.model.executable import Executable
from superopt.compilation.model.saved_source import WrittenCode
from superopt.compilation.model.states.segment_states import bind_states, segment_states
from superopt.compilation.model.steps import KernelStep, Variant
from superopt.cost import tuning_records
from superopt.cost.store import Store
from superopt.ir import graph
from superopt.kernels.llvm.codegen import kernel_text
from superopt.kernels.loops.option import Option
from superopt.kernels.loops.tile import Kernel
from superopt.kernels.runtime.amx import bf16_instructions, integer_instructions
from superopt.kernels.runtime.cpu import Machine, checkable_target, named_machine
from superopt.kernels.runtime.dump import pass_texts
from superopt.kernels.runtime.engine import can_link, llvm_lock
from superopt.kernels.runtime.systems import find_system, host_system
from superopt.onnx_io.import_.size_relation import Guards
from superopt.onnx_io.read.source import Source
from superopt.plan.graph.partition import Segment
from superopt.plan.graph.quantization.runtime_products import has_quantized_products
from superopt.plan.graph.scatter_nodes import has_scatter_kernel
from superopt.plan.program.execute import load_program, pack_program_constants, start_image
from superopt.plan.program.image import ProgramImage, load_image
from superopt.plan.program.program import Program
from superopt.report.compilation.compile_report import ExportReport, TuningReport
from superopt.report.compilation.kernel_explanation import KernelExplanation
from superopt.report.compilation.profile import Profile


@dataclass(frozen=True, slots=True)
class CpuCodeGenerator(CodeGenerator):
    """Code generation for a processor. object_folder: the cache of object files."""

    device: CpuDevice
    machine: Machine
    object_folder: Path | None
    allowed: AllowedTransforms = ALL_TRANSFORMS

    @property
    def threads(self) -> int:
        return self.device.threads

    @property
    def segment_threads(self) -> int:  # type: ignore[override]
        return self.threads

    @property
    def bf16_instructions(self) -> str:
        """The instructions of products in bfloat16; empty if all are in float32."""
        return bf16_instructions(self.machine) if self.device.precision == "bf16" else ""

    @property
    def runtime_integer_products(self) -> str:
        return "slow" if integer_instructions(self.machine) else "all"

    def plan_segment(self, c: Compiler, s: Segment, sizes: Mapping[str, int]) -> Program:
        return plan_segment_program(
            s,
            sizes,
            threads=self.threads,
            machine=self.machine,
            options=c.tuned_options,
            allowed=self.allowed,
            simplified_segments=c.plan_cache,
            states=segment_states(c, s),
            bf16_instructions=self.bf16_instructions,
        )

    def compile_segment(self, c: Compiler, s: Segment, sizes: Mapping[str, int]) -> NativeSegment:
        """Return the code of a segment. Raises ModelError if it needs more memory than there is."""
        check_window_sizes(c.model, s.nodes, sizes)
        made = self.plan_segment(c, s, sizes)
        specs = tuple((static_shape(v.type, sizes), numpy_dtype(v.type)) for v in s.outputs)
        try:
            release = c.model.source.release_pages
            code = load_program(made, self.machine, self.threads, self.object_folder, release)
        except MemoryError as e:
            needs = made.constant_bytes + made.memory_bytes + self.threads * made.workspace_bytes
            at = ", ".join(f"{k}={n}" for k, n in sizes.items())
            why = f"its kernels need {needs} bytes{': ' * bool(str(e))}{e}"
            raise out_of_memory_error(c.model.source.label, why, at) from None
        return NativeSegment(code, specs, lambda: s, c.model_binding(s))

    def compile_for_classes(
        self, c: Compiler, s: Segment, example: Mapping[str, int], guards: Guards
    ) -> SymbolicSegment:
        """Return a segment for all sizes for which the same decisions are right as for the example.
        guards: comparisons that the model assumes, and whether they hold.

        Raises one of NO_KERNEL_ERRORS if an operator has no kernel for symbolic sizes.
        """
        build = with_planned_sizes(self._start_image)
        made = plan_class_program(self, c, s, example, guards, build)
        release = c.model.source.release_pages
        constants = pack_program_constants(made.program, release)
        image = made.code()
        code = load_image(image, constants, self.machine, lambda: made.program)
        dtypes = tuple(numpy_dtype(v.type) for v in s.outputs)
        binding = bind_states(c, s)
        return SymbolicSegment(
            code, made.formulas, dtypes, lambda: s, dict(example), binding, image
        )

    def _start_image(self, made: Program) -> Callable[[], ProgramImage]:
        return start_image(made, self.machine, self.threads, self.object_folder)

    def program_image(self, segment: NativeSegment) -> ProgramImage:
        """Return the code and sizes of a compiled segment."""
        return self._start_image(segment.program)()

    def has_fast_kernel(self, c: Compiler, n: graph.Node, sizes: Mapping[str, int]) -> bool:
        return has_scatter_kernel(n)

    def kernel_texts(self, step: KernelStep, kernel: Kernel) -> list[tuple[str, object]]:
        return [*pass_texts(kernel, kernel_text(kernel, self.machine.width), self.machine)]

    def profile(
        self,
        exe: Executable,
        feeds: Mapping[str, Any] | None,
        shapes: Mapping[str, int],
        seconds: float,
        stop: Callable[[], bool],
    ) -> Profile:
        return profile(exe, feeds, shapes, seconds, stop)

    def explain_kernel(self, exe: Executable, profile: Profile, kernel: str) -> KernelExplanation:
        return explain_kernel(exe, profile, kernel)

    def tune(
        self,
        programs: Sequence[Program],
        store: Store | None,
        budget: float,
        max_options: int,
        progress: Progress,
        stop: Callable[[], bool],
    ) -> tuple[Mapping[str, Option], TuningReport]:
        parts, end = [], time.monotonic() + budget
        with Store.open(None) if store is None else nullcontext(store) as held:
            for n, p in enumerate(programs):
                share = max(end - time.monotonic(), 0.0) / (len(programs) - n)
                parts.append(
                    tune_program(p, self.machine, self.threads, held, share, progress, stop)
                )
            chosen = tuning_records.chosen_options(held, tuning_records.cpu_target(self.threads))
        kernels = tuple(k for part in parts for k in part.kernels)
        return chosen, TuningReport(kernels, sum(part.seconds for part in parts))

    def export(
        self,
        exe: Executable,
        path: Path,
        shapes: Mapping[str, int],
        cpu: str | None = None,
        target: str | None = None,
    ) -> ExportReport:
        system = find_system(target, cpu)
        if cpu is None and system.name != host_system():
            cpu = next(iter(system.cpus))
        machine = self.machine if cpu is None else named_machine(cpu, system)
        reduced, _ = checkable_target(machine)
        same = integer_instructions(reduced) == integer_instructions(machine)
        quantized = not same and has_quantized_products(exe.compiler.model.graph)
        wanted = reduced if quantized else machine
        called = [dict(sizes) for sizes in filter(None, exe.variants)]
        if wanted != self.machine:
            exe = self.compile_for(wanted, exe)
        folder, name = self.object_folder, cpu or ""
        return export_library(exe, machine, system, folder, path, shapes, called, name)

    def compile_for(self, machine: Machine, exe: Executable) -> Executable:
        """Return the executable of the same model for another machine; at the same sizes, if this
        process can run its code."""
        fresh: Any = {"sized_compilers": {}, "plan_cache": {}}
        if not can_link(machine):
            fresh["tuned_options"] = {}  # they were measured here
        other = replace(exe.compiler, generator=replace(self, machine=machine), **fresh)
        made = other.executable(exe.shape_policy.specialize)
        for sizes in filter(None, exe.variants if can_link(machine) else ()):
            made.variant(dict(sizes))
        return made

    def compile_ahead(
        self,
        exe: Executable,
        variants: Mapping[Sizes, Variant],
        source: Source,
        names: Sequence[str],
    ) -> WrittenCode:
        return compile_ahead(self, exe, variants, source, names)

    def saved_fields(self) -> Mapping[str, Any]:
        device = self.device
        width = self.machine.width
        return {"threads": device.threads, "vector_bytes": width, "precision": device.precision}

    def compile_lock(self) -> AbstractContextManager[object]:
        return llvm_lock()
