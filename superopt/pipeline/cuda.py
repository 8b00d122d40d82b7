"""`compile(target="cuda")`: a model as Triton kernels, one CUDA graph."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import prod
from typing import Any

import numpy as np

from superopt.errors import ModelError, UsageError
from superopt.ir import graph as g
from superopt.ir.evaluate import bound_sizes
from superopt.kernels import gpu_space
from superopt.kernels.gpu_device import array, device, on_device, put
from superopt.kernels.gpu_program import Call, Running, running
from superopt.kernels.option import Option
from superopt.kernels.problem import Problem
from superopt.onnx_io.importer import import_model
from superopt.onnx_io.model import Model
from superopt.onnx_io.source import Source
from superopt.pipeline.arrays import Port, as_array, sizes_of
from superopt.pipeline.ports import port, shape_at
from superopt.plan.attention import on_gpu
from superopt.plan.build import Program, program
from superopt.plan.gpu_measure import seconds
from superopt.plan.place import channels_last
from superopt.plan.segments import Segment, graph_of, segments, why_not
from superopt.plan.simplify import simplified
from superopt.plan.target import Target
from superopt.te.domain import Reals
from superopt.te.dtype import BF16, F16, DType

# By the name of a precision: how floats of 32 bits lie in memory, and how they are multiplied.
PRECISIONS: Mapping[str, tuple[DType | None, str]] = {
    "fp32": (None, "ieee"),
    "tf32": (None, "tf32"),
    "fp16": (F16, "ieee"),
    "bf16": (BF16, "ieee"),
}
TODO = 'pip install "superopt[gpu]", on a machine with an NVIDIA GPU; "superopt doctor" says more'
DROPPED = 13  # bits of a float32 that tf32 has not
ONLINE = "E2"  # the float class of a softmax by blocks
WIDTH = 64  # bytes, of vectors that no GPU has: what a plan says of these does not hold


@dataclass(slots=True)
class Planned:
    """A program for given sizes, on the device: its inputs and outputs by number."""

    program: Program
    running: Running
    takes: tuple[int, ...]
    gives: tuple[int, ...]


@dataclass(slots=True)
class OnGpu:
    """A model that was compiled for a GPU; for other sizes it is compiled again, once each."""

    model: Model
    precision: str
    device: str
    float_class: str = "E2"
    chosen: Mapping[str, Option] = field(default_factory=dict)
    variants: dict[tuple[tuple[str, int], ...], Planned] = field(default_factory=dict)
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
        there = bool(given) and all(map(on_device, given))
        with self.lock:
            made = self.variant(self.sizes(given))
            r = made.running
            for n, x in zip(made.takes, r.inputs, strict=True):
                put(x, given[n])
            r()
            found = [r.outputs[n] if there else array(r.outputs[n]) for n in made.gives]
        return dict(zip(self.outputs, found, strict=True))

    def given(self, feeds: Mapping[str, Any]) -> list[Any]:
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

    def variant(self, sizes: Mapping[str, int]) -> Planned:
        key = tuple(sorted(sizes.items()))
        if key not in self.variants:
            self.variants[key] = self.planned(sizes)
        return self.variants[key]

    def tune(
        self,
        sizes: Mapping[str, int],
        *,
        budget: float = 120.0,
        most: int = 12,
        seen: Callable[[Problem, Mapping[Option, float]], None] = lambda p, found: None,
    ) -> Mapping[str, Option]:
        """Measure which ways to compute the model's kernels are the fastest, of the `most` that
        should be, and take them from now on; those with the most to do first.

        sizes: of symbolic dimensions. budget: seconds. seen: told of each problem what was found.
        """
        made, end = self.variant(sizes).program, time.monotonic() + budget
        how, dots = dict(self.chosen), PRECISIONS[self.precision][1]
        by_work = sorted(made.problems, key=lambda key: -prod(made.problems[key].numbers()[:2]))
        for key in by_work if self.device == "cuda" else ():
            some = list(islice(gpu_space.options(made.problems[key]), most))
            if len(some) < 2 or key in how:
                continue
            if time.monotonic() > end:
                break
            found = seconds(made.problems[key], some, dots)
            if found:
                how[key] = min(found, key=lambda o: found[o])
            seen(made.problems[key], found)
        with self.lock:
            self.chosen = how
            self.variants.clear()
        return how

    def planned(self, sizes: Mapping[str, int]) -> Planned:
        s = self.segment(sizes)
        graph = simplified(graph_of(s), self.float_class, 1)
        kind, dots = PRECISIONS[self.precision]
        drops = DROPPED if dots == "tf32" else 0
        fuses = on_gpu if self.float_class >= ONLINE else None
        target = Target(gpu_space.choice, channels_last, fuses, False, True, kind, drops)
        try:
            made = program(graph, sizes, WIDTH, self.chosen, tiles=False, target=target)
            constants = np.zeros(made.constant_bytes, np.uint8)
            for c in made.constants:
                c.write(constants)
            calls = [
                Call(
                    made.kernels[c.function], c.given, *gpu_space.told(made.options[made.solved[n]])
                )
                for n, c in enumerate(made.calls)
            ]
            ins, outs = ([_spec(v, sizes) for v in x] for x in (graph.inputs, graph.outputs))
            ready = running(calls, constants, made.memory, ins, outs, self.device, dots)
        except NotImplementedError as e:
            raise ModelError(
                f"{self.model.source.label}: it has no kernels for a GPU", str(e),
                'compile it for target="cpu"',
            ) from None  # fmt: skip
        except RuntimeError as e:
            if "out of memory" not in str(e):
                raise
            raise ModelError(
                f"{self.model.source.label}: out of memory on the device",
                f"its kernels need {made.constant_bytes + made.memory} bytes",
                "give smaller inputs, or free memory there",
            ) from None
        inputs = self.model.graph.inputs
        takes = tuple(inputs.index(v) for v in s.inputs if isinstance(v, g.Input))
        gives = tuple(s.outputs.index(v) for v in self.model.graph.outputs)
        return Planned(made, ready, takes, gives)

    def segment(self, sizes: Mapping[str, int]) -> Segment:
        """The whole model, all nodes of which have kernels. Raises ModelError where not so."""
        graph = self.model.graph
        for n in g.nodes(graph):
            if why := why_not(n, sizes):
                raise ModelError(
                    f"{self.model.source.label}: {n.op.name} has no kernel for a GPU", why,
                    'compile it for target="cpu"',
                )  # fmt: skip
        found = segments(graph, lambda n: True)
        known = found[0].outputs if len(found) == 1 else ()
        for v in graph.outputs:
            if v not in known:
                raise ModelError(
                    f"{self.model.source.label}: an output is an input, or a constant",
                    "nothing is computed", 'compile it for target="cpu"',
                )  # fmt: skip
        return found[0]


def _spec(v: g.Value, sizes: Mapping[str, int]) -> tuple[tuple[int, ...], DType]:
    assert v.type.dtype is not None
    return tuple(shape_at(v.type, sizes)), v.type.dtype


def compile(source: Source, precision: str, float_class: str = "E2") -> OnGpu:
    """The model of a source. Raises ModelError for an invalid one; UsageError where there is no
    GPU, and for another precision."""
    if precision not in PRECISIONS:
        raise UsageError(
            f"precision {precision!r}", f"there are {', '.join(PRECISIONS)}", "use one of them"
        )
    try:
        where = device()
    except RuntimeError as e:
        raise UsageError("target cuda", str(e), TODO) from None
    return OnGpu(import_model(source), precision, where, float_class)
