"""Inputs that the check draws: right for the model, the same for the same seed, and nasty."""

import numpy as np
import pytest

from superopt.check.random_inputs import (
    INPUT_KINDS,
    IndexLimit,
    concrete_type,
    index_limit,
    random_array,
    random_feeds,
)
from superopt.ir import graph as ir_graph
from superopt.ir.text import parse_graph
from superopt.ops import OPS
from superopt.te.expr.dtype import (
    BF16,
    BOOL,
    F4E2M1,
    F16,
    F32,
    I4,
    I8,
    I32,
    STRING,
    U8,
    DType,
    to_numpy,
)
from superopt.te.expr.node import Size
from superopt.te.expr.tensor import TensorType


def drawn(dtype: DType, kind: str = "normal", limit: int | None = None) -> np.ndarray:
    rng = np.random.default_rng(1)
    return random_array(TensorType(dtype, (50, 40)), kind, IndexLimit(limit), rng)


def graph(text: str) -> ir_graph.Graph:
    return parse_graph(text, OPS)


@pytest.mark.parametrize("kind", INPUT_KINDS)
@pytest.mark.parametrize("dtype", [F32, F16, BF16, F4E2M1, I32, I8, U8, I4, BOOL, STRING])
def test_every_type_has_values(dtype: DType, kind: str) -> None:
    array = drawn(dtype, kind)
    assert array.dtype == to_numpy(dtype)
    assert array.shape == (50, 40)
    assert len(set(array.ravel().tolist())) > 1


def test_adversarial_floats_have_zeros_ties_and_many_magnitudes() -> None:
    array = np.abs(drawn(F32, "adversarial"))
    assert (array == 0).mean() > 0.05
    assert len(np.unique(array)) < array.size / 4
    assert array.max() / array[array > 0].min() > 1e5


def test_small_integers_take_all_their_values() -> None:
    assert set(drawn(U8).ravel().tolist()) == set(range(256))
    assert drawn(I8).min() == -128


def test_other_integers_are_flags_or_adversarial() -> None:
    assert set(drawn(I32).ravel().tolist()) == {0, 1}
    assert drawn(I32, "adversarial").min() < -50


def test_indices_stay_in_range_and_count_from_the_end() -> None:
    assert (drawn(I32, "normal", 7).min(), drawn(I32, "normal", 7).max()) == (0, 6)
    assert (drawn(I32, "adversarial", 7).min(), drawn(I32, "adversarial", 7).max()) == (-7, 6)


def test_an_input_is_limited_by_the_smallest_table_it_indexes() -> None:
    model = graph(
        """graph {
  i: i64[n, 3]
  x: f32[20, 4]
  y: f32[9, 4]
  %0 = Unsqueeze(i, axes=(0,))
  %1 = Gather(x, %0, axis=0)
  %2 = Gather(y, i, axis=0)
  return %1, %2
}"""
    )
    i, x, _ = model.inputs
    assert index_limit(model, i, {"n": 2}) == IndexLimit(9)
    assert index_limit(model, x, {"n": 2}) == IndexLimit(None)


def test_feeds_are_the_same_for_the_same_seed() -> None:
    model = graph("graph {\n  x: f32[n, 3]\n  i: i64[n]\n  return x, i\n}")
    first, again = (list(random_feeds(model, {"n": 4}, 5)) for _ in range(2))
    other = list(random_feeds(model, {"n": 4}, 6))
    assert [f.kind for f in first] == list(INPUT_KINDS)
    for a, b, c in zip(first, again, other, strict=True):
        assert a.sizes == {"n": 4}
        assert a.arrays["x"].shape == (4, 3)
        assert np.array_equal(a.arrays["x"], b.arrays["x"])
        assert not np.array_equal(a.arrays["x"], c.arrays["x"])


def test_tame_feeds_have_no_integers_but_zero() -> None:
    model = graph("graph {\n  x: f32[3]\n  i: i64[30]\n  return x, i\n}")
    (feed,) = random_feeds(model, {}, 0, ["adversarial"], zero_integers=True)
    assert not feed.arrays["i"].any()
    assert feed.arrays["x"].any()
    assert feed.kind == "adversarial, integers 0"


def test_what_cannot_be_drawn() -> None:
    with pytest.raises(TypeError, match="cannot draw random values of type"):
        random_array(TensorType(None, None), "normal", IndexLimit(None), np.random.default_rng(0))
    with pytest.raises(TypeError, match="cannot draw random values of type"):
        random_array(TensorType(F32, None), "normal", IndexLimit(None), np.random.default_rng(0))
    with pytest.raises(KeyError, match="n"):
        concrete_type(TensorType(F32, (Size("n"),)), {})


def quantized_graph(scale: float, zero: int) -> ir_graph.Graph:
    x = ir_graph.Input("x", TensorType(F32, (40, 32)))
    q = ir_graph.Input("q", TensorType(U8, (40, 32)))
    n = ir_graph.Input("n", TensorType(I32, (40, 32)))
    s, z = ir_graph.constant(np.float32(scale)), ir_graph.constant(np.uint8(zero))
    quantized = ir_graph.node(OPS["QuantizeLinear"], (x, s, z))
    product = ir_graph.node(OPS["MatMulInteger"], (q, ir_graph.constant(np.ones((32, 2), np.int8))))
    twice = ir_graph.node(OPS["Add"], (n, n))
    return ir_graph.Graph((x, q, n), (quantized, product, twice))


def test_quantized_models_get_extremes_ties_and_values_that_saturate() -> None:
    feeds = {f.kind: f.arrays for f in random_feeds(quantized_graph(0.25, 100), {}, 0)}
    assert [*feeds] == ["normal", "extreme", "adversarial", "uniform"]
    x = feeds["extreme"]["x"].astype(np.float64) / 0.25 + 100
    assert x.min() < 0
    assert x.max() > 255  # it saturates at both ends
    assert len({*np.floor(x).ravel()} & {*range(256)}) > 200
    assert (x % 1 == 0.5).mean() > 0.2
    q = feeds["extreme"]["q"]
    assert len({*q.ravel()}) > 200
    for axis in (0, 1):  # neighbours along each axis are both 255
        pairs = np.moveaxis(q, axis, 0).reshape(-1, 2, q.shape[1 - axis])
        assert (pairs == 255).all(axis=1).mean() > 0.1
    n = feeds["adversarial"]["n"]
    assert (n.min(), n.max()) == (np.iinfo(np.int32).min, np.iinfo(np.int32).max)


def test_dynamic_quantization_meets_exact_ties() -> None:
    x = ir_graph.Input("x", TensorType(F32, (40, 32)))
    product = ir_graph.node(OPS["DynamicQuantizeLinear"], (x,))
    (feed,) = random_feeds(ir_graph.Graph((x,), (product,)), {}, 0, ["extreme"])
    values = feed.arrays["x"].astype(np.float64)
    scale = (values.max() - values.min()) / 255
    steps = values / scale
    assert scale == 2.0**-6
    assert (steps % 1 == 0.5).mean() > 0.1
    assert (steps % 1 % 0.5 == 0).all()


def test_other_models_get_the_sets_that_they_had() -> None:
    model = graph("graph {\n  x: f32[3]\n  %0 = Relu(x)\n  return %0\n}")
    assert [f.kind for f in random_feeds(model, {}, 0)] == list(INPUT_KINDS)


def test_a_size_or_an_index_is_not_any_integer() -> None:
    model = graph(
        """graph {
  n: i64[30]
  x: f32[4]
  %0 = Cast(n, to=f32)
  %1 = Expand(x, shape=(4,))
  return %0, %1
}"""
    )
    n, _ = model.inputs
    assert not index_limit(model, n, {}).is_number  # a mask, for all that is known
