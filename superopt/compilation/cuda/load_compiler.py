"""The executable of a model for a GPU, from its file."""

from __future__ import annotations

from pathlib import Path

from superopt.compilation.cuda.code_generator import CudaCodeGenerator
from superopt.compilation.cuda.device import CudaDevice, open_gpu
from superopt.compilation.cuda.plan_settings import DEFAULT_STREAMS
from superopt.compilation.cuda.tune_kernels import stored_options
from superopt.compilation.frontend.allowed_transforms import AllowedTransforms
from superopt.compilation.frontend.compile_options import CompileOptions
from superopt.compilation.model.compiler import Compiler, make_compiler
from superopt.compilation.model.executable import Executable
from superopt.compilation.model.saved_model import SavedModel
from superopt.compilation.model.saved_source import saved_options, saved_source
from superopt.cost import tuning_records
from superopt.cost.store import Store
from superopt.errors import UsageError
from superopt.kernels.runtime.gpu_device import device_name
from superopt.loading.readable_model import RewriteSource, make_readable, rewritten_model
from superopt.onnx_io.read.source import Source
from superopt.plan.decisions import KernelDecision

MAX_STREAMS = 32  # maximum number of streams


def compile_model(
    source: Source,
    precision: str = "fp32",
    float_class: str = "E2",
    store: Path | None = None,
    vendor: bool = True,
    streams: int = DEFAULT_STREAMS,
    rewrite: RewriteSource | None = None,
    left_out: frozenset[KernelDecision] = frozenset(),
) -> Executable:
    """Return the executable of a model, which is compiled when the sizes of its inputs are known;
    see `tuned_compiler`."""
    made = tuned_compiler(
        source, precision, float_class, store, vendor, streams, rewrite=rewrite, left_out=left_out
    )
    return made.executable("background")


def tuned_compiler(
    source: Source,
    precision: str = "fp32",
    float_class: str = "E2",
    store: Path | None = None,
    vendor: bool = True,
    streams: int = DEFAULT_STREAMS,
    gpu_number: int | None = None,
    rewrite: RewriteSource | None = None,
    left_out: frozenset[KernelDecision] = frozenset(),
) -> Compiler:
    """Return the compiler of a model. store: the file of measurements, if not in the user's cache.
    vendor: allow vendor libraries. streams: maximum number, for branches. gpu_number: None for the
    current GPU. rewrite: applies a stored rewrite log (`graph_rewrites`). left_out:
    kernel decisions that are not made.

    Raises ModelError for an invalid model; UsageError if there is no GPU, or for an unknown
    precision or number of streams.
    """
    if type(streams) is not int or not 1 <= streams <= MAX_STREAMS:
        range_text = f"it must be an integer in [1, {MAX_STREAMS}]"
        raise UsageError(f"streams {streams!r}", range_text, "use another number")
    device = open_gpu(precision, gpu_number)
    allowed = AllowedTransforms(float_class, left_out=left_out)
    vendor = vendor and "libraries" not in left_out
    given = make_readable(source, 1)
    with Store.open(store) as held, device.activate():
        context = held, device.torch_device, device.dot_precision
        chosen = stored_options(*context, vendor)
        own = {} if allowed.winograd else stored_options(*context, False)
        target = tuning_records.gpu_models_target(device_name(device.torch_device), precision)
        log = tuning_records.stored_rewrites(held, target, lambda: given.source.sha256)
    if log is not None and rewrite is not None and allowed.winograd:
        given = rewritten_model(given, log, rewrite)
    generator = CudaCodeGenerator(device, allowed, vendor, streams, own)
    return make_compiler(given, generator, chosen)


def make_target_compiler(
    source: Source, options: CompileOptions, device: CudaDevice, rewrite: RewriteSource
) -> Compiler:
    """Return the compiler of a model; see `tuned_compiler`."""
    o = options
    return tuned_compiler(
        source,
        precision=o.precision,
        float_class=o.allowed.float_class,
        store=o.store,
        vendor=o.vendor,
        streams=o.streams,
        gpu_number=device.gpu_number,
        rewrite=rewrite,
    )


def load_saved(saved: SavedModel, threads: int | None = None) -> Executable:
    """Return the executable of a model that `Executable.save` wrote."""
    compiler = tuned_compiler(
        saved_source(saved),
        precision=saved.precision,
        float_class=saved.allowed.float_class,
        vendor=saved.vendor,
        streams=saved.streams,
    )
    compiler.tuned_options = {**compiler.tuned_options, **saved_options(saved)}
    out = compiler.executable("background")
    for sizes in saved.sizes:
        out.variant(sizes)
    return out
