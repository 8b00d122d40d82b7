"""The steps of a compiled model: segments as kernels on the device, and parts in ONNX Runtime."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Union, overload

import numpy as np

from superopt.compilation.fallback.whole_model import Fallback
from superopt.compilation.model.control_flow.dynamic_if import ControlFlow

if TYPE_CHECKING:
    from superopt.compilation.fallback.session_segment import OrtSegment, StepValues
    from superopt.compilation.model.classes.empty_outputs import EmptyOutputs
    from superopt.compilation.model.classes.runtime_sizes import RuntimeSizedSegment
    from superopt.compilation.model.device import Device
    from superopt.compilation.runtime.output_buffers import ArraySpec
    from superopt.ir import graph
    from superopt.onnx_io.import_.model import Model
    from superopt.plan.graph.partition import Segment
    from superopt.plan.program.program import Program

ValueArrays = MutableMapping["graph.Value", Any]


@dataclass(frozen=True, slots=True)
class ModelBinding:
    """How the inputs and outputs of the only segment map to the model's.

    input_numbers: of the model's inputs; output_numbers: by the names of the model's outputs,
    numbers of the segment's outputs. state_axes: of outputs that are in the memory of inputs, the
    axis along which they grow; None if they are as large as the inputs.
    """

    input_numbers: tuple[int, ...]
    output_numbers: Mapping[str, int]
    state_axes: Mapping[str, int | None] = field(default_factory=dict)


class MemoryHolder(ABC):
    """What holds the memory of a program: a step of a model, or a program for many sizes."""

    __slots__ = ()

    @property
    def program_identity(self) -> int:
        """What holders of one program have in common."""
        return id(self)

    @abstractmethod
    def constant_blocks(self) -> Mapping[int, int]:
        """Return the bytes of its packed constants by identity; programs may share them."""

    @abstractmethod
    def work_blocks(self) -> Mapping[int, int]:
        """Return the bytes of each other block of memory that it holds, by identity; holders may
        share blocks."""

    def memory_blocks(self) -> Mapping[int, int]:
        """Return the bytes of each block of memory that it holds, by identity."""
        return {**self.constant_blocks(), **self.work_blocks()}

    def constant_arrays(self) -> Sequence[np.ndarray]:
        """Return the packed constants in the memory of the host."""
        return ()

    def program_memory(self, holders: Sequence[MemoryHolder]) -> tuple[int, int, int, int]:
        """Return the bytes of code, the number of contexts, and the bytes of their memory and of
        their workspaces, as in ProgramMemory. holders: all of the program."""
        blocks: dict[int, int] = {}
        for each in holders:
            blocks |= each.work_blocks()
        return 0, 1, sum(blocks.values()), 0

    def kept_output_arrays(self) -> Sequence[np.ndarray]:
        """Return the arrays that are kept for further results; holders may share them."""
        return ()


class KernelStep(MemoryHolder):
    """A segment as kernels, with their memory on a device.

    binding: how it gives the model's outputs; None if it is not the whole model. program: its plan.
    """

    __slots__ = ()

    if TYPE_CHECKING:  # subclasses have these as fields or as properties

        @property
        def binding(self) -> ModelBinding | None: ...
        @property
        def segment(self) -> Segment: ...
        @property
        def program(self) -> Program: ...

    @abstractmethod
    def run(self, env: ValueArrays) -> None:
        """Compute the values that the segment gives; its inputs may be on the host."""

    @abstractmethod
    def run_bound(self, arrays: Sequence[Any], *, on_device: bool) -> list[Any]:
        """Return the model's outputs for its inputs, in order; it has a binding. on_device: return
        arrays of the device, which the program may own."""

    def is_running(self) -> bool:
        """True if a call uses its memory now, on the host's threads."""
        return False

    def named_output_specs(self) -> Mapping[str, ArraySpec] | None:
        """Return the shapes and types of the model's outputs, if `bind` is supported; it has a
        binding."""
        return None

    def bind(
        self, arrays: Sequence[Any], outputs: Mapping[str, Any]
    ) -> tuple[dict[str, Any], Callable[[], object]]:
        """Return the arrays of all outputs, those of `outputs`, which fit, and others; and a
        function that computes them from these inputs."""
        raise NotImplementedError("calls on fixed arrays")

    @property
    def launch_count(self) -> int:
        """The number of calls and launches in a run."""
        return len(self.program.calls)


Step = Union[KernelStep, "OrtSegment", "RuntimeSizedSegment", "EmptyOutputs", Fallback, ControlFlow]


@dataclass(frozen=True, slots=True, eq=False)
class Variant(Sequence[Any]):
    """A model compiled for given sizes: its steps in order.

    load_model: returns the model, or that for these sizes alone. options: the options of a program
    from the disk cache without a plan, by problem key; None if it has its plan. is_of_class: its
    code is that of a class of sizes (size_classes.py). given_values: the inputs and outputs of the
    model as the steps have them; None: those of its graph.
    """

    steps: tuple[Any, ...]
    load_model: Callable[[], Model]
    options: Mapping[str, str] | None = None
    is_of_class: bool = False
    given_values: StepValues | None = None

    @overload
    def __getitem__(self, n: int) -> Any: ...
    @overload
    def __getitem__(self, n: slice) -> Sequence[Any]: ...
    def __getitem__(self, n: int | slice) -> Any:
        return self.steps[n]

    def __len__(self) -> int:
        return len(self.steps)

    def __bool__(self) -> bool:
        return True  # also without steps: the outputs may be inputs or constants

    @property
    def model(self) -> Model:
        """The model, or that for these sizes alone."""
        return self.load_model()

    @property
    def values(self) -> graph.Graph | StepValues:
        """What has the inputs and outputs of the model as the steps have them."""
        return self.given_values or self.model.graph

    @property
    def bound_step(self) -> KernelStep | None:
        """The step that is the whole model; None if a call needs others."""
        first = self.steps[0] if len(self.steps) == 1 else None
        return first if isinstance(first, KernelStep) and first.binding is not None else None

    @property
    def kernel_steps(self) -> tuple[Any, ...]:
        """The steps that are kernels, including those of compiled branches."""
        return tuple(_kernel_steps(self.steps))

    @property
    def only_step(self) -> Any:
        """The only step that is kernels."""
        (step,) = self.kernel_steps
        return step

    @property
    def program(self) -> Program:
        """The plan of the only step that is kernels."""
        return self.only_step.program  # type: ignore[no-any-return]

    @property
    def held_bytes(self) -> int:
        """The bytes of memory that its kernels hold."""
        return held_bytes([self])

    @property
    def control_flow(self) -> ControlFlow | None:
        """The programs at an If or Loop, if they are the whole model."""
        first = self.steps[0] if len(self.steps) == 1 else None
        return first if isinstance(first, ControlFlow) else None

    def run(self, device: Device, arrays: Sequence[Any], *, on_device: bool = False) -> list[Any]:
        """Return the outputs for the inputs, both in the model's order. on_device: return arrays of
        the device; else numpy arrays."""
        if (bound := self.bound_step) is not None:
            return bound.run_bound(arrays, on_device=on_device)
        place = device.to_device if on_device else device.to_host
        first = self.steps[0] if len(self.steps) == 1 else None
        if isinstance(first, Fallback | ControlFlow):
            by_name = first.call([*map(device.to_host, arrays)])
            return [place(by_name[name]) for name in first.output_names]
        own = self.values
        given = device.prepare_run(self, [*arrays])
        env: dict[Any, Any] = dict(zip(own.inputs, given, strict=True))
        for step in self.steps:
            run_step(step, env, device)
        copied = {*own.inputs}  # nobody else gets the caller's array
        return [place(device.copy(x) if v in copied else x) for v, x in _outputs(own, env)]


def _outputs(own: graph.Graph | StepValues, env: Mapping[Any, Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the outputs; a constant is copied."""
    outputs: Sequence[Any] = own.outputs
    for v in outputs:
        yield v, env[v] if v in env else np.array(v.load())


def run_step(step: Step, env: dict[Any, Any], device: Device) -> None:
    """Run a step. Parts in ONNX Runtime, and those whose sizes only a run gives, read numpy arrays;
    a whole model reads all inputs, in order."""
    if isinstance(step, KernelStep):
        step.run(env)
        return
    is_whole = isinstance(step, Fallback | ControlFlow)
    reads = tuple(env) if is_whole else dict.fromkeys(step.inputs.values())  # type: ignore[union-attr]
    held = {v: device.to_host(env[v]) for v in reads}
    step.run(held)
    env.update((v, x) for v, x in held.items() if v not in env)


def _kernel_steps(steps: Iterable[Any]) -> Iterator[Any]:
    for s in steps:
        if isinstance(s, KernelStep):
            yield s
        elif isinstance(s, ControlFlow):
            for part in s.executables:
                for inner in tuple(part.variants.values()):
                    yield from _kernel_steps(inner)


def held_bytes(variants: Iterable[Variant]) -> int:
    """Return the bytes that these variants hold together; shared blocks count once."""
    blocks: dict[int, int] = {}
    for v in variants:
        for step in v.kernel_steps:
            blocks |= step.memory_blocks()
    return sum(blocks.values())
