"""The compiler of one model for the CPU: its segments as machine code."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from superopt import ort
from superopt.compilation.accuracy import measure_accuracy
from superopt.compilation.cpu import export_library as export
from superopt.compilation.cpu.compile_if import (
    compile_branches,
    compile_dynamic_if,
    fallback_nodes_with_reasons,
)
from superopt.compilation.cpu.compile_segment import compile_native_segment, out_of_memory_error
from superopt.compilation.cpu.executable import Executable, Sizes, Steps
from superopt.compilation.cpu.profile import profile
from superopt.compilation.cpu.saved_model import make_saved_model, write_saved_model
from superopt.compilation.cpu.segment_program import SimplifiedSegment, plan_segment_program
from superopt.compilation.cpu.sequential_call import ModelCall, build_model_call
from superopt.compilation.cpu.steps import (
    DynamicIf,
    Fallback,
    OrtSegment,
    ValueArrays,
    fallback_reasons,
    make_ort_segment,
    native_segments,
)
from superopt.compilation.cpu.tune_kernels import Progress, tune_program
from superopt.compilation.fallback.integer_mode import DEFAULT_MODE
from superopt.compilation.fallback.ort_segment import (
    GivenModel,
    atomic_units,
    check_onnxruntime_available,
    explain_shape_errors,
    has_contrib_parts,
    integer_product_fallbacks,
    unsaveable_error,
)
from superopt.compilation.frontend.allowed_transforms import ALL_TRANSFORMS, AllowedTransforms
from superopt.compilation.frontend.graph_ports import infer_input_sizes, input_port
from superopt.compilation.frontend.input_arrays import InputPort
from superopt.compilation.frontend.static_sizes import has_static_rewrites, with_static_sizes
from superopt.compilation.runtime.native_segment import NativeSegment
from superopt.cost import tuning_records
from superopt.cost.cache_folders import objects_folder
from superopt.cost.store import Store
from superopt.errors import ModelError, RuntimeMismatch
from superopt.ir import graph as ir_graph
from superopt.kernels.loops.option import Option
from superopt.kernels.runtime.cpu import Machine
from superopt.kernels.runtime.engine import llvm_lock
from superopt.loading.readable_model import ReadableModel
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.import_.model import Model
from superopt.onnx_io.read.source import Source
from superopt.plan.graph.partition import (  # fmt: skip
    NO_KERNEL_ERRORS,
    Segment,
    Units,
    fallback_nodes,
    partition_by_cost,
    slow_reason,
    unsupported_reason,
)
from superopt.plan.graph.scatter_nodes import has_scatter_kernel
from superopt.plan.graph.unsupported_nodes import unsupported_nodes
from superopt.plan.program.execute import build_image
from superopt.plan.program.image import ProgramImage
from superopt.plan.program.program import Program
from superopt.report.compilation.accuracy import Accuracy
from superopt.report.compilation.compile_report import ExportReport, TuningReport
from superopt.report.compilation.profile import Profile


@dataclass(slots=True)
class Compiler:
    """A model and how it is compiled.

    tuned_options: of problems, by key. packed_constants: of programs, by identity.
    fallback_reasons: nodes without a kernel, and why. sized_compilers: results of `compiler_for`.
    session: runs a model that superopt does not read (`readable_model`). prefer_kernels: use
    kernels even if ONNX Runtime is faster. simplified_segments: see `plan_segment_program`.
    given_model: the model for ONNX Runtime. if_depth: dynamic Ifs above. is_sized: sizes are
    static. units: see `partition_by_cost`. dynamic_if_cache: empty, or the result of `dynamic_if`.
    """

    model: Model
    given_model: GivenModel
    threads: int
    machine: Machine
    object_folder: Path | None
    tuned_options: Mapping[str, Option] = field(default_factory=dict)
    packed_constants: Mapping[str, np.ndarray] = field(default_factory=dict)
    allowed: AllowedTransforms = ALL_TRANSFORMS
    fallback_reasons: dict[ir_graph.Node, str] = field(default_factory=dict)
    sized_compilers: dict[Sizes, Compiler] = field(default_factory=dict)
    session: ort.Session | None = None
    prefer_kernels: bool = False
    simplified_segments: dict[object, SimplifiedSegment] = field(default_factory=dict)
    if_depth: int = 0
    is_sized: bool = False
    units: Units = field(init=False)
    dynamic_if_cache: list[DynamicIf | None] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.units = atomic_units(self.model)

    def compiler_for(self, sizes: Mapping[str, int]) -> Compiler:
        """Return this compiler; or, if these sizes leave shapes unknown or the model has rewrites
        for static sizes, that of the model with these sizes."""
        key = tuple(sorted(sizes.items()))
        if key not in self.sized_compilers:
            more = sizes or has_static_rewrites(self.model)
            none = 0 in sizes.values()  # tensor expressions require sizes >= 1
            open_ = (
                not self.is_all_fallback
                and more
                and (none or fallback_nodes(self.partition(sizes)))
            )
            model = with_static_sizes(self.model, sizes) if open_ else None
            own = {} if model is None or self.prefer_kernels else integer_product_fallbacks(model)
            how: Any = {
                "model": model,
                "fallback_reasons": own,
                "sized_compilers": {},
                "is_sized": True,
            }
            self.sized_compilers[key] = self if model is None else replace(self, **how)
        return self.sized_compilers[key]

    @property
    def is_all_fallback(self) -> bool:
        """True if all nodes run in ONNX Runtime, at any sizes."""
        return all(n in self.fallback_reasons for n in ir_graph.nodes(self.model.graph))

    def executable(self) -> Executable:
        """Return the executable; nothing is compiled yet."""
        about = self.input_ports(), self.output_names(), self.threads
        return Executable(*about, lambda: self.machine, lambda: self)

    def input_ports(self) -> tuple[InputPort, ...]:
        return tuple(input_port(i, i in self.model.input_defaults) for i in self.model.graph.inputs)

    def run(self, steps: Steps, arrays: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs by name, in the model's order, for the inputs in order."""
        graph = self.model.graph
        env: ValueArrays = dict(zip(graph.inputs, arrays, strict=True))
        for step in steps:
            step.run(env)
        out = {}
        for name, v in zip(self.output_names(), graph.outputs, strict=True):
            out[name] = env[v] if v in env else np.array(v.load())  # type: ignore[union-attr]
            if isinstance(v, ir_graph.Input):
                out[name] = np.array(out[name])
        return out

    def model_call(self, steps: Steps) -> ModelCall | None:
        """Return one function that runs all steps, if there is one."""
        parts = [s for s in steps if isinstance(s, NativeSegment | OrtSegment)]
        named = dict(zip(self.output_names(), self.model.graph.outputs, strict=True))
        return (
            build_model_call(parts, self.model.graph.inputs, named)
            if len(parts) == len(steps)
            else None
        )

    def output_names(self) -> tuple[str, ...]:
        """Return the names of the outputs."""
        return tuple(v.name or "" for v in self.model.source.model.graph.outputs)

    def default_input(self, name: str) -> np.ndarray:
        """Return the model's default value of an input."""
        (found,) = (v for i, v in self.model.input_defaults.items() if i.name == name)
        assert found.const_value is not None
        return found.const_value.numpy()

    def infer_sizes(self, arrays: Sequence[np.ndarray]) -> dict[str, int]:
        """Return the symbolic sizes. Raises UsageError if shapes do not fit."""
        return infer_input_sizes(self.model.graph, arrays)

    def compile_variant(self, sizes: Mapping[str, int], *, open_sessions: bool = True) -> Steps:
        """Return the steps for these sizes. open_sessions: open the sessions in ONNX Runtime."""
        self.model.source.check_unchanged()
        if (other := self.compiler_for(sizes)) is not self:
            try:
                return other.compile_variant({}, open_sessions=open_sessions)
            except ModelError:  # ONNX Runtime rejects some nodes that a folded If exposes
                if not has_static_rewrites(self.model):
                    raise
                self.sized_compilers[tuple(sorted(sizes.items()))] = self
        if (
            self.session is None
            and 0 in sizes.values()
            and (all_ := self.fallback_variant()) is not None
        ):
            return all_
        if (branch := self.dynamic_if()) is not None:
            compile_branches(branch, self.if_depth)
            return [branch]
        while True:
            out: Steps = []
            parts = self.partition(sizes)
            for s in parts:
                try:
                    alone = len(parts) == 1
                    if s.native:
                        out.append(compile_native_segment(self, s, sizes, alone))
                    elif open_sessions:
                        out.append(self.ort_segment(s, sizes))
                except NO_KERNEL_ERRORS as e:
                    found = unsupported_nodes(s, partial(self.plan_segment, sizes=sizes))
                    self.fallback_reasons |= found or dict.fromkeys(s.nodes, str(e))
                    break
                except MemoryError as e:
                    raise out_of_memory_error(self.model.source.label, str(e)) from None
            else:
                return out

    def plan_segment(self, s: Segment, sizes: Mapping[str, int]) -> Program:
        how = self.threads, self.machine, self.tuned_options, self.allowed
        return plan_segment_program(s, sizes, *how, self.simplified_segments)

    def replan(
        self, sizes: Mapping[str, int], options: Mapping[str, str]
    ) -> tuple[Segment, Program]:
        """Return the only segment, and its program planned again with these options."""
        if (other := self.compiler_for(sizes)) is not self:
            return other.replan({}, options)
        (s,) = self.partition(sizes)
        own = {key: Option.parse(text) for key, text in options.items()}
        return s, replace(self, tuned_options=own).plan_segment(s, sizes)

    def program_image(self, segment: NativeSegment) -> ProgramImage:
        """Return the code and sizes of a compiled segment."""
        return build_image(segment.code.program, self.machine, self.threads, self.object_folder)

    def tune(
        self,
        steps: Steps,
        budget: float,
        store: Store,
        progress: Progress,
        stop: Callable[[], bool],
    ) -> TuningReport:
        """Find faster options for the kernels of these steps, and use them from now on."""
        programs = [s.code.program for s in native_segments(steps)]
        parts, end = [], time.monotonic() + budget
        for n, p in enumerate(programs):
            share = max(end - time.monotonic(), 0.0) / (len(programs) - n)
            parts.append(tune_program(p, self.machine, self.threads, store, share, progress, stop))
        self.tuned_options = tuning_records.chosen_options(
            store, tuning_records.cpu_target(self.threads)
        )
        self.sized_compilers.clear()
        self.dynamic_if_cache.clear()
        kernels = tuple(k for part in parts for k in part.kernels)
        return TuningReport(kernels, sum(part.seconds for part in parts))

    def profile(self, exe: Executable, feeds: Mapping[str, Any] | None, seconds: float) -> Profile:
        return profile(exe, feeds, seconds=seconds)

    def accuracy(self, exe: Executable, shapes: Mapping[str, int], sets: int) -> Accuracy:
        return measure_accuracy(exe, shapes, sets)

    def export(self, exe: Executable, path: Path, shapes: Mapping[str, int]) -> ExportReport:
        known = [dict(key) for key in exe.variants]
        # these nodes may have kernels that are slower than ONNX Runtime
        if any(map(self.fallback_nodes, (*known, shapes))):
            exe = replace(
                self, prefer_kernels=True, fallback_reasons={}, sized_compilers={}
            ).executable()
            for sizes in known:
                exe.variant(sizes)
        return export.export_library(exe, path, shapes)

    def save(self, exe: Executable, path: Path) -> None:
        if self.session is not None:
            raise unsaveable_error(self.model, self.fallback_reasons)
        how = self.threads, self.machine.width, self.allowed
        source = self.given_model.source if has_contrib_parts(self.model) else self.model.source
        write_saved_model(make_saved_model(source, *how, exe.variants), path)

    def partition(self, sizes: Mapping[str, int]) -> list[Segment]:
        native = partial(self.is_native, sizes=sizes)
        return partition_by_cost(self.model.graph, native, sizes, self.units)

    def is_native(self, n: ir_graph.Node, sizes: Mapping[str, int]) -> bool:
        """True if a node runs as a kernel."""
        return not self.fallback_reason(n, sizes)

    def fallback_reason(self, n: ir_graph.Node, sizes: Mapping[str, int]) -> str:
        """Return why a node runs in ONNX Runtime; empty if it runs as a kernel."""
        why = self.fallback_reasons.get(n) or unsupported_reason(n, sizes)
        if (
            why
            or self.prefer_kernels
            or has_scatter_kernel(n)
            or not (slow := slow_reason(n, sizes))
        ):
            return why
        return slow if ort.installed_version() is not None else ""

    def ort_segment(self, s: Segment, sizes: Mapping[str, int]) -> OrtSegment | Fallback:
        whole = len(s.nodes) == len(ir_graph.nodes(self.model.graph))
        if whole and (self.session is not None or not self.is_sized):
            return self.fallback()
        # Also for a whole model: ONNX Runtime rejects unfit sizes when it sees them.
        part = make_ort_segment(self.model, s, self.threads, sizes, self.given_model)
        return self.fallback() if whole else part

    def dynamic_if(self) -> DynamicIf | None:
        """Return the programs at the first If with a dynamic condition; None if there is none."""
        if not self.dynamic_if_cache:
            self.dynamic_if_cache.append(compile_dynamic_if(self))
        return self.dynamic_if_cache[0]

    def subcompiler(self, source: Source, original: Source) -> Compiler:
        """Return the compiler of a part of the model at an If, with the options of this one."""
        how = self.threads, self.machine, self.tuned_options, self.packed_constants, self.allowed
        return replace(
            make_compiler(ReadableModel(source, original), *how), if_depth=self.if_depth + 1
        )

    def fallback(self) -> Fallback:
        """Return the whole model, as given, in ONNX Runtime."""
        graph = self.model.graph
        check_onnxruntime_available(self.model, ir_graph.nodes(graph))
        with explain_shape_errors(self.model):
            read = self.session if self.given_model.mode == DEFAULT_MODE else None
            session = read or self.given_model.session()
        return Fallback(
            session, tuple(i.name for i in graph.inputs), self.output_names(), lambda: graph
        )

    def fork_lock(self) -> AbstractContextManager[object]:
        """Return a lock; a process forked while it is held can compile."""
        return llvm_lock()

    def fall_back_entirely(self, error: RuntimeMismatch) -> None:
        """Run the whole model in ONNX Runtime from now on."""
        self.fallback_reasons |= fallback_reasons(self.model.graph, error)

    def fallback_variant(self) -> Steps | None:
        """Return the whole model in ONNX Runtime, for any sizes; None if it is not installed."""
        return [self.fallback()] if ort.installed_version() else None

    def fallback_nodes(
        self, sizes: Mapping[str, int], common_reason: str = ""
    ) -> list[tuple[ir_graph.Node, str]]:
        """Return the nodes that run in ONNX Runtime, each with the reason. common_reason: if it is
        the same for all nodes."""
        return fallback_nodes_with_reasons(self, sizes, common_reason)


def make_compiler(
    readable: ReadableModel,
    threads: int,
    machine: Machine,
    tuned_options: Mapping[str, Option],
    packed_constants: Mapping[str, np.ndarray],
    allowed: AllowedTransforms,
) -> Compiler:
    folder, model = objects_folder(), import_model(readable.source)
    how = GivenModel(readable.original, threads), threads, machine, folder
    if readable.session is None:
        return Compiler(
            model, *how, tuned_options, packed_constants, allowed, integer_product_fallbacks(model)
        )
    said = dict.fromkeys(ir_graph.nodes(model.graph), readable.fallback_reason)
    return Compiler(model, *how, {}, {}, allowed, said, session=readable.session)
