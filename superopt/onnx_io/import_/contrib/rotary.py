"""RotaryEmbedding of com.microsoft, whose operands have another order than ONNX's."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as oir

from superopt.ir import graph
from superopt.ir.op import InferError
from superopt.onnx_io.import_.contrib.build import (
    KnownSize,
    Operands,
    add,
    as_i64,
    positions,
    reject_attributes,
    require_operands,
    shape_of,
    static_size,
    unsqueeze,
)
from superopt.onnx_io.import_.ml.build import apply, integer_attribute


def rotary_embedding(n: oir.Node, operands: Operands, known: KnownSize) -> Sequence[graph.Value]:
    """Rotate pairs of elements by the angle of their position. One position is that of the first
    element of each sequence."""
    reject_attributes(n, {"is_packed_batching": 0, "scale": 1.0})
    x, places, cos, sin = require_operands(n, operands, 0, 1, 2, 3)
    shape, rotated = shape_of(x, 3, 4), integer_attribute(n, "rotary_embedding_dim", 0)
    heads = integer_attribute(n, "num_heads", 0)
    if len(shape) == 3 and not (rotated and heads):
        size = 2 * static_size(shape_of(cos, 2)[1], "the number of angles")
        heads, rest = divmod(static_size(shape[2], "the hidden size"), size)
        if rest:
            raise InferError(f"{shape[2]} elements in heads of {size}")
    batch, length = shape[0], shape[2] if len(shape) == 4 else shape[1]
    if len(shape_of(places, 1, 2)) == 1:
        if places.type.shape != (1,):
            raise InferError(f"position_ids {places.type}")
        own = add(unsqueeze(as_i64(places), 0), unsqueeze(positions(length), 0))
        places = apply("Expand", own, shape=(batch, length))
    return (
        apply(
            "RotaryEmbedding", x, cos, sin, as_i64(places),
            interleaved=integer_attribute(n, "interleaved", 0),
            num_heads=heads if len(shape) == 3 else None, rotary_embedding_dim=rotated,
        ),
    )  # fmt: skip
