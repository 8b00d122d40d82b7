"""The memory that a compiled model holds (`Executable.memory`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from superopt.compilation.model.control_flow.dynamic_if import ControlFlow
from superopt.compilation.model.steps import KernelStep
from superopt.report.compilation.memory_use import MemoryUse, ProgramMemory

if TYPE_CHECKING:
    from superopt.compilation.model.model_programs import ModelPrograms


def explain_memory(exe: ModelPrograms) -> MemoryUse:
    """Return the memory of the programs that are compiled or loaded now."""
    steps: dict[int, list[KernelStep]] = {}
    names: dict[int, str] = {}
    for name, step in named_steps(exe):
        steps.setdefault(step.program_identity, []).append(step)
        names.setdefault(step.program_identity, name)
    weights = {id(a): a for some in steps.values() for s in some for a in s.constant_arrays()}
    mapped = [a.nbytes for a in weights.values() if not a.flags.writeable]  # files are read-only
    compiler = exe._compiler
    in_memory, in_files = (0, 0) if compiler is None else compiler.model.source.held_bytes()
    return MemoryUse(
        tuple(_program_memory(names[key], some) for key, some in steps.items()),
        sum(a.nbytes for a in weights.values()),
        sum(mapped),
        in_memory,
        in_files,
        sum(1 for _ in _sessions(exe)),
    )


def named_steps(exe: ModelPrograms, prefix: str = "") -> Iterator[tuple[str, KernelStep]]:
    """Yield the kernels, with the sizes that their program is for."""
    in_place = (c for p in exe.state_programs.values() for c in p.classes.classes)
    for each in (*exe.size_classes.classes, *in_place):
        for program in (p for s in each.loaded for p in s.programs):
            sizes, step = dict(program.example), program.at_sizes(program.example)
            if isinstance(step, KernelStep):
                yield f"{prefix}class of {_sizes_text(sizes)}", step
    for key, variant in tuple(exe.variants.items()):
        for step in variant:
            name = prefix + (_sizes_text(dict(key)) or "all inputs")
            if isinstance(step, KernelStep):
                yield name, step
            elif isinstance(step, ControlFlow):
                for inner in step.executables:
                    yield from named_steps(inner, f"{name}: ")


def _program_memory(name: str, steps: list[KernelStep]) -> ProgramMemory:
    """Return the memory of a program; steps: it at all sizes at which it was called."""
    first = steps[0].program_memory()
    kept = {id(a): a.nbytes for s in steps for a in s.kept_output_arrays()}
    weights = sum(a.nbytes for a in steps[0].constant_arrays())
    return ProgramMemory(name, weights, *first, sum(kept.values()))


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
