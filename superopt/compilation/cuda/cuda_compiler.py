"""The CUDA compiler: from a model's file to its executable for a GPU."""

from __future__ import annotations

from pathlib import Path

from superopt.compilation.cpu.saved_model import SavedModel
from superopt.compilation.cuda.executable import CudaExecutable
from superopt.compilation.cuda.model_compiler import (
    DEFAULT_STREAMS,
    MIN_WINOGRAD_FLOAT_CLASS,
    PRECISIONS,
    Compiler,
)
from superopt.compilation.cuda.tune_kernels import stored_options
from superopt.compilation.fallback.ort_segment import GivenModel
from superopt.cost.store import Store
from superopt.errors import UsageError
from superopt.ir import graph as ir_graph
from superopt.kernels.runtime.gpu_device import current_gpu_number, execution_device, use_gpu
from superopt.loading.readable_model import make_readable
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import Source

INSTALL_HINT = (
    'pip install "superopt-onnx[gpu]" on a machine with an NVIDIA GPU; "superopt doctor" shows '
    "what is installed, and TRITON_INTERPRET=1 runs kernels on the CPU, slowly"
)
MAX_STREAMS = 32  # maximum number of streams


def compile_model(
    source: Source,
    precision: str = "fp32",
    float_class: str = "E2",
    store: Path | None = None,
    vendor: bool = True,
    streams: int = DEFAULT_STREAMS,
) -> CudaExecutable:
    """Return the executable of a model, which is compiled when the sizes of its inputs are known;
    see `tuned_compiler`."""
    return tuned_compiler(source, precision, float_class, store, vendor, streams).executable()


def tuned_compiler(
    source: Source,
    precision: str = "fp32",
    float_class: str = "E2",
    store: Path | None = None,
    vendor: bool = True,
    streams: int = DEFAULT_STREAMS,
    gpu_number: int | None = None,
) -> Compiler:
    """Return the compiler of a model. store: the file of measurements, if not in the user's cache.
    vendor: allow vendor libraries. streams: maximum number, for branches. gpu_number: None for the
    current GPU.

    Raises ModelError for an invalid model; UsageError if there is no GPU, or for an unknown
    precision or number of streams.
    """
    if precision not in PRECISIONS:
        raise UsageError(
            f"precision {precision!r}", f"precisions are {', '.join(PRECISIONS)}", "use one of them"
        )
    if type(streams) is not int or not 1 <= streams <= MAX_STREAMS:
        some = f"it must be an integer in [1, {MAX_STREAMS}]"
        raise UsageError(f"streams {streams!r}", some, "use another number")
    try:
        own = current_gpu_number(where := execution_device())  # initialises torch's GPUs
        gpu_number = own if gpu_number is None else gpu_number
    except RuntimeError as e:
        raise UsageError("target cuda", str(e), INSTALL_HINT) from None
    with Store.open(store) as held, use_gpu(gpu_number):
        chosen = stored_options(held, where, PRECISIONS[precision][1], vendor)
        ours = (
            stored_options(held, where, PRECISIONS[precision][1], False)
            if float_class < MIN_WINOGRAD_FLOAT_CLASS
            else {}
        )
    how = precision, where, float_class, vendor, streams, chosen
    given = make_readable(source, 1)
    out = Compiler(import_model(given.source), *how, gpu_number=gpu_number, session=given.session)
    out.fallback_options, out.given_model = ours, GivenModel(given.original, out.threads)
    if given.session is not None:
        out.fallback_reasons |= dict.fromkeys(
            ir_graph.nodes(out.model.graph), given.fallback_reason
        )
    return out


def load_saved(saved: SavedModel) -> CudaExecutable:
    """Return the executable of a model that `CudaExecutable.save` wrote."""
    how = saved.precision, saved.allowed.float_class
    made = tuned_compiler(saved.source, *how, vendor=saved.vendor, streams=saved.streams)
    made.tuned_options = {**made.tuned_options, **saved.options}
    out = made.executable()
    for sizes in saved.sizes:
        out.variant(sizes)
    return out
