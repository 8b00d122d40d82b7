"""A segment whose kernels are interpreted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from superopt.compilation.frontend.graph_ports import numpy_dtype, static_shape
from superopt.compilation.model.steps import KernelStep, ModelBinding, ValueArrays
from superopt.kernels.llvm.calls import Call, Ref
from superopt.kernels.loops.interpret import run_kernel
from superopt.plan.graph.partition import Segment
from superopt.plan.program.program import Program
from superopt.te.expr.dtype import to_numpy
from superopt.te.expr.tensor import Tensor


@dataclass(frozen=True, slots=True)
class ReferenceSegment(KernelStep):
    """A segment with the memory of its program. constants: the bytes of all of them."""

    segment: Segment
    program: Program
    sizes: Mapping[str, int]
    constants: np.ndarray
    binding: ModelBinding | None = None

    @classmethod
    def load(
        cls, s: Segment, program: Program, sizes: Mapping[str, int], binding: ModelBinding | None
    ) -> ReferenceSegment:
        """Return the segment with its constants, as kernels read them."""
        constants = np.zeros(program.constant_bytes, np.uint8)
        for c in program.constants:
            c.write(constants[c.offset : c.offset + c.bytes])
        return cls(s, program, sizes, constants, binding)

    def run(self, env: ValueArrays) -> None:
        found = self._compute([env[v] for v in self.segment.inputs])
        env.update(zip(self.segment.outputs, found, strict=True))

    def run_bound(self, arrays: Sequence[Any], *, on_device: bool) -> list[Any]:
        assert self.binding is not None
        found = self._compute([arrays[n] for n in self.binding.input_numbers])
        return [found[n] for n in self.binding.output_numbers.values()]

    def constant_blocks(self) -> Mapping[int, int]:
        return {id(self.constants): self.constants.nbytes}

    def work_blocks(self) -> Mapping[int, int]:
        return {}  # memory of a call, freed at its end

    def _compute(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the outputs of the segment: its calls, in order, on a new memory."""
        outputs = [
            np.empty(static_shape(v.type, self.sizes), numpy_dtype(v.type))
            for v in self.segment.outputs
        ]
        regions = {
            "memory": [np.zeros(self.program.memory_bytes, np.uint8)],
            "constant": [self.constants],
            "argument": [a.reshape(-1).view(np.uint8) for a in (*inputs, *outputs)],
        }
        for call, step in self._calls():
            kernel = self.program.kernels[call.function]
            pairs = zip(kernel.params, call.arguments, strict=True)
            run_kernel(kernel, [_buffer(regions, t, r, step) for t, r in pairs])
        return outputs

    def _calls(self) -> Iterator[tuple[Call, int]]:
        """Yield the calls of kernels in order, with the iteration of the loop around them."""
        for c in self.program.calls:
            if isinstance(c, Call):
                yield c, 0
                continue
            for lane in c.lanes:
                yield from ((call, step) for step in range(c.steps) for call in lane)


def _buffer(
    regions: Mapping[str, Sequence[np.ndarray]], t: Tensor, r: Ref, step: int
) -> np.ndarray:
    """Return the buffer at an address (kernels/llvm/calls.py), in an iteration of a loop."""
    base, moved = r, r.stride * step
    if r.initial is not None and step == 0:
        base, moved = r.initial, 0
    else:
        moved = min(moved, r.max_offset) if r.max_offset else moved
        moved += r.toggle * (step % 2)
    is_argument = base.region == "argument"
    region = regions[base.region][base.position if is_argument else 0]
    begin = (0 if is_argument else base.position) + base.offset + moved
    shape = [d for d in t.shape if isinstance(d, int)]
    dtype = np.dtype(to_numpy(t.dtype))
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return region[begin : begin + size].view(dtype).reshape(shape)
