"""The CUDA compiler: a model as Triton kernels in one CUDA graph."""

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
from superopt.cost.store import Store
from superopt.errors import Unlike, UsageError
from superopt.ir import graph as ir_graph
from superopt.ir.evaluate import infer_sizes
from superopt.kernels.algorithms.gpu import gpu_space
from superopt.kernels.algorithms.gpu.blocks import MULTIPROCESSORS
from superopt.kernels.llvm.operation_count import count_operations
from superopt.kernels.loops.option import Option
from superopt.kernels.runtime.gpu_device import current_gpu_number, execution_device, use_gpu
from superopt.kernels.triton.codegen import triton_text
from superopt.kernels.triton.compiler import TritonCompileError
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.import_.model import Model
from superopt.onnx_io.read.source import Source
from superopt.pipeline.accuracy import accuracy
from superopt.pipeline.allowed import Allowed
from superopt.pipeline.arrays import Port
from superopt.pipeline.foreign import Foreign, Original, foreign, units, unread, unsaved, whole
from superopt.pipeline.gpu_keep import keep
from superopt.pipeline.gpu_last import Sizes
from superopt.pipeline.gpu_parts import Part, Variant
from superopt.pipeline.gpu_profile import profile
from superopt.pipeline.gpu_running import another, started
from superopt.pipeline.gpu_tune import Seen, known, tuned
from superopt.pipeline.on_gpu import OnGpu
from superopt.pipeline.outside import readable
from superopt.pipeline.ports import checked_windows, port, shape_at
from superopt.pipeline.saved import Saved, write
from superopt.pipeline.sized import sized
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
from superopt.report.accuracy import Accuracy
from superopt.report.compiled import Tuned
from superopt.report.profile import Profile
from superopt.te.eval.domain import Reals
from superopt.te.expr.dtype import BF16, F16, DType

# By precision: the storage dtype of fp32 values (None: fp32), and the precision of their products.
PRECISIONS: Mapping[str, tuple[DType | None, str]] = {
    "fp32": (None, "ieee"),
    "tf32": (None, "tf32"),
    "fp16": (F16, "ieee"),
    "bf16": (BF16, "ieee"),
}
TODO = (
    'pip install "superopt-onnx[gpu]" on a machine with an NVIDIA GPU; "superopt doctor" shows '
    "what is installed, and TRITON_INTERPRET=1 runs kernels on the CPU, slowly"
)
ONLINE = FORMS = "E2"  # float class of online softmax, and of Winograd convolutions
STREAMS, MOST_STREAMS = 4, 32  # default and maximum number of streams
PARTS = 32 * MULTIPROCESSORS  # see Target.min_parallel_elements
# Up to so many operations a kernel is faster than the round trip to the CPU, even if it computes
# more than needed.
LITTLE = 1 << 27
MOST_FIXED = 256  # sizes whose models are remembered
# vector bytes of a CPU plan; GPUs have no such vectors, so what depends on them is unused
WIDTH = 64


class May(TypedDict, total=False):
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
    streams: int = STREAMS
    chosen: Mapping[str, Option] = field(default_factory=dict)
    without: dict[ir_graph.Node, str] = field(default_factory=dict)
    fixed: dict[Sizes, Model | None] = field(default_factory=dict)
    little: dict[tuple[ir_graph.Node, Sizes], bool] = field(default_factory=dict)
    number: int | None = None
    session: ort.Session | None = None
    threads: int = 1
    fallback: Mapping[str, Option] = field(default_factory=dict)
    tried: dict[str, set[Option]] = field(default_factory=dict)
    original: Original | None = None

    def executable(self) -> OnGpu:
        """Return the executable; nothing is compiled yet."""
        about = self.ports(), self.names(), self.precision, self.device
        return OnGpu(*about, lambda: self, number=self.number)

    def ports(self) -> tuple[Port, ...]:
        return tuple(port(i, i in self.model.input_defaults) for i in self.model.graph.inputs)

    def names(self) -> tuple[str, ...]:
        """Return the names of the outputs."""
        return tuple(v.name or "" for v in self.model.source.model.graph.outputs)

    def default(self, name: str) -> np.ndarray:
        """Return the model's default value of an input."""
        (found,) = (v for i, v in self.model.input_defaults.items() if i.name == name)
        assert found.const_value is not None
        return found.const_value.numpy()

    def sizes(self, arrays: Sequence[np.ndarray]) -> dict[str, int]:
        """Return the symbolic sizes. Raises UsageError if shapes do not fit."""
        try:
            return infer_sizes(dict(zip(self.model.graph.inputs, arrays, strict=True)), Reals())
        except ValueError as e:
            raise UsageError("the inputs do not fit", str(e), "pass other shapes") from None

    def compiled(self, sizes: Mapping[str, int], options: Mapping[str, str]) -> Variant:
        """Return the steps for inputs of these sizes. options: of problems, by key, as they were
        compiled before."""
        if options:
            own = {key: Option.parse(text) for key, text in options.items()}
            return replace(self, chosen={**self.chosen, **own}).compiled(sizes, {})
        none = self.session is None and 0 in sizes.values()  # tensor expressions require sizes >= 1
        made = () if none else self.steps(self.model, sizes)
        if none or (sizes and not self.session and any(isinstance(s, Foreign) for s in made)):
            # With these sizes the model may have known shapes.
            key = tuple(sorted(sizes.items()))
            if key not in self.fixed:
                if len(self.fixed) >= MOST_FIXED:
                    self.fixed.clear()
                    self.little.clear()
                self.fixed[key] = sized(self.model, sizes)
            if (other := self.fixed[key]) is not None:
                return Variant(other, self.steps(other, {}))
        out = self.elsewhere() if none else None
        return out or Variant(self.model, made or self.steps(self.model, sizes))

    def steps(self, model: Model, sizes: Mapping[str, int]) -> tuple[Part | Foreign, ...]:
        while True:
            out: list[Part | Foreign] = []
            native = partial(self.native_node, sizes=sizes)
            for s in partition_by_cost(model.graph, native, sizes, units(model)):
                try:
                    out.append(self.part(s, sizes) if s.native else self.foreign(model, s, sizes))
                except NO_KERNEL_ERRORS as e:
                    self.without |= self.blamed(s, sizes) or dict.fromkeys(s.nodes, str(e))
                    break
            else:
                return tuple(out)

    def foreign(self, model: Model, s: Segment, sizes: Mapping[str, int]) -> Foreign:
        if self.session is None:
            return foreign(model, s, self.threads, sizes, self.original)
        return unread(model, s, self.session)

    def native_node(self, n: ir_graph.Node, sizes: Mapping[str, int]) -> bool:
        """True if a node runs as a kernel."""
        return not self.why_not(n, sizes)

    def why_not(self, n: ir_graph.Node, sizes: Mapping[str, int]) -> str:
        """Return why a node runs in ONNX Runtime; empty if it runs as a kernel."""
        why = self.without.get(n) or unsupported_reason(n, sizes, MAX_UNROLLED_STEPS_GPU)
        if why or ort.available() is None or not (slow := slow_reason(n, sizes)):
            return why
        key = n, tuple(sizes.items())
        if key not in self.little:
            self.little[key] = self.operations(n, sizes) <= LITTLE
        return "" if self.little[key] else slow

    def operations(self, n: ir_graph.Node, sizes: Mapping[str, int]) -> float:
        """Return the operations of a node's kernels; infinite if it has none."""
        try:
            made = self.program(_alone(n), sizes)
        except NO_KERNEL_ERRORS:
            return inf
        return float(sum(count_operations(p.tensor) for p in made.problems.values()))

    def outside(self, made: Variant, e: Unlike) -> None:
        """Run the whole model in ONNX Runtime from now on."""
        self.without |= whole(made.model.graph, e) | whole(self.model.graph, e)

    def elsewhere(self) -> Variant | None:
        """Return the whole model in ONNX Runtime, for any sizes; None if it is not installed."""
        if ort.available() is None or self.session is not None:
            return None
        own = dict.fromkeys(ir_graph.nodes(self.model.graph), "not compiled for these sizes yet")
        made = replace(self, without=own, fixed={}, little={}, threads=os.cpu_count() or 1)
        return made.compiled({}, {})

    def run(self, made: Variant, arrays: Sequence[Any]) -> dict[str, Any]:
        """Return the outputs by name as numpy arrays, for the inputs in order."""
        return dict(zip(self.names(), made.run([*arrays], ""), strict=True))

    def fallen(self, made: Variant, sizes: Mapping[str, int]) -> list[tuple[ir_graph.Node, str]]:
        """Return the nodes that run in ONNX Runtime, each with the reason."""
        return [(n, self.why_not(n, sizes) or TOO_SMALL_REASON) for n in made.fallen()]

    def blamed(self, s: Segment, sizes: Mapping[str, int]) -> dict[ir_graph.Node, str]:
        """Return the nodes of a segment that have no kernel, each with the reason."""
        out = {}
        for n in s.nodes:
            try:
                for kernel in self.program(_alone(n), sizes).kernels.values():
                    triton_text(kernel, self.dots)
            except NO_KERNEL_ERRORS as e:
                out[n] = str(e)
        return out

    @property
    def dots(self) -> str:
        """The precision of fp32 products, as Triton names it."""
        return PRECISIONS[self.precision][1]

    @property
    def may(self) -> May:
        """The allowed kinds of kernels; see gpu_space.options."""
        if self.float_class >= FORMS:
            return {"vendor": self.vendor}
        return {"vendor": self.vendor, "forms": False}

    def program(self, s: Segment, sizes: Mapping[str, int]) -> Program:
        # Products with a common operand become one batched product (batched_gemm.py), which needs
        # fewer launches than rows of one matrix: NASRNN takes 30 us, and 40 us the other way.
        graph = simplify_graph(segment_graph(s), self.float_class, 1, False, s.sensitive_outputs)
        kind, dots = PRECISIONS[self.precision]
        drops = TF32_DROPPED_BITS if dots == "tf32" else 0
        choose = partial(gpu_space.choose, **self.may)
        if self.fallback:
            choose = partial(gpu_space.choose, **self.may, fallback=self.fallback)
        streams = partial(on_gpu_streams, max_streams=self.streams) if self.streams > 1 else None
        target = gpu_target(
            choose,
            fuses_attention=self.float_class >= ONLINE,
            storage_dtype=kind,
            dropped_bits=drops,
            min_parallel_elements=PARTS,
            assign_streams=streams,
        )
        settings = Settings(WIDTH, self.chosen, allow_winograd=False, target=target)
        return plan_program(graph, sizes, settings)

    def part(self, s: Segment, sizes: Mapping[str, int]) -> Part:
        checked_windows(self.model, s.nodes, sizes)
        ins, outs = ([_spec(v, sizes) for v in x] for x in (s.inputs, s.outputs))
        label, options = self.model.source.label, partial(gpu_space.options, **self.may)
        while True:
            made = self.program(s, sizes)
            try:
                return Part(s, made, started(label, made, ins, outs, self.device, self.dots))
            except TritonCompileError as e:
                other = another(label, made, e, options, self.tried)
                self.chosen = {**self.chosen, **other}

    def tune(
        self, made: Variant, store: Store | None, budget: float, most: int, seen: Seen,
        stop: Callable[[], bool],
    ) -> Tuned:  # fmt: skip
        """Find faster options for the kernels of these steps, and use them from now on."""
        programs = [p.program for p in made.parts]
        options = partial(gpu_space.options, **self.may)
        found = tuned(programs, options, self.device, self.dots, store, budget, most, seen, stop)
        self.chosen = {**self.chosen, **found.chosen}
        return found.report

    def keep(self, key: str, sizes: Sizes, made: Variant) -> None:
        """Store what was compiled for these sizes, under a model's key."""
        keep(key, sizes, made, self.device, self.dots)

    def profile(self, exe: OnGpu, feeds: Mapping[str, Any] | None, seconds: float) -> Profile:
        return profile(exe, feeds, {}, seconds)

    def accuracy(self, exe: OnGpu, shapes: Mapping[str, int], sets: int) -> Accuracy:
        return accuracy(exe, shapes, sets)

    def save(self, made: Mapping[Sizes, Variant], path: Path) -> None:
        if self.session is not None:
            raise unsaved(self.model, self.without)
        how = {k: o for v in made.values() for p in v.parts for k, o in p.program.options.items()}
        held = Saved(
            self.model.source, 1, WIDTH, Allowed(self.float_class), how,
            tuple(map(dict, made)), {}, "cuda", self.precision, self.vendor, self.streams,
        )  # fmt: skip
        write(held, path)


def _alone(n: ir_graph.Node) -> Segment:
    inputs = tuple(v for v in n.inputs if v is not None and not isinstance(v, ir_graph.Constant))
    return Segment((n,), True, tuple(dict.fromkeys(inputs)), ir_graph.results(n))


def _spec(v: ir_graph.Value, sizes: Mapping[str, int]) -> tuple[tuple[int, ...], DType]:
    assert v.type.dtype is not None
    return tuple(shape_at(v.type, sizes)), v.type.dtype


def compile(
    source: Source,
    precision: str = "fp32",
    float_class: str = "E2",
    store: Path | None = None,
    vendor: bool = True,
    streams: int = STREAMS,
) -> OnGpu:
    """Return the executable of a model, which is compiled when the sizes of its inputs are known;
    see `tuned_compiler`."""
    return compiler(source, precision, float_class, store, vendor, streams).executable()


def compiler(
    source: Source,
    precision: str = "fp32",
    float_class: str = "E2",
    store: Path | None = None,
    vendor: bool = True,
    streams: int = STREAMS,
    number: int | None = None,
) -> Compiler:
    """Return the compiler of a model. store: the file of measurements, if not in the user's cache.
    vendor: allow vendor libraries. streams: maximum number, for branches. gpu_number: None for the
    current GPU.

    Raises ModelError for an invalid model; UsageError if there is no GPU, or for an unknown
    precision or number of streams.
    """
    if precision not in PRECISIONS:
        raise UsageError(
            f"precision {precision!r}", f"precisions are {', '.join(PRECISIONS)}", "use one of them"
        )
    if type(streams) is not int or not 1 <= streams <= MOST_STREAMS:
        some = f"it must be an integer in [1, {MOST_STREAMS}]"
        raise UsageError(f"streams {streams!r}", some, "use another number")
    try:
        own = current_gpu_number(where := execution_device())  # initialises torch's GPUs
        number = own if number is None else number
    except RuntimeError as e:
        raise UsageError("target cuda", str(e), TODO) from None
    with Store.open(store) as held, use_gpu(number):
        chosen = known(held, where, PRECISIONS[precision][1], vendor)
        ours = known(held, where, PRECISIONS[precision][1], False) if float_class < FORMS else {}
    how = precision, where, float_class, vendor, streams, chosen
    given = readable(source, 1)
    out = Compiler(import_model(given.source), *how, number=number, session=given.session)
    out.fallback, out.original = ours, Original(given.given, out.threads)
    if given.session is not None:
        out.without |= dict.fromkeys(ir_graph.nodes(out.model.graph), given.why)
    return out


def loaded(s: Saved) -> OnGpu:
    """Return the executable of a model that `CudaExecutable.save` wrote."""
    how = s.precision, s.allowed.float_class
    made = compiler(s.source, *how, vendor=s.vendor, streams=s.streams)
    made.chosen = {**made.chosen, **s.options}
    out = made.executable()
    for sizes in s.sizes:
        out.variant(sizes)
    return out
