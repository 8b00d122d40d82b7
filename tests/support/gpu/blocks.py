"""Products of matrices by given blocks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import onnx

from superopt.kernels.algorithms import space
from superopt.kernels.algorithms.gpu.matrix_product import match_matrix_product
from superopt.kernels.algorithms.problem import Choice, Problem
from superopt.kernels.loops.option import Option
from tests.support.compilation.models import F, model
from tests.support.gpu.models import (
    drawn,
    node,
)


def product(rows: int, columns: int, terms: int, *after: str) -> onnx.ModelProto:
    """And what is made of it, with a row that is added."""
    names = ["a", *(f"b{n}" for n in range(len(after))), "c"]
    nodes = [node("MatMul", "x", "w", "a")]
    nodes += [node(op, *x) for op, *x in zip(after, names, names[1:], strict=False)]
    nodes += [node("Add", names[len(after)], "r", "y")]
    known = {"w": drawn(terms, columns, scale=terms**-0.5), "r": drawn(columns)}
    return model(nodes, {"x": (F, [rows, terms])}, ["y"], known)


# Compiled to machine code, too (test_cuda.py).
COMPILED = {
    "blocks of three": (
        partial(product, 384, 128, 256, "Tanh"),
        "gemm rows=192 columns=128 k_block=64 warps=4 stages=4",
    ),
    "in turns": (
        partial(product, 512, 512, 256),
        "gemm rows=128 columns=128 k_block=64 warps=8 stages=4 programs=8",
    ),
}


def so(option: Option) -> Callable[..., Choice]:
    """Products of matrices are computed so, and all else as it is."""
    before = space.choose

    def choice(p: Problem, wanted: Option | None, target: str, **more: bool) -> Choice:
        m = None if p.row_axes else match_matrix_product(p)
        if m is None:
            return before(p, wanted, target, **more)
        return space.build_choice(p, option, target)

    return choice
