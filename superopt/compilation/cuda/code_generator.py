"""Code generation for a GPU: plans of segments, and their kernels as one CUDA graph (Triton)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, ClassVar

from superopt.compilation.cuda.device import CudaDevice
from superopt.compilation.cuda.load_program import (
    build_sized_image,
    load_gpu_program,
    next_option,
)
from superopt.compilation.cuda.plan_settings import (
    DEFAULT_STREAMS,
    NO_VECTOR_BYTES,
    OptionFilter,
    gpu_settings,
    option_filter,
)
from superopt.compilation.cuda.profile import profile
from superopt.compilation.cuda.segments import (
    GpuSegment,
    SymbolicGpuSegment,
    load_sized_program,
)
from superopt.compilation.cuda.store_program import store_variant
from superopt.compilation.cuda.tune_kernels import tune_programs
from superopt.compilation.frontend.allowed_transforms import AllowedTransforms
from superopt.compilation.frontend.graph_ports import check_window_sizes, static_shape
from superopt.compilation.frontend.input_arrays import Sizes
from superopt.compilation.model.classes.class_program import plan_class_program
from superopt.compilation.model.compiler import Compiler
from superopt.compilation.model.device import CodeGenerator, Progress
from superopt.compilation.model.executable import Executable
from superopt.compilation.model.steps import KernelStep, Variant
from superopt.cost.store import Store
from superopt.ir import graph as ir_graph
from superopt.kernels.algorithms import space
from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.llvm.operation_count import count_operations
from superopt.kernels.loops.option import Option
from superopt.kernels.loops.tile import Kernel
from superopt.kernels.runtime.sized_module_image import Port, SizedModuleImage
from superopt.kernels.triton.codegen import triton_text
from superopt.kernels.triton.compiler import TritonCompileError
from superopt.kernels.triton.module import vendor_name
from superopt.onnx_io.import_.size_relation import Guards
from superopt.plan.graph.partition import NO_KERNEL_ERRORS, Segment, segment_graph
from superopt.plan.graph.recurrent_layer import MAX_UNROLLED_STEPS_GPU
from superopt.plan.graph.simplify import simplify_graph
from superopt.plan.graph.unsupported_nodes import single_node_segment
from superopt.plan.passes import plan_program
from superopt.plan.program.execute import pack_program_constants
from superopt.plan.program.program import Program, SymbolicSizes
from superopt.report.compilation.compile_report import TuningReport
from superopt.report.compilation.profile import Profile
from superopt.report.data.report import Event
from superopt.te.expr.dtype import DType
from superopt.te.expr.symbolic_int import example_sizes

# Up to so many operations a kernel is faster than the round trip to the CPU, even if it computes
# more than needed.
MAX_SMALL_OPERATIONS = 1 << 27


@dataclass(frozen=True, slots=True)
class CudaCodeGenerator(CodeGenerator):
    """Code generation for a GPU.

    vendor: allow vendor libraries for products, convolutions and attention. streams: maximum number
    of streams for independent branches. fallback_options: tuned without vendor libraries, for lower
    float classes. tried_options: by problem, options tried after Triton failed to compile the
    first.
    """

    device: CudaDevice
    allowed: AllowedTransforms
    vendor: bool = True
    streams: int = DEFAULT_STREAMS
    fallback_options: Mapping[str, Option] = field(default_factory=dict)
    tried_options: dict[str, set[Option]] = field(default_factory=dict)
    max_unrolled_steps: ClassVar[int | None] = MAX_UNROLLED_STEPS_GPU

    @property
    def dot_precision(self) -> str:
        """The precision of fp32 products, as Triton names it."""
        return self.device.dot_precision

    @property
    def option_filter(self) -> OptionFilter:
        """The allowed kinds of kernels; see space.options."""
        return option_filter(self.allowed, self.vendor)

    def plan_segment(self, c: Compiler, s: Segment, sizes: Mapping[str, int]) -> Program:
        # Products with a common operand become one batched product (batched_gemm.py), which needs
        # fewer launches than rows of one matrix: NASRNN takes 30 us, and 40 us the other way.
        level = self.allowed.float_class
        graph = simplify_graph(
            segment_graph(s), level, 1, False, s.sensitive_outputs,
            "simplification" not in self.allowed.left_out,
        )  # fmt: skip
        settings = gpu_settings(
            self.device.precision, self.allowed, c.tuned_options, vendor=self.vendor,
            streams=self.streams, fallback_options=self.fallback_options,
            is_for_classes=bool(example_sizes()),
        )  # fmt: skip
        return plan_program(graph, sizes, settings)

    def compile_segment(self, c: Compiler, s: Segment, sizes: Mapping[str, int]) -> GpuSegment:
        """Return the loaded kernels of a segment; where Triton cannot compile one, other options
        are tried."""
        check_window_sizes(c.model, s.nodes, sizes)
        ins, outs = ([_tensor_spec(v, sizes) for v in x] for x in (s.inputs, s.outputs))
        label, device = c.model.source.label, self.device.torch_device
        while True:
            made = self.plan_segment(c, s, sizes)
            try:
                loaded = load_gpu_program(label, made, ins, outs, device, self.dot_precision)
            except TritonCompileError as e:
                other = next_option(label, made, e, self.list_options, self.tried_options)
                c.tuned_options = {**c.tuned_options, **other}
            else:
                return GpuSegment(s, made, loaded, c.model_binding(s))

    def compile_for_classes(
        self, c: Compiler, s: Segment, example: Mapping[str, int], guards: Guards
    ) -> SymbolicGpuSegment:
        """Return a segment for all sizes for which the same decisions are right as for the example.
        guards: comparisons that the model assumes, and whether they hold.

        Raises one of NO_KERNEL_ERRORS if an operator has no kernel for symbolic sizes.
        """
        if (binding := c.model_binding(s)) is None:
            raise NotImplementedError("a part of a model for classes of sizes on a GPU")
        check_window_sizes(c.model, s.nodes, example)
        device = self.device.torch_device

        def build(made: Program) -> tuple[SizedModuleImage, SymbolicSizes]:
            ports = [_port(v) for v in (*s.inputs, *s.outputs)]
            return build_sized_image(made, ports, len(s.inputs), device, self.dot_precision)

        made = plan_class_program(self, c, s, example, guards, build, masks_tiles=True)
        constants = pack_program_constants(made.program, c.model.source.release_pages)
        image, code = made.code.image, made.code.code
        loaded = load_sized_program(image, code, constants, self.device)
        return SymbolicGpuSegment(loaded, made.formulas, dict(example), binding, constants, code)

    def list_options(self, p: Problem) -> Any:
        """Yield the options of a problem."""
        return space.options(p, **self.option_filter)

    def check_plan(self, program: Program) -> None:
        for kernel in program.kernels.values():
            triton_text(kernel, self.dot_precision)

    def has_fast_kernel(self, c: Compiler, n: ir_graph.Node, sizes: Mapping[str, int]) -> bool:
        """True if a node's kernel computes more than needed, but little."""
        key = n, tuple(sizes.items())
        if key not in c.plan_cache:
            c.plan_cache[key] = self._operation_count(c, n, sizes) <= MAX_SMALL_OPERATIONS
        return bool(c.plan_cache[key])

    def _operation_count(self, c: Compiler, n: ir_graph.Node, sizes: Mapping[str, int]) -> float:
        """Return the operations of a node's kernels; infinite if it has none."""
        try:
            made = self.plan_segment(c, single_node_segment(n), sizes)
        except NO_KERNEL_ERRORS:
            return inf
        return float(sum(count_operations(p.tensor) for p in made.problems.values()))

    def kernel_texts(self, step: KernelStep, kernel: Kernel) -> list[tuple[str, object]]:
        assert isinstance(step, GpuSegment)
        text = step.gpu_program.loaded[kernel.name].text.source
        if kernel.library:
            text = f"# by {vendor_name(kernel.library)}: {kernel.library}"
        return [*kernel.passes, ("tile", kernel), ("triton.py", text)]

    def profile(
        self,
        exe: Executable,
        feeds: Mapping[str, Any] | None,
        shapes: Mapping[str, int],
        seconds: float,
        stop: Callable[[], bool],
    ) -> Profile:
        return profile(exe, feeds, shapes, seconds)

    def tune(
        self,
        programs: Sequence[Program],
        store: Store | None,
        budget: float,
        max_options: int,
        progress: Progress,
        stop: Callable[[], bool],
    ) -> tuple[Mapping[str, Option], TuningReport]:
        def show(p: Problem, times: Mapping[Option, float]) -> None:
            progress(Event("tune", f"{p.tensor.type}", None))

        found = tune_programs(
            programs,
            self.list_options,
            self.device.torch_device,
            self.dot_precision,
            store,
            budget,
            max_options,
            show,
            stop,
        )
        return found.options, found.report

    def store_variant(self, key: str, sizes: Sizes, variant: Variant) -> None:
        """Store what was compiled for these sizes, under a model's key."""
        store_variant(key, sizes, variant, self.device)

    def saved_fields(self) -> Mapping[str, Any]:
        return {
            "vector_bytes": NO_VECTOR_BYTES,
            "precision": self.device.precision,
            "vendor": self.vendor,
            "streams": self.streams,
        }


def _port(v: ir_graph.Value) -> Port:
    assert v.type.dtype is not None
    return v.type.shape or (), v.type.dtype


def _tensor_spec(v: ir_graph.Value, sizes: Mapping[str, int]) -> tuple[tuple[int, ...], DType]:
    assert v.type.dtype is not None
    return tuple(static_shape(v.type, sizes)), v.type.dtype
