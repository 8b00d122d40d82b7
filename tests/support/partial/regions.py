"""Graphs to find equal regions of, and the comparison of every element."""

from __future__ import annotations

from typing import Any

import numpy as np

from superopt.ir import graph
from superopt.ir.evaluate import evaluate
from superopt.ops import OPS
from superopt.partial.regions import find
from superopt.partial.regions.composition import Composer
from superopt.partial.regions.find import find_regions
from superopt.te.analysis.inline import substitute_axes
from superopt.te.eval.domain import Reals
from superopt.te.eval.prime_field import PrimeField
from superopt.te.expr.dtype import F32, F64, DType
from superopt.te.expr.node import Axis, Expr
from superopt.te.expr.tensor import TensorType


def given_(name: str, *shape: int) -> graph.Input:
    return graph.Input(name, TensorType(F32, shape))


def apply(op: str, *operands: graph.Value, **attrs: Any) -> graph.Value:
    return graph.node(OPS[op], operands, **attrs)


def inputs_of(*values: graph.Value) -> tuple[graph.Input, ...]:
    read = [v for n in graph.nodes(values) for v in n.inputs]
    return tuple(dict.fromkeys(v for v in (*values, *read) if isinstance(v, graph.Input)))


def truth(a: graph.Value, b: graph.Value) -> np.ndarray:
    """Every element, on inputs that are none of those that regions are found with."""
    inputs = inputs_of(a, b)
    same = np.ones(a.type.shape, bool)
    for seed in (101, 102):
        field = PrimeField(seed)
        feeds = {i.name: field.random(i.type, seed + k) for k, i in enumerate(inputs)}
        left, right = evaluate(graph.Graph(inputs, (a, b)), feeds, field)
        same &= field.elements_equal(np.asarray(left), np.asarray(right), F32)
    return same


def exact(a: graph.Value, b: graph.Value) -> None:
    found = find_regions(a, b)
    np.testing.assert_array_equal(found.mask(), truth(a, b))


def by_floats(a: graph.Value, b: graph.Value, draws: int) -> np.ndarray:
    """Every element, on floats around 0, all above it and all below."""
    inputs = inputs_of(a, b)
    same = np.ones(a.type.shape, bool)
    for seed in range(draws):
        rng = np.random.default_rng(seed)
        feeds = {
            i.name: rng.standard_normal(i.type.shape) + rng.choice((0, 1, -1, 3, -3))
            for i in inputs
        }
        left, right = evaluate(graph.Graph(inputs, (a, b)), feeds, Reals(F64))
        same &= np.isclose(left, right, rtol=1e-9, atol=1e-12)
    return same


def const(x: float) -> graph.Constant:
    return graph.constant(np.float32(x))


def other(name: str, dtype: DType, *shape: int) -> graph.Input:
    return graph.Input(name, TensorType(dtype, shape))


X, Y, Z = (given_(n, 4, 3) for n in "xyz")
LARGER = apply("Max", X, Y)


def pool(x: graph.Value, n: int = 3) -> graph.Value:
    return apply("MaxPool", x, kernel_shape=(n, n), pads=(n // 2,) * 4)


def bodies(a: graph.Value, b: graph.Value) -> tuple[tuple[Axis, ...], list[Expr]]:
    both = Composer()
    one, other = find._as_computed(both.tensor(a)), find._as_computed(both.tensor(b))
    assert one.body is not None
    assert other.body is not None
    return one.axes, [
        one.body,
        substitute_axes(other.body, dict(zip(other.axes, one.axes, strict=True))),
    ]
