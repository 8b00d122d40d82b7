"""Products with weights of few bits, over weights repacked into 32-bit words.

    y[m, n] = sum(a[m, k] * ((q[n, k] - z[block, n]) * s[block, n]))

with q[n, k] = bits of words[word, n]. At `accuracy_level` 4 the scale is the left factor, which
tells kernels that they may round a to 8 bits in each block (kernels/algorithms/cpu/dot_products/
block_scaled.py). A vector of words holds the same terms of adjacent columns,
so that all of its bit fields are decoded in registers.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from superopt.ir import graph
from superopt.ops.quantized.nbits import CONTRIB_DOMAIN, INT8_LEVEL
from superopt.plan.lowering.derived_constants import Load, derive_constant
from superopt.te.expr.dtype import F32, U32, DType
from superopt.te.expr.node import Const, Expr
from superopt.te.expr.tensor import (
    Tensor,
    apply,
    cast,
    compare,
    compute,
    const,
    reduce_sum,
    select,
)

WORD_BITS = 32
# Returns a constant tensor, by its name, element type, shape and loader.
AddConstant = Callable[[str, DType, tuple[int, ...], Load], Tensor]


def has_constant_nbits_weights(n: graph.Node) -> bool:
    """True for a MatMulNBits node whose weights, scales and zero points are constants."""
    return (
        n.op.name == "MatMulNBits"
        and n.op.domain == CONTRIB_DOMAIN
        and all(v is None or isinstance(v, graph.Constant) for v in n.inputs[1:4])
    )


def nbits_product(
    n: graph.Node, a: Tensor | Const | None, bias: Tensor | Const | None = None, *, add: AddConstant
) -> Tensor:
    """Return the result of a MatMulNBits node for which `has_constant_nbits_weights` holds."""
    k, columns, bits, block_size = (n.attr(key) for key in ("K", "N", "bits", "block_size"))
    assert isinstance(a, Tensor)
    assert isinstance(k, int)
    assert isinstance(columns, int)
    assert isinstance(bits, int)
    assert isinstance(block_size, int)
    weights, scale = n.inputs[1:3]
    zero = n.inputs[3] if len(n.inputs) > 3 else None
    assert isinstance(weights, graph.Constant)
    assert isinstance(scale, graph.Constant)
    blocks, fields = -(-k // block_size), WORD_BITS // bits
    rounds_rows = n.attr("accuracy_level") == INT8_LEVEL
    block_words = block_size // fields

    def constant(name: str, of: graph.Constant, kind: DType, rows: int, change: _Change) -> Tensor:
        recipe = name, rows, columns, bits
        return add(name, kind, (rows, columns), derive_constant(of.load, recipe, change))

    words = constant("words", weights, U32, blocks * block_words, lambda x: _words(x, columns))
    assert scale.type.dtype is not None
    scales = constant("scales", scale, scale.type.dtype, blocks, lambda x: x.reshape(columns, -1).T)
    zeros: Tensor | None = None
    if isinstance(zero, graph.Constant):
        assert zero.type.dtype is not None
        zeros = constant(
            "zeros", zero, zero.type.dtype, blocks,
            lambda x: _zero_points(x.reshape(columns, -1), bits, blocks),
        )  # fmt: skip

    def element(*i: Expr) -> Expr:
        *rows, j = i

        def term(block: Expr, word: Expr, number: Expr) -> Expr:
            at = block * block_size + word * fields + number
            x: Expr = cast(a[(*rows, at)], F32)
            if blocks * block_size != k:
                x = select(compare("lt", at, k), x, const(0, F32))
            bit = cast(number * bits, U32)
            field = apply("shr", words[block * block_words + word, j], bit)
            q = cast(apply("bitand", field, (1 << bits) - 1), F32)
            z = const(1 << (bits - 1), F32) if zeros is None else cast(zeros[block, j], F32)
            scale = cast(scales[block, j], F32)
            return x * (scale * (q - z) if rounds_rows else (q - z) * scale)

        out = reduce_sum((blocks, block_words, fields), term)
        if bias is not None:
            out = out + cast(bias[j] if isinstance(bias, Tensor) else bias, F32)
        return cast(out, a.dtype)

    return compute((*a.shape[:-1], columns), element)


_Change = Callable[[np.ndarray], np.ndarray]


def _words(weights: np.ndarray, columns: int) -> np.ndarray:
    """Return the weights as words: of each column the first terms in the lowest bits."""
    return np.ascontiguousarray(weights).reshape(columns, -1).view("<u4").T


def _zero_points(packed: np.ndarray, bits: int, blocks: int) -> np.ndarray:
    """Return the zero point of each block and column; uint8 holds several in a byte."""
    if packed.dtype != np.uint8:
        return packed.T
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    fields = packed[:, :, None] >> shifts & np.uint8((1 << bits) - 1)
    return fields.reshape(len(packed), -1)[:, :blocks].T
