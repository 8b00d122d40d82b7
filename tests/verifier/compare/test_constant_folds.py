"""Scales and shifts pass operators that move elements, turned where these turn."""

import numpy as np

from superopt.ir import graph as ir_graph
from superopt.ops import OPS
from superopt.te.expr.dtype import F32
from superopt.te.expr.tensor import TensorType
from superopt.verifier.compare.constant_folds import _movement_forms
from superopt.verifier.compare.linear_forms import Forms, Pool


def test_scalars_pass_a_transpose_and_vectors_turn_with_it() -> None:
    x = ir_graph.Input("x", TensorType(F32, (2, 2)))
    turned = ir_graph.node(OPS["Transpose"], [x], perm=(1, 0))
    scalar = ir_graph.constant(np.array(3, np.float32))
    vector = ir_graph.constant(np.array([2, 3], np.float32))
    scales = _movement_forms([Forms((scalar, vector))], turned, Pool(100)).scales
    assert scales[0] is scalar
    assert [s.type.shape for s in scales] == [(), (2, 1)]
