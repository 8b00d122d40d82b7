"""What a file keeps of a compiled model (saved_model.py)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from superopt.compilation.fallback.ort_segment import has_contrib_parts, unsaveable_error
from superopt.compilation.model.saved_model import SavedModel
from superopt.compilation.model.saved_source import write_saved_model

if TYPE_CHECKING:
    from superopt.compilation.model.compiler import Compiler
    from superopt.compilation.model.executable import Executable


def save_executable(c: Compiler, exe: Executable, path: Path, aot: str | Sequence[str]) -> None:
    """Write the model, the options of its kernels, and machine code for these processors to a file;
    see `Executable.save`. Raises UsageError for a model that runs in ONNX Runtime alone."""
    own = [key for key, v in exe.variants.items() if not v.is_of_class]
    kept = sorted(own or exe.shape_policy.recent_sizes)
    variants = {key: exe.variant(dict(key)) for key in kept}
    names = aot.split(",") if isinstance(aot, str) else aot
    if c.session is not None:
        raise unsaveable_error(c.model, c.fallback_reasons)
    steps = [s for v in variants.values() for s in v.kernel_steps]
    source = c.given_model.source if has_contrib_parts(c.model) else c.model.source
    saved = SavedModel(
        source.label,
        c.generator.allowed,
        {key: str(o) for s in steps for key, o in s.program.options.items()},
        tuple(map(dict, variants)),
        target=c.device.name,
        **c.generator.saved_fields(),
    )
    code = c.generator.compile_ahead(exe, variants, source, names) if names else None
    write_saved_model(saved, source, path, code)
