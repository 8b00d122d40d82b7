"""The parts of a model of which mutants are enumerated."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from superopt.ir import graph
from superopt.ops import OPS
from superopt.rulegen.subprograms import find_subprograms
from tests.support.partial.regions import apply, given_


def known(*shape: int, seed: int = 0) -> graph.Constant:
    return graph.constant(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def relu(x: graph.Value) -> graph.Value:
    return graph.node(OPS["Relu"], [x])


def gemm(x: graph.Value, n: int, seed: int = 0, **attrs: float) -> graph.Value:
    weights = known(n, 8, seed=seed), known(n, seed=seed)
    return apply("Gemm", x, *weights, transB=1, **attrs)


X, Y, IMAGE = given_("x", 20, 8), given_("y", 20, 8), given_("i", 1, 4, 9, 9)
HEADS = [given_(n, 2, 5, 20, 20) for n in "abc"]
THIRD = apply("Conv", IMAGE, known(6, 4, 1, 1), known(6))
MODELS: dict[str, tuple[Sequence[graph.Value], set[str]]] = {
    "a Gemm": (
        [relu(gemm(X, 7))],
        {"(k(7, 8), x(20, 8)) Gemm(x, k, transB=1) 0 and a bias"},
    ),
    "Gemms of one tensor, joined along columns": (
        [relu(gemm(X, 7)), relu(gemm(X, 9, 1))],
        {
            "(k(7, 8), x(20, 8)) Gemm(x, k, transB=1) 0 and a bias",
            "(k(9, 8), x(20, 8)) Gemm(x, k, transB=1) 0 and a bias",
            "(k(7, 8), l(9, 8), x(20, 8))"
            " (Gemm(x, k, transB=1), Gemm(x, l, transB=1)) 1 and a bias",
        },
    ),
    "Gemms of two tensors, joined along rows": (
        [relu(gemm(X, 7)), relu(gemm(Y, 7, 1))],
        {
            "(k(7, 8), x(20, 8)) Gemm(x, k, transB=1) 0 and a bias",
            "(k(7, 8), l(7, 8), x(20, 8), y(20, 8))"
            " (Gemm(x, k, transB=1), Gemm(y, l, transB=1)) 0 and a bias",
        },
    ),
    "a Gemm that is scaled is none": ([relu(gemm(X, 7, alpha=2.0))], set()),
    "a bias within a chain is one more thing that is known": (
        [relu(apply("Conv", THIRD, known(3, 6, 3, 3), known(3)))],
        {
            "(k(6, 4, 1, 1), x(1, 4, 9, 9)) Conv(x, k) 0 and a bias",
            "(k(3, 6, 3, 3), x(1, 6, 9, 9)) Conv(x, k) 0 and a bias",
            "(k(6, 4, 1, 1), l(6,), m(3, 6, 3, 3), x(1, 4, 9, 9))"
            " Conv(Conv(x, k, l), m) 0 and a bias",
        },
    ),
    "a bias that is added": (
        [
            relu(
                apply(
                    "MatMul", apply("Add", apply("MatMul", X, known(8, 5)), known(5)), known(5, 6)
                )
            )
        ],
        {
            "(k(8, 5), x(20, 8)) MatMul(x, k) 0",
            "(k(5, 6), x(20, 5)) MatMul(x, k) 0",
            "(k(8, 5), l(5,), m(5, 6), x(20, 8)) MatMul(Add(MatMul(x, k), l), m) 0",
        },
    ),
    "products of what is computed": (
        [relu(apply("MatMul", HEADS[0], apply("MatMul", HEADS[1], HEADS[2])))],
        {
            "(x(2, 5, 20, 20), y(2, 5, 20, 20)) MatMul(x, y) 0",
            "(x(2, 5, 20, 20), y(2, 5, 20, 20), z(2, 5, 20, 20)) MatMul(z, MatMul(x, y)) 0",
        },
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_each_is_found_once(name: str) -> None:
    outs, keys = MODELS[name]
    given_ = (X, Y, IMAGE, *HEADS)
    found = find_subprograms(graph.Graph(given_, tuple(outs)))
    assert [p.key for p in found] == list(dict.fromkeys(p.key for p in found))
    assert {p.key for p in found} == keys
