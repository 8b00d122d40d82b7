"""The functions behind the command line for model files: compile, profile, export and run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from superopt.compiled import compile, load
from superopt.errors import UsageError
from superopt.pipeline.allowed import Allowed
from superopt.pipeline.executable import Executable
from superopt.pipeline.targets import known_target

if TYPE_CHECKING:
    from superopt.pipeline.on_gpu import OnGpu
    from superopt.report.compiled import Compilation, Exported, OutputValue
    from superopt.report.profile import Profile


def compilation(
    model: str | Path,
    *,
    threads: int | None = None,
    shapes: Mapping[str, int] | None = None,
    dump: str | Path | None = None,
    float_class: str = "E2",
    target: str = "cpu",
    precision: str = "fp32",
    vendor: bool = True,
) -> Compilation:
    """Compile a model file and return a report of the result.

    shapes: values of symbolic dimensions, by name. dump: a folder for the kernels' text after each
    pass: .expressions, .tile, LLVM IR (.ll, .optimized.ll), or Triton source (.triton.py). target,
    precision, vendor: as in `compile`.
    """
    from superopt.onnx_io.read.source import read_model
    from superopt.pipeline import compilation as compilation_

    folder = None if dump is None else Path(dump)
    known_target(target, precision, vendor)
    if target != "cpu":
        from superopt.pipeline import gpu_compilation

        return gpu_compilation.compilation(
            read_model(model), precision, dict(shapes or {}), folder, float_class, vendor
        )
    return compilation_.compilation(
        read_model(model), threads or 1, dict(shapes or {}), folder, Allowed(float_class)
    )


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
    from superopt.pipeline import profile as profile_
    from superopt.pipeline.inputs import read_inputs

    given = None if inputs is None else read_inputs(inputs)
    exe = _executable(Path(model), threads, target, precision, vendor, float_class)
    if not isinstance(exe, Executable):
        from superopt.pipeline import gpu_profile

        return gpu_profile.profile(exe, given, dict(shapes or {}), seconds)
    never = stop or (lambda: False)
    return profile_.profile(exe, given, dict(shapes or {}), seconds, never)


def export_model(
    model: str | Path,
    *,
    output: str | Path,
    threads: int | None = None,
    shapes: Mapping[str, int] | None = None,
    float_class: str = "E2",
) -> Exported:
    """Compile a model file, or load a saved compiled model, and write a shared object with a C
    header and weights; see `Executable.export`.

    output: a folder, or the files' base name. shapes: values of symbolic dimensions. float_class:
    as in `compile`; a saved model has its own.
    """
    exe = _executable(Path(model), threads, float_class=float_class)
    if not isinstance(exe, Executable):
        raise UsageError(
            f"{model} is compiled for a GPU",
            "C export supports only the CPU",
            "compile the model for the CPU",
        )
    return exe.export(output, shapes=shapes)


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
) -> tuple[OutputValue, ...]:
    """Compile a model file, or load a saved compiled model, and run it once.

    inputs, output: .npz files of arrays by name. target, precision, vendor, float_class: as in
    `compile`.
    """
    from superopt.pipeline.described import described
    from superopt.pipeline.inputs import read_inputs, write_arrays

    feeds = read_inputs(inputs)
    assert feeds is not None
    found = _executable(Path(model), threads, target, precision, vendor, float_class).run(feeds)
    if output is not None:
        write_arrays(Path(output), found)
    return tuple(described(name, x) for name, x in found.items())


def _executable(
    model: Path,
    threads: int | None,
    target: str = "cpu",
    precision: str = "fp32",
    vendor: bool = True,
    float_class: str = "E2",
) -> Executable | OnGpu:
    """Return an executable for a model file, or for a file that `Executable.save` wrote."""
    from superopt.onnx_io.export import section_file

    if section_file.is_section_file(model):
        return load(model, threads=threads)
    known_target(target, precision, vendor)
    if target == "cpu":
        return compile(model, threads=threads, precision=precision, float_class=float_class)
    return compile(
        model, target="cuda", precision=precision, vendor=vendor, float_class=float_class
    )
