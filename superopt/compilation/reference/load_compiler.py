"""The compiler of a model for the reference target, from its file."""

from __future__ import annotations

from superopt.compilation.frontend.compile_options import CompileOptions
from superopt.compilation.model.compiler import Compiler, make_compiler
from superopt.compilation.reference.code_generator import ReferenceCodeGenerator
from superopt.compilation.reference.device import ReferenceDevice
from superopt.loading.readable_model import make_readable
from superopt.onnx_io.read.source import Source


def make_target_compiler(
    source: Source, options: CompileOptions, device: ReferenceDevice, rewrite: object
) -> Compiler:
    """Return the compiler of a model."""
    generator = ReferenceCodeGenerator(device, options.allowed)
    return make_compiler(make_readable(source, 1), generator, {})
