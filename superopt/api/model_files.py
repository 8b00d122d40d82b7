"""The functions behind the command line for model files: compile, profile, export and run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from superopt.api.compilation import compile, load
from superopt.compilation.frontend.allowed_transforms import AllowedTransforms
from superopt.compilation.frontend.compile_options import CompileOptions
from superopt.compilation.frontend.targets import check_target
from superopt.compilation.model.executable import Executable
from superopt.loading.given_sizes import as_size_mapping

if TYPE_CHECKING:
    from superopt.compilation.model.executable import Executable
    from superopt.report.compilation.compile_report import (
        CompilationReport,
        ExportReport,
        OutputRange,
    )
    from superopt.report.compilation.kernel_explanation import KernelExplanation
    from superopt.report.compilation.profile import Profile


def compile_model(
    model: str | Path,
    *,
    threads: int | None = None,
    shapes: Mapping[str, int] | None = None,
    dump: str | Path | None = None,
    float_class: str = "E2",
    target: str = "cpu",
    precision: str = "fp32",
    vendor: bool = True,
    output: str | Path | None = None,
    aot: Sequence[str] = (),
) -> CompilationReport:
    """Compile a model file and return a report of the result.

    shapes: values of symbolic dimensions, by name. dump: a folder for the kernels' text after each
    pass: .expressions, .tile, LLVM IR (.ll, .optimized.ll), or Triton source (.triton.py). target,
    precision, vendor: as in `compile`. output: a file for `superopt.load`, and aot: processors
    whose machine code it holds; see `Executable.save`.
    """
    from superopt.jobs import compile_report
    from superopt.onnx_io.read.source import read_model

    check_target(target, precision, vendor)
    allowed = AllowedTransforms(float_class)
    options = CompileOptions(target, threads or 1, allowed, precision, vendor)
    folder = None if dump is None else Path(dump)
    sizes = as_size_mapping(shapes)
    saved = None if output is None else Path(output)
    return compile_report.report_compilation(read_model(model), options, sizes, folder, saved, aot)


def profile(
    model: str | Path,
    *,
    threads: int | None = None,
    shapes: Mapping[str, int] | None = None,
    inputs: str | Path | None = None,
    seconds: float = 2.0,
    stop: Callable[[], bool] | None = None,
    target: str = "cpu",
    precision: str = "fp32",
    vendor: bool = True,
    float_class: str = "E2",
) -> Profile:
    """Compile and run a model file, or run a saved compiled model, and time its kernels.

    shapes: values of symbolic dimensions. inputs: an .npz file of arrays by name; default random
    inputs. target, precision, vendor, float_class: as in `compile`; a saved model has its own.
    """
    from superopt.loading.array_files import read_inputs

    given = None if inputs is None else read_inputs(inputs)
    exe = _open_executable(Path(model), threads, target, precision, vendor, float_class)
    never = stop or (lambda: False)
    return exe.profile(given, shapes=shapes, seconds=seconds, stop=never)


def explain_kernel(
    model: str | Path,
    kernel: str,
    *,
    threads: int | None = None,
    shapes: Mapping[str, int] | None = None,
    inputs: str | Path | None = None,
    seconds: float = 2.0,
    target: str = "cpu",
    precision: str = "fp32",
    vendor: bool = True,
    float_class: str = "E2",
) -> KernelExplanation:
    """Say why a kernel of a model file has its schedule; see `Executable.explain_kernel`.

    kernel: its number in the table of `profile`, from 1 for the slowest, or a part of its label.
    The other parameters: as in `profile`, which runs first.
    """
    from superopt.loading.array_files import read_inputs

    given = None if inputs is None else read_inputs(inputs)
    exe = _open_executable(Path(model), threads, target, precision, vendor, float_class)
    return exe.explain_kernel(kernel, given, shapes=shapes, seconds=seconds)


def export_model(
    model: str | Path,
    *,
    output: str | Path,
    threads: int | None = None,
    shapes: Mapping[str, int] | None = None,
    float_class: str = "E2",
    cpu: str | None = None,
    target: str | None = None,
) -> ExportReport:
    """Compile a model file, or load a saved compiled model, and write a shared object with a C
    header and weights, or a module of WebAssembly; see `Executable.export`.

    output: a folder, or the files' base name. shapes: values of symbolic dimensions; calls in C
    pass the others. float_class: as in `compile`; a saved model has its own. cpu, target: the
    processor and the system.
    """
    exe = _open_executable(Path(model), threads, float_class=float_class)
    return exe.export(output, shapes=shapes, cpu=cpu, target=target)


def run_model(
    model: str | Path,
    *,
    inputs: str | Path,
    output: str | Path | None = None,
    threads: int | None = None,
    target: str = "cpu",
    precision: str = "fp32",
    vendor: bool = True,
    float_class: str = "E2",
) -> tuple[OutputRange, ...]:
    """Compile a model file, or load a saved compiled model, and run it once.

    inputs, output: .npz files of arrays by name. target, precision, vendor, float_class: as in
    `compile`.
    """
    from superopt.jobs.output_summary import summarize_output
    from superopt.loading.array_files import read_inputs, write_npz

    feeds = read_inputs(inputs)
    assert feeds is not None
    found = _open_executable(Path(model), threads, target, precision, vendor, float_class).run(
        feeds
    )
    if output is not None:
        write_npz(Path(output), found)
    return tuple(summarize_output(name, x) for name, x in found.items())


def _open_executable(
    model: Path,
    threads: int | None,
    target: str = "cpu",
    precision: str = "fp32",
    vendor: bool = True,
    float_class: str = "E2",
) -> Executable | Executable:
    """Return an executable for a model file, or for a file that `Executable.save` wrote."""
    from superopt.onnx_io.export import section_file

    if section_file.is_section_file(model):
        return load(model, threads=threads)
    return compile(
        model, target=target, threads=threads, precision=precision, vendor=vendor,
        float_class=float_class, shapes=(),  # the only call compiles
    )  # fmt: skip
