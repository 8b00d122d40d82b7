"""The public functions for compiled models: `compile`, `tune` and `load`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

from superopt import guard
from superopt.errors import OutOfTime, UsageError
from superopt.errors import seconds as seconds_
from superopt.pipeline import entries
from superopt.pipeline.arrays import symbolic
from superopt.pipeline.new_sizes import Shapes, Specialize, checked_specialize
from superopt.pipeline.targets import known_target

if TYPE_CHECKING:
    from superopt.onnx_io.read.source import ModelLike, Source
    from superopt.pipeline import gpu_ready
    from superopt.pipeline.cuda import Compiler as GpuCompiler
    from superopt.pipeline.executable import Executable, Sizes
    from superopt.pipeline.gpu_parts import Variant
    from superopt.pipeline.on_gpu import OnGpu
    from superopt.report.compiled import Tuned
    from superopt.report.data import Event

MOST_THREADS = 1024  # as on the command line
GRAPH_PART = 1 / 3  # of the tuning budget, for rewrites of the graph
MOST = 24  # of a problem that are measured on a GPU
# Default tuning budget in seconds. Problems are tuned in the order of their predicted time; on a
# GPU, where kernels are compiled first, 90 s of tuning take about two minutes in all.
BUDGET = {"cpu": 300.0, "cuda": 90.0}


@overload
def compile(
    model: ModelLike,
    *,
    target: Literal["cpu"] = "cpu",
    threads: int | None = None,
    tune: bool = False,
    budget: float | None = None,
    store: str | Path | None = None,
    float_class: str = "E2",
    partial: bool = True,
    precision: str = "fp32",
    vendor: bool = True,
    streams: int = 4,
    max_memory: int | str | None = None,
    shapes: Shapes | None = None,
    specialize: Specialize = "background",
) -> Executable: ...
@overload
def compile(
    model: ModelLike,
    *,
    target: Literal["cuda"],
    threads: int | None = None,
    tune: bool = False,
    budget: float | None = None,
    store: str | Path | None = None,
    float_class: str = "E2",
    partial: bool = True,
    precision: str = "fp32",
    vendor: bool = True,
    streams: int = 4,
    max_memory: int | str | None = None,
    shapes: Shapes | None = None,
    specialize: Specialize = "background",
) -> OnGpu: ...


def compile(
    model: ModelLike,
    *,
    target: str = "cpu",
    threads: int | None = None,
    tune: bool = False,
    budget: float | None = None,
    store: str | Path | None = None,
    float_class: str = "E2",
    partial: bool = True,
    precision: str = "fp32",
    vendor: bool = True,
    streams: int = 4,
    max_memory: int | str | None = None,
    shapes: Shapes | None = None,
    specialize: Specialize = "background",
) -> Executable | OnGpu:
    """Compile a model to machine code for this processor, or to kernels for a GPU.

        exe = superopt.compile("model.onnx")
        outputs = exe(x=array)  # by name, in the model's order

    model: a path, a file's bytes, a ModelProto or an onnx_ir model (not modified).
    target: "cpu", or "cuda": Triton kernels, replayed as one CUDA graph (extra `gpu`; `export`
        supports only "cpu"; `threads` and `partial` have no effect).
    threads: default 1.
    tune: measure candidate schedules of the kernels for at most `budget` seconds (default 300, on a
        GPU 90) and store the fastest; for a model with symbolic dimensions use `tune`.
    store: the store of measurements, default in the user's cache. Earlier tuning results are read
        from it.
    float_class: the allowed float deviation: "E1" sums in another order, "E2" also products
        distributed over sums (Winograd convolutions, Strassen matrix products, batch normalization
        folded into weights); then Inf and NaN may reach more results.
    partial: allow programs that compute most of a result, with a correction of the rest (such as
        dilated convolutions computed as dense ones).
    precision: for "cuda": "fp32"; "tf32", "fp16" or "bf16" round most tensors that are stored
        between kernels; sums accumulate in float32.
    vendor: for "cuda": allow vendor libraries where they are faster (cuBLAS products, cuDNN
        convolutions, torch attention).
    streams: for "cuda": the number of CUDA streams for independent branches.
    max_memory: bytes (or "8GB") that compiling may use; default half of the free memory.
    shapes: values of symbolic dimensions, by name, or a sequence of these, for which to compile
        now.
    specialize: what a call at other sizes does. "background": the first call compiles for its
        sizes, if `shapes` gave none. A call at further sizes runs the whole model in onnxruntime
        until compiling for them would have paid off; then the model is compiled in the background,
        and the compiled code is used once it is measured to be faster. The last bits of results may
        change at that point. "eager": a call at new sizes compiles first. "never": all sizes but
        `shapes` run in onnxruntime. Without onnxruntime, and on a GPU (which takes only the
        default), every mode behaves as "eager". Nodes that no kernel supports always fall back to
        onnxruntime.

    Raises ModelError for an invalid model, and if the model needs onnxruntime and it is not
    installed; UsageError for an unknown target, and for symbolic dimensions that the model does not
    have.
    """
    known_target(target, precision, vendor, tune)
    _threads(threads)
    place = _place(store)
    _float_class(float_class)
    known = checked_specialize(specialize)
    most = BUDGET[target] if budget is None else seconds_("budget", budget)
    with guard.limited(None, guard.bytes_given(max_memory)):
        if target == "cuda":
            if known != "background" or shapes is not None:
                raise UsageError(
                    f"specialize={known!r}, shapes={shapes!r} of target cuda",
                    "GPU programs are compiled during the call", "leave both out",
                )  # fmt: skip
            given = precision, float_class, vendor, streams, place
            return _on_gpu(model, most if tune else 0.0, *given)
        if tune:
            with suppress(OutOfTime):  # measurements up to then are kept
                _tuned(model, threads=threads, budget=most, store=store, float_class=float_class)
        from superopt import open_model
        from superopt.pipeline.allowed import Allowed
        from superopt.pipeline.kept_fallback import Options

        options = Options(threads or 1, Allowed(float_class, bool(partial)), place)
        if isinstance(model, str | Path):
            exe = open_model.open_file(Path(model), options, known)
        else:
            from superopt.onnx_io.read.source import read_model

            exe = open_model.open_source(read_model(model), options, known)
        for sizes in open_model.sizes_of_shapes(exe, shapes):
            exe.variant(sizes)
        return exe


def _on_gpu(
    model: ModelLike, budget: float, precision: str, float_class: str, vendor: bool, streams: int,
    store: Path | None,
) -> OnGpu:  # fmt: skip
    from superopt.pipeline import gpu_ready

    options = gpu_ready.Options(precision, float_class, vendor, streams, store)
    on = gpu_ready.place()
    file = Path(model) if isinstance(model, str | Path) else None
    if budget or on is None or file is None:
        from superopt.onnx_io.read.source import read_model

        exe = _gpu_compiler(read_model(model), options, on).executable()
        if budget and not symbolic(exe.ports):
            from superopt.cost.store import Store

            with Store.open(store) as held:
                exe.tune({}, budget=budget, most=MOST, store=held)
    if on is not None and file is not None:
        exe = _gpu_from_file(file, options, on)  # with the tuning results
    if not symbolic(exe.ports):
        exe.ready({})
    return exe


def _gpu_compiler(
    source: Source, options: gpu_ready.Options, on: gpu_ready.Place | None
) -> GpuCompiler:
    from superopt.pipeline.cuda import compiler

    o = options
    how = o.precision, o.float_class, o.store, o.vendor, o.streams
    return compiler(source, *how, None if on is None else on.number)


def _gpu_from_file(path: Path, options: gpu_ready.Options, on: gpu_ready.Place) -> OnGpu:
    """Return an executable for a model file, with its programs from the disk cache.

    On a cache hit the model, the compiler, torch and Triton are loaded only when they are needed.
    """
    from superopt.open_model import keep_digest, read_again
    from superopt.pipeline import gpu_ready
    from superopt.pipeline.on_gpu import OnGpu

    watch = entries.Watch.on(path)
    digest = entries.digest_of(path)
    key = "" if digest is None else options.key(digest, on)
    about = entries.interface(key)
    if about is None:
        from superopt.onnx_io.read.source import read_model

        source = read_model(path)
        made = _gpu_compiler(source, options, on)
        keep_digest(watch, source)
        key = options.key(source.sha256, on)
        about = entries.Interface(made.ports(), made.names())
        if not any(p.optional for p in about.ports):
            entries.keep_interface(key, about)

        def make() -> GpuCompiler:
            return made
    else:
        make = cache(lambda: _gpu_compiler(read_again(path, digest), options, on))

    def keep(sizes: Sizes, v: Variant) -> None:
        make().keep(key, sizes, v)

    return OnGpu(
        about.ports, about.outputs, options.precision, on.device, make,
        lambda sizes: gpu_ready.find(key, sizes, on), keep, number=on.number,
    )  # fmt: skip


def _float_class(given: object) -> None:
    if given not in ("E1", "E2"):
        raise UsageError(
            f"unknown float_class {given!r}", "the classes are E1 and E2", "choose one of them"
        )


def _threads(given: object) -> None:
    """Raise UsageError for an invalid number of threads."""
    if given is not None and (type(given) is not int or not 1 <= given <= MOST_THREADS):
        raise UsageError(
            f"invalid number of threads {given!r}",
            f"it must be an integer from 1 to {MOST_THREADS}",
            "pass a number in that range",
        )


def tune(
    model: ModelLike,
    *,
    threads: int | None = None,
    shapes: Mapping[str, int] | None = None,
    budget: float | None = None,
    store: str | Path | None = None,
    progress: Callable[[Event], None] | None = None,
    stop: Callable[[], bool] | None = None,
    target: str = "cpu",
    precision: str = "fp32",
    vendor: bool = True,
    float_class: str = "E2",
    max_memory: int | str | None = None,
) -> Tuned:
    """Tune a model on this machine and store the result, which `compile` uses from then on.

    The first third of the budget tests rewrites of the graph, checked as in `optimize` (not on a
    GPU); the rest measures candidate schedules of the kernels.

    shapes: values of symbolic dimensions. budget: seconds, default 300, on a GPU 90. store: the
    file or folder of measurements. target, precision, vendor, float_class ("E1" disables rewrites
    of the graph), max_memory: as in `compile`.

    Raises ModelError for an invalid model, OutOfTime after 1.2 times the budget plus 5 seconds.
    """
    known_target(target, precision, vendor)
    _threads(threads)
    _float_class(float_class)
    seconds = BUDGET[target] if budget is None else seconds_("budget", budget)
    with guard.limited(seconds, guard.bytes_given(max_memory)):
        return _tune(
            model, threads or 1, dict(shapes or {}), seconds, _place(store),
            progress or (lambda event: None), stop or (lambda: False), target, precision, vendor,
            float_class,
        )  # fmt: skip


def _tune(
    model: ModelLike,
    threads: int,
    shapes: Mapping[str, int],
    seconds: float,
    place: Path | None,
    show: Callable[[Event], None],
    stop: Callable[[], bool],
    target: str,
    precision: str,
    vendor: bool,
    float_class: str,
) -> Tuned:
    """Tune within the limits that `tune` set."""
    from superopt.cost.store import Store
    from superopt.onnx_io.read.source import read_model
    from superopt.pipeline import tuning
    from superopt.pipeline.allowed import Allowed
    from superopt.pipeline.shapes import representative
    from superopt.report.data import Event

    if target == "cpu":
        part, may = GRAPH_PART * seconds, Allowed(float_class)
        return tuning.tuned(
            read_model(model), threads, shapes, seconds, part, place, show, stop, may
        )
    on = compile(
        model, target="cuda", precision=precision, store=place, vendor=vendor,
        float_class=float_class,
    )  # fmt: skip
    sizes = representative(on.model, shapes)
    with Store.open(place) as held:
        done = on.tune(
            sizes, budget=seconds, most=MOST, store=held, stop=stop,
            seen=lambda p, times: show(Event("tune", f"{p.tensor.type}", None)),
        )  # fmt: skip
        return replace(done, notes=(*done.notes, *held.notes))


_tuned = tune  # `compile` has a parameter named tune


def load(
    path: str | Path, *, threads: int | None = None, specialize: Specialize = "background"
) -> Executable | OnGpu:
    """Load a compiled model that `Executable.save` wrote, for a CPU or a GPU.

    threads: default the number that it was compiled for. specialize: what a call at sizes that were
    not saved does, as in `compile`; on a GPU such sizes are compiled in the call. Kernels come from
    the user's cache of machine code and are rebuilt if they are missing.

    Raises UsageError for a missing or damaged file, and for one of another format.
    """
    from superopt.pipeline import compile as compile_
    from superopt.pipeline import saved

    _threads(threads)
    if not isinstance(path, str | Path):
        raise UsageError(
            f"{type(path).__name__} is not a path", "load reads a file", "pass its path"
        )
    known = checked_specialize(specialize)
    held = saved.read(Path(path))
    if held.target == "cuda":
        from superopt.pipeline import cuda

        return cuda.loaded(held)
    exe = compile_.loaded(held, threads)
    exe.new_sizes.specialize = known
    return exe


def _place(store: object) -> Path | None:
    if store is not None and not isinstance(store, str | PathLike):
        raise UsageError(
            f"invalid store {store!r}", "it must be a path", "pass a file or folder, or None"
        )
    return None if store is None else Path(store)
