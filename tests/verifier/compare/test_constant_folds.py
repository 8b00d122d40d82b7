"""Scales, shifts and weights that folding may have computed, also behind data movement."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from superopt.ir import graph as ir_graph
from superopt.ir.evaluate import evaluate
from superopt.ops import OPS
from superopt.te.eval.domain import Reals
from superopt.te.expr.dtype import F32, I64
from superopt.te.expr.tensor import TensorType
from superopt.verifier.compare.constant_folds import _movement_forms, foldable_constants
from superopt.verifier.compare.linear_forms import Forms, Pool


def test_scalars_pass_a_transpose_and_vectors_turn_with_it() -> None:
    x = ir_graph.Input("x", TensorType(F32, (2, 2)))
    turned = ir_graph.node(OPS["Transpose"], [x], perm=(1, 0))
    scalar = ir_graph.constant(np.array(3, np.float32))
    vector = ir_graph.constant(np.array([2, 3], np.float32))
    scales = _movement_forms([Forms((scalar, vector))], turned, Pool(100)).scales
    assert scales[0] is scalar
    assert [s.type.shape for s in scales] == [(), (2, 1)]


RNG = np.random.default_rng(3)
S, T = (RNG.integers(2, 90, 6).astype(np.float32) for _ in range(2))
COLUMN = RNG.integers(2, 90, 5).astype(np.float32)
TABLE = RNG.integers(2, 90, (9, 6)).astype(np.float32)
KERNEL = RNG.integers(2, 90, (8, 6, 3, 3)).astype(np.float32)
X, Y = (ir_graph.Input(name, TensorType(F32, (5, 6))) for name in "xy")
IMAGE = ir_graph.Input("image", TensorType(F32, (2, 6, 4, 4)))
INDEX = ir_graph.Input("index", TensorType(I64, (5,)))
CHANNELS = S.reshape(6, 1, 1)


def op(name: str, *given: ir_graph.Value | np.ndarray | float, **attrs: object) -> ir_graph.Value:
    inputs = [
        ir_graph.constant(np.asarray(v, np.float32)) if isinstance(v, (np.ndarray, float)) else v
        for v in given
    ]
    return ir_graph.node(OPS[name], inputs, **attrs)  # type: ignore[arg-type]


def folded(v: ir_graph.Value) -> Sequence[np.ndarray]:
    found = foldable_constants(ir_graph.Graph((X, Y, IMAGE, INDEX), (v,)), 1 << 12)
    return evaluate(ir_graph.Graph((), tuple(found)), {}, Reals())


def has(arrays: Sequence[np.ndarray], wanted: np.ndarray) -> bool:
    return any(a.shape == wanted.shape and (a == wanted).all() for a in arrays)


FOLDED: dict[str, tuple[Callable[[], ir_graph.Value], np.ndarray]] = {
    "a scale behind a transpose": (
        lambda: op("Mul", op("Transpose", op("Mul", X, S), perm=(1, 0)), COLUMN),
        S[:, None] * COLUMN,
    ),
    "a shift less a number": (lambda: op("Sub", op("Add", X, T), S), T - S),
    "a number less a shift": (lambda: op("Sub", S, op("Add", X, T)), S - T),
    "a scale of the other factor": (
        lambda: op("Mul", op("Mul", X, np.array(3.0)), op("Add", Y, T)),
        T * 3,
    ),
    "rows of a table": (lambda: op("Add", op("Gather", TABLE, INDEX, axis=0), T), TABLE + T),
    "scaled channels": (lambda: op("Conv", op("Mul", IMAGE, CHANNELS), KERNEL), KERNEL * CHANNELS),
}


@pytest.mark.parametrize("name", FOLDED)
def test_folded_constants(name: str) -> None:
    build, wanted = FOLDED[name]
    assert has(folded(build()), wanted)


def test_channels_of_groups_do_not_scale_the_kernel() -> None:
    scaled = op("Mul", IMAGE, CHANNELS)
    kernel = RNG.integers(2, 90, (8, 3, 3, 3)).astype(np.float32)
    assert all(a.ndim < 4 for a in folded(op("Conv", scaled, kernel, group=2)))


def test_the_order_of_a_difference_matters() -> None:
    assert not has(folded(op("Sub", op("Add", X, T), S)), S - T)


def test_a_quotient_by_a_value_has_no_forms() -> None:
    assert folded(op("Div", S, op("Add", X, T))) == []
