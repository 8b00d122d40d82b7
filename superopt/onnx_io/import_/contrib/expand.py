"""Expansions of ONNX Runtime's contrib operators into ONNX operators, with the types that the graph
knows. Operators that need no types are decomposed before (onnx_io/transform/contrib_ops.py).

They are specified in https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as oir

from superopt.ir import graph
from superopt.onnx_io.import_.contrib.build import ExpandNode, KnownSize, Operands
from superopt.onnx_io.import_.contrib.grouped_query import grouped_query_attention
from superopt.onnx_io.import_.contrib.multi_head import multi_head_attention
from superopt.onnx_io.import_.contrib.rotary import rotary_embedding
from superopt.ops.quantized.nbits import CONTRIB_DOMAIN

CONTRIB_EXPANSIONS: Mapping[str, ExpandNode] = {
    "GroupQueryAttention": grouped_query_attention,
    "MultiHeadAttention": multi_head_attention,
    "RotaryEmbedding": rotary_embedding,
}


def is_expanded(n: oir.Node) -> bool:
    """True if there is an expansion of the node's operator."""
    return n.domain == CONTRIB_DOMAIN and n.op_type in CONTRIB_EXPANSIONS


def expand_contrib_node(n: oir.Node, operands: Operands, known: KnownSize) -> Sequence[graph.Value]:
    """Return the results of a node. Raises InferError if it has no expansion."""
    return CONTRIB_EXPANSIONS[n.op_type](n, operands, known)
