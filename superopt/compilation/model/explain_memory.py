"""The memory that a compiled model holds (`Executable.memory`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from superopt.compilation.model.control_flow.dynamic_if import ControlFlow
from superopt.compilation.model.steps import KernelStep, MemoryHolder
from superopt.report.compilation.memory_use import MemoryUse, ProgramMemory

if TYPE_CHECKING:
    from superopt.compilation.model.model_programs import ModelPrograms


def explain_memory(exe: ModelPrograms) -> MemoryUse:
    """Return the memory of the programs that are compiled or loaded now."""
    holders: dict[int, list[MemoryHolder]] = {}
    names: dict[int, str] = {}
    for name, holder in named_holders(exe):
        holders.setdefault(holder.program_identity, []).append(holder)
        names.setdefault(holder.program_identity, name)
    firsts = [first for first, *_ in holders.values()]  # those of a program have its constants
    weights = {key: size for h in firsts for key, size in h.constant_blocks().items()}
    arrays = {id(a): a for h in firsts for a in h.constant_arrays()}
    mapped = [a.nbytes for a in arrays.values() if not a.flags.writeable]  # files are read-only
    compiler = exe._compiler
    in_memory, in_files = (0, 0) if compiler is None else compiler.model.source.held_bytes()
    return MemoryUse(
        tuple(_program_memory(names[key], some) for key, some in holders.items()),
        sum(weights.values()),
        sum(mapped),
        in_memory,
        in_files,
        sum(1 for _ in _sessions(exe)),
    )


def named_holders(exe: ModelPrograms, prefix: str = "") -> Iterator[tuple[str, MemoryHolder]]:
    """Yield what holds memory, with the sizes that its program is for."""
    in_place = (c for p in exe.state_programs.values() for c in p.classes.classes)
    for each in (*exe.size_classes.classes, *in_place):
        for program in (p for s in each.loaded for p in s.programs):
            sizes = _sizes_text(dict(program.example))
            yield f"{prefix}class of {sizes}", program.memory_holder
    for key, variant in tuple(exe.variants.items()):
        for step in variant:
            name = prefix + (_sizes_text(dict(key)) or "all inputs")
            if isinstance(step, KernelStep):
                yield name, step
            elif isinstance(step, ControlFlow):
                for inner in step.executables:
                    yield from named_holders(inner, f"{name}: ")


def _program_memory(name: str, holders: list[MemoryHolder]) -> ProgramMemory:
    """Return the memory of a program; holders: it at all sizes at which it was called."""
    kept = {id(a): a.nbytes for h in holders for a in h.kept_output_arrays()}
    weights = sum(holders[0].constant_blocks().values())
    return ProgramMemory(name, weights, *holders[0].program_memory(holders), sum(kept.values()))


def _sessions(exe: ModelPrograms) -> Iterator[object]:
    fallback = exe.shape_policy.fallback
    found = {} if fallback is None else {id(fallback.session): fallback.session}
    for variant in tuple(exe.variants.values()):
        for step in variant:
            if isinstance(step, ControlFlow):
                for inner in step.executables:
                    yield from _sessions(inner)
            elif (session := getattr(step, "session", None)) is not None:
                found[id(session)] = session
    yield from found.values()


def _sizes_text(sizes: dict[str, int]) -> str:
    return ", ".join(f"{name}={n}" for name, n in sizes.items())
