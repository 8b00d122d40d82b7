"""What plans for a GPU are made for."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TypedDict

from superopt.compilation.cuda.device import DOT_PRECISIONS
from superopt.compilation.frontend.allowed_transforms import (
    MIN_WINOGRAD_FLOAT_CLASS,
    AllowedTransforms,
)
from superopt.kernels.algorithms import space
from superopt.kernels.algorithms.gpu.blocks import MULTIPROCESSORS
from superopt.kernels.loops.option import Option
from superopt.plan.decisions import leave_out
from superopt.plan.program.plan import Settings
from superopt.plan.program.streams import gpu_streams as on_gpu_streams
from superopt.plan.program.target import TF32_DROPPED_BITS, gpu_target
from superopt.te.expr.dtype import BF16, F16

STORAGE_DTYPES = {"fp16": F16, "bf16": BF16}  # of float32 values in memory, by precision
MIN_ONLINE_SOFTMAX_FLOAT_CLASS = MIN_WINOGRAD_FLOAT_CLASS
DEFAULT_STREAMS = 4  # maximum number of streams unless one is given
MIN_PARALLEL_ELEMENTS = 32 * MULTIPROCESSORS  # see Target.min_parallel_elements
# vector bytes of a CPU plan; GPUs have no such vectors, so what depends on them is unused
NO_VECTOR_BYTES = 64


class OptionFilter(TypedDict, total=False):
    """Arguments of space.options."""

    target: str
    vendor: bool
    forms: bool


def option_filter(allowed: AllowedTransforms, vendor: bool) -> OptionFilter:
    """Return the allowed kinds of kernels; see space.options."""
    if allowed.winograd:
        return {"target": "cuda", "vendor": vendor}
    return {"target": "cuda", "vendor": vendor, "forms": False}


def gpu_settings(
    precision: str,
    allowed: AllowedTransforms,
    options: Mapping[str, Option],
    *,
    vendor: bool = True,
    streams: int = DEFAULT_STREAMS,
    fallback_options: Mapping[str, Option] | None = None,
    is_for_classes: bool = False,
) -> Settings:
    """Return the settings of plans. options: tuned, by problem. fallback_options: see space.choose.
    is_for_classes: for plans of symbolic sizes, whose calls have one stream, and no calls of a
    vendor's library, which have fixed sizes."""
    has_libraries = vendor and not is_for_classes and "libraries" not in allowed.left_out
    how = option_filter(allowed, has_libraries)
    choose = partial(space.choose, **how)
    if fallback_options:
        choose = partial(choose, fallback=fallback_options)
    several = streams > 1 and not is_for_classes
    fuses_attention = allowed.float_class >= MIN_ONLINE_SOFTMAX_FLOAT_CLASS and not is_for_classes
    target = gpu_target(
        choose,
        partial(space.options, **how),
        fuses_attention=fuses_attention,
        storage_dtype=STORAGE_DTYPES.get(precision),
        dropped_bits=TF32_DROPPED_BITS if DOT_PRECISIONS[precision] == "tf32" else 0,
        min_parallel_elements=MIN_PARALLEL_ELEMENTS,
        assign_streams=partial(on_gpu_streams, max_streams=streams) if several else None,
    )
    made = Settings(NO_VECTOR_BYTES, options, allow_winograd=False, target=target)
    return leave_out(made, allowed.left_out)
