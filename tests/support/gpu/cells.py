"""Steps of recurrent layers whose products are few rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import onnx

from superopt.plan.rewrites.matmul.cell_fusion import MAX_GEMV_ROWS, MAX_SUM_TERMS
from tests.support.compilation.models import F, model
from tests.support.compilation.recurrent import recurrent
from tests.support.gpu.gates import cell, gated
from tests.support.gpu.models import drawn, node


def beside(columns: tuple[int, int]) -> onnx.ModelProto:
    """Products of so many columns, of which what is made is read as if they were as many."""
    known = {"w": drawn(32, columns[0]), "v": drawn(32, columns[1])}
    nodes = [
        node("MatMul", "x", "w", "a"),
        node("MatMul", "x", "v", "b"),
        node("Mul", "a", "b", "y"),
    ]
    return model(nodes, {"x": (F, [2, 32])}, ["y"], known)


lstm, gru, rnn = (partial(recurrent, kind, steps=3, hidden=16) for kind in ("LSTM", "GRU", "RNN"))
# A model, and of how many products each of its cells is. The first step of an LSTM has none, and in
# the last one both states are outputs, of which one is a cell's.
MODELS: Mapping[str, tuple[Callable[[], onnx.ModelProto], list[int]]] = {
    "an LSTM of one row": (lambda: lstm(batch=1), [4, 3]),
    "an LSTM of several rows": (lambda: lstm(batch=MAX_GEMV_ROWS), [4, 3]),
    "an LSTM of more rows": (lambda: lstm(batch=MAX_GEMV_ROWS + 1), []),
    "an LSTM without biases, from given states": (lambda: lstm(bias=False, states=True), [4, 4, 3]),
    "an LSTM both ways": (lambda: lstm(direction="bidirectional"), [4, 3]),
    "a GRU": (lambda: gru(linear_before_reset=1), [3] * 2),
    "a GRU from a given state, backward": (
        lambda: gru(linear_before_reset=1, states=True, direction="reverse"), [3] * 3,
    ),
    "a GRU that resets the state": (gru, []),
    "an RNN": (rnn, []),
    "four gates": (lambda: cell(4, rows=1, steps=3), [4] * 3),
    "eight gates, many terms": (lambda: cell(8, rows=2, k=24, n=90, steps=2), [8] * 2),
    "a gated product of one row": (lambda: gated((1, 40), 33, biased=True), [2]),
    "a gated product, and one behind": (lambda: gated((1, 3, 50), 48, down=24), [2]),
    "a gate that is an output": (lambda: gated((1, 40), 33, out=("g0",)), []),
    "of different operands": (lambda: gated((2, 40), 33, other="t"), []),
    "of other sizes": (lambda: beside((24, 1)), []),
    "of sums that are no block": (lambda: gated((1, MAX_SUM_TERMS + 16), 20), []),
}  # fmt: skip


PAIRS: Mapping[str, tuple[Callable[[], onnx.ModelProto], int]] = {
    # A model, and how many of its kernels compute two results of four products.
    "an LSTM": (lambda: lstm(batch=16), 1),
    "of other sizes": (lambda: lstm(batch=21, hidden=37, size=50, steps=4), 2),
    "from given states": (lambda: lstm(batch=MAX_GEMV_ROWS + 1, states=True, bias=False), 2),
    "both ways": (lambda: lstm(batch=16, direction="bidirectional"), 1),
    "a GRU, of one result": (lambda: gru(batch=16, linear_before_reset=1), 0),
}
