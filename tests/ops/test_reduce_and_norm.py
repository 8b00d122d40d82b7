"""Reductions, normalizations, positions and losses: their corners, one form, symbolic sizes."""

import ml_dtypes
import numpy as np
import pytest

from superopt.ir.graph import node
from superopt.ir.op import InferError
from superopt.ops import OPS
from superopt.te.expr.dtype import F16, F32, I64
from superopt.te.expr.node import Size
from superopt.te.expr.tensor import TensorType
from tests.support.ops.build import made, operands, value, values

f32, f16, i32 = np.float32, np.float16, np.int32
N, C = Size("n"), Size("c")


def test_the_axes_are_written_out() -> None:
    (x,) = made("ReduceSum", "f32[2,3]").inputs
    one = node(OPS["ReduceSum"], (x,), axes=(-1, 0))
    assert one is node(OPS["ReduceSum"], (x,))
    assert one is node(OPS["ReduceSum"], (x,), axes=())
    assert dict(one.attrs) == {"axes": (0, 1), "keepdims": 1, "noop_with_empty_axes": 0}
    none = node(OPS["ReduceSum"], (x,), axes=(), noop_with_empty_axes=1)
    assert dict(none.attrs) == {"axes": (), "keepdims": 1, "noop_with_empty_axes": 1}
    assert none.type == x.type  # type: ignore[union-attr]


def test_a_reduction_over_no_axes_still_computes() -> None:
    x = np.array([1, 4, 9], f32)
    for name, wanted in (("ReduceSum", x), ("ReduceL2", x), ("ReduceSumSquare", x * x)):
        np.testing.assert_array_equal(value(name, x, axes=(), noop_with_empty_axes=1), wanted)
    logs = value("ReduceLogSum", x, axes=(), noop_with_empty_axes=1)
    np.testing.assert_allclose(logs, np.log(x), rtol=1e-6)


def test_reductions_of_nothing() -> None:
    x = np.zeros((2, 0), f32)
    for name, wanted in [
        ("ReduceSum", 0),
        ("ReduceProd", 1),
        ("ReduceMax", -np.inf),
        ("ReduceMin", np.inf),
        ("ReduceLogSum", -np.inf),
        ("ReduceLogSumExp", -np.inf),
    ]:
        np.testing.assert_array_equal(value(name, x, axes=(1,), keepdims=0), [wanted] * 2, name)
    assert value("ReduceMax", np.zeros((0,), np.uint8))[0] == 0
    assert value("ReduceMin", np.zeros((0,), np.int8))[0] == 127


def test_reductions_of_bools() -> None:
    x = np.array([[True, False], [True, True]])
    np.testing.assert_array_equal(value("ReduceMax", x, axes=(1,), keepdims=0), [True, True])
    np.testing.assert_array_equal(value("ReduceMin", x, axes=(1,), keepdims=0), [False, True])


def test_means_of_integers_truncate() -> None:
    x = np.array([-3, -4], i32)
    assert value("ReduceMean", x, keepdims=0) == -3
    assert value("ReduceL2", np.array([3, 4], i32), keepdims=0) == 5


def test_a_mean_of_float16_does_not_overflow() -> None:
    x = np.full((1000,), 100, f16)
    assert value("ReduceMean", x, keepdims=0) == 100
    assert np.isinf(value("ReduceSum", x, keepdims=0))
    assert value("ReduceL2", np.full((4,), 300, f16), keepdims=0) == 600


def test_log_sum_exp_does_not_overflow() -> None:
    x = np.array([1000, 1000], f32)
    np.testing.assert_allclose(value("ReduceLogSumExp", x, keepdims=0), 1000 + np.log(2))
    for end in (np.inf, -np.inf):
        assert value("ReduceLogSumExp", np.array([end, end], f32), keepdims=0) == end


def test_softmax_of_great_numbers() -> None:
    x = np.array([1e4, 1e4, -1e4], f32)
    np.testing.assert_array_equal(value("Softmax", x), np.array([0.5, 0.5, 0], f32))
    np.testing.assert_allclose(value("LogSoftmax", x), [-np.log(2), -np.log(2), -2e4], rtol=1e-4)


@pytest.mark.parametrize(("last", "wanted"), [(0, 1), (1, 3)])
def test_arg_max_takes_the_first_or_the_last(last: int, wanted: int) -> None:
    x = np.array([1, 5, 2, 5], f32)
    assert value("ArgMax", x, keepdims=0, select_last_index=last) == wanted
    assert value("ArgMin", -x, keepdims=0, select_last_index=last) == wanted


def test_nan_is_the_extreme() -> None:
    x = np.array([1, np.nan, 9, np.nan], f32)
    assert value("ArgMax", x, keepdims=0) == np.argmax(x) == 1
    assert value("ArgMin", x, keepdims=0) == np.argmin(x) == 1


def test_one_hot_counts_from_the_end_and_ignores_what_is_out_of_range() -> None:
    got = value("OneHot", np.array([0, -1, 3, -4]), np.array([2, 7], f32), depth=3)
    np.testing.assert_array_equal(got, [[7, 2, 2], [2, 2, 7], [2, 2, 2], [2, 2, 2]])
    assert made("OneHot", "i64[2] f32[2] depth=3.0").type.shape == (2, 3)


def test_cumulative_sums_keep_infinities_separate() -> None:
    x = np.array([1, np.inf, 2], f32)
    np.testing.assert_array_equal(value("CumSum", x, axis=0), [1, np.inf, np.inf])
    np.testing.assert_array_equal(value("CumSum", x, axis=0, exclusive=1), [0, 1, np.inf])
    np.testing.assert_array_equal(value("CumProd", x, axis=0, reverse=1), [np.inf, np.inf, 2])


def test_layer_normalization_of_float16_computes_in_float32() -> None:
    x = (np.arange(8).reshape(2, 4) * 200).astype(f16)
    y, mean, inverse = values("LayerNormalization", x, np.ones(4, f16), None, epsilon=1e-5)
    assert (y.dtype, mean.dtype, inverse.dtype) == (f16, f32, f32)
    wide = x.astype(np.float64)
    wanted = (wide - wide.mean(1, keepdims=True)) / wide.std(1, keepdims=True)
    np.testing.assert_allclose(y.astype(f32), wanted, rtol=1e-3)


def test_batch_normalization_drops_what_inference_does_not_read() -> None:
    text = "f32[2,3,4] f32[3] f32[3] f32[3] f32[3]"
    one = made("BatchNormalization", text)
    assert one is made("BatchNormalization", f"{text} momentum=0.5", one.inputs)  # type: ignore[arg-type]
    assert len(made("BatchNormalization", f"{text} training_mode=1").types) == 3


def test_quantization_saturates() -> None:
    x = np.array([-1e9, -1.5, 0.5, 1.5, 300, 1e9], f32)
    scale = np.array(1, f32)
    got = value("QuantizeLinear", x, scale, np.array(10, np.uint8))
    np.testing.assert_array_equal(got, np.array([0, 8, 10, 12, 255, 255], np.uint8))
    got = value("QuantizeLinear", x, scale, np.array(-3, np.int8))
    np.testing.assert_array_equal(got, np.array([-128, -5, -3, -1, 127, 127], np.int8))
    back = value("DequantizeLinear", got, np.array(0.5, f32), np.array(-3, np.int8))
    np.testing.assert_array_equal(back, np.array([-62.5, -1, 0, 1, 65, 65], f32))


@pytest.mark.parametrize(
    ("dtype", "saturated", "beyond"),
    [
        (ml_dtypes.float8_e4m3fn, 448, np.nan),
        (ml_dtypes.float8_e4m3fnuz, 240, np.nan),
        (ml_dtypes.float8_e5m2, 57344, np.inf),
        (ml_dtypes.float8_e5m2fnuz, 57344, np.nan),
    ],
)
def test_casts_to_small_floats(dtype: type, saturated: float, beyond: float) -> None:
    like = np.zeros((), dtype)
    x = np.array([1e9, np.inf, saturated, saturated * 1.02, -1e9], f32)
    got = value("CastLike", x, like).astype(f32)
    np.testing.assert_array_equal(got, [saturated] * 4 + [-saturated])
    got = value("CastLike", x, like, saturate=0).astype(f32)
    np.testing.assert_array_equal(got, [beyond, beyond, saturated, saturated, -beyond])
    # what lies around the bound is decided as numpy's own conversion decides it
    around = np.linspace(saturated, saturated * 1.2, 1001).astype(f32)
    with np.errstate(all="ignore"):
        wanted = around.astype(dtype).astype(f32)
    np.testing.assert_array_equal(value("CastLike", around, like, saturate=0).astype(f32), wanted)


def test_an_ignored_class_need_not_exist() -> None:
    scores = np.log(np.array([[0.5, 0.5], [0.25, 0.75]], f32))
    labels = np.array([-100, 1])
    got = value("NegativeLogLikelihoodLoss", scores, labels, ignore_index=-100)
    np.testing.assert_allclose(got, -np.log(0.75), rtol=1e-6)
    each = value("SoftmaxCrossEntropyLoss", scores, labels, ignore_index=-100, reduction="none")
    np.testing.assert_allclose(each, [0, -np.log(0.75)], rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "shapes", "attrs", "wanted"),
    [
        ("ReduceMean", [(N, C)], {"axes": (1,)}, (N, 1)),
        ("ReduceSum", [(N, C)], {"axes": (0,), "keepdims": 0}, (C,)),
        ("Softmax", [(N, C)], {}, (N, C)),
        ("LayerNormalization", [(N, 5, C), (C,), (C,)], {}, (N, 5, C)),
        ("RMSNormalization", [(N, C), (C,)], {}, (N, C)),
        ("BatchNormalization", [(N, C, 7), (C,), (C,), (C,), (C,)], {}, (N, C, 7)),
        ("InstanceNormalization", [(N, C, 7), (C,), (C,)], {}, (N, C, 7)),
        ("GroupNormalization", [(N, 6, C), (6,), (6,)], {"num_groups": 3}, (N, 6, C)),
        ("LpNormalization", [(N, C)], {}, (N, C)),
        ("LRN", [(N, C, 3, 3)], {"size": 3}, (N, C, 3, 3)),
        ("ArgMax", [(N, C)], {"axis": 1, "keepdims": 0}, (N,)),
        ("Hardmax", [(N, C)], {}, (N, C)),
        ("CumSum", [(N, C)], {"axis": 1}, (N, C)),
        ("QuantizeLinear", [(N, C), (C,)], {}, (N, C)),
    ],
)
def test_symbolic_sizes(
    name: str, shapes: list[tuple[object, ...]], attrs: dict[str, int], wanted: tuple[object, ...]
) -> None:
    types = tuple(TensorType(F32, s) for s in shapes)  # type: ignore[arg-type]
    assert node(OPS[name], operands(types), **attrs).types[0].shape == wanted


def test_one_hot_of_a_symbolic_depth() -> None:
    types = (TensorType(I64, (2,)), TensorType(F16, (2,)))
    assert node(OPS["OneHot"], operands(types), depth=N).type == TensorType(F16, (2, N))


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("ReduceSum", "f32[2,3] axes=(2,)", r"axes 2 is not in \[-2, 2\)"),
        ("ReduceSum", "f32[2,3] axes=(1,-1)", r"axes \(1, -1\) names an axis twice in rank 2"),
        ("ReduceLogSum", "i32[2]", "its elements cannot be i32"),
        ("LayerNormalization", "f32[2,3] f32[2]", r"shapes \(2, 3\) and \(2,\) do not broadcast"),
        (
            "BatchNormalization",
            "f32[2,3] f32[2] f32[3] f32[3] f32[3]",
            "not one number for each channel",
        ),
        ("GroupNormalization", "f32[2,5,3] f32[5] f32[5] num_groups=2", "2 groups of 5"),
        ("LpNormalization", "f32[2] p=3", "has p 3, not 1 or 2"),
        ("LRN", "f32[2,3,4] size=0", "over 0 channels"),
        ("OneHot", "i64[2] f32[3] depth=4", "takes two values, off and on"),
        ("QuantizeLinear", "f32[2,3] f32[2]", r"not one number for each index of axis 1"),
        ("QuantizeLinear", "f32[2] f32[] i8[] output_dtype=u8", "to u8 with a zero point of i8"),
        ("DequantizeLinear", "i8[2] f32[] u8[]", "with a zero point of u8"),
        ("NegativeLogLikelihoodLoss", "f32[2,3] i64[3]", r"for the classes i64\[3\]"),
        ("SoftmaxCrossEntropyLoss", 'f32[2,3] i64[2] reduction="max"', "no reduction 'max'"),
    ],
)
def test_refuses(name: str, text: str, says: str) -> None:
    with pytest.raises(InferError, match=says):
        made(name, text)
