"""What a target provides: a `Device`, which calls need, and a `CodeGenerator`, which compilation
needs (docs/howto/add_a_target.md).

The defaults are those of a processor whose arrays are numpy arrays in the memory of the host.
"""

# ruff: noqa: B027 (the default of a method may be to do nothing)

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from superopt.compilation.frontend.allowed_transforms import AllowedTransforms
from superopt.compilation.frontend.input_arrays import InputPort, as_input_arrays
from superopt.cost import machine
from superopt.cost.machine import UNKNOWN_MEMORY_BYTES
from superopt.errors import UsageError

if TYPE_CHECKING:
    from superopt.compilation.frontend.input_arrays import Sizes
    from superopt.compilation.model.compiler import Compiler
    from superopt.compilation.model.control_flow.dynamic_if import ControlFlow
    from superopt.compilation.model.executable import Executable
    from superopt.compilation.model.saved_source import WrittenCode
    from superopt.compilation.model.shape_policy import Specialize
    from superopt.compilation.model.size_classes import SizeClass, SymbolicProgram
    from superopt.compilation.model.states.state_programs import StateNames
    from superopt.compilation.model.steps import KernelStep, Variant
    from superopt.cost.store import Store
    from superopt.ir import graph
    from superopt.kernels.loops.option import Option
    from superopt.kernels.loops.tile import Kernel
    from superopt.onnx_io.import_.size_relation import Guards
    from superopt.onnx_io.read.source import Source
    from superopt.plan.graph.partition import Segment
    from superopt.plan.program.program import Program
    from superopt.report.compilation.compile_report import ExportReport, TuningReport
    from superopt.report.compilation.kernel_explanation import KernelExplanation
    from superopt.report.compilation.profile import Profile
    from superopt.report.data.report import Event


class ProgramCache(Protocol):
    """The programs of a model that are cached on disk."""

    def find(self, sizes: Sizes) -> Variant | None:
        """Return the program for these sizes; None if there is no intact one."""
        ...

    def store(self, sizes: Sizes, variant: Variant, expected_seconds: float) -> None:
        """Store a program that is a whole model. expected_seconds: of compiling for further
        sizes."""

    def find_classes(self) -> Sequence[SizeClass] | None:
        """Return the programs for classes of sizes; None if the model is known to have none."""
        return ()

    def store_class(self, made: SizeClass | None) -> None:
        """Store a program for a class of sizes; None: the model has none."""

    def with_states(self, names: StateNames) -> ProgramCache | None:
        """Return that of the programs that keep these states in place."""
        return None

    def find_control_flow(self, specialize: Specialize) -> ControlFlow | None:
        """Return the programs at the model's If or Loop; None if there are no intact ones.
        specialize: of the parts."""
        return None

    def store_control_flow(self, flow: ControlFlow) -> None:
        """Store which programs the model has at its If or Loop, and let these use the cache."""

    def compile_seconds(self) -> float | None:
        """Return the expected time of compiling for further sizes; None if unknown."""
        ...


Progress = Callable[["Event"], None]
RepeatedCall = Callable[[Mapping[str, Any]], "dict[str, Any] | None"]
NO_CONTEXT = nullcontext()


class Device(ABC):
    """A processor that kernels run on: its memory, its arrays and its calls.

    name: of the target. precision: the precision that float32 values are computed in.
    rounds_operands: only operands of products are rounded to it. eager_sizes: the number of sizes
    for which a model is compiled immediately (`ShapePolicy`).
    compiles_in_background: compile for further sizes in the background. is_asynchronous: a call may
    return before its work is done. has_size_classes: a program may be for a class of sizes
    (size_classes.py). has_runtime_sizes: so may parts of a model whose sizes only a run gives, and
    branches of a dynamic If. has_concurrent_calls: a program serves calls of several threads at the
    same time; else they wait for each other. keeps_states: outputs may be in the memory of inputs
    (state_programs.py).
    """

    name: ClassVar[str]
    precision: str = "fp32"
    rounds_operands: ClassVar[bool] = False
    eager_sizes: ClassVar[int] = 1
    compiles_in_background: ClassVar[bool] = True
    is_asynchronous: ClassVar[bool] = False
    has_size_classes: ClassVar[bool] = False
    has_runtime_sizes: ClassVar[bool] = False
    has_concurrent_calls: ClassVar[bool] = False
    keeps_states: ClassVar[bool] = False

    @property
    def kernel_threads(self) -> int:
        """The number of threads of kernels on a CPU; 0 for other devices."""
        return 0

    @property
    def fallback_threads(self) -> int:
        """The number of threads of whole models in ONNX Runtime."""
        return self.kernel_threads or 1

    @abstractmethod
    def __str__(self) -> str:
        """Return what it is, for messages: "cpu, threads=1"."""

    def as_inputs(
        self,
        ports: Sequence[InputPort],
        feeds: Mapping[str, Any],
        default_input: Callable[[str], Any],
    ) -> list[Any]:
        """Return the inputs in order. default_input: returns the model's value of an input. Raises
        UsageError if they do not fit the model."""
        return as_input_arrays(ports, feeds, default_input)

    def check_inputs(
        self, ports: Sequence[InputPort], arrays: Sequence[Any], variant: Variant
    ) -> None:
        """Raise UsageError for inputs that this variant's kernels cannot read."""

    def is_on_device(self, x: object) -> bool:
        """True for an array of the device's own; if all inputs are, so are the outputs."""
        return False

    def to_device(self, x: Any) -> Any:
        """Return a numpy array as an array of the device."""
        return x

    def to_host(self, x: Any) -> Any:
        """Return an array of the device as a numpy array."""
        return x

    def copy(self, x: Any) -> Any:
        """Return a copy of an array, on the device or on the host."""
        return x if x is None else x.copy()

    def prepare_run(self, variant: Variant, arrays: list[Any]) -> list[Any]:
        """Return the inputs for a run of several steps, which may overwrite what inputs alias."""
        return arrays

    def repeated_call(
        self, exe: Executable, variant: Variant, arrays: Sequence[Any], *, on_device: bool
    ) -> RepeatedCall | None:
        """Return a function for calls whose inputs are like these: it returns the outputs by name
        without the checks of `Executable.run`, or None for other inputs. None if there is none."""
        return None

    def repeated_class_call(self, exe: Executable) -> RepeatedCall | None:
        """Return such a function for all sizes of the model's classes and those that run in ONNX
        Runtime; None if there is none."""
        return None

    def input_buffers(self, variant: Variant) -> Mapping[int, Any]:
        """Return the tensors from which kernels read inputs, by input number."""
        return {}

    def activate(self) -> AbstractContextManager[object]:
        """Return a context in which it is the current device of this thread."""
        return NO_CONTEXT

    def synchronize(self) -> None:
        """Wait until all work of an asynchronous device is done."""

    def release_memory(self) -> None:
        """Return memory that libraries cache to the device."""

    def memory_bytes(self) -> int:
        """Return the size of its memory."""
        return machine.memory_bytes() or UNKNOWN_MEMORY_BYTES

    def lock_after_fork(self) -> Any:
        """Return the lock of an executable in a process that was forked from this one."""
        return threading.RLock()

    def compile_clock(self) -> float:
        """Return the seconds of a clock that measures compilation."""
        return time.perf_counter()


class CodeGenerator(ABC):
    """Plans segments for a device and compiles them.

    allowed: the allowed transforms. segment_threads: of parts in ONNX Runtime. max_unrolled_steps:
    of recurrent layers, for a target without loops; None for one with loops.
    runtime_integer_products: models with these products of 8-bit integers run in ONNX Runtime:
    "none", "slow" ones, or "all".
    """

    device: Device
    allowed: AllowedTransforms
    segment_threads: int = 1
    max_unrolled_steps: ClassVar[int | None] = None

    @property
    def runtime_integer_products(self) -> str:
        return "none"

    @abstractmethod
    def plan_segment(self, c: Compiler, s: Segment, sizes: Mapping[str, int]) -> Program:
        """Return the plan of a segment. Raises one of NO_KERNEL_ERRORS if an operator has no
        kernel."""

    @abstractmethod
    def compile_segment(self, c: Compiler, s: Segment, sizes: Mapping[str, int]) -> KernelStep:
        """Plan a segment, compile its kernels and load them onto the device, with memory for their
        constants. Raises one of NO_KERNEL_ERRORS if an operator has no kernel, MemoryError."""

    def compile_for_classes(
        self, c: Compiler, s: Segment, example: Mapping[str, int], guards: Guards
    ) -> SymbolicProgram:
        """Compile a segment for all sizes for which the same decisions are right as for the
        example. Raises one of NO_KERNEL_ERRORS."""
        raise NotImplementedError(f"symbolic sizes for target {self.device.name}")

    def check_plan(self, program: Program) -> None:
        """Raise one of NO_KERNEL_ERRORS if a kernel of a plan cannot be expressed."""

    def has_fast_kernel(self, c: Compiler, n: graph.Node, sizes: Mapping[str, int]) -> bool:
        """True if the kernel of a node is fast where its tensor expression is not."""
        return False

    def kernel_texts(self, step: KernelStep, kernel: Kernel) -> list[tuple[str, object]]:
        """Return the text of a kernel after each pass, with the name of the pass, in order."""
        return [*kernel.passes, ("tile", kernel)]

    def profile(
        self,
        exe: Executable,
        feeds: Mapping[str, Any] | None,
        shapes: Mapping[str, int],
        seconds: float,
        stop: Callable[[], bool],
    ) -> Profile:
        """Return the time of each kernel. See `Executable.profile`."""
        raise self.unsupported_error("profiled")

    def explain_kernel(self, exe: Executable, profile: Profile, kernel: str) -> KernelExplanation:
        """Return why a kernel has its schedule. See `Executable.explain_kernel`."""
        raise self.unsupported_error("explained")

    def tune(
        self,
        programs: Sequence[Program],
        store: Store | None,
        budget: float,
        max_options: int,
        progress: Progress,
        stop: Callable[[], bool],
    ) -> tuple[Mapping[str, Option], TuningReport]:
        """Measure options of these kernels; return the fastest, by problem key, and the report."""
        raise self.unsupported_error("tuned")

    def export(
        self,
        exe: Executable,
        path: Path,
        shapes: Mapping[str, int],
        cpu: str | None = None,
        target: str | None = None,
    ) -> ExportReport:
        """Write the model as a library. See `Executable.export`."""
        raise self.unsupported_error("exported")

    def compile_ahead(
        self,
        exe: Executable,
        variants: Mapping[Sizes, Variant],
        source: Source,
        names: Sequence[str],
    ) -> WrittenCode:
        """Return machine code of a model's programs for these processors, to be saved with it. See
        `Executable.save`."""
        raise self.unsupported_error("saved with machine code")

    def saved_fields(self) -> Mapping[str, Any]:
        """Return the fields of `SavedModel` that describe the target and its options."""
        raise self.unsupported_error("saved")

    def compile_lock(self) -> AbstractContextManager[object]:
        """Return a lock; a process that is forked while it is held can compile."""
        return NO_CONTEXT

    def unsupported_error(self, action: str) -> UsageError:
        return UsageError(
            f"a model for target {self.device.name} cannot be {action}",
            "the target does not support it",
            'compile the model for target="cpu"',
        )
