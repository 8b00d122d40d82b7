"""The executable of a model for the CPU, from its file."""

from __future__ import annotations

from pathlib import Path

from superopt.compilation.cpu.code_generator import CpuCodeGenerator
from superopt.compilation.cpu.device import CpuDevice
from superopt.compilation.frontend.allowed_transforms import ALL_TRANSFORMS, AllowedTransforms
from superopt.compilation.frontend.compile_options import CompileOptions
from superopt.compilation.frontend.input_arrays import has_symbolic_sizes
from superopt.compilation.model.compiler import Compiler, make_compiler, out_of_memory_error
from superopt.compilation.model.executable import Executable
from superopt.compilation.model.saved_model import SavedModel
from superopt.compilation.model.saved_source import saved_options, saved_source
from superopt.cost import tuning_records
from superopt.cost.cache_folders import objects_folder
from superopt.cost.store import Store
from superopt.kernels.runtime.amx import bf16_instructions
from superopt.kernels.runtime.cpu import Machine, host
from superopt.kernels.runtime.memory_limit import require_address_space
from superopt.loading.readable_model import (
    ReadableModel,
    RewriteSource,
    make_readable,
    rewritten_model,
)
from superopt.onnx_io.read.source import Source


def compile_model(
    source: Source,
    *,
    threads: int = 1,
    machine: Machine | None = None,
    store: Path | None = None,
    allowed: AllowedTransforms = ALL_TRANSFORMS,
    rewrite: RewriteSource | None = None,
    is_valid: bool = False,
    precision: str = "fp32",
) -> Executable:
    """Return the executable of a model; it is compiled once the sizes of its inputs are known.

    store: the file of measurements, if not in the user's cache. is_valid: superopt made the model;
    skip the checks.

    Raises ModelError for an invalid model.
    """
    made = tuned_compiler(
        source, threads, machine or host(), store, allowed, rewrite, is_valid, precision
    )
    out = made.executable()
    if not has_symbolic_sizes(out.input_ports):
        out.variant({})
    return out


def _make_device(threads: int, precision: str) -> CpuDevice:
    """Return a device whose programs this process may run. Raises UsageError if the processor
    lacks instructions for the precision."""
    if precision == "bf16":
        bf16_instructions(host())
    return CpuDevice(threads, precision)


def tuned_compiler(
    source: Source,
    threads: int,
    machine: Machine,
    store: Path | None,
    allowed: AllowedTransforms,
    rewrite: RewriteSource | None = None,
    is_valid: bool = False,
    precision: str = "fp32",
) -> Compiler:
    """Return the compiler of a model with its tuned options. rewrite: applies a stored rewrite log
    (`graph_rewrites`). Raises ModelError for an invalid model, and UsageError if the processor
    lacks the precision."""
    try:
        require_address_space(0, source.size_bytes)  # its weights are copied at least once
    except MemoryError as e:
        raise out_of_memory_error(source.label, str(e)) from None
    given = ReadableModel(source, source) if is_valid else make_readable(source, threads)
    with Store.open(store) as held:
        target = tuning_records.cpu_target(threads)
        chosen = tuning_records.chosen_options(held, target)
        log = tuning_records.stored_rewrites(held, target, lambda: given.source.sha256)
    if log is not None and rewrite is not None and allowed.winograd:
        given = rewritten_model(given, log, rewrite)
    device = _make_device(threads, precision)
    generator = CpuCodeGenerator(device, machine, objects_folder(), allowed)
    return make_compiler(given, generator, chosen)


def make_target_compiler(
    source: Source, options: CompileOptions, device: CpuDevice, rewrite: RewriteSource
) -> Compiler:
    """Return the compiler of a model; see `tuned_compiler`."""
    return tuned_compiler(
        source, options.threads, host(), options.store, options.allowed, rewrite,
        precision=options.precision,
    )  # fmt: skip


def load_saved(
    saved: SavedModel, threads: int | None = None, machine: Machine | None = None
) -> Executable:
    """Return the executable of a saved model. For other vectors kernels are compiled again."""
    out = saved_compiler(saved, threads, machine).executable()
    for sizes in saved.sizes:
        out.variant(sizes)
    return out


def saved_compiler(
    saved: SavedModel, threads: int | None = None, machine: Machine | None = None
) -> Compiler:
    """Return the compiler of a saved model."""
    machine = machine or host()
    same = saved.vector_bytes == machine.width
    options = saved_options(saved) if same else {}
    count = threads or saved.threads
    device = _make_device(count, saved.precision)
    generator = CpuCodeGenerator(device, machine, objects_folder(), saved.allowed)
    given = make_readable(saved_source(saved), count)
    return make_compiler(given, generator, options)
