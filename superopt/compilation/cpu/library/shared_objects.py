"""Programs as object files of one shared object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from superopt.kernels.llvm.calls import Call, Loop
from superopt.kernels.llvm.program import number_entry_points, program_text
from superopt.kernels.runtime.cpu import Machine, kernel_object_code, object_code
from superopt.plan.program.pack_constants import constant_numbers
from superopt.plan.program.program import Program


def shared_objects(
    program: Program,
    machine: Machine,
    threads: int,
    folder: Path | None,
    number: int,
    known: Mapping[str, bytes],
) -> dict[str, bytes]:
    """Return the object files of a program by name: its kernels, and `run`, which calls them; its
    functions are `run0` and `work0` for program number 0. folder: the cache of object files. known:
    those of other programs. Kernels of one name may differ, as they prefetch for the example sizes:
    this program's has another name then."""
    made: dict[str, bytes] = {}
    names: dict[str, str] = {}
    for kernel in program.kernels.values():
        data = kernel_object_code(kernel, machine, folder, True)
        if known.get(kernel.name, data) != data:
            names[kernel.name] = f"{kernel.name}_{number}"
            kernel = replace(kernel, name=names[kernel.name])
            data = kernel_object_code(kernel, machine, folder, True)
        made[kernel.name] = data
    table = constant_numbers(program.constants)
    words = program.symbolic.argument if program.symbolic is not None else 0
    calls = _rename_kernels(program.calls, names)
    text = program_text(calls, threads, machine.system, False, table, words)
    made[f"run{number}"] = object_code(number_entry_points(text, number), machine, folder, True)
    return made


def _rename_kernels(
    calls: Sequence[Call | Loop], names: Mapping[str, str]
) -> tuple[Call | Loop, ...]:
    def rename(call: Call) -> Call:
        return replace(call, function=names.get(call.function, call.function))

    return tuple(
        rename(c)
        if isinstance(c, Call)
        else replace(c, lanes=tuple(tuple(map(rename, lane)) for lane in c.lanes))
        for c in calls
    )
