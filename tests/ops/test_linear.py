"""Matrix products, Einstein sums, quantized contractions, transforms."""

import numpy as np
import pytest

from superopt.ir.graph import node
from superopt.ir.op import InferError
from superopt.ops import OPS
from superopt.te.expr.dtype import F32
from superopt.te.expr.node import Size
from superopt.te.expr.tensor import TensorType
from tests.support.ops.build import made, operands, value

f32 = np.float32
N, S = Size("n"), Size("s")
RNG = np.random.default_rng(0)

REFUSED = [
    ("MatMul", "f32[] f32[2]", "MatMul of f32[] and f32[2]: a scalar"),
    ("MatMul", "f32[2,3] f32[4,5]", "contracts axis 1 of (2, 3) with axis 0 of (4, 5): 3 != 4"),
    ("MatMul", "f32[n,3] f32[m,5]", "3 != m"),
    ("MatMul", "f32[2,3] f64[3,5]", "f32 != f64"),
    ("MatMul", "f32[2,2,3] f32[3,3,5]", "shapes (2,) and (3,) do not broadcast: 2 != 3"),
    ("Gemm", "f32[2,3,4] f32[4,5]", "it takes matrices"),
    ("Gemm", "f32[2,3] f32[4,5] transB=1", "transA=0 transB=1, contracts 3 elements with 5"),
    ("Gemm", "f32[2,3] f32[3,5] f32[3]", "do not broadcast"),
    ("Gemm", "f32[2,3] f32[3,5] f32[1,2,5]", "f32[1, 2, 5] does not broadcast to (2, 5)"),
    ("Gemm", "i32[2,3] i32[3,5] alpha=0.5", "0.5 is no i32"),
    ("Einsum", 'f32[2,3] equation="ab,bc->ac"', "of 1 operands"),
    ("Einsum", 'f32[2,3] equation="a->a"', "a labels f32[2, 3]"),
    ("Einsum", 'f32[2,3] f32[4,5] equation="ab,bc->ac"', "b is 3 and 4"),
    ("Einsum", 'f32[2,3] equation="ab->aa"', "the result has a label twice"),
    ("Einsum", 'f32[2,3] equation="ab->c"', "no operand has the label c"),
    ("Einsum", 'f32[2,3] equation="a1->a"', "'a1' in 'a1->a' is not letters"),
    ("Einsum", 'f32[2,3] equation="...a->a"', "the result lacks ..."),
    ("MatMulInteger", "f32[2,3] u8[3,4]", "f32 is not i8 or u8"),
    ("MatMulInteger", "u8[2,3] u8[3,4] i8[]", "u8[2, 3] with zero point i8[]"),
    ("MatMulInteger", "u8[2,3] u8[3,4] u8[7]", "u8[7] is neither one value for u8[2, 3] nor"),
    ("ConvInteger", "u8[1,2,4] u8[3,2,2] u8[2]", "u8[2] is not one value"),
    ("DFT", "f32[2,5,1] axis=2", "the last axis is 1 or 2, real and imaginary"),
    ("DFT", "f32[2,5,1] axis=1 dft_length=0", "length 0"),
    ("STFT", "f32[2,9,1] frame_step=2", "neither a window nor a frame length"),
    ("STFT", "f32[2,3,1] f32[4] frame_step=2", "a frame of 4 does not fit"),
]


@pytest.mark.parametrize(("name", "text", "message"), REFUSED)
def test_refused(name: str, text: str, message: str) -> None:
    with pytest.raises(InferError) as e:
        made(name, text)
    assert message in str(e.value)


def test_matmul_is_numpy_s() -> None:
    for a, b in [((3,), (3,)), ((3,), (2, 3, 4)), ((5, 2, 3), (3,)), ((1, 2, 3), (4, 1, 3, 2))]:
        x, y = RNG.standard_normal(a), RNG.standard_normal(b)
        np.testing.assert_allclose(value("MatMul", x, y), x @ y, rtol=1e-12)
    x, y = (
        RNG.integers(-9, 9, (2, 3)).astype(np.int32),
        RNG.integers(-9, 9, (3, 4)).astype(np.int32),
    )
    np.testing.assert_array_equal(value("MatMul", x, y), x @ y)
    types = (TensorType(F32, (N, S, 8)), TensorType(F32, (8, S)))
    assert str(node(OPS["MatMul"], operands(types)).type) == "f32[n, s, s]"


def test_sums_of_half_precision_are_wider() -> None:
    x = np.full((1, 4096), 1, np.float16)
    assert value("MatMul", x, x.T) == 4096  # one by one in float16 they would stop at 2048
    big = np.array([[256, 256]], np.float16)  # the product is 2^17, above what float16 holds
    assert value("Gemm", big, big.T, np.array([[-60000]], np.float16), beta=2.0) == 131072 - 120000
    assert value("Einsum", x, x, equation="ab,cb->ac") == 4096


def test_gemm() -> None:
    a, b, c = (RNG.standard_normal(s) for s in ((4, 3), (5, 4), (5,)))
    got = value("Gemm", a, b, c, alpha=0.5, beta=2.0, transA=1, transB=1)
    np.testing.assert_allclose(got, 0.5 * a.T @ b.T + 2 * c, rtol=1e-12)
    # beta = 0 leaves c out, even where it is nan
    got = value("Gemm", a.T, b.T, np.full(5, np.nan), beta=0.0)
    np.testing.assert_allclose(got, a.T @ b.T, rtol=1e-12)
    n = made("Gemm", "f32[2,3] f32[3,4] beta=3.0")
    assert n is node(OPS["Gemm"], n.inputs)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", ((2, 3), (3, 4))),
        ("bij, bjk", ((5, 2, 3), (5, 3, 4))),
        ("ii", ((3, 3),)),
        ("ii->i", ((3, 3),)),
        ("...ii->...i", ((2, 3, 3),)),
        ("ba", ((2, 3),)),
        ("ij->", ((2, 3),)),
        ("i,j,k->kji", ((2,), (3,), (4,))),
        ("...ij,jk->...ik", ((5, 6, 2, 3), (3, 4))),
        ("i...,...i", ((3, 2, 1), (5, 3))),
        ("bhsd,bhtd->bhst", ((1, 2, 3, 4), (1, 2, 5, 4))),
    ],
)
def test_einsum_is_numpy_s(equation: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    xs = [RNG.standard_normal(s) for s in shapes]
    wanted = np.einsum(equation.replace(" ", ""), *xs)
    np.testing.assert_allclose(value("Einsum", *xs, equation=equation), wanted, rtol=1e-12)


def test_equations_that_differ_in_letters_are_one() -> None:
    a = made("Einsum", 'f32[2,3] f32[3,4] equation="ij,jk"')
    assert a is node(OPS["Einsum"], a.inputs, equation="ba, aZ -> bZ")
    assert dict(a.attrs) == {"equation": "ab,bc->ac"}


def test_zero_points_of_rows_and_columns() -> None:
    a, b = (
        RNG.integers(0, 256, (2, 3)).astype(np.uint8),
        RNG.integers(-128, 128, (3, 4)).astype(np.int8),
    )
    za, zb = np.array([3, 250], np.uint8), np.array([1, -2, 3, -4], np.int8)
    wanted = (a.astype(np.int32) - za[:, None]) @ (b.astype(np.int32) - zb)
    got = value("MatMulInteger", a, b, za, zb)
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, wanted)


def test_quantized_products_round_to_even_and_saturate() -> None:
    one, none = np.array(1, f32), np.array(0, np.uint8)
    a = np.array([[1], [3], [255]], np.uint8)
    b = np.array([[1, 255]], np.uint8)
    scale = np.array(2, f32)
    got = value("QLinearMatMul", a, one, none, b, one, none, scale, np.array(1, np.uint8))
    # 0.5 -> 0, 1.5 -> 2, 127.5 -> 128, each before the zero point is added
    assert got.tolist() == [[1, 129], [3, 255], [129, 255]]


def test_quantized_convolution_of_scales_for_each_channel() -> None:
    x = RNG.integers(0, 256, (1, 2, 6)).astype(np.uint8)
    w = RNG.integers(-128, 128, (3, 2, 3)).astype(np.int8)
    b = RNG.integers(-99, 99, 3).astype(np.int32)
    zx, zw, zy = np.array(7, np.uint8), np.array([1, -1, 0], np.int8), np.array(100, np.uint8)
    sw = np.array([0.5, 0.25, 1], f32)
    got = value(
        "QLinearConv", x, np.array(0.1, f32), zx, w, sw, zw, np.array(9, f32), zy, b, pads=(1, 1)
    )
    left = x.astype(np.float64) - 7
    right = w.astype(np.float64) - zw[:, None, None]
    total = value("Conv", left, right, b.astype(np.float64), pads=(1, 1))
    wanted = np.clip(np.rint(total * 0.1 * sw[:, None] / 9) + 100, 0, 255)
    assert np.abs(got.astype(int) - wanted).max() <= 1  # ties may fall otherwise in float32
    assert (got == wanted).mean() > 0.8


def test_transforms_are_numpy_s() -> None:
    x = RNG.standard_normal((2, 7, 3, 2))
    z = x[..., 0] + 1j * x[..., 1]

    def pair(y: np.ndarray) -> np.ndarray:
        return np.stack([y.real, y.imag], -1)

    for n in (None, 5, 9):
        got = value("DFT", x, axis=1, dft_length=n)
        np.testing.assert_allclose(got, pair(np.fft.fft(z, n, 1)), atol=1e-12)
        got = value("DFT", x, axis=-3, dft_length=n, inverse=1)
        np.testing.assert_allclose(got, pair(np.fft.ifft(z, n, 1)), atol=1e-12)
        got = value("DFT", x[..., :1], axis=1, dft_length=n, onesided=1)
        np.testing.assert_allclose(got, pair(np.fft.rfft(x[..., 0], n, 1)), atol=1e-12)
        got = value("DFT", x, axis=1, dft_length=n, inverse=1, onesided=1)
        np.testing.assert_allclose(got[..., 0], np.fft.irfft(z, n, 1), atol=1e-12)
    assert str(made("DFT", "f32[n,s,1] axis=1 onesided=1").type) == "f32[n, ((s // 2) + 1), 2]"


def test_frames_of_a_signal() -> None:
    x, w = RNG.standard_normal((2, 11, 1)), RNG.standard_normal(4)
    got = value("STFT", x, w, frame_step=3)
    frames = np.stack([x[:, i : i + 4, 0] * w for i in (0, 3, 6)], 1)
    wanted = np.fft.rfft(frames, axis=2)
    np.testing.assert_allclose(got[..., 0] + 1j * got[..., 1], wanted, atol=1e-12)
