"""Simplify a graph before planning, with rules and rewrites that always pay."""

from __future__ import annotations

from collections.abc import Callable, Collection

from superopt.ir import graph as ir_graph
from superopt.ir.constant_folding import fold_constants
from superopt.ir.substitute import ReplacementCycle, replace_all
from superopt.plan.graph.batched_gemm import batch_gemms
from superopt.plan.graph.channels_first import convert_to_channels_first
from superopt.plan.graph.dft_matmul import lower_dft_to_matmul
from superopt.plan.graph.promote_fp32 import promote_to_fp32
from superopt.plan.graph.quantization.byte_tables import tabulate_functions
from superopt.plan.graph.quantization.data_movement import move_dequantization
from superopt.plan.graph.quantization.grouped_products import split_grouped_products
from superopt.plan.graph.quantization.products import lower_quantized_products
from superopt.plan.graph.quantization.requantize import merge_requantization
from superopt.plan.graph.quantization.variable_products import lower_variable_products
from superopt.plan.graph.recurrent_unroll import unroll_recurrent
from superopt.plan.graph.subpixel_deconv import lower_to_subpixel_conv
from superopt.rules.lang.rule import Rule
from superopt.rules.library.load import CPU_LOWERING_FILES, LOWERING_FILES, load_file, load_rules
from superopt.rules.match.graph_context import GraphContext, graph_context
from superopt.rules.match.matcher import Match, matches
from superopt.rules.match.rewrite import Refusal, rewrite

PROMOTION_FLOAT_CLASS = "E2"  # the float class that allows unrounded intermediate results
REQUANTIZATION_FLOAT_CLASS = "E1"  # that allows another order of scaling and adding
# Padding is merged into the convolution; batch normalisation is folded into the weights before it,
# and what remains is a scale and a shift.
ALWAYS_APPLIED_RULES = {
    "padding.rules": ("pad-transpose",),
    "parts.rules": ("pad-value-zero",),
    "conv.rules": (
        "pad-conv", "pad-conv-bias", "pad-conv-line", "pad-conv-line-bias",
        "conv-bn", "conv-bias-bn", "conv-transpose-bn", "conv-transpose-bias-bn", "bn-affine",
    ),
    "gemm.rules": ("gemm-bn", "gemm-bn-trans"),
}  # fmt: skip

# Rules of the library that pay on a CPU for convolutions of so many channels and more: 256 channels
# of 4 x 14 x 14 take 0.73 of the time, 128 of 8 x 28 x 28 0.94, 64 of 16 x 56 x 56 1.02. Rounding
# errors are those of Winograd's tiles of 4 x 4 (1.2e-6 to 1.7e-6 of the result's rms).
DEPTH_RULES = ("conv-depth-winograd", "conv-depth-winograd-bias")
MIN_DEPTH_RULE_CHANNELS = 128


def simplify_graph(
    graph: ir_graph.Graph,
    float_class: str = "E2",
    threads: int = 1,
    is_cpu: bool = True,
    sensitive_outputs: Collection[int] = (),
    applies_rules: bool = True,
) -> ir_graph.Graph:
    """Return the graph after, in this order: moving dequantization behind data movement, writing
    products of dequantized integers as products of integers, splitting grouped ones and, on a CPU,
    lowering those of two variables; unrolling short recurrent layers, promoting fp16 and bf16 to
    float32, folding constants; on a CPU, writing functions of 8 bits as tables; merging
    requantization, lowering Fourier transforms to products, converting to channels first, applying
    the rules of ALWAYS_APPLIED_RULES that the float class permits, lowering 1x1 transposed
    convolutions to products and those of long strides to sub-pixel convolutions; on a CPU also
    those of short strides where that pays, 3-D convolutions to fewer ones of slices, and batching
    products of rows with one matrix.

    sensitive_outputs: the indices of outputs on which discontinuous operators outside of the graph
    depend; these are rounded as ir/rounding_sensitive.py defines. applies_rules: False: without the
    steps from the rules on, to measure what they gain.
    """
    graph = split_grouped_products(lower_quantized_products(move_dequantization(graph)))
    if is_cpu:
        graph = lower_variable_products(graph)
    graph = unroll_recurrent(graph, threads, separate=not is_cpu)
    graph = fold_constants(
        promote_to_fp32(graph, sensitive_outputs)
        if float_class >= PROMOTION_FLOAT_CLASS
        else graph,
        lazy=True,
    ).graph
    if float_class >= REQUANTIZATION_FLOAT_CLASS:
        graph = merge_requantization(tabulate_functions(graph) if is_cpu else graph)
    graph = fold_constants(convert_to_channels_first(lower_dft_to_matmul(graph)), lazy=True).graph
    if not applies_rules:
        return graph
    ctx = graph_context(graph)
    for file, names in ALWAYS_APPLIED_RULES.items():
        for rule in load_rules(file, names):
            if rule.float_class <= float_class:
                ctx = _apply_rule(ctx, rule)
    rounds_otherwise = is_cpu and float_class >= PROMOTION_FLOAT_CLASS
    for name in (*LOWERING_FILES, *(CPU_LOWERING_FILES if rounds_otherwise else ())):
        for rule in load_file(name):
            ctx = _apply_rule(ctx, rule)
    if rounds_otherwise:
        for rule in load_rules("winograd.rules", DEPTH_RULES):
            ctx = _apply_rule(ctx, rule, _has_many_channels)
    graph = fold_constants(
        lower_to_subpixel_conv(ctx.graph, float_class >= PROMOTION_FLOAT_CLASS, is_cpu), lazy=True
    ).graph
    return batch_gemms(graph) if is_cpu else graph


def _has_many_channels(match: Match) -> bool:
    """True if the weights that a match reads are those of a wide convolution."""
    weights = (n.inputs[1] for n in match.nodes if n.op.name == "Conv")
    sizes = (d for w in weights if w is not None for d in (w.type.shape or ())[:2])
    return all(isinstance(d, int) and d >= MIN_DEPTH_RULE_CHANNELS for d in sizes)


def _apply_rule(
    ctx: GraphContext, rule: Rule, pays: Callable[[Match], bool] = lambda match: True
) -> GraphContext:
    while True:
        change: dict[ir_graph.Value, ir_graph.Value] = {}
        for m in matches(rule, ctx):
            found = rewrite(m, ctx) if pays(m) else {}
            if not isinstance(found, Refusal) and not any(v in change for v in found):
                change |= found
        if not change:
            return ctx
        try:
            ctx = graph_context(replace_all(ctx.graph, change))
        except ReplacementCycle:
            return ctx
