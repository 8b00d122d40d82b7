"""`superopt export`: models as shared objects, and for onnxruntime's sessions."""

from collections.abc import Mapping
from pathlib import Path

import click

from superopt.cli import options, terminal
from superopt.cli.compile import compile_budget
from superopt.errors import ExitCode, UsageError


@click.command()
@options.model_argument("model")
@click.option(
    "-o",
    "--output",
    type=options.NEW_FILE,
    metavar="PATH",
    required=True,
    help="A folder, or the files' base name without a suffix.",
)
@click.option(
    "--ort",
    "for_onnxruntime",
    is_flag=True,
    help="Write a model for sessions of onnxruntime, by default for all processors.",
)
@click.option(
    "--embed", is_flag=True, help="With --ort: one file, which holds libraries and weights."
)
@click.option(
    "--target",
    metavar="SYSTEM",
    help="The system: x86_64-linux, aarch64-linux, x86_64-windows or wasm.  [default: this one, or "
    "the CPU's]",
)
@click.option(
    "--cpu",
    "--target-cpu",
    "cpus",
    metavar="NAME,...",
    help="The processor: native, a level as x86-64-v3, armv8-a, neoverse-n1 or neoverse-v1; with "
    "--ort several, of which a host uses the first that it can run.  [default: native]",
)
@options.threads
@options.sizes_option("Values of symbolic dimensions; calls pass the others.")
@options.float_class
@options.as_json
@options.debug
@options.limit_resources(compile_budget, budget_default="10m")
def export(
    model: Path,
    output: Path,
    for_onnxruntime: bool,
    embed: bool,
    target: str | None,
    cpus: str | None,
    threads: int | None,
    shapes: Mapping[str, int],
    float_class: str,
    as_json: bool,
) -> ExitCode:
    """Write MODEL as a shared object with a C header and weights.

    C programs link with it and need no Python. MODEL may also be a file that `Executable.save`
    wrote. Needs a C compiler ($CC, cc, gcc, clang, or the Python package ziglang).

    With --target for another system: AArch64 and Windows link by a cross-compiler ($CC) or ziglang;
    wasm is an ES module with WebAssembly (simd128, one thread) and TypeScript declarations.

    With --ort a folder gets MODEL_ctx.onnx, the libraries that compute it, and the execution
    provider by which programs that use onnxruntime 1.23 or later run it.
    """
    from superopt.api import functions as api
    from superopt.report.compilation import compile_report

    names = None if cpus is None else [name for name in cpus.split(",") if name]
    if for_onnxruntime and target is not None:
        raise UsageError(
            "--ort with --target",
            "the execution provider is for Linux on x86-64",
            "leave out one of them",
        )
    if for_onnxruntime:
        from superopt.api import onnxruntime

        made = onnxruntime.export_for_onnxruntime(
            model,
            output,
            threads=threads,
            shapes=shapes,
            cpus=names,
            embed=embed,
            float_class=float_class,
        )
        terminal.print_result(made, compile_report.context_text, as_json=as_json)
        return ExitCode.OK
    if embed or (names is not None and len(names) != 1):
        raise UsageError(
            "--embed or several processors without --ort",
            "a shared object is for one processor",
            "add --ort, or name one processor",
        )
    found = api.export_model(
        model,
        output=output,
        threads=threads,
        shapes=shapes,
        float_class=float_class,
        cpu=None if names is None else names[0],
        target=target,
    )
    terminal.print_result(found, compile_report.export_text, as_json=as_json)
    return ExitCode.OK
