"""Calls of the parts of a model at an If or Loop whose programs a child process compiles.

A part without a program for what it is given raises `PartNotCompiled`: ONNX Runtime runs the whole
model in this call, and a child process compiles all parts that the call would have needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Literal

from superopt.compilation.model.control_flow.cached_parts import find_control_flow
from superopt.errors import SuperoptError

if TYPE_CHECKING:
    from superopt.compilation.frontend.input_arrays import Sizes
    from superopt.compilation.model.control_flow.dynamic_if import ControlFlow
    from superopt.compilation.model.executable import Executable

# What a call does at sizes of no program: as `specialize` says; compile it, in a child process;
# raise PartNotCompiled.
OnMissing = Literal["specialize", "compile", "raise"]

_compiles: ContextVar[bool] = ContextVar("compiles", default=False)


class PartNotCompiled(SuperoptError):
    """A part of a model has no program for what it is given."""

    def __init__(self) -> None:
        super().__init__("a part of the model is not compiled", "a child process compiles it")


@contextmanager
def compile_missing_parts() -> Iterator[None]:
    """Let calls of parts in this thread compile what is missing."""
    token = _compiles.set(True)
    try:
        yield
    finally:
        _compiles.reset(token)


def on_missing(exe: Executable, key: Sizes = ()) -> OnMissing:
    """Return what a call in this thread does at these sizes if they have no program. ONNX Runtime
    ends the process at some sizes of 0: there, kernels are compiled in the call."""
    mode = exe.shape_policy.on_missing
    if mode == "raise" and 0 in dict(key).values():
        return "specialize"
    return "compile" if mode == "raise" and _compiles.get() else mode


def set_on_missing(flow: ControlFlow, mode: OnMissing) -> None:
    """Set what calls of all parts do at sizes of no program."""
    for part in flow.executables:
        part.shape_policy.on_missing = mode
        if (inner := part.size_classes.any_control_flow) is not None:
            set_on_missing(inner, mode)


def cached_flow(exe: Executable) -> ControlFlow | None:
    """Return the programs at a model's If or Loop that the disk cache has, whose calls compile
    nothing."""
    found = find_control_flow(exe)
    if found is not None:
        set_on_missing(found, "raise")
    return found


def add_new_programs(flow: ControlFlow) -> None:
    """Let calls of parts use the programs that a child process has compiled since."""
    for part in flow.executables:
        with part.lock:
            part.shape_policy.missing_sizes.clear()
            if part.size_classes.has_read:
                part.size_classes.add_new()
        if (inner := part.size_classes.any_control_flow) is not None:
            add_new_programs(inner)
