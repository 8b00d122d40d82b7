"""Programs for many sizes: each is right for a class of sizes, those for which planning takes the
same decisions as at the example for which it was compiled (te/expr/symbolic_int.py)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from superopt.compilation.model.control_flow.part_calls import PartNotCompiled, on_missing
from superopt.compilation.model.flow_programs import (
    background_flow,
    control_flow_variant,
)
from superopt.compilation.model.frequent_sizes import count_calls
from superopt.compilation.model.specialize import compile_in_waiting_child
from superopt.compilation.model.steps import MemoryHolder, Variant
from superopt.compilation.runtime import background_worker

if TYPE_CHECKING:
    from superopt.compilation.fallback.session_segment import StepValues
    from superopt.compilation.frontend.input_arrays import Sizes
    from superopt.compilation.model.compiler import Compiler
    from superopt.compilation.model.control_flow.dynamic_if import ControlFlow
    from superopt.compilation.model.executable import Executable
    from superopt.compilation.model.shape_policy import Specialize
    from superopt.compilation.model.states.state_programs import StateNames
    from superopt.compilation.model.steps import Step
    from superopt.onnx_io.import_.model import Model
    from superopt.plan.program.image import CountCall
    from superopt.plan.program.size_formulas import SizeFormulas

LOG = logging.getLogger("superopt.compile")
MAX_BOUND_SIZES = 64  # sizes whose words and output arrays are kept


class SymbolicStep(Protocol):
    """A segment as kernels for all sizes that its formulas admit; or one that runs at any sizes,
    without formulas. programs: its kernels, each with sizes for which it was compiled."""

    @property
    def formulas(self) -> SizeFormulas | None: ...
    @property
    def programs(self) -> Sequence[SymbolicProgram]: ...
    def at_sizes(self, sizes: Mapping[str, int], count_call: CountCall | None = None) -> Step:
        """Return the step at these sizes; steps share code, constants and memory. count_call: see
        SizedCode."""


class SymbolicProgram(SymbolicStep, Protocol):
    """Kernels for many sizes. example: those for which they were compiled."""

    @property
    def example(self) -> Mapping[str, int]: ...
    @property
    def memory_holder(self) -> MemoryHolder:
        """What holds the memory that its programs share."""
        ...

    def is_running(self) -> bool:
        """True if a call uses its memory now, on the host's threads."""


@dataclass(frozen=True, slots=True)
class SizeClass:
    """A model compiled for all sizes that `formulas` admit. load_steps: returns its steps in order;
    None if they were cached and are damaged. load_values: returns the inputs and outputs of the
    model as the steps have them; None: those of its graph. next_sizes: those of a decoder's next
    calls, if it was compiled now. loaded: its steps once they were used."""

    formulas: SizeFormulas
    load_steps: Callable[[], Sequence[SymbolicStep] | None]
    load_model: Callable[[], Model]
    next_sizes: Sequence[Mapping[str, int]] = ()
    load_values: Callable[[], StepValues | None] = lambda: None
    loaded: list[SymbolicStep] = field(default_factory=list)

    def variant(
        self, sizes: Mapping[str, int], count_call: CountCall | None = None
    ) -> Variant | None:
        """Return the variant for these sizes, which the class admits; None if its code is lost."""
        steps = self.load_steps()
        if steps is None:
            return None
        self.loaded[:] = steps
        counter = count_call if len(steps) == 1 else None  # it counts calls of whole models
        at = tuple(s.at_sizes(sizes, counter) for s in steps)
        return Variant(at, self.load_model, None, True, self.load_values())

    def log(self) -> None:
        """Log the conditions of a class that was compiled."""
        conditions = " and ".join(self.formulas.guards) or "any values"
        LOG.info("a program for all sizes with %s", conditions)

    @property
    def whole_step(self) -> SymbolicStep | None:
        """The step that is the whole model, if it is loaded."""
        return self.loaded[0] if len(self.loaded) == 1 else None


class ClassCache(Protocol):
    """The classes of a model in the disk cache."""

    def find_classes(self) -> Sequence[SizeClass] | None:
        """Return the classes; None if the model is known to have none."""
        ...

    def store_class(self, made: SizeClass | None) -> None:
        """Add a class; None: the model has none."""

    def with_states(self, names: StateNames) -> ClassCache | None:
        """Return that of the programs that keep these states in place."""
        ...

    def find_control_flow(self, specialize: Specialize) -> ControlFlow | None:
        """Return the programs at the model's If or Loop; None if there are no intact ones.
        specialize: of the parts."""
        ...

    def store_control_flow(self, flow: ControlFlow) -> None:
        """Store which programs the model has at its If or Loop, and let these use the cache."""


@dataclass(slots=True)
class SizeClasses:
    """The classes of a model. empty: those whose outputs are empty. nonempty_zeros: sizes that do
    not empty all outputs where they are 0. slower: those than which ONNX Runtime was measured to be
    faster. is_supported: False if sizes are compiled one by one. cache: None if there is none.
    any_sizes: what runs at all sizes, a model with a dynamic If."""

    classes: list[SizeClass] = field(default_factory=list)
    slower: list[SizeClass] = field(default_factory=list)
    is_supported: bool = True
    cache: ClassCache | None = None
    has_read: bool = False
    empty: list[SizeClass] = field(default_factory=list)
    nonempty_zeros: set[frozenset[str]] = field(default_factory=set)
    any_sizes: Variant | None = None

    @property
    def any_control_flow(self) -> ControlFlow | None:
        """The programs of `any_sizes`."""
        return None if self.any_sizes is None else self.any_sizes.control_flow

    def variant(
        self, sizes: Mapping[str, int], count_call: CountCall | None = None
    ) -> Variant | None:
        """Return the variant for these sizes of the class that has them; None if none has."""
        self.read()
        if (own := self.find(sizes)) is None:
            return None
        if (found := own.variant(sizes, count_call)) is not None:
            return found
        self.classes.remove(own)
        return self.variant(sizes, count_call)

    def find(self, sizes: Mapping[str, int]) -> SizeClass | None:
        """Return the class that has these sizes, compiled already."""
        return next((c for c in self.classes if c.formulas.admits(sizes)), None)

    def read(self) -> None:
        """Read the classes that are in the disk cache, once."""
        was_read, self.has_read = self.has_read, True
        if self.cache is not None and not was_read:
            found = self.cache.find_classes()
            self.is_supported = found is not None
            self.classes += found or ()

    def compile(self, compiler: Compiler, sizes: Mapping[str, int]) -> SizeClass | None:
        """Return the class that has these sizes, compiled; None if the model does not support it.
        Calls use it once it is added to `classes`."""
        made = compiler.compile_class(sizes) if self.is_supported else None
        is_special = 0 in sizes.values() or compiler.has_index_out_of_range(sizes)
        if made is None and (self.classes or not self.is_supported or is_special):
            return None  # these sizes alone have no class, or it is known already
        if made is None:
            self.refuse()
        elif self.cache is not None:
            self.cache.store_class(made)
        return made

    def refuse(self) -> None:
        """Remember that the model has no classes, also in later processes."""
        self.is_supported = False
        if self.cache is not None:
            self.cache.store_class(None)

    def compile_empty(self, compiler: Compiler, sizes: Mapping[str, int]) -> SizeClass | None:
        """Return the class that has these sizes, of which some are 0, if all outputs of the model
        are empty there."""
        zeros = frozenset(name for name, n in sizes.items() if not n)
        if zeros in self.nonempty_zeros:
            return None
        made = next((c for c in self.empty if c.formulas.admits(sizes)), None)
        if made is None and (made := compiler.compile_class(sizes, only_empty=True)) is not None:
            self.empty.append(made)
        if made is None:
            self.nonempty_zeros.add(zeros)
        return made

    def add(self, made: SizeClass, *, is_slower: bool = False) -> None:
        """Let calls use a class; or, if ONNX Runtime is faster, compile no other for its sizes."""
        (self.slower if is_slower else self.classes).append(made)

    def admits(self, sizes: Mapping[str, int]) -> bool:
        """True if a class has these sizes, also if ONNX Runtime is faster."""
        return any(each.formulas.admits(sizes) for each in (*self.classes, *self.slower))

    def is_slower(self, sizes: Mapping[str, int]) -> bool:
        """True if ONNX Runtime was measured to be faster than the class that has these sizes."""
        return any(each.formulas.admits(sizes) for each in self.slower)

    def find_new(self) -> list[SizeClass]:
        """Return the classes that other processes have added."""
        known = [c.formulas for c in (*self.classes, *self.slower)]
        stored = self.cache.find_classes() if self.cache is not None else ()
        if stored is None:
            self.is_supported = False
        return [c for c in stored or () if c.formulas not in known]

    def add_new(self) -> None:
        """Let calls use the classes that other processes have added."""
        for made in self.find_new():
            made.log()
            self.add(made)

    def reload(self, known: SizeClass) -> SizeClass | None:
        """Return a class as the disk cache has it now; None if it has not."""
        stored = self.cache.find_classes() if self.cache is not None else ()
        return next((c for c in stored or () if c.formulas == known.formulas), None)

    def replace(self, old: SizeClass, new: SizeClass) -> None:
        """Use a class in place of another one for the same sizes."""
        self.classes[:] = [new if c is old else c for c in self.classes]

    def clear(self) -> None:
        """Drop what is compiled, and use the disk cache no more."""
        self.classes.clear()
        self.cache = self.any_sizes = None


def bind_size_class(exe: Executable, key: Sizes, *, compile_new: bool = False) -> bool:
    """Let an executable run code of a class of sizes, or cached code, at these sizes; the first
    class is compiled for them, with compile_new any class. False if there is none."""
    policy = exe.shape_policy
    if not key or policy.specialize == "eager" or key in policy.fallback_reasons:
        return False
    if not exe.device.has_size_classes:
        return False
    compile_new = compile_new or on_missing(exe) == "compile"
    policy.add_sizes(key)
    # a call that ran in ONNX Runtime before may do so again, and does not wait for another call
    with exe.try_lock(blocking=compile_new or key not in policy.fallback_times) as locked:
        return locked and _bind_size_class(exe, key, compile_new)


def _bind_size_class(exe: Executable, key: Sizes, compile_new: bool) -> bool:
    policy, classes, sizes = exe.shape_policy, exe.size_classes, dict(key)
    with exe.exclusive():
        if key in exe.variants:
            return True
        if _bind_cached(exe, key):
            return True
        if 0 in sizes.values() and (made := classes.compile_empty(exe.compiler, sizes)):
            found = made.variant(sizes)
            assert found is not None
            _set_bound(exe, key, found)
            return True
        is_first = not (classes.classes or exe.variants or policy.first_in_background)
        if 0 in sizes.values() and exe.may_branch and not classes.any_sizes:
            classes.any_sizes = background_flow(exe, compile_new=True)
        from_child = (is_first or compile_new) and not exe.may_branch
        if from_child and compile_in_waiting_child(exe, key):
            classes.add_new()
            policy.add_class()
            if _bind_cached(exe, key):
                return True
        is_new = (is_first or compile_new) and not (classes.classes or classes.any_sizes)
        if is_new and classes.is_supported and exe.device.has_runtime_sizes:
            classes.any_sizes = control_flow_variant(exe)
        if classes.any_sizes is not None:
            _set_bound(exe, key, classes.any_sizes)
            return True
        in_call = policy.compiles_class_in_call(key, len(classes.classes))
        if not classes.is_supported or not (is_first or compile_new or in_call):
            policy.compiles_classes = classes.is_supported
            return False  # a call compiles only what is first
        if policy.specialize != "never" and exe.compiler.prefers_fixed_sizes(sizes):
            return False
        begin = exe.device.compile_clock()
        with background_worker.compile_lock():
            made = classes.compile(exe.compiler, sizes)
        if made is None or (found := made.variant(sizes, count_calls(exe, key))) is None:
            return False
        classes.add(made)
        for more in made.next_sizes:
            _compile_next(exe, more)
        policy.add_compile_time(exe.device.compile_clock() - begin)
        policy.add_class()
        exe.set_variant(key, found)
        return True


def _bind_cached(exe: Executable, key: Sizes) -> bool:
    """Let an executable run the program for these sizes that the disk cache has, or that of a
    class, if there is one."""
    policy, classes = exe.shape_policy, exe.size_classes
    is_known = key in policy.fallback_times  # the disk had no program at its first call
    if not is_known and (cached := exe.find_cached(key)) is not None:
        exe.set_variant(key, cached)
        return True
    found = classes.variant(dict(key), count_calls(exe, key))
    policy.compiles_classes = bool(classes.classes or classes.any_sizes)
    policy.sizes_vary = len(classes.classes) > 1
    if found is not None:
        _set_bound(exe, key, found)
    return found is not None


def bind_compiled_part(exe: Executable, key: Sizes) -> None:
    """Let a part of a model run the program that it has for these sizes. Raises PartNotCompiled if
    it has none, or if another thread compiles it."""
    with exe.try_lock() as locked:
        if locked and not _bind_compiled(exe, key):
            exe.shape_policy.missing_sizes.add(key)
        if key not in exe.variants:
            raise PartNotCompiled


def _bind_compiled(exe: Executable, key: Sizes) -> bool:
    classes, is_missing = exe.size_classes, key in exe.shape_policy.missing_sizes
    with exe.exclusive():
        if key in exe.variants:
            return True
        cached = None if is_missing else exe.find_cached(key)
        if cached is not None:
            exe.set_variant(key, cached)
            return True
        if not key or not exe.device.has_size_classes:
            return False
        found = classes.variant(dict(key), count_calls(exe, key))
        if found is None and not is_missing:
            found = classes.any_sizes = background_flow(exe, compile_new=False)
        if found is not None:
            _set_bound(exe, key, found)
        return found is not None


def _compile_next(exe: Executable, sizes: Mapping[str, int]) -> None:
    """Compile the class of sizes that later calls are expected to have."""
    if exe.size_classes.find(sizes) is not None:
        return
    with background_worker.compile_lock():
        made = exe.size_classes.compile(exe.compiler, sizes)
    if made is not None:
        exe.size_classes.add(made)


def _set_bound(exe: Executable, key: Sizes, variant: Variant) -> None:
    """Use a variant of a class, whose memory is that of the class; forget the least recent ones."""
    bound = [k for k, v in exe.variants.items() if v.is_of_class]
    for old in bound[: max(len(bound) + 1 - MAX_BOUND_SIZES, 0)]:
        del exe.variants[old]
    exe.variants[key] = variant
    exe.last_call = None
