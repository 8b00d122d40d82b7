"""The compiler of one model for a GPU: its segments as Triton kernels in one CUDA graph."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from superopt import ort
from superopt.compilation.accuracy import measure_accuracy
from superopt.compilation.cpu.saved_model import SavedModel, write_saved_model
from superopt.compilation.cuda.executable import CudaExecutable
from superopt.compilation.cuda.last_call import Sizes
from superopt.compilation.cuda.load_program import load_gpu_program, next_option
from superopt.compilation.cuda.profile import profile
from superopt.compilation.cuda.segments import GpuSegment, Variant
from superopt.compilation.cuda.store_program import store_variant
from superopt.compilation.cuda.tune_kernels import OnResult, tune_programs
from superopt.compilation.fallback.ort_segment import (
    GivenModel,
    OrtSegment,
    atomic_units,
    fallback_reasons,
    make_ort_segment,
    opaque_model_segment,
    unsaveable_error,
)
from superopt.compilation.frontend.allowed_transforms import AllowedTransforms
from superopt.compilation.frontend.graph_ports import check_window_sizes, input_port, static_shape
from superopt.compilation.frontend.input_arrays import InputPort
from superopt.compilation.frontend.static_sizes import with_static_sizes
from superopt.cost.store import Store
from superopt.errors import RuntimeMismatch, UsageError
from superopt.ir import graph as ir_graph
from superopt.ir.evaluate import infer_sizes
from superopt.kernels.algorithms.gpu import gpu_space
from superopt.kernels.algorithms.gpu.blocks import MULTIPROCESSORS
from superopt.kernels.llvm.operation_count import count_operations
from superopt.kernels.loops.option import Option
from superopt.kernels.triton.codegen import triton_text
from superopt.kernels.triton.compiler import TritonCompileError
from superopt.onnx_io.import_.model import Model
from superopt.plan.graph.partition import (
    NO_KERNEL_ERRORS,
    TOO_SMALL_REASON,
    Segment,
    partition_by_cost,
    segment_graph,
    slow_reason,
    unsupported_reason,
)
from superopt.plan.graph.recurrent_layer import MAX_UNROLLED_STEPS_GPU
from superopt.plan.graph.simplify import simplify_graph
from superopt.plan.passes import plan_program
from superopt.plan.program.plan import Settings
from superopt.plan.program.program import Program
from superopt.plan.program.streams import gpu_streams as on_gpu_streams
from superopt.plan.program.target import TF32_DROPPED_BITS, gpu_target
from superopt.report.compilation.accuracy import Accuracy
from superopt.report.compilation.compile_report import TuningReport
from superopt.report.compilation.profile import Profile
from superopt.te.eval.domain import Reals
from superopt.te.expr.dtype import BF16, F16, DType

# By precision: the storage dtype of fp32 values (None: fp32), and the precision of their products.
PRECISIONS: Mapping[str, tuple[DType | None, str]] = {
    "fp32": (None, "ieee"),
    "tf32": (None, "tf32"),
    "fp16": (F16, "ieee"),
    "bf16": (BF16, "ieee"),
}
MIN_ONLINE_SOFTMAX_FLOAT_CLASS = MIN_WINOGRAD_FLOAT_CLASS = (
    "E2"  # float class of online softmax, and of Winograd convolutions
)
DEFAULT_STREAMS = 4  # maximum number of streams unless one is given
MIN_PARALLEL_ELEMENTS = 32 * MULTIPROCESSORS  # see Target.min_parallel_elements
# Up to so many operations a kernel is faster than the round trip to the CPU, even if it computes
# more than needed.
MAX_SMALL_OPERATIONS = 1 << 27
MAX_SIZED_MODELS = 256  # sizes whose models are remembered
# vector bytes of a CPU plan; GPUs have no such vectors, so what depends on them is unused
NO_VECTOR_BYTES = 64


class OptionFilter(TypedDict, total=False):
    """Options of gpu_space.options."""

    vendor: bool
    forms: bool


@dataclass(slots=True)
class Compiler:
    """A model and how it is compiled for a GPU.

    vendor: allow vendor libraries for products, convolutions and attention. streams: maximum number
    of streams for independent branches. tuned_options: of problems, by key. fallback_reasons: nodes
    without a kernel, each with the reason. sized_models: models for some sizes alone. small_nodes:
    nodes whose kernel computes more than needed, but little. gpu_number: None for the current GPU.
    session: runs a model that superopt does not read (`readable_model`). threads: of ONNX Runtime.
    fallback_options: tuned without vendor libraries, for lower float classes. tried_options: by
    problem, options tried after Triton failed to compile the first. given_model: the model as
    given.
    """

    model: Model
    precision: str
    device: str
    float_class: str = "E2"
    vendor: bool = True
    streams: int = DEFAULT_STREAMS
    tuned_options: Mapping[str, Option] = field(default_factory=dict)
    fallback_reasons: dict[ir_graph.Node, str] = field(default_factory=dict)
    sized_models: dict[Sizes, Model | None] = field(default_factory=dict)
    small_nodes: dict[tuple[ir_graph.Node, Sizes], bool] = field(default_factory=dict)
    gpu_number: int | None = None
    session: ort.Session | None = None
    threads: int = 1
    fallback_options: Mapping[str, Option] = field(default_factory=dict)
    tried_options: dict[str, set[Option]] = field(default_factory=dict)
    given_model: GivenModel | None = None

    def executable(self) -> CudaExecutable:
        """Return the executable; nothing is compiled yet."""
        about = self.input_ports(), self.output_names(), self.precision, self.device
        return CudaExecutable(*about, lambda: self, gpu_number=self.gpu_number)

    def input_ports(self) -> tuple[InputPort, ...]:
        return tuple(input_port(i, i in self.model.input_defaults) for i in self.model.graph.inputs)

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
        try:
            return infer_sizes(dict(zip(self.model.graph.inputs, arrays, strict=True)), Reals())
        except ValueError as e:
            raise UsageError("the inputs do not fit", str(e), "pass other shapes") from None

    def compile_variant(self, sizes: Mapping[str, int], options: Mapping[str, str]) -> Variant:
        """Return the steps for inputs of these sizes. options: of problems, by key, as they were
        compiled before."""
        if options:
            own = {key: Option.parse(text) for key, text in options.items()}
            return replace(self, tuned_options={**self.tuned_options, **own}).compile_variant(
                sizes, {}
            )
        none = self.session is None and 0 in sizes.values()  # tensor expressions require sizes >= 1
        made = () if none else self.compile_segments(self.model, sizes)
        if none or (sizes and not self.session and any(isinstance(s, OrtSegment) for s in made)):
            # With these sizes the model may have known shapes.
            key = tuple(sorted(sizes.items()))
            if key not in self.sized_models:
                if len(self.sized_models) >= MAX_SIZED_MODELS:
                    self.sized_models.clear()
                    self.small_nodes.clear()
                self.sized_models[key] = with_static_sizes(self.model, sizes)
            if (other := self.sized_models[key]) is not None:
                return Variant(other, self.compile_segments(other, {}))
        out = self.fallback_variant() if none else None
        return out or Variant(self.model, made or self.compile_segments(self.model, sizes))

    def compile_segments(
        self, model: Model, sizes: Mapping[str, int]
    ) -> tuple[GpuSegment | OrtSegment, ...]:
        while True:
            out: list[GpuSegment | OrtSegment] = []
            native = partial(self.is_native, sizes=sizes)
            for s in partition_by_cost(model.graph, native, sizes, atomic_units(model)):
                try:
                    out.append(
                        self.compile_segment(s, sizes)
                        if s.native
                        else self.ort_segment(model, s, sizes)
                    )
                except NO_KERNEL_ERRORS as e:
                    self.fallback_reasons |= self.unsupported_nodes(s, sizes) or dict.fromkeys(
                        s.nodes, str(e)
                    )
                    break
            else:
                return tuple(out)

    def ort_segment(self, model: Model, s: Segment, sizes: Mapping[str, int]) -> OrtSegment:
        if self.session is None:
            return make_ort_segment(model, s, self.threads, sizes, self.given_model)
        return opaque_model_segment(model, s, self.session)

    def is_native(self, n: ir_graph.Node, sizes: Mapping[str, int]) -> bool:
        """True if a node runs as a kernel."""
        return not self.fallback_reason(n, sizes)

    def fallback_reason(self, n: ir_graph.Node, sizes: Mapping[str, int]) -> str:
        """Return why a node runs in ONNX Runtime; empty if it runs as a kernel."""
        why = self.fallback_reasons.get(n) or unsupported_reason(n, sizes, MAX_UNROLLED_STEPS_GPU)
        if why or ort.installed_version() is None or not (slow := slow_reason(n, sizes)):
            return why
        key = n, tuple(sizes.items())
        if key not in self.small_nodes:
            self.small_nodes[key] = self.operation_count(n, sizes) <= MAX_SMALL_OPERATIONS
        return "" if self.small_nodes[key] else slow

    def operation_count(self, n: ir_graph.Node, sizes: Mapping[str, int]) -> float:
        """Return the operations of a node's kernels; infinite if it has none."""
        try:
            made = self.plan_segment(_single_node_segment(n), sizes)
        except NO_KERNEL_ERRORS:
            return inf
        return float(sum(count_operations(p.tensor) for p in made.problems.values()))

    def fall_back_entirely(self, variant: Variant, error: RuntimeMismatch) -> None:
        """Run the whole model in ONNX Runtime from now on."""
        self.fallback_reasons |= fallback_reasons(variant.model.graph, error) | fallback_reasons(
            self.model.graph, error
        )

    def fallback_variant(self) -> Variant | None:
        """Return the whole model in ONNX Runtime, for any sizes; None if it is not installed."""
        if ort.installed_version() is None or self.session is not None:
            return None
        own = dict.fromkeys(ir_graph.nodes(self.model.graph), "not compiled for these sizes yet")
        made = replace(
            self, fallback_reasons=own, sized_models={}, small_nodes={}, threads=os.cpu_count() or 1
        )
        return made.compile_variant({}, {})

    def run(self, steps: Variant, arrays: Sequence[Any]) -> dict[str, Any]:
        """Return the outputs by name as numpy arrays, for the inputs in order."""
        return dict(zip(self.output_names(), steps.run([*arrays], ""), strict=True))

    def fallback_nodes(
        self, variant: Variant, sizes: Mapping[str, int]
    ) -> list[tuple[ir_graph.Node, str]]:
        """Return the nodes that run in ONNX Runtime, each with the reason."""
        return [
            (n, self.fallback_reason(n, sizes) or TOO_SMALL_REASON)
            for n in variant.fallback_nodes()
        ]

    def unsupported_nodes(self, s: Segment, sizes: Mapping[str, int]) -> dict[ir_graph.Node, str]:
        """Return the nodes of a segment that have no kernel, each with the reason."""
        out = {}
        for n in s.nodes:
            try:
                for kernel in self.plan_segment(_single_node_segment(n), sizes).kernels.values():
                    triton_text(kernel, self.dot_precision)
            except NO_KERNEL_ERRORS as e:
                out[n] = str(e)
        return out

    @property
    def dot_precision(self) -> str:
        """The precision of fp32 products, as Triton names it."""
        return PRECISIONS[self.precision][1]

    @property
    def option_filter(self) -> OptionFilter:
        """The allowed kinds of kernels; see gpu_space.options."""
        if self.float_class >= MIN_WINOGRAD_FLOAT_CLASS:
            return {"vendor": self.vendor}
        return {"vendor": self.vendor, "forms": False}

    def plan_segment(self, s: Segment, sizes: Mapping[str, int]) -> Program:
        # Products with a common operand become one batched product (batched_gemm.py), which needs
        # fewer launches than rows of one matrix: NASRNN takes 30 us, and 40 us the other way.
        graph = simplify_graph(segment_graph(s), self.float_class, 1, False, s.sensitive_outputs)
        kind, dots = PRECISIONS[self.precision]
        drops = TF32_DROPPED_BITS if dots == "tf32" else 0
        choose = partial(gpu_space.choose, **self.option_filter)
        if self.fallback_options:
            choose = partial(gpu_space.choose, **self.option_filter, fallback=self.fallback_options)
        streams = partial(on_gpu_streams, max_streams=self.streams) if self.streams > 1 else None
        target = gpu_target(
            choose,
            fuses_attention=self.float_class >= MIN_ONLINE_SOFTMAX_FLOAT_CLASS,
            storage_dtype=kind,
            dropped_bits=drops,
            min_parallel_elements=MIN_PARALLEL_ELEMENTS,
            assign_streams=streams,
        )
        settings = Settings(
            NO_VECTOR_BYTES, self.tuned_options, allow_winograd=False, target=target
        )
        return plan_program(graph, sizes, settings)

    def compile_segment(self, s: Segment, sizes: Mapping[str, int]) -> GpuSegment:
        check_window_sizes(self.model, s.nodes, sizes)
        ins, outs = ([_tensor_spec(v, sizes) for v in x] for x in (s.inputs, s.outputs))
        label, options = self.model.source.label, partial(gpu_space.options, **self.option_filter)
        while True:
            made = self.plan_segment(s, sizes)
            try:
                return GpuSegment(
                    s,
                    made,
                    load_gpu_program(label, made, ins, outs, self.device, self.dot_precision),
                )
            except TritonCompileError as e:
                other = next_option(label, made, e, options, self.tried_options)
                self.tuned_options = {**self.tuned_options, **other}

    def tune(
        self, variant: Variant, store: Store | None, budget: float, max_options: int,
        on_result: OnResult, stop: Callable[[], bool],
    ) -> TuningReport:  # fmt: skip
        """Find faster options for the kernels of these steps, and use them from now on."""
        programs = [p.program for p in variant.gpu_segments]
        options = partial(gpu_space.options, **self.option_filter)
        found = tune_programs(
            programs,
            options,
            self.device,
            self.dot_precision,
            store,
            budget,
            max_options,
            on_result,
            stop,
        )
        self.tuned_options = {**self.tuned_options, **found.options}
        return found.report

    def store_variant(self, key: str, sizes: Sizes, variant: Variant) -> None:
        """Store what was compiled for these sizes, under a model's key."""
        store_variant(key, sizes, variant, self.device, self.dot_precision)

    def profile(
        self, exe: CudaExecutable, feeds: Mapping[str, Any] | None, seconds: float
    ) -> Profile:
        return profile(exe, feeds, {}, seconds)

    def accuracy(self, exe: CudaExecutable, shapes: Mapping[str, int], sets: int) -> Accuracy:
        return measure_accuracy(exe, shapes, sets)

    def save(self, variants: Mapping[Sizes, Variant], path: Path) -> None:
        if self.session is not None:
            raise unsaveable_error(self.model, self.fallback_reasons)
        how = {
            k: o
            for v in variants.values()
            for p in v.gpu_segments
            for k, o in p.program.options.items()
        }
        held = SavedModel(
            self.model.source, 1, NO_VECTOR_BYTES, AllowedTransforms(self.float_class), how,
            tuple(map(dict, variants)), {}, "cuda", self.precision, self.vendor, self.streams,
        )  # fmt: skip
        write_saved_model(held, path)


def _single_node_segment(n: ir_graph.Node) -> Segment:
    inputs = tuple(v for v in n.inputs if v is not None and not isinstance(v, ir_graph.Constant))
    return Segment((n,), True, tuple(dict.fromkeys(inputs)), ir_graph.results(n))


def _tensor_spec(v: ir_graph.Value, sizes: Mapping[str, int]) -> tuple[tuple[int, ...], DType]:
    assert v.type.dtype is not None
    return tuple(static_shape(v.type, sizes)), v.type.dtype
