"""The steps of a compiled model on a GPU: segments as kernels, and others in ONNX Runtime on the
CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from superopt.compilation.fallback.ort_segment import OrtSegment, ValueArrays
from superopt.ir import graph
from superopt.kernels.cuda.input_aliasing import WrittenRanges
from superopt.kernels.runtime.gpu_device import to_array, to_device
from superopt.kernels.runtime.gpu_program import GpuProgram
from superopt.onnx_io.import_.model import Model
from superopt.plan.graph.partition import Segment
from superopt.plan.program.program import Program


@dataclass(frozen=True, slots=True)
class GpuSegment:
    """A segment as kernels, with its memory."""

    segment: Segment
    program: Program
    gpu_program: GpuProgram

    def run(self, env: ValueArrays) -> None:
        """Run the segment. Its outputs are tensors on the device that it owns."""
        self.gpu_program.run([env[v] for v in self.segment.inputs])
        env.update(zip(self.segment.outputs, self.gpu_program.outputs, strict=True))


@dataclass(frozen=True, slots=True)
class _ModelBinding:
    """A segment that is the whole model: which of the model's inputs it reads, and which of its
    outputs is each of the model's."""

    gpu_program: GpuProgram
    input_numbers: tuple[int, ...]
    output_numbers: tuple[int, ...]

    @classmethod
    def from_steps(
        cls, model: Model, steps: Sequence[GpuSegment | OrtSegment]
    ) -> _ModelBinding | None:
        """Return the binding; None if a call needs other steps."""
        part = steps[0] if len(steps) == 1 else None
        if not isinstance(part, GpuSegment):
            return None
        inputs, outputs = model.graph.inputs, part.segment.outputs
        if not ({*model.graph.outputs} <= {*outputs} and {*part.segment.inputs} <= {*inputs}):
            return None
        takes = tuple(map(inputs.index, part.segment.inputs))
        return cls(part.gpu_program, takes, tuple(map(outputs.index, model.graph.outputs)))

    def run(self, arrays: Sequence[Any]) -> list[Any]:
        self.gpu_program.run([arrays[n] for n in self.input_numbers])
        return [self.gpu_program.outputs[n] for n in self.output_numbers]


@dataclass(frozen=True, slots=True)
class Variant:
    """A model compiled for given sizes. model: the model itself, or that for these sizes alone."""

    model: Model
    steps: tuple[GpuSegment | OrtSegment, ...]
    _binding: _ModelBinding | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_binding", _ModelBinding.from_steps(self.model, self.steps))

    @property
    def gpu_segments(self) -> tuple[GpuSegment, ...]:
        return tuple(s for s in self.steps if isinstance(s, GpuSegment))

    @property
    def program(self) -> Program:
        """The program of the only segment."""
        (part,) = self.gpu_segments
        return part.program

    @property
    def gpu_program(self) -> GpuProgram:
        """The loaded program of the only segment."""
        (part,) = self.gpu_segments
        return part.gpu_program

    @property
    def gpu_number(self) -> int | None:
        """The number of the GPU that its kernels run on."""
        return next((p.gpu_program.number for p in self.gpu_segments), None)

    @property
    def device_bytes(self) -> int:
        """Its bytes of device memory."""
        return sum(p.gpu_program.memory_bytes for p in self.gpu_segments)

    def input_buffers(self) -> dict[int, Any]:
        """Return the tensors that inputs are read from, by input number; empty if there are several
        segments, which copy inputs."""
        if len(self.steps) != 1 or not self.gpu_segments:
            return {}
        numbers = {v: n for n, v in enumerate(self.model.graph.inputs)}
        (part,) = self.gpu_segments
        own = zip(part.segment.inputs, part.gpu_program.inputs, strict=True)
        return {numbers[v]: x for v, x in own if v in numbers}

    def run(self, arrays: list[Any], device: str) -> list[Any]:
        """Return the outputs for inputs in order: on this device, or as numpy arrays if it is
        empty."""
        if device and self._binding is not None:
            return self._binding.run(arrays)
        runs = [p.gpu_program for p in self.gpu_segments]
        for r in runs if len(runs) > 1 else ():  # else one would overwrite what another still reads
            r.wait_for_last_run()
        passed = any(isinstance(v, graph.Input) for v in self.model.graph.outputs)
        if passed or len(self.steps) > 1:  # a later step may read what a step writes
            written = (x for r in runs for x in (*r.inputs, *r.outputs))
            arrays = WrittenRanges.from_tensors(written).copy_aliased(arrays)
        env: ValueArrays = dict(zip(self.model.graph.inputs, arrays, strict=True))
        for step in self.steps:
            run_step(step, env)
        out = []
        for v in self.model.graph.outputs:
            x = env[v] if v in env else _constant_value(v)
            if isinstance(v, graph.Input):
                x = _copy(x)
            out.append(to_device(x, device) if device else to_host(x))
        return out

    def fallback_nodes(self) -> tuple[graph.Node, ...]:
        """Return the nodes that run in ONNX Runtime."""
        return tuple(n for s in self.steps if isinstance(s, OrtSegment) for n in s.segment.nodes)


def run_step(step: GpuSegment | OrtSegment, env: ValueArrays) -> None:
    """Run a step; steps on the CPU get their inputs there."""
    if isinstance(step, GpuSegment):
        step.run(env)
        return
    held = {v: to_host(env[v]) for v in step.inputs.values()}
    step.run(held)
    env.update(held)


def to_host(x: Any) -> Any:
    """Return a value as a numpy array."""
    return to_array(x) if type(x).__module__.startswith("torch") else x


def _copy(x: Any) -> Any:
    """Return a copy: an input that is also an output must not be shared with the caller."""
    if type(x).__module__.startswith("torch"):
        return x.clone()
    return x if x is None else x.copy()


def _constant_value(v: graph.Value) -> Any:
    assert isinstance(v, graph.Constant)
    return v.load()
