"""Models with products of 8-bit integers that run in ONNX Runtime, because it is faster."""

from __future__ import annotations

from superopt import ort
from superopt.compilation.fallback.integer_mode import saturates_uint8_products
from superopt.compilation.fallback.ort_segment import find_saturating_nodes
from superopt.cost.machine import processor_info
from superopt.ir import graph as ir_graph
from superopt.onnx_io.check.int8_saturation import Remedy
from superopt.onnx_io.import_.model import Expansion, Model
from superopt.onnx_io.read.source import Source
from superopt.plan.graph.partition import INTEGER_PRODUCT_REASON
from superopt.plan.graph.quantization.runtime_products import (
    has_products_without_runtime_kernel,
    has_quantized_products,
    has_slow_integer_products,
)
from superopt.te.expr.dtype import I8, U8

# Element types of the operands and the result for which ONNX Runtime has no kernel on a CPU.
_MIXED_TYPES = (I8, U8)


def integer_product_fallbacks(model: Model, which: str) -> dict[ir_graph.Node, str]:
    """Return all nodes if ONNX Runtime is installed and has faster kernels for the whole model,
    which are exact. which: products of 8-bit integers that have slow kernels; see
    CodeGenerator."""
    if which == "none":
        return {}
    is_slow = has_slow_integer_products if which == "slow" else has_quantized_products
    if not is_slow(model.graph) or has_products_without_runtime_kernel(model.graph):
        return {}
    if any(map(_is_rejected, model.expansions)) or _saturates_without_remedy(model.source):
        return {}
    if ort.installed_version() is None:
        return {}
    return dict.fromkeys(ir_graph.nodes(model.graph), INTEGER_PRODUCT_REASON)


def _is_rejected(e: Expansion) -> bool:
    """True for contrib operators that ONNX Runtime does not run on a CPU: of some element types, or
    at all."""
    inner = [n for n in e.nodes if n.op.name == "MatMulInteger"]
    types = {tuple(v.type.dtype for v in n.inputs[:2] if v is not None) for n in inner}
    match e.carrier.op.name:
        case "QLinearReduceMean":
            return True
        case "QAttention":
            return any(x == I8 for x, _ in types)
        case "QGemm":
            result = e.results[0].type.dtype
            is_other = result in (I8, U8) and any(x != result for x, _ in types)
            return is_other or _MIXED_TYPES in types
    return _MIXED_TYPES in types


def _saturates_without_remedy(source: Source) -> bool:
    """True if products may saturate in ONNX Runtime on this processor, with any of its options."""
    return saturates_uint8_products(processor_info()[1]) and any(
        n.remedy is Remedy.NONE for n in find_saturating_nodes(source)
    )
