"""What a file keeps of a compiled model (saved_model.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from superopt.compilation.fallback.ort_segment import has_contrib_parts, unsaveable_error
from superopt.compilation.model.saved_model import SavedModel

if TYPE_CHECKING:
    from superopt.compilation.frontend.input_arrays import Sizes
    from superopt.compilation.model.compiler import Compiler
    from superopt.compilation.model.steps import Variant


def saved_model_of(c: Compiler, variants: Mapping[Sizes, Variant]) -> SavedModel:
    """Return the model and the options of its kernels. Raises UsageError for a
    model that runs in ONNX Runtime alone."""
    if c.session is not None:
        raise unsaveable_error(c.model, c.fallback_reasons)
    steps = [s for v in variants.values() for s in v.kernel_steps]
    return SavedModel(
        c.given_model.source if has_contrib_parts(c.model) else c.model.source,
        allowed=c.generator.allowed,
        options={key: o for s in steps for key, o in s.program.options.items()},
        sizes=tuple(map(dict, variants)),
        target=c.device.name,
        **c.generator.saved_fields(),
    )
