"""The steps of a compiled model on a GPU: segments as kernels, and others in ONNX Runtime on the
CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from superopt.ir import graph
from superopt.kernels.cuda.input_aliasing import WrittenRanges
from superopt.kernels.runtime.gpu_device import to_array, to_device
from superopt.kernels.runtime.gpu_program import GpuProgram
from superopt.onnx_io.import_.model import Model
from superopt.pipeline.foreign import Arrays, Foreign
from superopt.plan.graph.partition import Segment
from superopt.plan.program.program import Program


@dataclass(frozen=True, slots=True)
class Part:
    """A segment as kernels, with its memory."""

    segment: Segment
    program: Program
    running: GpuProgram

    def run(self, env: Arrays) -> None:
        """Run the segment. Its outputs are tensors on the device that it owns."""
        self.running.run([env[v] for v in self.segment.inputs])
        env.update(zip(self.segment.outputs, self.running.outputs, strict=True))


@dataclass(frozen=True, slots=True)
class _Whole:
    """A segment that is the whole model: which of the model's inputs it reads, and which of its
    outputs is each of the model's."""

    running: GpuProgram
    takes: tuple[int, ...]
    gives: tuple[int, ...]

    @classmethod
    def of(cls, model: Model, steps: Sequence[Part | Foreign]) -> _Whole | None:
        """Return the binding; None if a call needs other steps."""
        part = steps[0] if len(steps) == 1 else None
        if not isinstance(part, Part):
            return None
        inputs, outputs = model.graph.inputs, part.segment.outputs
        if not ({*model.graph.outputs} <= {*outputs} and {*part.segment.inputs} <= {*inputs}):
            return None
        takes = tuple(map(inputs.index, part.segment.inputs))
        return cls(part.running, takes, tuple(map(outputs.index, model.graph.outputs)))

    def run(self, given: Sequence[Any]) -> list[Any]:
        self.running.run([given[n] for n in self.takes])
        return [self.running.outputs[n] for n in self.gives]


@dataclass(frozen=True, slots=True)
class Variant:
    """A model compiled for given sizes. model: the model itself, or that for these sizes alone."""

    model: Model
    steps: tuple[Part | Foreign, ...]
    _whole: _Whole | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_whole", _Whole.of(self.model, self.steps))

    @property
    def parts(self) -> tuple[Part, ...]:
        return tuple(s for s in self.steps if isinstance(s, Part))

    @property
    def program(self) -> Program:
        """The program of the only segment."""
        (part,) = self.parts
        return part.program

    @property
    def running(self) -> GpuProgram:
        """The loaded program of the only segment."""
        (part,) = self.parts
        return part.running

    @property
    def number(self) -> int | None:
        """The number of the GPU that its kernels run on."""
        return next((p.running.number for p in self.parts), None)

    @property
    def bytes(self) -> int:
        """Its bytes of device memory."""
        return sum(p.running.memory_bytes for p in self.parts)

    def buffers(self) -> dict[int, Any]:
        """Return the tensors that inputs are read from, by input number; empty if there are several
        segments, which copy inputs."""
        if len(self.steps) != 1 or not self.parts:
            return {}
        numbers = {v: n for n, v in enumerate(self.model.graph.inputs)}
        (part,) = self.parts
        own = zip(part.segment.inputs, part.running.inputs, strict=True)
        return {numbers[v]: x for v, x in own if v in numbers}

    def run(self, given: list[Any], there: str) -> list[Any]:
        """Return the outputs for inputs in order: on this device, or as numpy arrays if it is
        empty."""
        if there and self._whole is not None:
            return self._whole.run(given)
        runs = [p.running for p in self.parts]
        for r in runs if len(runs) > 1 else ():  # else one would overwrite what another still reads
            r.wait_for_last_run()
        passed = any(isinstance(v, graph.Input) for v in self.model.graph.outputs)
        if passed or len(self.steps) > 1:  # a later step may read what a step writes
            written = (x for r in runs for x in (*r.inputs, *r.outputs))
            given = WrittenRanges.from_tensors(written).copy_aliased(given)
        env: Arrays = dict(zip(self.model.graph.inputs, given, strict=True))
        for step in self.steps:
            advance(step, env)
        out = []
        for v in self.model.graph.outputs:
            x = env[v] if v in env else _constant(v)
            if isinstance(v, graph.Input):
                x = _copied(x)
            out.append(to_device(x, there) if there else host(x))
        return out

    def fallen(self) -> tuple[graph.Node, ...]:
        """Return the nodes that run in ONNX Runtime."""
        return tuple(n for s in self.steps if isinstance(s, Foreign) for n in s.segment.nodes)


def advance(step: Part | Foreign, env: Arrays) -> None:
    """Run a step; steps on the CPU get their inputs there."""
    if isinstance(step, Part):
        step.run(env)
        return
    held = {v: host(env[v]) for v in step.given.values()}
    step.run(held)
    env.update(held)


def host(x: Any) -> Any:
    """Return a value as a numpy array."""
    return to_array(x) if type(x).__module__.startswith("torch") else x


def _copied(x: Any) -> Any:
    """Return a copy: an input that is also an output must not be shared with the caller."""
    if type(x).__module__.startswith("torch"):
        return x.clone()
    return x if x is None else x.copy()


def _constant(v: graph.Value) -> Any:
    assert isinstance(v, graph.Constant)
    return v.load()
