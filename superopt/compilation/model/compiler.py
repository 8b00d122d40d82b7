"""The compiler of one model: its segments as kernels of a device, and the rest in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import numpy as np

from superopt import ort
from superopt.compilation.accuracy import measure_accuracy
from superopt.compilation.fallback.integer_fallback import integer_product_fallbacks
from superopt.compilation.fallback.integer_mode import DEFAULT_MODE
from superopt.compilation.fallback.ort_segment import (
    GivenModel,
    atomic_units,
    check_onnxruntime_available,
    explain_shape_errors,
    fallback_reasons,
    make_ort_segment,
)
from superopt.compilation.fallback.session_segment import OrtSegment
from superopt.compilation.fallback.whole_model import Fallback
from superopt.compilation.frontend.graph_ports import infer_input_sizes
from superopt.compilation.frontend.input_arrays import InputPort, Sizes
from superopt.compilation.frontend.static_sizes import has_static_rewrites, with_static_sizes
from superopt.compilation.frontend.value_limits import model_ports
from superopt.compilation.model.classes.class_steps import (
    compile_step,
    segment_kind,
    unsupported_reasons,
)
from superopt.compilation.model.classes.find_runtime_sizes import (
    EXAMPLE_RUNTIME_SIZE,
    RUNTIME_COUNTS,
    with_runtime_sizes,
)
from superopt.compilation.model.compile_class import (
    compile_for_any_sizes,
    compile_levels,
    compile_size_class,
    has_index_out_of_range,
    prefers_fixed_sizes,
)
from superopt.compilation.model.control_flow.compile_if import (
    compile_branches,
    compile_control_flow,
    fallback_nodes_with_reasons,
)
from superopt.compilation.model.control_flow.dynamic_if import ControlFlow
from superopt.compilation.model.device import CodeGenerator, Device, Progress
from superopt.compilation.model.executable import Executable
from superopt.compilation.model.notes import log_fallbacks
from superopt.compilation.model.save_programs import save_executable
from superopt.compilation.model.shape_policy import ShapePolicy, SizeRanges, Specialize
from superopt.compilation.model.size_classes import SizeClass, SizeClasses
from superopt.compilation.model.states.segment_states import state_writes, with_states
from superopt.compilation.model.steps import ModelBinding, Step, Variant
from superopt.cost.store import Store
from superopt.errors import ModelError, OutOfMemory, RuntimeMismatch
from superopt.ir import graph as ir_graph
from superopt.kernels.loops.option import Option
from superopt.loading.readable_model import ReadableModel
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.import_.model import Model
from superopt.onnx_io.read.source import Source
from superopt.plan.graph.index_ranges import index_reason
from superopt.plan.graph.partition import (
    NO_KERNEL_ERRORS,
    Segment,
    Units,
    fallback_nodes,
    partition_by_cost,
    unsupported_reason,
)
from superopt.plan.graph.slow_nodes import slow_reason
from superopt.plan.program.program import Program
from superopt.report.compilation.accuracy import Accuracy
from superopt.report.compilation.compile_report import TuningReport

NodeReasons = list[tuple[ir_graph.Node, str]]
MAX_SIZED_COMPILERS = 256  # sizes whose compilers are remembered


@dataclass(slots=True)
class Compiler:
    """A model and how it is compiled.

    generator: plans and compiles segments for a device. given_model: the model for ONNX Runtime.
    tuned_options: of problems, by key. fallback_reasons: nodes without a kernel, and why.
    sized_compilers: results of `compiler_for`.
    session: runs a model that superopt does not read (`readable_model`). prefer_kernels: use
    kernels even if ONNX Runtime is faster. plan_cache: what the generator remembers of the model.
    if_depth: dynamic Ifs above. is_sized: sizes are static. plans_classes: see `class_compiler`.
    runtime_counts: examples of sizes that only a run gives, each of which has a program. units: see
    `partition_by_cost`. control_flow_cache: the result of `control_flow`. states: names of outputs
    that are in the memory of inputs, and of these (segment_states.py).
    """

    model: Model
    given_model: GivenModel
    generator: CodeGenerator
    tuned_options: Mapping[str, Option] = field(default_factory=dict)
    fallback_reasons: dict[ir_graph.Node, str] = field(default_factory=dict)
    sized_compilers: dict[Sizes, Compiler] = field(default_factory=dict)
    session: ort.Session | None = None
    prefer_kernels: bool = False
    plan_cache: dict[object, Any] = field(default_factory=dict)
    if_depth: int = 0
    is_sized: bool = False
    plans_classes: bool = False
    states: tuple[tuple[str, str], ...] = ()
    runtime_counts: Sequence[int] = (EXAMPLE_RUNTIME_SIZE,)
    units: Units = field(init=False)
    control_flow_cache: list[ControlFlow | None] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.units = atomic_units(self.model)

    @property
    def device(self) -> Device:
        return self.generator.device

    def compiler_for(self, sizes: Mapping[str, int]) -> Compiler:
        """Return this compiler; or, if these sizes leave shapes unknown or the model has rewrites
        for static sizes, that of the model with these sizes."""
        key = tuple(sorted(sizes.items()))
        found = self.sized_compilers.get(key)
        if found is None:
            if len(self.sized_compilers) >= MAX_SIZED_COMPILERS:
                self.sized_compilers.clear()
                self.plan_cache.clear()
            may_specialize = sizes or has_static_rewrites(self.model)
            has_empty = 0 in sizes.values()  # tensor expressions require sizes >= 1
            needs_static_model = (
                not self.is_all_fallback
                and may_specialize
                and (has_empty or fallback_nodes(self.partition(sizes)))
            )
            model = with_static_sizes(self.model, sizes) if needs_static_model else None
            found = self if model is None else self.with_model(model)
            self.sized_compilers[key] = found
        return found

    def with_model(self, model: Model) -> Compiler:
        """Return the compiler of this model with other sizes."""
        which = "none" if self.prefer_kernels else self.generator.runtime_integer_products
        own = integer_product_fallbacks(model, which)
        fresh: Any = {"sized_compilers": {}, "plan_cache": {}}
        return replace(self, model=model, fallback_reasons=own, is_sized=True, **fresh)

    @property
    def is_all_fallback(self) -> bool:
        """True if all nodes run in ONNX Runtime, at any sizes."""
        return all(n in self.fallback_reasons for n in ir_graph.nodes(self.model.graph))

    def executable(self, specialize: Specialize = "eager") -> Executable:
        """Return the executable; nothing is compiled yet."""
        device = self.device
        policy = ShapePolicy(specialize, device.eager_sizes, device.compiles_in_background)
        about = self.input_ports(), self.output_names(), device
        return Executable(*about, lambda: self, shape_policy=policy)

    def input_ports(self) -> tuple[InputPort, ...]:
        return model_ports(self.model)

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

    def compile_variant(
        self, sizes: Mapping[str, int], options: Mapping[str, str] | None = None
    ) -> Variant:
        """Return the model compiled for these sizes. options: of problems, by key, as they were
        compiled before."""
        if options:
            own = {key: Option.parse(text) for key, text in options.items()}
            tuned = {**self.tuned_options, **own}
            return replace(self, tuned_options=tuned, sized_compilers={}).compile_variant(sizes)
        self.model.source.check_unchanged()
        if (other := self.compiler_for(sizes)) is not self:
            try:
                return other.compile_variant({})
            except OutOfMemory:
                raise
            except ModelError:  # ONNX Runtime rejects some nodes that a folded If exposes
                if not has_static_rewrites(self.model) or ort.installed_version() is None:
                    raise
                self.sized_compilers[tuple(sorted(sizes.items()))] = self
        is_empty = self.session is None and 0 in sizes.values()
        if is_empty and (fallback := self.fallback_variant()) is not None:
            return fallback
        if (branch := self.control_flow()) is not None:
            return self._variant([branch])
        while True:
            out: list[Step] = []
            parts = self.partition(sizes)
            for s in parts:
                if not s.native:
                    out.append(self.ort_segment(s, sizes))
                    continue
                try:
                    out.append(compile_step(self, s, sizes))
                except NO_KERNEL_ERRORS as e:
                    self.fallback_reasons |= unsupported_reasons(self, s, sizes, e)
                    break
                except MemoryError as e:
                    raise out_of_memory_error(self.model.source.label, str(e)) from None
            else:
                log_fallbacks(sizes, parts, partial(self.fallback_reason, sizes=sizes))
                return self._variant(out)

    def compile_branches(self, variant: Variant) -> None:
        """Compile the branches of an If that have static sizes. The caller does not hold the lock
        of compilation: a branch's comes first."""
        for step in variant:
            if isinstance(step, ControlFlow):
                compile_branches(step, self.if_depth)

    def _variant(self, steps: Sequence[Step]) -> Variant:
        return Variant(tuple(steps), lambda: self.model)

    def plan_segment(self, s: Segment, sizes: Mapping[str, int]) -> Program:
        return self.generator.plan_segment(self, s, sizes)

    def model_binding(self, s: Segment) -> ModelBinding | None:
        """Return how a segment gives the model's outputs from its inputs; None if it does not."""
        inputs, outputs = self.model.graph.inputs, self.model.graph.outputs
        if not ({*outputs} <= {*s.outputs} and {*s.inputs} <= {*inputs}):
            return None
        gives = map(s.outputs.index, outputs)
        takes = tuple(map(inputs.index, s.inputs))
        return ModelBinding(takes, dict(zip(self.output_names(), gives, strict=True)))

    def compile_class(self, sizes: Mapping[str, int], only_empty: bool = False) -> SizeClass | None:
        """See `compile_size_class`."""
        return compile_size_class(self, sizes, only_empty=only_empty)

    def compile_levels(
        self, classes: SizeClasses, sizes: Mapping[str, int], ranges: SizeRanges
    ) -> Iterator[SizeClass]:
        """See `compile_levels`."""
        return compile_levels(self, classes, sizes, ranges)

    def prefers_fixed_sizes(self, sizes: Mapping[str, int]) -> bool:
        """See `prefers_fixed_sizes`."""
        return prefers_fixed_sizes(self, sizes)

    with_states = with_states
    save = save_executable
    compile_any_sizes = compile_for_any_sizes
    has_index_out_of_range = has_index_out_of_range

    def replan(
        self, sizes: Mapping[str, int], options: Mapping[str, str]
    ) -> tuple[Segment, Program]:
        """Return the only segment, and its program planned again with these options."""
        if (other := self.compiler_for(sizes)) is not self:
            return other.replan({}, options)
        (s,) = self.partition(sizes)
        own = {key: Option.parse(text) for key, text in options.items()}
        return s, replace(self, tuned_options=own).plan_segment(s, sizes)

    def tune(
        self,
        variant: Variant,
        store: Store | None,
        budget: float,
        max_options: int,
        progress: Progress,
        stop: Callable[[], bool],
    ) -> TuningReport:
        """Find faster options for the kernels of a variant, and use them from now on."""
        programs = [s.program for s in variant.kernel_steps]
        found, report = self.generator.tune(programs, store, budget, max_options, progress, stop)
        self.tuned_options = {**self.tuned_options, **found}
        self.sized_compilers.clear()
        self.control_flow_cache.clear()
        return report

    def accuracy(self, exe: Executable, shapes: Mapping[str, int], sets: int) -> Accuracy:
        """Compare outputs with the original's; see `Executable.accuracy`."""
        return measure_accuracy(exe, shapes, sets, self.device.rounds_operands)

    def with_all_counts(self) -> Compiler:
        """Return a compiler of programs for all levels of sizes that only a run gives."""
        return replace(self, runtime_counts=RUNTIME_COUNTS, sized_compilers={}, plan_cache={})

    def with_kernels_only(self) -> Compiler:
        """Return a compiler that uses kernels where there are any, even slower ones."""
        none: dict[ir_graph.Node, str] = {}
        return replace(self, prefer_kernels=True, fallback_reasons=none, sized_compilers={})

    def partition(self, sizes: Mapping[str, int]) -> list[Segment]:
        known, kind_of = self._known_sizes(sizes), cache(partial(segment_kind, self, sizes=sizes))
        return partition_by_cost(self.model.graph, kind_of, known, self.units)

    def _known_sizes(self, sizes: Mapping[str, int]) -> Mapping[str, int]:
        return with_runtime_sizes(self.model, sizes) if self.device.has_runtime_sizes else sizes

    def fallback_reason(self, n: ir_graph.Node, sizes: Mapping[str, int]) -> str:
        """Return why a node runs in ONNX Runtime; empty if it runs as a kernel."""
        given = {name: sizes[name] for name in self.model.size_bindings if name in sizes}
        steps, sizes = self.generator.max_unrolled_steps, self._known_sizes(sizes)
        if n in state_writes(self):
            return ""
        why = self.fallback_reasons.get(n) or index_reason(n, given)
        why = why or unsupported_reason(n, sizes, steps, self.plans_classes)
        if why or self.prefer_kernels or not (slow := slow_reason(n, sizes)):
            return why
        if ort.installed_version() is None or self.generator.has_fast_kernel(self, n, sizes):
            return ""
        return slow

    def ort_segment(self, s: Segment, sizes: Mapping[str, int]) -> OrtSegment | Fallback:
        whole = len(s.nodes) == len(ir_graph.nodes(self.model.graph))
        if whole and (self.session is not None or not self.is_sized):
            return self.fallback()
        # Also for a whole model: ONNX Runtime rejects unfit sizes when it sees them.
        threads = self.generator.segment_threads
        part = make_ort_segment(self.model, s, threads, sizes, self.given_model)
        return self.fallback() if whole else part

    def control_flow(self) -> ControlFlow | None:
        """Return the programs at the first If with a dynamic condition; None if there is none."""
        if not self.control_flow_cache:
            self.control_flow_cache.append(compile_control_flow(self))
        return self.control_flow_cache[0]

    def subcompiler(self, source: Source, original: Source) -> Compiler:
        """Return the compiler of a part of the model at an If."""
        given = ReadableModel(source, original)
        made = make_compiler(given, self.generator, self.tuned_options)
        return replace(made, if_depth=self.if_depth + 1)

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

    def fall_back_entirely(self, error: RuntimeMismatch) -> None:
        """Run the whole model in ONNX Runtime from now on."""
        self.fallback_reasons |= fallback_reasons(self.model.graph, error)

    def fallback_variant(self) -> Variant | None:
        """Return the whole model in ONNX Runtime, for any sizes; None if it is not installed."""
        return self._variant([self.fallback()]) if ort.installed_version() else None

    def fallback_nodes(self, sizes: Mapping[str, int], common_reason: str = "") -> NodeReasons:
        """Return the nodes that run in ONNX Runtime with reasons. common_reason: of all nodes."""
        return fallback_nodes_with_reasons(self, sizes, common_reason)


def make_compiler(
    readable: ReadableModel,
    generator: CodeGenerator,
    tuned_options: Mapping[str, Option],
) -> Compiler:
    """Return the compiler of a model."""
    model = import_model(readable.source)
    given = GivenModel(readable.original, generator.device.fallback_threads)
    if readable.session is None:
        reasons = integer_product_fallbacks(model, generator.runtime_integer_products)
        return Compiler(model, given, generator, tuned_options, reasons)
    reasons = dict.fromkeys(ir_graph.nodes(model.graph), readable.fallback_reason)
    return Compiler(model, given, generator, {}, reasons, session=readable.session)


# sizes_text: the symbolic sizes
def out_of_memory_error(label: str, reason: str, sizes_text: str = "") -> OutOfMemory:
    return OutOfMemory(
        f"{label}: out of memory{' at ' * bool(sizes_text)}{sizes_text}",
        reason or "compiling needs more memory than is available",
        "pass smaller inputs, or give the process more memory",
    )
