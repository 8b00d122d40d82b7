"""The public functions for onnxruntime: `ort_provider`, `ort_register`, and the export."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superopt.api.compilation import check_float_class, check_threads
from superopt.loading.given_sizes import as_size_mapping

if TYPE_CHECKING:
    from superopt.onnx_io.read.source import ModelLike, Source
    from superopt.report.compilation.compile_report import ContextReport

REGISTERED_NAME = "superopt_compiler"  # programs register exported providers by other names
_registered: dict[str, Any] = {}  # the devices and the compiler of this process, once there are any


def ort_provider() -> Path:
    """Return the path of the library that runs exported models in onnxruntime 1.23 and later.

    Any host registers it under a name, and adds its device to the options of a session; the model
    is one that `superopt export --ort` wrote. In Python `ort_register` does both.

    Returns:
        An absolute path.

    Raises:
        UsageError: This is not Linux; or the library must be built from a source checkout, and
            there is no C compiler.

    Example:
        >>> superopt.ort_provider().name
        'libsuperopt_ort.so'
    """
    from superopt.ort_plugin.library import provider_library

    return provider_library()


def ort_register(*, threads: int | None = None, float_class: str = "E2") -> list[Any]:
    """Register the execution provider with onnxruntime in this process; return its devices.

    A session with these devices compiles its model when it is made, as `superopt.compile` does:
    groups of nodes with kernels become one node each, and onnxruntime runs the others. Kernels that
    were compiled before are read from the cache. Sessions of exported models need no compiler.

    Args:
        threads: Threads of a call, by default as many as this process has processors, as
            onnxruntime's. They are superopt's own; those of exported models are onnxruntime's.
        float_class: As in `superopt.compile`.

    Returns:
        Devices for `SessionOptions.add_provider_for_devices`.

    Raises:
        UsageError: onnxruntime is missing or older than 1.23, or an argument is invalid.

    Example:
        >>> import onnxruntime
        >>> options = onnxruntime.SessionOptions()
        >>> options.add_provider_for_devices(superopt.ort_register(), {})
        >>> session = onnxruntime.InferenceSession("model.onnx", options)
        >>> session.run(["p"], {"x": np.zeros((4, 6), np.float32)})[0].shape
        (4, 5)
    """
    check_threads(threads)
    check_float_class(float_class)
    from superopt.compilation.frontend.allowed_transforms import AllowedTransforms
    from superopt.compilation.frontend.compile_options import CompileOptions
    from superopt.cost.machine import usable_processors
    from superopt.ort.plugin_devices import register_provider
    from superopt.ort_plugin.host_compiler import SessionCompiler, load_library
    from superopt.ort_plugin.library import PROVIDER_NAME

    path = ort_provider()
    if "devices" not in _registered:
        _registered["devices"] = register_provider(REGISTERED_NAME, path, PROVIDER_NAME)
    options = CompileOptions("cpu", threads or usable_processors(), AllowedTransforms(float_class))
    compiler = SessionCompiler(load_library(path), options, _part_opener(options))
    compiler.install()
    _registered["compiler"] = compiler
    devices: list[Any] = _registered["devices"]
    return devices


def _part_opener(options: Any) -> Callable[[Source], Callable[[dict[str, Any]], Any]]:
    """Return the function that compiles a part of a model."""
    from superopt.api import open_model

    def open_part(source: Source) -> Callable[[dict[str, Any]], Any]:
        exe = open_model.open_source(source, options, "background")
        for sizes in open_model.bind_shapes(exe, None):
            exe.runnable(sizes)
        return exe.run

    return open_part


def export_for_onnxruntime(
    model: ModelLike,
    folder: str | Path,
    *,
    threads: int | None = None,
    shapes: Mapping[str, int] | None = None,
    cpus: Sequence[str] | None = None,
    embed: bool = False,
    float_class: str = "E2",
) -> ContextReport:
    """Compile a model for onnxruntime: write NAME_ctx.onnx, its libraries and weights, and the
    execution provider.

    The folder can be moved as a whole. A session with the device of `ort_provider` runs the model
    in any language, without Python and without a compiler.

    Args:
        model: As in `superopt.compile`.
        folder: The folder to write to; it is created.
        threads: Threads of a call, which are onnxruntime's: as many as sessions have. Default the
            number of this process's processors, as onnxruntime's.
        shapes: Values of symbolic dimensions, by name; others stay symbolic.
        cpus: Processors that there is code for, by default "native"; or levels as "x86-64-v3". A
            host uses the first that it can run.
        embed: Write one file, which holds libraries and weights.
        float_class: As in `superopt.compile`.

    Returns:
        The compiled parts, the nodes that onnxruntime runs with reasons, and the files.

    Raises:
        ModelError: The model is invalid.
        UsageError: No node has a kernel; there is no C compiler; or a file cannot be written.

    Example:
        >>> report = superopt.export_for_onnxruntime("model.onnx", "out")
        >>> report.files[0][0]
        'out/model_ctx.onnx'
    """
    check_threads(threads)
    check_float_class(float_class)
    from superopt.compilation.frontend.allowed_transforms import AllowedTransforms
    from superopt.compilation.frontend.compile_options import CompileOptions
    from superopt.cost.machine import usable_processors
    from superopt.kernels.runtime.target_cpu import requested_level
    from superopt.onnx_io.read.source import read_model
    from superopt.ort_plugin.export import export_context_model

    options = CompileOptions("cpu", threads or usable_processors(), AllowedTransforms(float_class))
    chosen = (requested_level() or "native",) if cpus is None else tuple(cpus)
    return export_context_model(
        read_model(model), Path(folder), options, as_size_mapping(shapes), chosen, embed
    )
