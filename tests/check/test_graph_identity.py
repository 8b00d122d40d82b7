"""A file's graph is the rebuilt one only with the same operands."""

import numpy as np
import pytest

from superopt.check.graph_identity import CertificateRefused, compare_graphs
from superopt.ir import graph as ir_graph
from superopt.ops import OPS
from superopt.te.expr.dtype import F32
from superopt.te.expr.tensor import TensorType

X = ir_graph.Input("x", TensorType(F32, (2, 3)))


def clip_graph(low: float | None, high: float | None) -> ir_graph.Graph:
    limits = [
        None if v is None else ir_graph.constant(np.array(v, np.float32)) for v in (low, high)
    ]
    return ir_graph.Graph((X,), (ir_graph.node(OPS["Clip"], [X, *limits]),))


@pytest.mark.parametrize(
    ("rebuilt", "file"),
    [((0, 1), (None, 1)), ((None, 1), (0, 1)), ((0, 1), (0, None)), ((0, None), (None, 0))],
)
def test_operands_that_are_absent_on_one_side_are_refused(
    rebuilt: tuple[float | None, float | None], file: tuple[float | None, float | None]
) -> None:
    assert compare_graphs(clip_graph(*rebuilt), clip_graph(*rebuilt), str) == []
    with pytest.raises(CertificateRefused, match="other operands"):
        compare_graphs(clip_graph(*rebuilt), clip_graph(*file), str)
