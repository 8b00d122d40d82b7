"""The report of a model compiled for the CPU: numbers, and the texts of its kernels."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from superopt.compilation.cpu.load_compiler import compile_model
from superopt.compilation.frontend.allowed_transforms import ALL_TRANSFORMS, AllowedTransforms
from superopt.compilation.model.compile_if import value_names
from superopt.compilation.model.notes import compile_notes
from superopt.errors import UsageError
from superopt.ir import graph
from superopt.jobs.graph_rewrites import apply_rewrite_log
from superopt.kernels.llvm.codegen import kernel_text
from superopt.kernels.runtime.cpu import Machine
from superopt.kernels.runtime.dump import pass_texts
from superopt.loading.representative_sizes import explain_default_sizes, representative_sizes
from superopt.onnx_io.read.source import Source
from superopt.plan.dump import dump_passes
from superopt.plan.program.program import Program
from superopt.report.compilation.compile_report import CompilationReport, FallbackNode


def report_compilation(
    source: Source,
    threads: int,
    shapes: Mapping[str, int],
    dump_folder: Path | None,
    allowed: AllowedTransforms = ALL_TRANSFORMS,
) -> CompilationReport:
    """Compile for these sizes, and report the result."""
    begin = time.monotonic()
    with dump_passes(dump_folder):
        exe = compile_model(source, threads=threads, allowed=allowed, rewrite=apply_rewrite_log)
        sizes = representative_sizes(exe.model, shapes)
        with explain_default_sizes(exe.model, shapes):
            variant = exe.variant(sizes)
    seconds = time.monotonic() - begin
    programs = [s.program for s in variant.kernel_steps]
    machine = exe.compiler.generator.machine  # type: ignore[attr-defined]
    if dump_folder is not None:
        for n, p in enumerate(programs):
            _dump_program(
                p, machine, dump_folder if len(programs) == 1 else dump_folder / f"part{n}"
            )
    kernels = {name for p in programs for name in p.kernels}
    names = value_names(exe.compiler, sizes)
    foreign = tuple(
        FallbackNode(f"{n.op.title} {names.get(graph.result(n, 0), '')}".strip(), why)
        for n, why in exe.fallback_nodes(sizes)
    )
    return CompilationReport(
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
        notes=compile_notes(exe.compiler, sizes),
    )


def _dump_program(program: Program, machine: Machine, folder: Path) -> None:
    """Write the texts of a program after each pass, in the order of its kernels."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for n, call in enumerate(program.kernel_calls()):
            kernel = program.kernels[call.function]
            for name, made in pass_texts(kernel, kernel_text(kernel, machine.width), machine):
                (folder / f"{n:03}-{call.function}.{name}").write_text(f"{made}\n", "utf-8")
    except OSError as e:
        raise UsageError(f"cannot write to {folder}", str(e), "name another folder") from None
