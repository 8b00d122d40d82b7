"""The public functions for compiled models: `compile`, `tune` and `load`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from superopt import guard
from superopt.compilation.frontend.targets import TARGETS, check_target
from superopt.compilation.model.shape_policy import Shapes, Specialize, check_specialize
from superopt.errors import OutOfTime, UsageError
from superopt.errors import positive_seconds as seconds_
from superopt.loading.given_sizes import as_size_mapping

if TYPE_CHECKING:
    from superopt.compilation.model.executable import Executable
    from superopt.onnx_io.read.source import ModelLike
    from superopt.report.compilation.compile_report import TuningReport
    from superopt.report.data.report import Event

MAX_THREADS = 1024  # as on the command line
GRAPH_BUDGET_FRACTION = 0.6  # of the budget, for rewrites of the graph


def compile(
    model: ModelLike,
    *,
    target: str = "cpu",
    threads: int | None = None,
    search: float | None = None,
    tune: float | None = None,
    store: str | Path | None = None,
    float_class: str = "E2",
    partial: bool = True,
    precision: str = "fp32",
    vendor: bool = True,
    streams: int = 4,
    max_memory: int | str | None = None,
    shapes: Shapes | None = None,
    specialize: Specialize = "background",
) -> Executable:
    """Compile a model to machine code for this processor, or to kernels for a GPU.

    Args:
        model: A path, a file's bytes, a ModelProto or an onnx_ir model (not modified).
        target: "cpu"; "cuda": Triton kernels, captured as one CUDA graph (extra `gpu`; `threads`
            and `partial` have no effect); or "reference": kernels are interpreted by numpy, slowly.
            `export` supports only "cpu".
        threads: Threads of a call, default 1.
        search: Seconds for finding a faster graph, by rewrites whose kernels are measured, and
            faster schedules of its kernels. What is found is checked as by `superopt.optimize`, and
            stored: later calls without `search` compile the same.
        tune: Seconds for faster schedules of the kernels alone. For a model with symbolic
            dimensions use `superopt.tune`, which has their sizes.
        store: The store of measurements, by default in the user's cache. Earlier tuning results are
            read from it.
        float_class: The allowed float deviation: "E1" sums in another order, "E2" also products
            distributed over sums (Winograd convolutions, Strassen matrix products, batch
            normalization folded into weights); then Inf and NaN may reach more results.
        partial: Allow programs that compute most of a result, with a correction of the rest (such
            as dilated convolutions computed as dense ones).
        precision: "fp32", the default, computes float32 values in float32. For "cpu": "bf16" rounds
            the operands of matrix products and convolutions with constant weights to bfloat16, to
            the nearest and ties to even, where that is estimated to be faster; sums and all else
            are float32. It needs a processor with AMX or AVX512-BF16. For "cuda": "tf32", "fp16" or
            "bf16" round most tensors that are stored between kernels; sums accumulate in float32.
        vendor: For "cuda": allow vendor libraries where they are faster (cuBLAS products, cuDNN
            convolutions, torch attention).
        streams: For "cuda": the number of CUDA streams for independent branches.
        max_memory: Bytes (or "8GB") that compiling may use; default half of the free memory.
        shapes: Values of symbolic dimensions, by name, or a sequence of these, for which to compile
            now. An empty sequence: the first call compiles for its sizes.
        specialize: What a call at other sizes does. "background": it runs in onnxruntime until
            compiling would have paid off; then the model is compiled in the background, and the
            compiled code is used once it is measured to be faster. The last bits of results may
            change at that point. If no sizes are compiled, the first call starts that; where the
            model is not in a file, or has no classes of sizes, it compiles for its sizes. "eager":
            a call at new sizes compiles first. "never": the first call compiles for its sizes, if
            `shapes` gave none; all others run in onnxruntime. On a GPU "background" compiles in
            the call: for the first 16 sizes at once, for others when that would have paid off.
            Without onnxruntime every mode behaves as "eager".

    Returns:
        A callable: inputs by name, outputs by name in the model's order. Nodes without a kernel run
        in onnxruntime within the call.

    Raises:
        ModelError: The model is invalid, or needs onnxruntime and it is not installed.
        UsageError: An argument is invalid, or names a dimension that the model does not have; or
            the processor lacks instructions for the precision.

    Example:
        >>> exe = superopt.compile("model.onnx")
        >>> exe(x=np.zeros((4, 6), np.float32))["p"].shape
        (4, 5)
    """
    measured = _measuring_seconds(search, tune)
    check_target(target, precision, vendor, measured is not None)
    check_threads(threads)
    place = _store_path(store)
    check_float_class(float_class)
    known = check_specialize(specialize)
    with guard.limit_call(None, guard.parse_max_memory(max_memory)):
        from superopt.api import open_model
        from superopt.compilation.frontend.allowed_transforms import AllowedTransforms
        from superopt.compilation.frontend.compile_options import CompileOptions

        if measured is not None:
            sizes = as_size_mapping(shapes) if isinstance(shapes, Mapping) else {}
            with suppress(OutOfTime):  # what was found up to then is kept
                _public_tune(
                    model, threads=threads, shapes=sizes, budget=measured, rewrites=tune is None,
                    store=store, target=target, precision=precision, vendor=vendor,
                    float_class=float_class,
                )  # fmt: skip
        allowed = AllowedTransforms(float_class, bool(partial))
        options = CompileOptions(target, threads or 1, allowed, precision, vendor, streams, place)
        if isinstance(model, str | Path):
            starts = shapes is None and measured is None and max_memory is None
            exe = open_model.open_file(Path(model), options, known, may_start_child=starts)
        else:
            from superopt.onnx_io.read.source import read_model

            exe = open_model.open_source(read_model(model), options, known)
        chosen = open_model.bind_shapes(exe, shapes)
        for sizes in chosen:
            exe.runnable(sizes)
        if isinstance(exe.reference, open_model.FileReference):
            keys = tuple(tuple(sorted(sizes.items())) for sizes in chosen)
            exe.reference = replace(exe.reference, sizes=keys)
        return exe


def _measuring_seconds(search: float | None, tune: float | None) -> float | None:
    """Return the seconds of a search or of tuning; None for neither."""
    if search is not None and tune is not None:
        raise UsageError(
            f"search={search!r} and tune={tune!r}", "a search includes tuning", "pass one of them"
        )
    if search is not None:
        return seconds_("search", search)
    return None if tune is None else seconds_("tune", tune)


def check_float_class(float_class: object) -> None:
    if float_class not in ("E1", "E2"):
        raise UsageError(
            f"unknown float_class {float_class!r}",
            "the classes are E1 and E2",
            "choose one of them",
        )


def check_threads(threads: object) -> None:
    """Raise UsageError for an invalid number of threads."""
    if threads is not None and (type(threads) is not int or not 1 <= threads <= MAX_THREADS):
        raise UsageError(
            f"invalid number of threads {threads!r}",
            f"it must be an integer from 1 to {MAX_THREADS}",
            "pass a number in that range",
        )


def tune(
    model: ModelLike,
    *,
    threads: int | None = None,
    shapes: Mapping[str, int] | None = None,
    budget: float | None = None,
    rewrites: bool = True,
    store: str | Path | None = None,
    progress: Callable[[Event], None] | None = None,
    stop: Callable[[], bool] | None = None,
    target: str = "cpu",
    precision: str = "fp32",
    vendor: bool = True,
    float_class: str = "E2",
    max_memory: int | str | None = None,
) -> TuningReport:
    """Tune a model on this machine and store the result, which `compile` uses from then on.

    The first part of the budget tests rewrites of the graph, checked as in `optimize`; the rest
    measures candidate schedules of the kernels. In Triton's interpreter the times of rewritten
    graphs are predicted, and no schedule is measured.

    Args:
        model: As in `compile`.
        threads: As in `compile`.
        shapes: Values of symbolic dimensions, by name.
        budget: Seconds, default 300, on a GPU 90.
        rewrites: False: only schedules.
        store: The file or folder of measurements, by default in the user's cache.
        progress: Called with each `Event`.
        stop: Polled; true ends the call, and measurements up to then are kept.
        target: As in `compile`.
        precision: As in `compile`.
        vendor: As in `compile`.
        float_class: As in `compile`; "E1" disables rewrites of the graph.
        max_memory: As in `compile`.

    Returns:
        What was measured: each kernel's default and fastest option, with times in microseconds.

    Raises:
        ModelError: The model is invalid.
        OutOfTime: After 1.2 times the budget plus 5 seconds.

    Example:
        >>> report = superopt.tune("model.onnx", budget=4, store="tuning.sqlite")
        >>> len(report.kernels) > 0
        True
    """
    check_target(target, precision, vendor, tune=True)
    check_threads(threads)
    check_float_class(float_class)
    seconds = TARGETS[target].tuning_seconds if budget is None else seconds_("budget", budget)
    with guard.limit_call(seconds, guard.parse_max_memory(max_memory)):
        from superopt.api.event_log import log_events

        return _tune(
            model, threads or 1, as_size_mapping(shapes), seconds,
            GRAPH_BUDGET_FRACTION * seconds * rewrites, _store_path(store),
            log_events("superopt.tune", progress), stop or (lambda: False), target, precision,
            vendor, float_class,
        )  # fmt: skip


def _tune(
    model: ModelLike,
    threads: int,
    shapes: Mapping[str, int],
    seconds: float,
    graph_seconds: float,
    store_path: Path | None,
    progress: Callable[[Event], None],
    stop: Callable[[], bool],
    target: str,
    precision: str,
    vendor: bool,
    float_class: str,
) -> TuningReport:
    """Tune within the limits that `tune` set."""
    from superopt.compilation.frontend.allowed_transforms import AllowedTransforms
    from superopt.jobs import tune_cpu, tune_cuda
    from superopt.onnx_io.read.source import read_model

    allowed = AllowedTransforms(float_class)
    if target == "cpu":
        return tune_cpu.tune_model(
            read_model(model), threads, shapes, seconds, graph_seconds, store_path, progress, stop,
            allowed, precision,
        )  # fmt: skip
    return tune_cuda.tune_model(
        read_model(model), shapes, seconds, graph_seconds, store_path, progress, stop, allowed,
        precision, vendor,
    )  # fmt: skip


def load(
    path: str | Path, *, threads: int | None = None, specialize: Specialize = "background"
) -> Executable:
    """Load a compiled model that `Executable.save` wrote, for a CPU or a GPU.

    Machine code for this processor is loaded from the file, if `save` wrote it: load only files
    that you trust. Else kernels come from the user's cache of machine code, and are compiled if
    they are missing; the log says why code in the file is not used.

    Args:
        path: The file.
        threads: Default the number that it was compiled for.
        specialize: What a call at sizes that were not saved does, as in `compile`; on a GPU such
            sizes are compiled in the call.

    Returns:
        The compiled model.

    Raises:
        UsageError: The file is missing, damaged, or of another format.

    Example:
        >>> superopt.compile("model.onnx").save("model.superopt")
        >>> superopt.load("model.superopt").output_names
        ('p', 'q')
    """
    from superopt.api import open_model

    check_threads(threads)
    if not isinstance(path, str | Path):
        raise UsageError(
            f"{type(path).__name__} is not a path", "load reads a file", "pass its path"
        )
    return open_model.open_saved(Path(path), threads, check_specialize(specialize))


def _store_path(store: object) -> Path | None:
    if store is not None and not isinstance(store, str | PathLike):
        raise UsageError(
            f"invalid store {store!r}", "it must be a path", "pass a file or folder, or None"
        )
    return None if store is None else Path(store)


_public_tune = tune  # `compile` has a parameter named tune
