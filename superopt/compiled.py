"""What people call for compiled models; `api` hands it on."""

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
GRAPH_PART = 1 / 3  # of the time for tuning, for the graph
MOST = 24  # ways to compute a problem that are measured on a GPU
# Seconds of tuning, of what has the most to do first: a GPU's kernels, compiled before, in two
# minutes of all.
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

    model: a path, a file's bytes, a ModelProto or an onnx_ir model (never changed).
    target: "cpu", or "cuda": Triton kernels, replayed as one CUDA graph (extra `gpu`; `export` is
    for "cpu" only; threads and partial say nothing of it).
    precision, for "cuda": "fp32"; "tf32", "fp16" or "bf16" round most of what is kept in memory
    between kernels, whose sums are of float32; vendor: may its libraries compute what they do
    faster (cuBLAS products, cuDNN convolutions, torch attention)? streams: on how many branches may
    run there that do not hang on each other. threads: 1 by default. tune: measure for at most
    `budget` seconds (300; on a GPU 90) which ways to compute the kernels are the fastest ones, and
    write these down; a model with symbolic sizes is tuned by `tune`, for given ones. store: where
    measurements are, by default in the user's cache; what was tuned before is taken from there.
    float_class: how much floats may change: "E1" sums in another order, "E2" products distributed
    over sums, too (convolutions in Winograd's tiles, products of matrices by Strassen's parts,
    batch normalisation in weights): then what is infinite, or no number, reaches some results more.
    partial: may programs be used that compute most of a result, with what corrects the rest
    (dilated convolutions as dense ones)?
    max_memory: bytes (or "8GB") that compiling may use; half of what is free by default.

    shapes: values of symbolic sizes, by name, for which the model is compiled at once; a sequence
    of these, for several. specialize: what a call at other sizes does. "background": the first call
    compiles the model for its sizes, if `shapes` gave none; a call at further sizes runs the whole
    model in onnxruntime, until compiling for them would have paid; then the model is compiled
    beside the calls, and compiled code is used once it is there, if it was measured to be faster.
    Results may change in the last bits then. "eager": a call at new sizes compiles the model first.
    "never": all but `shapes` run in onnxruntime. Without onnxruntime each is as "eager", as on a
    GPU, where only the default is taken. Nodes that no kernel computes run in onnxruntime always.

    Raises ModelError for an invalid model, and where it needs onnxruntime and that is not
    installed; UsageError for another target, and for sizes that the model has not.
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
                    "a GPU's programs are compiled in the call", "leave both out",
                )  # fmt: skip
            given = precision, float_class, vendor, streams, place
            return _on_gpu(model, most if tune else 0.0, *given)
        if tune:
            with suppress(OutOfTime):  # what was measured by then is kept
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
        exe = _gpu_from_file(file, options, on)  # as it was tuned
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
    """The model in a file; its programs are kept, and found again. Where they are found neither the
    model nor the compiler, torch and Triton are loaded until something else is asked of it."""
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
        raise UsageError(f"float_class {given!r}", "there are E1 and E2", "use one of them")


def _threads(given: object) -> None:
    """Raises UsageError for what is no number of threads."""
    if given is not None and (type(given) is not int or not 1 <= given <= MOST_THREADS):
        raise UsageError(
            f"threads {given!r}", f"it is a whole number from 1 to {MOST_THREADS}", "give another"
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
    """Measure for at most `budget` seconds (300; on a GPU 90) what is the fastest on this machine,
    and write it down: `compile` takes it from then on. First which rewrites of the graph (a third
    of the time, checked as `optimize` does; not on a GPU), then which ways to compute its kernels.

    shapes: values of symbolic sizes. store: the file or folder of measurements. target, precision,
    vendor, float_class (of which "E1" rewrites no graph), max_memory: as `compile` has them. Raises
    ModelError for an invalid model, OutOfTime where 1.2 times the budget and 5 seconds are over.
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
    """`tune`, inside of its limits."""
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


_tuned = tune  # a parameter of `compile` has its name


def load(
    path: str | Path, *, threads: int | None = None, specialize: Specialize = "background"
) -> Executable | OnGpu:
    """A compiled model that `Executable.save` wrote, or that of a GPU.

    threads: by default those that it was compiled for. specialize: what a call at sizes that were
    not saved does, as `compile` has it; on a GPU such sizes are compiled in the call. Kernels come
    from the user's cache of machine code, and are made again where they are not there.

    Raises UsageError for a file that is none, is of another format, or is damaged.
    """
    from superopt.pipeline import compile as compile_
    from superopt.pipeline import saved

    _threads(threads)
    if not isinstance(path, str | Path):
        raise UsageError(f"{type(path).__name__} is no path", "load reads a file", "give its path")
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
        raise UsageError(f"store {store!r}", "it is a path", "give the file or folder, or none")
    return None if store is None else Path(store)
