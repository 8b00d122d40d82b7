"""The target of a program: how kernels are chosen, image layouts, storage types."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial

from superopt.kernels.algorithms.problem import Choice, Problem
from superopt.kernels.algorithms.space import choose, options
from superopt.kernels.loops.layout import Layout
from superopt.kernels.loops.option import Option
from superopt.plan.lowering.image_layouts import blocked_layouts, channels_last_layouts
from superopt.plan.program.streams import AssignStreams
from superopt.plan.rewrites.matmul.attention import (
    AttentionFusion,
    cpu_attention_fusion,
    gpu_attention_fusion,
)
from superopt.te.expr.dtype import DType
from superopt.te.expr.tensor import Tensor

TF32_DROPPED_BITS = 13  # mantissa bits of a float32 that TF32 lacks
choose_for_gpu = partial(choose, target="cuda")
options_for_gpu = partial(options, target="cuda")


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a program.

    choose: returns the solution of a problem. list_options: yields its options. assign_layouts:
    returns image layouts, from the definitions, the outputs, and the tensors written in parts.
    attention_fusion: which attention is one kernel. reorders_operands: copy operands into the order
    that readers need: transposed for products, with a border for windows. fuses_horizontally: fuse
    products of one operand with several constants. clears_borders: write the zeros around images in
    each run where that saves memory. replaces_causal_masks: compare indices instead of reading
    constant causal masks. storage_dtype: the type of float32 values in memory. dropped_bits: or the
    trailing mantissa bits
    that are rounded away, for tensor-core products that ignore them: truncation always rounds
    toward zero, and such errors accumulate from layer to layer. min_parallel_elements: long
    reductions with fewer results are split (split_reduction.py); 0 for never. assign_streams:
    assigns steps to streams, from their reads, writes and solutions; None for one stream.
    bounds_transformed_constants: transformed constants have a budget (transformed_constants.py).
    has_signed_bytes: products of 8-bit integers are of int8 by int8, in place of uint8 by int8.
    """

    choose: Callable[[Problem, Option | None], Choice] = choose
    list_options: Callable[[Problem], Iterator[Option]] = options
    assign_layouts: Callable[..., dict[Tensor, Layout]] = blocked_layouts
    attention_fusion: Callable[[Collection[Tensor], int], AttentionFusion] | None = (
        cpu_attention_fusion
    )
    reorders_operands: bool = True
    fuses_horizontally: bool = False
    clears_borders: bool = True
    replaces_causal_masks: bool = True
    storage_dtype: DType | None = None
    dropped_bits: int = 0
    min_parallel_elements: int = 0
    assign_streams: AssignStreams | None = None
    bounds_transformed_constants: bool = False
    has_signed_bytes: bool = False


CPU = Target(bounds_transformed_constants=True)


def gpu_target(
    choose: Callable[[Problem, Option | None], Choice] = choose_for_gpu,
    list_options: Callable[[Problem], Iterator[Option]] = options_for_gpu,
    *,
    fuses_attention: bool = True,
    storage_dtype: DType | None = None,
    dropped_bits: int = 0,
    min_parallel_elements: int = 0,
    assign_streams: AssignStreams | None = None,
) -> Target:
    """Return the target of a GPU; see Target for the parameters. fuses_attention: attention may be
    one kernel, which reorders its sums."""
    return Target(
        choose,
        list_options,
        channels_last_layouts,
        gpu_attention_fusion if fuses_attention else None,
        reorders_operands=False,
        fuses_horizontally=True,
        clears_borders=False,
        storage_dtype=storage_dtype,
        dropped_bits=dropped_bits,
        min_parallel_elements=min_parallel_elements,
        assign_streams=assign_streams,
        has_signed_bytes=True,
    )
