"""Programs that keep states in place: outputs that grow are in the memory of inputs
(plan/lowering/growing_states.py). They are classes of sizes, of which one is the capacity of that
memory; a call passes it as both arguments (`StatefulCall`)."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from superopt.compilation.frontend.input_arrays import sorted_sizes
from superopt.compilation.model.size_classes import SizeClasses
from superopt.compilation.model.specialize import (
    child_results,
    compile_in_waiting_child,
    has_child,
)
from superopt.compilation.runtime import background_worker
from superopt.errors import SuperoptError

if TYPE_CHECKING:
    from superopt.compilation.frontend.input_arrays import Sizes
    from superopt.compilation.model.compiler import Compiler
    from superopt.compilation.model.executable import Executable
    from superopt.compilation.model.model_programs import ModelPrograms
    from superopt.compilation.model.steps import KernelStep

CAPACITY = "state capacity"  # the name of the size; no identifier, so that no model has it
StateNames = tuple[tuple[str, str], ...]  # of outputs, each with the input that it continues
LOG = logging.getLogger("superopt.compile")


@dataclass(slots=True)
class StatePrograms:
    """The programs of a model that keep some states in place. names: of the states. compiled: the
    compiler, once it is needed. pending, refused: sizes that are compiled in the background now,
    and that no class has. Whoever uses it holds the lock of the executable."""

    names: StateNames
    classes: SizeClasses
    compiled: Compiler | None = None
    pending: set[Sizes] = field(default_factory=set)
    refused: set[Sizes] = field(default_factory=set)

    def find(self, sizes: Mapping[str, int]) -> KernelStep | None:
        """Return the program for these sizes, if it is compiled; with the axes of its states."""
        found = self.classes.variant(sizes)
        return None if found is None else found.bound_step

    def compiler(self, exe: ModelPrograms) -> Compiler:
        if self.compiled is None:
            self.compiled = exe.compiler.with_states(self.names)
        return self.compiled

    def compile(self, exe: Executable, sizes: Mapping[str, int]) -> bool:
        """Compile the class that has these sizes, and with the first one those that later calls are
        expected to have. False if there is none."""
        if compile_in_waiting_child(exe, sorted_sizes(sizes), states=self.names):
            self.classes.add_new()
            if self.classes.find(sizes) is not None:
                return True
        compiler = self.compiler(exe)
        with background_worker.compile_lock():
            made = self.classes.compile(compiler, sizes)
            if made is None:
                self.refused.add(sorted_sizes(sizes))
                self.classes.is_supported &= bool(self.classes.classes)
                return False
            is_first = not self.classes.classes
            self.classes.add(made)
            for n, more in enumerate(made.next_sizes if is_first else ()):
                if self.classes.find(more) is None:
                    then = self.classes.compile(compiler, more)
                    if then is not None:
                        self.classes.add(then)
                    elif not n:  # no past of length 0: states are other functions of it
                        self.classes.clear()
                        self.classes.is_supported = False
        return self.classes.is_supported

    def is_running(self) -> bool:
        """True if a call runs one of these programs now."""
        steps = (s for c in self.classes.classes for s in c.loaded)
        return any(p.is_running() for s in steps for p in s.programs)


def state_programs(exe: ModelPrograms, names: StateNames) -> StatePrograms:
    """Return the programs of a model that keep these states in place."""
    found = exe.state_programs.get(names)
    if found is None:
        is_supported = exe.device.keeps_states and exe.shape_policy.specialize != "eager"
        cache = exe.size_classes.cache if is_supported else None
        classes = SizeClasses(cache=None if cache is None else cache.with_states(names))
        classes.is_supported = is_supported
        found = exe.state_programs[names] = StatePrograms(names, classes)
    return found


def submit_state_class(exe: Executable, programs: StatePrograms, sizes: Mapping[str, int]) -> None:
    """Compile the class that has these sizes in the background. The caller holds exe.lock."""
    key = sorted_sizes(sizes)
    if programs.pending or key in programs.refused:
        return  # the class that is compiled now may have these sizes
    work = partial(_compile_in_background, weakref.ref(exe), programs, key)
    if background_worker.background_worker().submit(background_worker.Job(id(exe), work)):
        programs.pending.add(key)


def _compile_in_background(
    ref: weakref.ref[Executable], programs: StatePrograms, key: Sizes
) -> None:
    if (exe := ref()) is None:
        return
    sizes, classes = dict(key), programs.classes
    made = None
    try:
        if has_child(exe):
            for _ in child_results(exe, key, states=programs.names):
                pass  # the child ends after one class
            made = next((c for c in classes.find_new() if c.formulas.admits(sizes)), None)
        else:
            with background_worker.compile_lock():
                made = classes.compile(programs.compiler(exe), sizes)
    except (OSError, SuperoptError) as e:
        LOG.info("background %s with states in place: %s", sizes, e)
    with exe.lock:
        programs.pending.discard(key)
        if exe.is_closed:
            return
        if made is None:
            programs.refused.add(key)
        else:
            classes.add(made)
