"""The report of a model compiled for the CPU: numbers, and the texts of its kernels."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from superopt.errors import UsageError
from superopt.ir import graph
from superopt.kernels.llvm.codegen import kernel_text
from superopt.kernels.runtime.cpu import Machine
from superopt.kernels.runtime.dump import pass_texts
from superopt.onnx_io.read.source import Source
from superopt.pipeline.allowed import ALL, Allowed
from superopt.pipeline.branching import value_names
from superopt.pipeline.compile import compile
from superopt.pipeline.notes import notes
from superopt.pipeline.rewritten import rewritten
from superopt.pipeline.shapes import fitting, representative
from superopt.pipeline.steps import natives
from superopt.plan.dump import dump_passes
from superopt.plan.program.program import Program
from superopt.report.compiled import Compilation, Foreign


def compilation(
    source: Source,
    threads: int,
    shapes: Mapping[str, int],
    dump: Path | None,
    allowed: Allowed = ALL,
) -> Compilation:
    """Compile for these sizes, and report the result."""
    begin = time.monotonic()
    with dump_passes(dump):
        exe = compile(source, threads=threads, allowed=allowed, rewrite=rewritten)
        sizes = representative(exe.model, shapes)
        with fitting(exe.model, shapes):
            steps = exe.variant(sizes)
    seconds = time.monotonic() - begin
    programs = [s.code.program for s in natives(steps)]
    if dump is not None:
        for n, p in enumerate(programs):
            _dumped(p, exe.machine, dump if len(programs) == 1 else dump / f"part{n}")
    kernels = {name for p in programs for name in p.kernels}
    names = value_names(exe.compiler, sizes)
    foreign = tuple(
        Foreign(f"{n.op.title} {names.get(graph.result(n, 0), '')}".strip(), why)
        for n, why in exe.fallen(sizes)
    )
    return Compilation(
        source.label,
        threads,
        seconds,
        len(graph.nodes(exe.model.graph)),
        len(kernels),
        sum(len(p.calls) for p in programs),
        sum(p.constant_bytes for p in programs),
        sum(p.memory_bytes + threads * p.workspace_bytes for p in programs),
        foreign,
        sizes=tuple(sizes.items()),
        notes=notes(exe.compiler, sizes),
    )


def _dumped(p: Program, machine: Machine, folder: Path) -> None:
    """Write the texts of a program after each pass, in the order of its kernels."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for n, call in enumerate(p.kernel_calls()):
            kernel = p.kernels[call.function]
            for name, made in pass_texts(kernel, kernel_text(kernel, machine.width), machine):
                (folder / f"{n:03}-{call.function}.{name}").write_text(f"{made}\n", "utf-8")
    except OSError as e:
        raise UsageError(f"cannot write to {folder}", str(e), "name another folder") from None
