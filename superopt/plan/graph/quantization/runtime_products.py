"""Which models with products of 8-bit integers onnxruntime computes faster than kernels do."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from superopt.ir import graph as ir_graph
from superopt.ir.constant_values import is_constant
from superopt.plan.lowering.integer_products import INTEGER_PRODUCT_OPS
from superopt.te.expr.dtype import I8, U8
from superopt.te.expr.node import Dim

SINGLE = ((), (1,))  # shapes
# Other multiplications for each one in a slow kernel, from which kernels are faster: a slow one
# takes 2 to 16 times as long as in onnxruntime, others a third to a half. The attention of
# transformers is 1 in 10 to 40.
MIN_FAST_PRODUCTS = 8
SYMBOLIC_SIZE = 128  # tokens of a sequence


def has_quantized_products(graph: ir_graph.Graph) -> bool:
    """True if the graph may multiply 8-bit integers: it has such operators, or dequantizes."""
    return any(
        n.op.name in INTEGER_PRODUCT_OPS or n.op.name == "DequantizeLinear"
        for n in ir_graph.nodes(graph)
    )


def has_slow_integer_products(graph: ir_graph.Graph) -> bool:
    """True if more than a small part of the products of 8-bit integers have slow kernels: those of
    batches of weights, or by weights or zero points of weights that are not constant."""
    slow, others = 0, 0
    for n in ir_graph.nodes(graph):
        if n.op.name in INTEGER_PRODUCT_OPS:
            if _is_slow_integer_product(n):
                slow += _multiplications(n)
            else:
                others += _multiplications(n)
    return slow * MIN_FAST_PRODUCTS > others


def _multiplications(n: ir_graph.Node) -> int:
    """Return the multiplications of a product; symbolic sizes are estimates."""
    given = _operands(n)
    w = given["b" if "b" in given and n.op.name.endswith(("MatMul", "Integer")) else "w"]
    assert w is not None
    result, weights = ([_estimated_size(d) for d in t.shape or ()] for t in (n.type, w.type))
    if "Conv" in n.op.name:
        return prod(result) * prod(weights[1:])
    return prod(result) * prod(weights[-2:-1])


def has_products_without_runtime_kernel(graph: ir_graph.Graph) -> bool:
    """True if the graph has products of 8-bit integers that onnxruntime rejects."""
    return any(_is_rejected(n) for n in ir_graph.nodes(graph))


def _estimated_size(d: Dim) -> int:
    return d if isinstance(d, int) else SYMBOLIC_SIZE


def _operands(n: ir_graph.Node) -> Mapping[str, ir_graph.Value | None]:
    return dict(zip(n.op.inputs, n.inputs, strict=False))


def _is_slow_integer_product(n: ir_graph.Node) -> bool:
    if n.op.name not in INTEGER_PRODUCT_OPS:
        return False
    given = _operands(n)
    weights = "b" if n.op.name.endswith("MatMul") or n.op.name == "MatMulInteger" else "w"
    zero = given.get(f"{weights}_zero_point")
    constants = [given[weights], *([] if zero is None else [zero])]
    if not all(v is not None and is_constant(v, {}) for v in constants):
        return True
    held = given[weights]
    return weights == "b" and held is not None and len(held.type.shape or ()) > 2


def _is_rejected(n: ir_graph.Node) -> bool:
    """True for element types and zero points for which onnxruntime has no kernel."""
    if n.op.name not in INTEGER_PRODUCT_OPS:
        return False
    given = _operands(n)
    match n.op.name:
        case "MatMulInteger":
            single = given.get("a_zero_point")
        case "ConvInteger":
            single = given.get("w_zero_point")
        case _:
            x, w = (given[k] for k in (("a", "b") if n.op.name == "QLinearMatMul" else ("x", "w")))
            assert x is not None
            assert w is not None
            kinds = x.type.dtype, w.type.dtype, n.type.dtype
            return kinds not in ((U8, U8, U8), (U8, I8, U8), (I8, I8, I8))
    return single is not None and single.type.shape not in SINGLE
