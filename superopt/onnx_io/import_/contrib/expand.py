"""Expansions of ONNX Runtime's contrib operators into ONNX operators, with the types that the graph
knows. Operators that need no types are decomposed before (onnx_io/transform/contrib_ops.py).

They are specified in https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as oir

from superopt.ir import graph
from superopt.onnx_io.import_.contrib.block_quantized import (
    gather_block_quantized,
    matmul_nbits_in_groups,
    quantize_or_dequantize,
)
from superopt.onnx_io.import_.contrib.build import ExpandNode, KnownSize, Operands
from superopt.onnx_io.import_.contrib.grouped_query import grouped_query_attention
from superopt.onnx_io.import_.contrib.multi_head import multi_head_attention
from superopt.onnx_io.import_.contrib.quantized_elementwise import (
    quantized_add,
    quantized_concat,
    quantized_mul,
    quantized_softmax,
    quantized_unary,
    quantized_where,
)
from superopt.onnx_io.import_.contrib.quantized_products import (
    dynamic_quantize_matmul,
    matmul_integer_to_float,
    quantized_attention,
    quantized_conv,
    quantized_gemm,
)
from superopt.onnx_io.import_.contrib.rotary import rotary_embedding
from superopt.ops.quantized.nbits import CONTRIB_DOMAIN

CONTRIB_EXPANSIONS: Mapping[str, ExpandNode] = {
    "DequantizeLinear": quantize_or_dequantize,
    "DynamicQuantizeMatMul": dynamic_quantize_matmul,
    "GatherBlockQuantized": gather_block_quantized,
    "GroupQueryAttention": grouped_query_attention,
    "MatMulIntegerToFloat": matmul_integer_to_float,
    "MatMulNBits": matmul_nbits_in_groups,
    "MultiHeadAttention": multi_head_attention,
    "QAttention": quantized_attention,
    "QGemm": quantized_gemm,
    "QLinearAdd": quantized_add,
    "QLinearAveragePool": quantized_unary,
    "QLinearConcat": quantized_concat,
    "QLinearConv": quantized_conv,
    "QLinearGlobalAveragePool": quantized_unary,
    "QLinearLeakyRelu": quantized_unary,
    "QLinearMul": quantized_mul,
    "QLinearReduceMean": quantized_unary,
    "QLinearSigmoid": quantized_unary,
    "QLinearSoftmax": quantized_softmax,
    "QLinearWhere": quantized_where,
    "QuantizeLinear": quantize_or_dequantize,
    "RotaryEmbedding": rotary_embedding,
}


def is_expanded(n: oir.Node) -> bool:
    """True if there is an expansion of the node's operator."""
    if n.op_type == "MatMulNBits" and (len(n.inputs) < 5 or n.inputs[4] is None):
        return False  # it has a tensor expression
    return n.domain == CONTRIB_DOMAIN and n.op_type in CONTRIB_EXPANSIONS


def expand_contrib_node(n: oir.Node, operands: Operands, known: KnownSize) -> Sequence[graph.Value]:
    """Return the results of a node. Raises InferError if it has no expansion."""
    return CONTRIB_EXPANSIONS[n.op_type](n, operands, known)
