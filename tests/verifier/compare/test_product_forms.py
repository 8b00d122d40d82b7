"""Constants that a product with a constant operand may have been folded to."""

import numpy as np

from superopt.ir import graph as ir_graph
from superopt.ops import OPS
from superopt.te.expr.dtype import F32
from superopt.te.expr.tensor import TensorType
from superopt.verifier.compare.linear_forms import Forms, Pool
from superopt.verifier.compare.product_forms import _concat_matmul_forms, conv_forms

POOL_ELEMENTS = 1 << 10


def const(*shape: int) -> ir_graph.Constant:
    return ir_graph.constant(np.ones(shape, np.float32))


def test_the_bias_of_a_convolution_broadcasts_with_its_result() -> None:
    for space in (1, 2, 3):
        image = ir_graph.Input("image", TensorType(F32, (2, 6, *[4] * space)))
        conv = ir_graph.node(OPS["Conv"], [image, const(8, 6, *[1] * space), const(8)])
        (shift,) = conv_forms(Forms(), conv, image, Pool(POOL_ELEMENTS)).shifts
        assert shift.type.shape == (8, *[1] * space)


def test_a_product_of_joined_columns_has_the_rows_of_the_weight_for_each_part() -> None:
    u, v = (ir_graph.Input(name, TensorType(F32, (2, 5, n))) for name, n in (("u", 3), ("v", 4)))
    joined = ir_graph.node(OPS["Concat"], [u, v], axis=2)
    weights = _concat_matmul_forms(joined, const(7, 6), Pool(POOL_ELEMENTS)).weights
    assert [(w.root, w.value.type.shape) for w in weights] == [(u, (3, 6)), (v, (4, 6))]
    # rows are not the first axis of a stack of matrices
    assert _concat_matmul_forms(joined, const(2, 7, 6), Pool(POOL_ELEMENTS)) == Forms()
    assert _concat_matmul_forms(u, const(3, 6), Pool(POOL_ELEMENTS)) == Forms()
    rows = ir_graph.node(OPS["Concat"], [u, u], axis=1)
    assert _concat_matmul_forms(rows, const(3, 6), Pool(POOL_ELEMENTS)) == Forms()
