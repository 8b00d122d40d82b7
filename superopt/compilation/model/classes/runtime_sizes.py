"""Segments whose sizes are known only when earlier steps have run, such as the number of elements
that NonZero finds: each is compiled for a class of sizes, and runs in ONNX Runtime at others."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from superopt.compilation.fallback.session_segment import OrtSegment, SessionPart
from superopt.compilation.model.steps import KernelStep
from superopt.errors import RuntimeMismatch

if TYPE_CHECKING:
    import numpy as np

    from superopt.compilation.model.size_classes import SymbolicProgram, SymbolicStep
    from superopt.plan.program.image import CountCall
    from superopt.plan.program.size_formulas import SizeFormulas

ValueArrays = dict[Any, Any]
MAX_BOUND_VALUES = 256  # values of the sizes for which what runs is remembered


@dataclass(frozen=True, slots=True)
class RuntimeSize:
    """A size that is that of an axis of a segment's input."""

    name: str
    input_number: int
    axis: int


@dataclass(frozen=True, slots=True)
class RuntimeSizedCode:
    """The programs of such a segment. segment: or its values. bindings: where its inputs have these
    sizes. shapes, dtypes: of its inputs. load_part: returns its nodes in ONNX Runtime, which
    may also read the shapes of model_inputs. listeners: are given the seconds of each run there at
    sizes from 1 on."""

    segment: Any
    bindings: tuple[RuntimeSize, ...]
    shapes: SizeFormulas
    dtypes: tuple[np.dtype, ...]
    programs: Sequence[SymbolicProgram]
    model_inputs: tuple[Any, ...]
    load_part: Callable[[], SessionPart]
    loaded_fallback: list[OrtSegment] = field(default_factory=list)
    listeners: list[Callable[[float], None]] = field(default_factory=list)
    formulas: ClassVar[None] = None

    def at_sizes(self, sizes: Mapping[str, int], _: CountCall | None = None) -> RuntimeSizedSegment:
        """Return the segment at these sizes of the model's inputs."""
        return RuntimeSizedSegment(self, dict(sizes))

    def fallback(self) -> OrtSegment:
        """Return its nodes in ONNX Runtime."""
        if not self.loaded_fallback:
            self.loaded_fallback.append(self.load_part().open_segment())
        return self.loaded_fallback[0]


@dataclass(frozen=True, slots=True)
class BoundSegment:
    """What runs at given sizes. input_specs: the planned shapes and types of its inputs."""

    input_specs: tuple[tuple[tuple[int, ...], np.dtype], ...]
    step: KernelStep | OrtSegment


@dataclass(frozen=True, slots=True)
class RuntimeSizedSegment:
    """A step that chooses what runs by the shapes of its inputs. sizes: of the model's inputs."""

    code: RuntimeSizedCode
    sizes: Mapping[str, int]
    bound: dict[tuple[int, ...], BoundSegment] = field(default_factory=dict)

    @property
    def segment(self) -> Any:
        return self.code.segment

    @property
    def values(self) -> tuple[Any, ...]:
        """The values that it reads: the segment's inputs, then the model's others."""
        return (*dict.fromkeys((*self.segment.inputs, *self.code.model_inputs)),)

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The values that it reads, by their numbers."""
        return {str(n): v for n, v in enumerate(self.values)}

    def run(self, env: ValueArrays) -> None:
        """Run the segment. Raises RuntimeMismatch if an input differs from its planned shape or
        type."""
        out = self.compute([env[v] for v in self.values])
        env.update(zip(self.segment.outputs, out, strict=True))

    def compute(self, arrays: Sequence[Any]) -> list[Any]:
        """Return the segment's outputs for `values`, in order."""
        key = tuple(arrays[b.input_number].shape[b.axis] for b in self.code.bindings)
        at = self.bound.get(key)
        if at is None:
            at = self._bind(key)
        for n, (x, (shape, dtype)) in enumerate(zip(arrays, at.input_specs, strict=False)):
            if x.shape != shape or x.dtype != dtype:
                raise RuntimeMismatch(
                    f"input {n} of kernels is {x.dtype}{list(x.shape)}",
                    f"shape inference gives {dtype}{list(shape)}",
                    "correct the model's shapes, or run it in onnxruntime",
                )
        env = dict(zip(self.values, arrays, strict=True))
        begin = time.perf_counter()
        at.step.run(env)
        if isinstance(at.step, OrtSegment) and 0 not in key:
            for listener in self.code.listeners:
                listener(time.perf_counter() - begin)
        return [env[v] for v in self.segment.outputs]

    def _bind(self, values: tuple[int, ...]) -> BoundSegment:
        """Return what runs at these values of the sizes that only a run gives."""
        names = (b.name for b in self.code.bindings)
        sizes = {**self.sizes, **dict(zip(names, values, strict=True))}
        found = next((c for c in self.code.programs if _admits(c, sizes)), None)
        shapes = self.code.shapes.at_sizes(sizes).output_shapes
        specs = tuple(zip(shapes, self.code.dtypes, strict=True))
        if len(self.bound) >= MAX_BOUND_VALUES:
            self.bound.clear()
        step = self.code.fallback() if found is None else found.at_sizes(sizes)
        assert isinstance(step, KernelStep | OrtSegment)
        made = BoundSegment(specs, step)
        self.bound[values] = made
        return made


def _admits(made: SymbolicStep, sizes: Mapping[str, int]) -> bool:
    return made.formulas is not None and made.formulas.admits(sizes)
