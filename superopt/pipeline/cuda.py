"""`compile(target="cuda")`: a model as Triton kernels, one CUDA graph."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from superopt import ort
from superopt.cost.store import Store
from superopt.errors import ModelError, UsageError
from superopt.ir import graph as g
from superopt.ir.evaluate import bound_sizes
from superopt.kernels import gpu_space
from superopt.kernels.gpu_device import device, on_device, tensor, wait
from superopt.kernels.gpu_program import Call, running
from superopt.kernels.gpu_text import printed
from superopt.kernels.option import Option
from superopt.kernels.problem import Problem
from superopt.onnx_io.importer import import_model
from superopt.onnx_io.model import Model
from superopt.onnx_io.source import Source
from superopt.pipeline.accuracy import accuracy
from superopt.pipeline.allowed import Allowed
from superopt.pipeline.arrays import Port, as_array, sizes_of
from superopt.pipeline.foreign import Foreign, foreign
from superopt.pipeline.gpu_parts import Part, Variant
from superopt.pipeline.gpu_profile import profile
from superopt.pipeline.gpu_tune import known, tuned
from superopt.pipeline.outside import stated
from superopt.pipeline.ports import port, shape_at
from superopt.pipeline.saved import Saved, write
from superopt.pipeline.sized import sized
from superopt.plan.attention import on_gpu
from superopt.plan.build import Program, program
from superopt.plan.place import channels_last
from superopt.plan.segments import BESIDE, Segment, graph_of, why_not, why_slow, worthwhile
from superopt.plan.simplify import simplified
from superopt.plan.streams import on_gpu as on_gpu_streams
from superopt.plan.target import Target
from superopt.report.accuracy import Accuracy
from superopt.report.compiled import Tuned
from superopt.report.profile import Profile
from superopt.te.domain import Reals
from superopt.te.dtype import BF16, F16, DType

# By the name of a precision: how floats of 32 bits lie in memory, and how they are multiplied.
PRECISIONS: Mapping[str, tuple[DType | None, str]] = {
    "fp32": (None, "ieee"),
    "tf32": (None, "tf32"),
    "fp16": (F16, "ieee"),
    "bf16": (BF16, "ieee"),
}
TODO = (
    'pip install "superopt[gpu]", on a machine with an NVIDIA GPU; "superopt doctor" says what is '
    "there, and TRITON_INTERPRET=1 runs kernels on the processor, slowly"
)
NO_KERNEL = (NotImplementedError, RecursionError, ZeroDivisionError)
DROPPED = 13  # bits of a float32 that tf32 has not
ONLINE = "E2"  # the float class of a softmax by blocks
STREAMS, MOST_STREAMS = 4, 32  # unless others are asked for, and at most
WIDTH = 64  # bytes, of vectors that no GPU has: what a plan says of these does not hold


@dataclass(slots=True)
class OnGpu:
    """A model that was compiled for a GPU; for other sizes it is compiled again, once each.

    vendor: may products be computed by the vendor's library? streams: on how many branches may run
    that do not hang on each other, where that should pay. chosen: how problems are computed that
    were tuned, by their keys. without: nodes that turned out to have no kernel, and why. Calls from
    several threads wait for each other."""

    model: Model
    precision: str
    device: str
    float_class: str = "E2"
    vendor: bool = True
    streams: int = STREAMS
    chosen: Mapping[str, Option] = field(default_factory=dict)
    without: dict[g.Node, str] = field(default_factory=dict)
    variants: dict[tuple[tuple[str, int], ...], Variant] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def ports(self) -> tuple[Port, ...]:
        return tuple(port(i, i in self.model.overridable) for i in self.model.graph.inputs)

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(v.name or "" for v in self.model.source.model.graph.outputs)

    def __call__(self, **feeds: Any) -> dict[str, Any]:
        """The outputs by name, in the model's order; inputs are given by their names."""
        return self.run(feeds)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs by name. Inputs that are numpy's give numpy's; where all of them are tensors
        on the device the outputs are such, too: the program's own, which the next call writes
        again."""
        given = self.given(feeds)
        there = self.device if given and all(map(on_device, given)) else ""
        with self.lock:
            found = self.variant(self.sizes(given)).run(given, there)
        return dict(zip(self.outputs, found, strict=True))

    def prepared(self, feeds: Mapping[str, Any]) -> Callable[[], object]:
        """A run with these inputs, on the device already, as a call that waits for the outputs."""
        held = dict(feeds)
        if self.device == "cuda":  # in the interpreter arrays are as good
            held = {n: tensor(x, self.device) for n, x in feeds.items()}

        def run() -> object:
            out = self.run(held)
            wait(self.device)
            return out

        return run

    def given(self, feeds: Mapping[str, Any]) -> list[Any]:
        """The inputs' arrays, or tensors; raises UsageError where they are not as the model says.
        What is no tensor on the device, and none of numpy's, is read by DLPack."""
        if not isinstance(feeds, Mapping):
            raise UsageError(
                f"inputs are a {type(feeds).__name__}", "they are given by name", "give a dict"
            )
        names = {p.name for p in self.ports}
        for name in feeds:
            if name not in names:
                raise UsageError(
                    f"no input {name!r}", f"there are {', '.join(sorted(names)) or 'none'}",
                    "leave it out",
                )  # fmt: skip
        out = []
        for p in self.ports:
            if p.name not in feeds and p.optional:
                out.append(self.default(p.name))
                continue
            if p.name not in feeds:
                raise UsageError(
                    f"no value for input {p.name!r}", f"it is {p.text}", "give an array"
                )
            x = feeds[p.name]
            if on_device(x):
                shape, kind = tuple(x.shape), str(x.dtype).removeprefix("torch.")
                fits = p.shape is None or len(p.shape) == len(shape)
                if kind != str(p.dtype) or not fits:
                    raise UsageError(
                        f"input {p.name!r} is {kind}{list(shape)}", f"the model says {p.text}",
                        "give such a tensor",
                    )  # fmt: skip
                out.append(x)
            else:
                out.append(as_array(p, x))
        return out

    def default(self, name: str) -> np.ndarray:
        """The model's own value for an input."""
        (found,) = (v for i, v in self.model.overridable.items() if i.name == name)
        assert found.const_value is not None
        return found.const_value.numpy()

    def sizes(self, given: Sequence[Any]) -> dict[str, int]:
        """The symbolic sizes; raises UsageError where shapes do not fit."""
        blank = [np.broadcast_to(np.zeros((), p.dtype), tuple(x.shape))
                 for p, x in zip(self.ports, given, strict=True)]  # fmt: skip
        plain = sizes_of(self.ports, blank)
        if plain is not None:
            return plain
        try:
            return bound_sizes(dict(zip(self.model.graph.inputs, blank, strict=True)), Reals())
        except ValueError as e:
            raise UsageError("the inputs do not fit", str(e), "give other shapes") from None

    def variant(self, sizes: Mapping[str, int]) -> Variant:
        """The steps for inputs of these sizes."""
        key = tuple(sorted(sizes.items()))
        with self.lock:
            if key not in self.variants:
                self.variants[key] = self.compiled(sizes)
            return self.variants[key]

    def compiled(self, sizes: Mapping[str, int]) -> Variant:
        made = self._steps(self.model, sizes)
        if sizes and any(isinstance(s, Foreign) for s in made):
            # Shapes may be known of the model whose inputs have these sizes.
            other = sized(self.model, sizes)
            if other is not None:
                return Variant(other, self._steps(other, {}))
        return Variant(self.model, made)

    def _steps(self, model: Model, sizes: Mapping[str, int]) -> tuple[Part | Foreign, ...]:
        while True:
            out: list[Part | Foreign] = []
            for s in worthwhile(model.graph, lambda n: not self.why_not(n, sizes), sizes):
                try:
                    out.append(self.part(s, sizes) if s.native else foreign(model, s, 1))
                except NO_KERNEL as e:
                    self.without |= self.blamed(s, sizes) or dict.fromkeys(s.nodes, str(e))
                    break
            else:
                return tuple(out)

    def why_not(self, n: g.Node, sizes: Mapping[str, int]) -> str:
        """Why a node runs in onnxruntime; empty where it does not."""
        slow = why_slow(n, sizes) if ort.available() is not None else ""
        return self.without.get(n) or why_not(n, sizes) or slow

    def fallen(self, sizes: Mapping[str, int]) -> list[tuple[g.Node, str]]:
        """The nodes that run in onnxruntime, and why."""
        nodes = self.variant(sizes).fallen()
        return [(n, self.why_not(n, sizes) or BESIDE) for n in nodes]

    def blamed(self, s: Segment, sizes: Mapping[str, int]) -> dict[g.Node, str]:
        """The nodes of a segment that no kernel computes, each with why."""
        out = {}
        for n in s.nodes:
            inputs = tuple(v for v in n.inputs if v is not None and not isinstance(v, g.Constant))
            alone = Segment((n,), True, tuple(dict.fromkeys(inputs)), g.results(n))
            try:
                for kernel in self.program(alone, sizes).kernels.values():
                    printed(kernel, self.dots)
            except NO_KERNEL as e:
                out[n] = str(e)
        return out

    @property
    def dots(self) -> str:
        """The precision of products of float32, as Triton has it."""
        return PRECISIONS[self.precision][1]

    def program(self, s: Segment, sizes: Mapping[str, int]) -> Program:
        # Products of one operand are one there (plan/joint.py), which is less to launch than rows
        # of one matrix: NASRNN takes 30 us so, and 40 the other way.
        graph = simplified(graph_of(s), self.float_class, 1, rows=False)
        kind, dots = PRECISIONS[self.precision]
        drops = DROPPED if dots == "tf32" else 0
        fuses = on_gpu if self.float_class >= ONLINE else None
        choose = partial(gpu_space.choice, vendor=self.vendor)
        streams = partial(on_gpu_streams, most=self.streams) if self.streams > 1 else None
        target = Target(
            choose, channels_last, fuses, turns=False, joins=True, clears=False, compares=True,
            kind=kind, drops=drops, streams=streams,
        )  # fmt: skip
        return program(graph, sizes, WIDTH, self.chosen, tiles=False, target=target)

    def part(self, s: Segment, sizes: Mapping[str, int]) -> Part:
        made = self.program(s, sizes)
        constants = np.zeros(made.constant_bytes, np.uint8)
        for c in made.constants:
            c.write(constants)
        lanes = [(0, ())] * len(made.calls) if made.order is None else made.order.steps
        calls = [
            Call(made.kernels[c.function], c.given, *gpu_space.told(made.options[key]), *lane)
            for c, key, lane in zip(made.calls, made.solved, lanes, strict=True)
        ]
        ins, outs = ([_spec(v, sizes) for v in x] for x in (s.inputs, s.outputs))
        try:
            ready = running(
                calls, constants, made.memory, ins, outs, self.device, self.dots, kept=made.kept
            )
        except RuntimeError as e:
            if "out of memory" not in str(e):
                raise
            raise ModelError(
                f"{self.model.source.label}: out of memory on the device",
                f"its kernels need {made.constant_bytes + made.memory} bytes",
                "give smaller inputs, or free memory there",
            ) from None
        return Part(s, made, ready)

    def tune(
        self,
        sizes: Mapping[str, int],
        *,
        budget: float = 120.0,
        most: int = 12,
        store: Store | None = None,
        seen: Callable[[Problem, Mapping[Option, float]], None] = lambda p, found: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> Tuned:
        """Measure which ways to compute the model's kernels are the fastest, of the `most` that
        should be, and take them from now on; those with the most to do first.

        sizes: of symbolic dimensions. budget: seconds. store: where it is written down; what is
        there is not measured again. seen: told of each problem what was found.
        """
        programs = [p.program for p in self.variant(sizes).parts]
        options = partial(gpu_space.options, vendor=self.vendor)
        found = tuned(programs, options, self.device, self.dots, store, budget, most, seen, stop)
        with self.lock:
            self.chosen = {**self.chosen, **found.chosen}
            self.variants.clear()
        self.variant(sizes)
        return found.report

    def profile(self, feeds: Mapping[str, Any] | None = None, *, seconds: float = 2.0) -> Profile:
        """How long each kernel takes alone, its memory warm, and how long it must take at least on
        this GPU; `print` it for a table, its `svg()` is a picture. feeds: inputs by name; else they
        are drawn. seconds: for all of it, about."""
        return profile(self, feeds, {}, seconds)

    def accuracy(self, shapes: Mapping[str, int] | None = None, *, sets: int = 2) -> Accuracy:
        """How far outputs are from the original's in float64, on so many sets of drawn inputs, and
        whether that is within the precision's tolerance; `print` it for a table. shapes: symbolic
        sizes. It evaluates the whole model twice for each set, on the processor."""
        return accuracy(self, shapes or {}, sets)

    def export(self, path: str | Path, **how: Any) -> None:
        """Raises UsageError: C programs run on a processor."""
        raise UsageError(
            f"{self.model.source.label} is for a GPU", "what is exported runs on a processor",
            'compile it for target="cpu"',
        )  # fmt: skip

    def save(self, path: str | Path) -> None:
        """Write the compiled model to a file, for `superopt.load`: the model, and how each kernel
        is computed. Raises UsageError where it cannot be written."""
        sizes = tuple(dict(key) for key in self.variants)
        how = {k: o for v in self.variants.values() for p in v.parts
               for k, o in p.program.options.items()}  # fmt: skip
        allowed = Allowed(self.float_class)
        held = Saved(self.model.source, 1, WIDTH, allowed, how, sizes, {}, "cuda", self.precision)
        write(held, Path(path))


def _spec(v: g.Value, sizes: Mapping[str, int]) -> tuple[tuple[int, ...], DType]:
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
    """The model of a source. store: where it is written how kernels were tuned, if not in the
    user's cache. vendor: may the vendor's library compute products? streams: for branches, at most.

    Raises ModelError for an invalid model; UsageError where there is no GPU, and for another
    precision, or so many streams.
    """
    if precision not in PRECISIONS:
        raise UsageError(
            f"precision {precision!r}", f"there are {', '.join(PRECISIONS)}", "use one of them"
        )
    if type(streams) is not int or not 1 <= streams <= MOST_STREAMS:
        some = f"it is a whole number from 1 to {MOST_STREAMS}"
        raise UsageError(f"streams {streams!r}", some, "give another")
    try:
        where = device()
    except RuntimeError as e:
        raise UsageError("target cuda", str(e), TODO) from None
    with Store.open(store) as held:
        chosen = known(held, where, PRECISIONS[precision][1])
    return OnGpu(_model(source), precision, where, float_class, vendor, streams, chosen)


def loaded(s: Saved) -> OnGpu:
    """What `OnGpu.save` wrote."""
    out = compile(s.source, s.precision, s.allowed.float_class)
    out.chosen = {**out.chosen, **s.options}
    for sizes in s.sizes:
        out.variant(sizes)
    return out


def _model(source: Source) -> Model:
    """Also of one that leaves out what onnxruntime tells."""
    return import_model(stated(source, 1))
