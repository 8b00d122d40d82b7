"""The device, the compiler and the executable of a model for any target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from superopt.compilation.frontend.compile_options import CompileOptions
from superopt.compilation.frontend.targets import TARGETS

if TYPE_CHECKING:
    from superopt.compilation.model.compiler import Compiler
    from superopt.compilation.model.device import Device
    from superopt.compilation.model.executable import Executable
    from superopt.loading.readable_model import RewriteSource
    from superopt.onnx_io.read.source import Source


def open_device(options: CompileOptions) -> Device:
    """Return the device of a target. Raises UsageError if there is none."""
    found: Device = TARGETS[options.target].load("device").open_device(options)
    return found


def make_compiler(
    source: Source,
    options: CompileOptions,
    device: Device,
    rewrite: RewriteSource | None = None,
) -> Compiler:
    """Return the compiler of a model. rewrite: applies a stored rewrite log (`graph_rewrites`).
    Raises ModelError for an invalid model."""
    module = TARGETS[options.target].load("load_compiler")
    made: Compiler = module.make_target_compiler(source, options, device, rewrite)
    return made


def compile_model(
    source: Source, options: CompileOptions, rewrite: RewriteSource | None = None
) -> Executable:
    """Return the executable of a model, which is compiled when its sizes are known, without the
    disk cache of programs; see `make_compiler`."""
    return make_compiler(source, options, open_device(options), rewrite).executable()
