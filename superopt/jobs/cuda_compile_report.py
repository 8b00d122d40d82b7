"""The report of a model compiled for a GPU: numbers, and the texts of its kernels."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from superopt.compilation.cuda import load_compiler
from superopt.compilation.cuda.segments import GpuSegment
from superopt.errors import UsageError
from superopt.ir import graph
from superopt.kernels.triton.module import vendor_name as vendor_of
from superopt.loading.representative_sizes import explain_default_sizes, representative_sizes
from superopt.onnx_io.read.source import Source
from superopt.plan.dump import dump_passes
from superopt.report.compilation.compile_report import CompilationReport, FallbackNode


def report_compilation(
    source: Source, precision: str, shapes: Mapping[str, int], dump_folder: Path | None,
    float_class: str, vendor: bool,
) -> CompilationReport:  # fmt: skip
    """Compile for these sizes, and report the result."""
    begin = time.monotonic()
    with dump_passes(dump_folder):
        exe = load_compiler.compile_model(source, precision, float_class, vendor=vendor)
        sizes = representative_sizes(exe.model, shapes)
        with explain_default_sizes(exe.model, shapes):
            made = exe.variant(sizes)
    seconds = time.monotonic() - begin
    if dump_folder is not None:
        for n, p in enumerate(made.kernel_steps):
            _dump_segment(
                p, dump_folder if len(made.kernel_steps) == 1 else dump_folder / f"part{n}"
            )
    programs = [p.program for p in made.kernel_steps]
    names = made.model.names
    foreign = tuple(
        FallbackNode(f"{n.op.title} {names.get(graph.result(n, 0), '')}".strip(), why)
        for n, why in exe.fallback_nodes(sizes)
    )
    return CompilationReport(
        source.label,
        0,
        seconds,
        len(graph.nodes(made.model.graph)),
        len({name for p in programs for name in p.kernels}),
        sum(len(p.gpu_program.launches) for p in made.kernel_steps),
        sum(p.constant_bytes for p in programs),
        sum(p.memory_bytes for p in programs),
        foreign,
        precision,
        tuple(sizes.items()),
    )


def _dump_segment(segment: GpuSegment, folder: Path) -> None:
    """Write the texts of a segment's kernels as they run here, in order."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for n, call in enumerate(segment.program.kernel_calls()):
            kernel = segment.program.kernels[call.function]
            for name, made in (*kernel.passes, ("tile", kernel)):
                (folder / f"{n:03}-{call.function}.{name}").write_text(f"{made}\n", "utf-8")
            text = segment.gpu_program.loaded[kernel.name].text.source
            if kernel.library:
                text = f"# by {vendor_of(kernel.library)}: {kernel.library}\n"
            (folder / f"{n:03}-{call.function}.triton.py").write_text(text, "utf-8")
    except OSError as e:
        raise UsageError(f"cannot write to {folder}", str(e), "name another folder") from None
