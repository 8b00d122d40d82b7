"""Facts about a compiled quantized model: which products are exact, and where peers saturate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from superopt.check.quantizers import is_quantizer
from superopt.compilation.fallback.integer_mode import saturates_uint8_products
from superopt.cost.machine import processor_info
from superopt.errors import ModelError
from superopt.ir import graph as ir_graph
from superopt.ir.constant_values import is_constant
from superopt.ir.substitute import replace_all
from superopt.onnx_io.check.int8_saturation import NO_REACH, SaturatingNode, saturating_nodes
from superopt.onnx_io.import_.model import Model
from superopt.plan.graph.quantization.products import lower_quantized_products
from superopt.plan.graph.round_operands import permits_int8_rows
from superopt.report.compilation.quantization import (
    Exactness,
    ProductCount,
    QuantizationSummary,
    SaturatingProduct,
)

INTEGER_PRODUCTS = frozenset(("MatMulInteger", "ConvInteger", "QLinearMatMul", "QLinearConv"))
# Of com.microsoft, where they have no expression; others are expanded at import.
CONTRIB_PRODUCTS = frozenset(
    ("MatMulIntegerToFloat", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM", "QGemm", "QAttention")
)
FLOAT_PRODUCTS = frozenset(("MatMul", "Gemm", "Conv"))


def summarize_quantization(
    model: Model, graph: ir_graph.Graph, fallback: Collection[ir_graph.Node]
) -> QuantizationSummary | None:
    """Return the facts about a model that is compiled as `graph`; None if it has no products of
    quantized values. fallback: the nodes of `graph` that run in ONNX Runtime."""
    counts: Counter[tuple[str, Exactness, str]] = Counter()
    constant: dict[ir_graph.Node, bool] = {}
    nodes = ir_graph.nodes(graph)
    for n in nodes:
        found = _exactness(n, n in fallback, constant)
        if found is not None:
            counts[n.op.title, *found] += 1
    try:
        saturating = tuple(map(_saturating_product, saturating_nodes(model.source.model)))
    except ModelError:  # onnx_ir cannot represent everything that ONNX Runtime runs
        saturating = ()
    if not counts and not saturating:
        return None
    quantizers = [n for n in nodes if is_quantizer(n) and not is_constant(n, constant)]
    products = tuple(ProductCount(op, how, n, why) for (op, how, why), n in counts.items())
    here = saturates_uint8_products(processor_info()[1])
    return QuantizationSummary(len(quantizers), products, saturating, here)


def _exactness(
    n: ir_graph.Node, is_fallback: bool, constant: dict[ir_graph.Node, bool]
) -> tuple[Exactness, str] | None:
    """Return how a product of quantized values is computed, and why; None for other nodes."""
    is_integer = n.op.title in INTEGER_PRODUCTS | CONTRIB_PRODUCTS
    if n.op.title == "MatMulNBits":
        level = ", accuracy_level 4" if permits_int8_rows(n) else ""
        why = f"weights of {n.attr('bits')} bits{level}"
        return ("fallback", "") if is_fallback else ("floats", why)
    dequantized = [_is_dequantized(v) for v in n.inputs[:2]] if _is_float_product(n) else []
    if not is_integer and not any(dequantized):
        return None
    if is_fallback:
        return "fallback", ""
    if is_integer:
        return "exact", ""
    if _is_multiplied_as_integers(n):
        return "one step", ""
    return "floats", _float_reason(n, dequantized, constant)


def _is_float_product(n: ir_graph.Node) -> bool:
    return n.op.name in FLOAT_PRODUCTS and not n.op.domain


def _is_dequantized(v: ir_graph.Value | None) -> bool:
    n = None if v is None else ir_graph.producer(v)
    return n is not None and n.op.name == "DequantizeLinear"


def _is_multiplied_as_integers(n: ir_graph.Node) -> bool:
    """True if a product of dequantized values becomes one of the integers."""
    sources: dict[ir_graph.Value, ir_graph.Value] = {}
    for k, v in enumerate(n.inputs):
        p = None if v is None else ir_graph.producer(v)
        source = p.inputs[0] if p is not None and _is_dequantized(v) else v
        if source is not None and isinstance(source, ir_graph.Node | ir_graph.Item):
            sources[source] = ir_graph.Input(f"operand {k}", source.type)
    if n.inputs[1] is not None and (p := ir_graph.producer(n.inputs[1])) is not None:
        weights = p.inputs[0] if p.inputs else None
        if weights is not None and is_constant(weights, {}):
            sources.pop(weights, None)
    alone = replace_all(ir_graph.Graph((), (n,)), sources)
    return lower_quantized_products(alone).outputs != alone.outputs


def _float_reason(
    n: ir_graph.Node, dequantized: list[bool], constant: dict[ir_graph.Node, bool]
) -> str:
    if not all(dequantized):
        return "one operand is not quantized"
    weights = n.inputs[1]
    if weights is not None and not is_constant(weights, constant):
        return "of two activations"
    if n.op.name == "Conv" and n.attr("group") != 1:
        return "of groups"
    return "scales or zero points that are not of columns"


def _saturating_product(n: SaturatingNode) -> SaturatingProduct:
    reach = n.reach or NO_REACH
    return SaturatingProduct(
        f"{n.op} {n.name}".strip(),
        reach.channels,
        reach.of,
        reach.terms,
        reach.largest,
        n.remedy.value,
    )
