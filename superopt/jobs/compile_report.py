"""The report of a compiled model: numbers, and the texts of its kernels."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from superopt.compilation.frontend.compile_options import CompileOptions
from superopt.compilation.frontend.targets import TARGETS
from superopt.compilation.model.compile_model import compile_model
from superopt.compilation.model.control_flow.compile_if import value_names
from superopt.compilation.model.device import CodeGenerator
from superopt.compilation.model.notes import compile_notes
from superopt.compilation.model.steps import KernelStep
from superopt.compilation.quantization_summary import summarize_quantization
from superopt.errors import UsageError
from superopt.ir import graph
from superopt.jobs.graph_rewrites import apply_rewrite_log
from superopt.jobs.quantized_layers import prove_layers
from superopt.loading.representative_sizes import (
    explain_default_sizes,
    input_sizes,
    representative_sizes,
)
from superopt.onnx_io.read.source import Source
from superopt.plan.dump import dump_passes
from superopt.report.compilation.compile_report import CompilationReport, FallbackNode


def report_compilation(
    source: Source,
    options: CompileOptions,
    shapes: Mapping[str, int],
    dump_folder: Path | None = None,
    output: Path | None = None,
    aot: Sequence[str] = (),
) -> CompilationReport:
    """Compile for these sizes, and report the result. dump_folder: write the plan after each pass
    there, and the texts of the kernels. output, aot: save it; see `Executable.save`."""
    begin = time.monotonic()
    with dump_passes(dump_folder):
        exe = compile_model(source, options, apply_rewrite_log)
        sizes = representative_sizes(exe.model, shapes)
        with explain_default_sizes(exe.model, shapes):
            steps = exe.variant(sizes).kernel_steps
    seconds = time.monotonic() - begin
    if output is not None:
        exe.save(output, aot=aot)
    generator = exe.compiler.generator
    if dump_folder is not None:
        for n, s in enumerate(steps):
            _dump_step(s, generator, dump_folder if len(steps) == 1 else dump_folder / f"part{n}")
    programs = [s.program for s in steps]
    names = value_names(exe.compiler, sizes)
    fallback = exe.fallback_nodes(sizes)
    foreign = tuple(
        FallbackNode(f"{n.op.title} {names.get(graph.result(n, 0), '')}".strip(), why)
        for n, why in fallback
    )
    sized = exe.compiler.compiler_for(sizes).model.graph
    quantization = summarize_quantization(exe.model, sized, {n for n, _ in fallback})
    if quantization is not None:
        quantization = replace(quantization, layers=prove_layers(sized))
    threads = generator.device.kernel_threads
    return CompilationReport(
        source.label,
        threads,
        seconds,
        len(graph.nodes(exe.model.graph)),
        len({name for p in programs for name in p.kernels}),
        sum(s.launch_count for s in steps),
        sum(p.constant_bytes for p in programs),
        sum(p.memory_bytes + threads * p.workspace_bytes for p in programs),
        foreign,
        exe.precision if len(TARGETS[options.target].precisions) > 1 else "",
        tuple(input_sizes(exe.model, sizes).items()),
        compile_notes(exe.compiler, sizes),
        quantization,
    )


def _dump_step(step: KernelStep, generator: CodeGenerator, folder: Path) -> None:
    """Write the texts of a segment's kernels after each pass, in the order of their calls."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for n, call in enumerate(step.program.kernel_calls()):
            kernel = step.program.kernels[call.function]
            for name, text in generator.kernel_texts(step, kernel):
                (folder / f"{n:03}-{call.function}.{name}").write_text(f"{text}\n", "utf-8")
    except OSError as e:
        raise UsageError(f"cannot write to {folder}", str(e), "name another folder") from None
