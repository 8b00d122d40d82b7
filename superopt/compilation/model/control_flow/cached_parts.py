"""The parts of a model at an If or Loop, with disk caches and references of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from superopt.compilation.model.control_flow.dynamic_if import ControlFlow
    from superopt.compilation.model.device import ProgramCache
    from superopt.compilation.model.executable import Executable
    from superopt.compilation.model.model_programs import ModelReference

Opener = tuple[Callable[..., "Executable"], tuple[Any, ...]]  # as of object.__reduce__


@dataclass(frozen=True, slots=True)
class PartReference:
    """A part of a model. whole: the model's reference."""

    whole: ModelReference
    name: str

    def reduce(self) -> Opener:
        """Return how to open the part in another process, where the cache has it."""
        return open_part, (*self.whole.reduce(), self.name)


def open_part(
    open_model: Callable[..., Executable], arguments: tuple[Any, ...], name: str
) -> Executable:
    """Return a part of a model that the cache has."""
    flow = find_control_flow(open_model(*arguments))
    assert flow is not None
    return flow.parts[name]


def find_control_flow(exe: Executable) -> ControlFlow | None:
    """Return the programs at a model's If or Loop that the disk cache has."""
    programs = exe.size_classes.cache
    found = None if programs is None else programs.find_control_flow(exe.shape_policy.specialize)
    if found is not None and exe.reference is not None:
        refer_to_parts(found, exe.reference)
    return found


def refer_to_parts(flow: ControlFlow, whole: ModelReference) -> None:
    """Let other processes open the parts of a model. whole: its reference."""
    for name, part in flow.parts.items():
        part.reference = PartReference(whole, name)


def use_cache(exe: Executable, programs: ProgramCache) -> None:
    """Let a model find its programs in the disk cache, and store them there."""
    exe.find_cached = programs.find
    exe.size_classes.cache = programs
    exe.store_cached = lambda sizes, variant: programs.store(
        sizes, variant, exe.shape_policy.expected_compile_seconds
    )
    exe.shape_policy.cached_compile_seconds = programs.compile_seconds
