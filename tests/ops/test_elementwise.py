"""Elementwise operators: their corners, their one form, and what they refuse."""

import numpy as np
import pytest

from superopt.ir.graph import node
from superopt.ir.op import InferError
from superopt.ops import OPS
from superopt.te.expr.dtype import BF16, F16, F32, F64, I32, DType
from superopt.te.expr.node import Size
from superopt.te.expr.tensor import TensorType
from tests.support.ops.build import made, operands, value, values

f32, f16, i8, i32, u8 = np.float32, np.float16, np.int8, np.int32, np.uint8


def same(got: np.ndarray, wanted: list[float] | list[int] | list[bool]) -> None:
    np.testing.assert_array_equal(got, np.array(wanted, got.dtype))


def test_integers_wrap() -> None:
    x = np.array([127, -128, 100], i8)
    same(value("Add", x, np.array(1, i8)), [-128, -127, 101])
    same(value("Mul", x, np.array(2, i8)), [-2, 0, -56])
    same(value("Sub", np.array([0, 5], u8), np.array(1, u8)), [255, 4])


def test_integer_division_truncates() -> None:
    x = np.array([-7, 7, -8], i32)
    same(value("Div", x, np.array([2, -2, 3], i32)), [-3, -3, -2])
    same(value("Mod", x, np.array([2, -2, 3], i32)), [1, -1, 1])
    same(value("Mod", x, np.array([2, -2, 3], i32), fmod=1), [-1, 1, -2])


def test_round_goes_to_the_even_neighbour() -> None:
    same(value("Round", np.array([0.5, 1.5, 2.5, -0.5, -2.5], f32)), [0, 2, 2, 0, -2])


def test_nan_goes_through_max_min_relu_and_clip() -> None:
    x = np.array([np.nan, 1, -1], f32)
    for name in ("Max", "Min"):
        assert np.isnan(value(name, np.array(0, f32), x)[0])
    same(value("Relu", x), [np.nan, 1, 0])
    same(value("Clip", x, np.array(-0.5, f32), np.array(0.5, f32)), [np.nan, 0.5, -0.5])


def test_the_upper_limit_of_clip_wins() -> None:
    x = np.array([-5, 0, 5], f32)
    same(value("Clip", x, np.array(3, f32), np.array(1, f32)), [1, 1, 1])
    same(value("Clip", x, None, np.array(1, f32)), [-5, 0, 1])
    same(value("Clip", x), [-5, 0, 5])


def test_powers_have_the_type_of_their_base() -> None:
    x = np.array([2, 3], i32)
    assert value("Pow", x, np.array(0.5, f32)).dtype == i32
    same(value("Pow", x, np.array(0.5, f32)), [1, 1])
    same(value("Pow", x.astype(f32), np.array([3, 2], np.int64)), [8, 9])


def test_shifts_beyond_the_width_leave_the_sign() -> None:
    x = np.array([-8, 8, -1], i8)
    same(value("BitShift", x, np.array([1, 9, -1], i8), direction="RIGHT"), [-4, 0, -1])
    same(value("BitShift", x, np.array([1, 9, -1], i8), direction="LEFT"), [-16, 0, 0])
    same(value("BitShift", np.array([255], u8), np.array([8], u8), direction="RIGHT"), [0])


def test_equal_is_of_any_type() -> None:
    same(value("Equal", np.array([True, False]), np.array([True, True])), [True, False])
    words = np.array(["a", "b"], object)
    same(value("Equal", words, np.array(["a", "a"], object)), [True, False])


def test_infinities_are_distinguished() -> None:
    x = np.array([np.inf, -np.inf, 1, np.nan], f32)
    same(value("IsInf", x), [True, True, False, False])
    same(value("IsInf", x, detect_negative=0), [True, False, False, False])
    same(value("IsInf", x, detect_positive=0), [False, True, False, False])
    same(value("IsInf", x, detect_positive=0, detect_negative=0), [False] * 4)


def test_softplus_and_mish_do_not_overflow() -> None:
    x = np.array([-200, 0, 200], f32)
    np.testing.assert_allclose(value("Softplus", x), [0, np.log(2), 200], rtol=1e-6)
    np.testing.assert_allclose(value("Mish", x), [0, 0, 200], atol=1e-6)


def test_activations_of_float16_round_once() -> None:
    x = np.linspace(-4, 4, 101).astype(f16)
    for name in ("Elu", "Selu", "Softplus", "Swish", "Mish", "HardSwish"):
        exact = value(name, x.astype(f32))
        np.testing.assert_array_equal(value(name, x), exact.astype(f16), name)


def test_shrink_of_integers() -> None:
    x = np.array([-3, -1, 0, 1, 3], i32)
    same(value("Shrink", x, lambd=1.5, bias=1.0), [-2, 0, 0, 0, 2])
    same(value("Shrink", x.astype(u8)[2:], lambd=1.5, bias=1.0), [0, 0, 2])


def test_dropout_keeps_everything() -> None:
    y, mask = values("Dropout", np.array([1, 2], f32), ratio=0.7)
    same(y, [1, 2])
    assert mask.all()
    assert values("Dropout", np.array([1, 2], f32), ratio=0, training_mode=True)[1].all()


def test_bits_are_kept() -> None:
    x = np.array([1.0, -2.0], f32)
    y = value("BitCast", x, to=I32)
    same(y, [0x3F800000, -0x40000000])
    same(value("BitCast", y, to=F32), [1.0, -2.0])


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("LeakyRelu", "f32[2]", "f32[2] alpha=0.01"),
        ("LeakyRelu", "f32[2] alpha=0.1", "f32[2] alpha=0.10000000149011612"),
        ("Mod", "i32[2] i32[2]", "i32[2] i32[2] fmod=False"),
        ("Dropout", "f32[2]", "f32[2] ratio=0.3 seed=7"),
        ("IsInf", "f32[2] detect_negative=2", "f32[2]"),
        ("Cast", "f32[2] to=i32 saturate=0", "f32[2] to=i32"),
    ],
)
def test_equal_nodes_are_one(name: str, one: str, other: str) -> None:
    inputs = made(name, one).inputs
    assert made(name, one, inputs) is made(name, other, inputs)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("Add", "f32[2,3] f32[2]", r"shapes \(2, 3\) and \(2,\) do not broadcast: 3 != 2"),
        ("Add", "f32[2] f64[2]", "add mixes f32 and f64"),
        ("Sqrt", "i32[2]", r"Sqrt of i32\[2\]: its elements cannot be i32"),
        ("And", "f32[2] f32[2]", "its elements cannot be f32"),
        ("Where", "f32[2] f32[2] f32[2]", "its elements cannot be f32"),
        ("BitShift", 'u8[2] u8[2] direction="UP"', "direction 'UP' is neither LEFT nor RIGHT"),
        ("Gelu", 'f32[2] approximate="erf"', "no approximation 'erf': none or tanh"),
        ("PRelu", "f32[2] f32[3,2]", r"slope f32\[3, 2\] does not broadcast to f32\[2\]"),
        ("SwiGLU", "f32[2] f32[1]", "the shapes differ"),
        ("Clip", "f32[2] f32[2]", r"Clip of f32\[2\] to a limit of f32\[2\]"),
        ("Shrink", "i32[2] bias=0.5", "0.5 is no i32"),
        ("LeakyRelu", 'f32[2] alpha="a"', "attribute alpha must be a number, not 'a'"),
        ("Dropout", "f32[2] training_mode=True ratio=0.5", "in training mode is random"),
        ("Cast", "string[2] to=f32", "no expression for string"),
        ("Cast", "f32[2] to=f8e8m0 saturate=0", "that does not saturate has no expression"),
        ("BitCast", "f32[2] to=f64", "not types of numbers of one width"),
    ],
)
def test_refuses(name: str, text: str, says: str) -> None:
    with pytest.raises(InferError, match=says):
        made(name, text)


def test_symbolic_sizes_broadcast() -> None:
    n, m = Size("n"), Size("m")
    x, y = operands((TensorType(F32, (n, 1)), TensorType(F32, (m,))))
    assert node(OPS["Add"], (x, y)).type == TensorType(F32, (n, m))
    with pytest.raises(InferError, match="n != m"):
        node(OPS["Add"], operands((TensorType(F32, (n,)), TensorType(F32, (m,)))))


@pytest.mark.parametrize("dtype", [F16, BF16, F32, F64])
@pytest.mark.parametrize("name", ["Sqrt", "Gelu", "Celu", "Swish", "Identity", "Abs", "Mish"])
def test_results_have_the_type_of_the_operand(name: str, dtype: DType) -> None:
    t = TensorType(dtype, (2, Size("n")))
    assert node(OPS[name], operands((t,))).type == t
