"""Products of matrices of few rows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx

from tests.support.compilation.models import F, model
from tests.support.gpu.models import drawn, node

# Rows (and batches), terms, columns; does the constant lie by columns?
CASES: Mapping[str, tuple[tuple[int, ...], int, int, bool]] = {
    "two": ((2,), 64, 50, False),
    "three, of terms that nothing divides": ((3,), 1031, 20, True),
    "five": ((5,), 100, 37, True),
    "of three dimensions": ((2, 3), 64, 33, False),
    "seven": ((7,), 48, 64, False),
    "eight": ((8,), 300, 20, False),
    "nine": ((9,), 64, 50, False),
    "one": ((1,), 64, 50, False),
}


def product(name: str) -> onnx.ModelProto:
    rows, terms, columns, turned = CASES[name]
    known = {"w": drawn(terms, columns, scale=terms**-0.5), "b": drawn(columns)}
    if turned:
        known["w"] = np.ascontiguousarray(known["w"].T)
        nodes = [node("Gemm", "x", "w", "b", "g", transB=1)]
    else:
        nodes = [node("MatMul", "x", "w", "p"), node("Add", "p", "b", "g")]
    return model([*nodes, node("Tanh", "g", "y")], {"x": (F, [*rows, terms])}, ["y"], known)
