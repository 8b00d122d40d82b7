"""Segments whose sizes are known only when earlier steps have run, such as the number of elements
that NonZero finds: each is compiled for a class of sizes, and runs in ONNX Runtime at others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from superopt.compilation.fallback.ort_segment import OrtSegment
from superopt.compilation.frontend.graph_ports import numpy_dtype, static_shape
from superopt.compilation.model.steps import KernelStep
from superopt.errors import RuntimeMismatch
from superopt.ir import graph
from superopt.te.expr import index
from superopt.te.expr.node import Expr, Size

if TYPE_CHECKING:
    import numpy as np

    from superopt.compilation.model.size_classes import SymbolicProgram, SymbolicStep
    from superopt.onnx_io.import_.model import Model
    from superopt.plan.graph.partition import Segment
    from superopt.plan.program.image import CountCall

ValueArrays = dict["graph.Value", Any]
# The assumed value of a size that is known only at run time: of the highest level of sizes
# (te.expr.symbolic_int.SIZE_LEVELS), whose class has no upper limit.
EXAMPLE_RUNTIME_SIZE = 64
MAX_BOUND_VALUES = 256  # values of the sizes for which what runs is remembered


def with_runtime_sizes(model: Model, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes, and example values of those that only a run gives."""
    return dict.fromkeys(model.size_producers, EXAMPLE_RUNTIME_SIZE) | dict(sizes)


def runtime_size_names(nodes: Sequence[graph.Node], sizes: Mapping[str, int]) -> frozenset[str]:
    """Return the names of the sizes of nodes that inputs of the model do not have."""
    values = {v for n in nodes for v in (*n.inputs, *graph.results(n)) if v is not None}
    shapes = (d for v in values for d in v.type.shape or ())
    attributes = (d for n in nodes for _, a in n.attrs for d in _sizes_of(a))
    return frozenset().union(*map(index.symbols, (*shapes, *attributes))) - sizes.keys()


def _sizes_of(a: object) -> Iterator[Expr]:
    if isinstance(a, tuple):
        for x in a:
            yield from _sizes_of(x)
    elif isinstance(a, Expr):
        yield a


@dataclass(frozen=True, slots=True)
class RuntimeSize:
    """A size that is that of an axis of a segment's input."""

    name: str
    input_number: int
    axis: int


def bind_runtime_sizes(s: Segment, sizes: Mapping[str, int]) -> tuple[RuntimeSize, ...]:
    """Return where a segment's inputs have the sizes that only a run gives.

    Raises NotImplementedError if no input has one of them.
    """
    found: dict[str, RuntimeSize] = {}
    for number, v in enumerate(s.inputs):
        for axis, d in enumerate(v.type.shape or ()):
            if isinstance(d, Size) and d.name not in sizes:
                found.setdefault(d.name, RuntimeSize(d.name, number, axis))
    if unknown := runtime_size_names(s.nodes, sizes) - found.keys():
        raise NotImplementedError(f"no input has the size {', '.join(sorted(unknown))}")
    return tuple(found.values())


@dataclass(frozen=True, slots=True)
class RuntimeSizedCode:
    """The programs of such a segment. bindings: where its inputs have these sizes. load_fallback:
    returns its nodes in ONNX Runtime, which may also read the shapes of model_inputs."""

    segment: Segment
    bindings: tuple[RuntimeSize, ...]
    programs: Sequence[SymbolicProgram]
    model_inputs: tuple[graph.Value, ...]
    load_fallback: Callable[[], OrtSegment]
    formulas: ClassVar[None] = None

    def at_sizes(self, sizes: Mapping[str, int], _: CountCall | None = None) -> RuntimeSizedSegment:
        """Return the segment at these sizes of the model's inputs."""
        return RuntimeSizedSegment(self, dict(sizes))


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
    def segment(self) -> Segment:
        return self.code.segment

    @property
    def values(self) -> tuple[graph.Value, ...]:
        """The values that it reads: the segment's inputs, then the model's others."""
        return (*dict.fromkeys((*self.segment.inputs, *self.code.model_inputs)),)

    @property
    def inputs(self) -> Mapping[str, graph.Value]:
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
        at.step.run(env)
        return [env[v] for v in self.segment.outputs]

    def _bind(self, values: tuple[int, ...]) -> BoundSegment:
        """Return what runs at these values of the sizes that only a run gives."""
        names = (b.name for b in self.code.bindings)
        sizes = {**self.sizes, **dict(zip(names, values, strict=True))}
        found = next((c for c in self.code.programs if _admits(c, sizes)), None)
        specs = tuple(
            (static_shape(v.type, sizes), numpy_dtype(v.type)) for v in self.segment.inputs
        )
        if len(self.bound) >= MAX_BOUND_VALUES:
            self.bound.clear()
        step = self.code.load_fallback() if found is None else found.at_sizes(sizes)
        assert isinstance(step, KernelStep | OrtSegment)
        made = BoundSegment(specs, step)
        self.bound[values] = made
        return made


def _admits(made: SymbolicStep, sizes: Mapping[str, int]) -> bool:
    return made.formulas is not None and made.formulas.admits(sizes)
