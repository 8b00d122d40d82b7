"""Convolutions and pools: sizes, pads in one form, corners, and what they refuse."""

import numpy as np
import pytest

from superopt.ir.graph import node
from superopt.ir.op import Attr, InferError
from superopt.ops import OPS
from superopt.te.expr.dtype import F32
from superopt.te.expr.node import Size
from superopt.te.expr.tensor import TensorType
from tests.support.ops.build import made, operands, value

f32 = np.float32
N, H = Size("n"), Size("h")


def shape(name: str, *dims: tuple[object, ...], **attrs: Attr) -> str:
    types = tuple(TensorType(F32, d) for d in dims)  # type: ignore[arg-type]
    return str(node(OPS[name], operands(types), **attrs).type)


def canonical(name: str, text: str) -> dict[str, Attr]:
    n = made(name, text)
    assert n is node(n.op, n.inputs, **dict(n.attrs))
    return dict(n.attrs)


REFUSED = [
    (
        "Conv",
        "f32[1,4,8,8] f32[8,3,3,3]",
        "Conv of x f32[1, 4, 8, 8] with w f32[8, 3, 3, 3]: 4 channels in 1 groups != 3",
    ),
    ("Conv", "f32[1,4,8] f32[3,2,3] group=2", "3 output channels in 2 groups"),
    ("Conv", "f32[1,4,8] f32[8,4,3,3]", "ranks 3 and 4"),
    ("Conv", "f32[1,4,8] f32[8,4,3] group=0", "0 groups"),
    ("Conv", "f32[1,4,8] f32[8,4,3] f32[4]", "bias has type f32[4], expected [8]"),
    ("Conv", "f32[1,4,8] f16[8,4,3]", "dtypes differ"),
    ("Conv", "f32[1,4,8] f32[8,4,3] strides=(0,)", "strides (0,) on 1 spatial axes"),
    ("Conv", "f32[1,4,8] f32[8,4,3] dilations=(1,1)", "dilations (1, 1) on 1 spatial axes"),
    ("Conv", "f32[1,4,8] f32[8,4,3] pads=(1,)", "1 pads on 1 spatial axes"),
    ("Conv", "f32[1,4,8] f32[8,4,3] kernel_shape=(5,)", "kernel_shape (5,) != (3,) of w"),
    ("Conv", 'f32[1,4,8] f32[8,4,3] auto_pad="SAME"', "auto_pad SAME is not one of NOTSET"),
    (
        "Conv",
        "f32[1,4,2] f32[8,4,3] dilations=(2,)",
        "a window of 5 does not fit in 2 elements padded by 0 and 0",
    ),
    ("ConvTranspose", "f32[1,4,8] f32[3,2,3]", "4 channels != 3"),
    ("ConvTranspose", "f32[1,3,8] f32[3,2,3] group=2", "3 channels in 2 groups"),
    ("ConvTranspose", "f32[1,4,8] f32[4,2,3] f32[3]", "bias has type f32[3], expected [2]"),
    ("ConvTranspose", "f32[1,4,2] f32[4,2,1] pads=(2,1)", "2 elements less pads 2 and 1 is -1"),
    ("ConvTranspose", "f32[1,4,8] f32[4,2,3] output_shape=(12,)", "(12,) is not reachable"),
    ("ConvTranspose", "f32[1,4,h] f32[4,2,3] output_shape=(12,)", "(12,) needs pads"),
    (
        "ConvTranspose",
        'f32[1,4,8] f32[4,2,1] strides=(3,) auto_pad="SAME_UPPER"',
        "runtimes differ on SAME_UPPER",
    ),
    ("Col2Im", "f32[1,12,5] image_shape=(4,3) block_shape=(3,2)", "to (4, 3): 4 blocks"),
    ("Col2Im", "f32[1,11,4] image_shape=(4,3) block_shape=(3,2)", "11 is not a multiple of 6"),
    ("AveragePool", "f32[1,4] kernel_shape=(2,)", "no spatial axes"),
    ("AveragePool", "i32[1,4,4] kernel_shape=(2,)", "its elements cannot be i32"),
    ("AveragePool", "f32[1,4,4] kernel_shape=(2,2)", "a kernel of 2 axes on 1 spatial axes"),
    ("MaxPool", "f32[1,4,4] kernel_shape=(5,)", "a window of 5 does not fit in 4 elements"),
    ("MaxPool", "f32[1,4,4] kernel_shape=(0,)", "kernel_shape (0,)"),
    (
        "MaxPool",
        'f32[1,4,4] kernel_shape=(2,) dilations=(2,) auto_pad="SAME_LOWER"',
        "dilations (2,), where runtimes differ on SAME_LOWER",
    ),
    ("LpPool", "f32[1,4,4] kernel_shape=(2,) p=0", "p = 0 is not an integer >= 1"),
    ("GlobalMaxPool", "f32[1,4]", "GlobalMaxPool of f32[1, 4]: no spatial axes"),
]


@pytest.mark.parametrize(("name", "text", "message"), REFUSED)
def test_refused(name: str, text: str, message: str) -> None:
    with pytest.raises(InferError) as e:
        made(name, text)
    assert message in str(e.value)


def test_automatic_pads_are_written_out() -> None:
    same = {"pads": (0, 1, 1, 1), "auto_pad": "NOTSET"}
    found = canonical("Conv", 'f32[1,2,6,5] f32[3,2,3,3] strides=(2,1) auto_pad="SAME_UPPER"')
    assert same.items() <= found.items()
    assert found["kernel_shape"] is None
    lower = canonical("Conv", 'f32[1,2,6,5] f32[3,2,3,3] strides=(2,1) auto_pad="SAME_LOWER"')
    assert lower["pads"] == (1, 1, 0, 1)
    valid = canonical("Conv", 'f32[1,2,6] f32[3,2,3] pads=(1,1) auto_pad="VALID"')
    assert valid["pads"] == (0, 0)
    # a stride of 1 needs the same pads at every size, another does not
    one = canonical("Conv", 'f32[1,2,h] f32[3,2,3] auto_pad="SAME_UPPER"')
    assert (one["pads"], one["auto_pad"]) == ((1, 1), "NOTSET")
    two = canonical("Conv", 'f32[1,2,h] f32[3,2,3] strides=(2,) auto_pad="SAME_UPPER"')
    assert (two["pads"], two["auto_pad"]) == (None, "SAME_UPPER")
    up = canonical("ConvTranspose", 'f32[1,2,6] f32[2,3,3] strides=(2,) auto_pad="SAME_UPPER"')
    assert (up["pads"], up["output_shape"], up["output_padding"]) == ((0, 1), None, (0,))
    more = canonical("ConvTranspose", "f32[1,2,6] f32[2,3,3] strides=(2,) output_shape=(14,)")
    assert (more["pads"], more["output_padding"]) == ((0, 0), (1,))


def test_pool_modes_that_say_nothing_are_zero() -> None:
    found = canonical("AveragePool", "f32[1,2,6] kernel_shape=(2,) ceil_mode=1 count_include_pad=1")
    assert (found["ceil_mode"], found["count_include_pad"]) == (0, 0)
    found = canonical("AveragePool", "f32[1,2,6] kernel_shape=(2,) strides=(3,) ceil_mode=1")
    assert found["ceil_mode"] == 0
    found = canonical("MaxPool", "f32[1,2,5] kernel_shape=(2,) strides=(2,) ceil_mode=1")
    assert found["ceil_mode"] == 1
    assert (
        canonical("MaxPool", "f32[1,2,6] kernel_shape=(2,) storage_order=1")["storage_order"] == 0
    )


def test_sizes_stay_symbolic() -> None:
    assert shape("Conv", (N, 3, H, 8), (4, 3, 3, 3)) == "f32[n, 4, (h + -2), 6]"
    kernel = (4, 3, 7)
    assert shape("Conv", (N, 3, H), kernel, pads=(3, 3)) == "f32[n, 4, h]"
    assert (
        shape("Conv", (N, 3, H), kernel, pads=(3, 3), strides=(2,))
        == "f32[n, 4, (((h + -1) // 2) + 1)]"
    )
    assert shape("Conv", (N, 3, 2 * H), (4, 3, 2), strides=(2,)) == "f32[n, 4, h]"
    up = shape("ConvTranspose", (N, 3, H), (3, 4, 2), strides=(2,))
    assert up == "f32[n, 4, (h * 2)]"
    pool = shape("MaxPool", (N, 3, H), kernel_shape=(3,), strides=(2,), pads=(1, 1))
    assert pool == "f32[n, 3, (((h + -1) // 2) + 1)]"
    assert shape("AveragePool", (N, 3, H), kernel_shape=(1,), ceil_mode=1) == "f32[n, 3, h]"
    assert shape("GlobalAveragePool", (N, 3, H, H)) == "f32[n, 3, 1, 1]"


def conv_by_hand(
    x: np.ndarray, w: np.ndarray, stride: int, dilation: int, group: int
) -> np.ndarray:
    """A convolution of one spatial axis, as ONNX's text says it."""
    batch, channels, extent = x.shape
    out, inner, k = w.shape
    count = (extent - dilation * (k - 1) - 1) // stride + 1
    y = np.zeros((batch, out, count), x.dtype)
    for m in range(out):
        first = m // (out // group) * (channels // group)
        for o in range(count):
            for c in range(inner):
                for j in range(k):
                    y[:, m, o] += x[:, first + c, o * stride + j * dilation] * w[m, c, j]
    return y


@pytest.mark.parametrize(
    ("stride", "dilation", "group"), [(1, 1, 1), (2, 1, 2), (1, 2, 4), (3, 2, 2)]
)
def test_a_convolution_is_its_sum(stride: int, dilation: int, group: int) -> None:
    rng = np.random.default_rng(stride)
    x = rng.standard_normal((2, 4, 11)).astype(f32)
    w = rng.standard_normal((8, 4 // group, 3)).astype(f32)
    b = rng.standard_normal(8).astype(f32)
    attrs: dict[str, Attr] = {"strides": (stride,), "dilations": (dilation,), "group": group}
    got = value("Conv", x, w, b, **attrs)
    wanted = conv_by_hand(x, w, stride, dilation, group) + b[:, None]
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    padded = value("Conv", x, w, pads=(2, 3), **attrs)
    wide = np.pad(x, ((0, 0), (0, 0), (2, 3)))
    np.testing.assert_allclose(padded, conv_by_hand(wide, w, stride, dilation, group), 1e-4, 1e-5)


@pytest.mark.parametrize(("stride", "dilation", "group"), [(1, 1, 1), (2, 1, 2), (3, 2, 2)])
def test_a_transposed_convolution_is_the_adjoint(stride: int, dilation: int, group: int) -> None:
    # <conv(x), y> == <x, conv_transpose(y)>
    rng = np.random.default_rng(stride)
    w = rng.standard_normal((4, 6 // group, 2, 3))
    attrs: dict[str, Attr] = {
        "strides": (stride, 1),
        "dilations": (dilation, 2),
        "group": group,
        "pads": (1, 0, 1, 2),
    }
    x = rng.standard_normal((1, 6, 1 + 3 * stride + dilation - 2, 9))
    down = value("Conv", x, w, **attrs)
    y = rng.standard_normal(down.shape)
    up = value("ConvTranspose", y, w, **attrs)
    assert up.shape == x.shape
    np.testing.assert_allclose((down * y).sum(), (x * up).sum(), rtol=1e-9)


def test_padding_multiplies_as_zero() -> None:
    # 0 * inf is nan: padding is zeros that are multiplied, not elements left out
    got = value("Conv", np.ones((1, 1, 2), f32), np.full((1, 1, 3), np.inf, f32), pads=(1, 1))
    assert np.isnan(got).all()


def test_sums_of_half_precision_do_not_overflow() -> None:
    x = np.full((1, 64, 4), 60, np.float16)
    assert value("GlobalAveragePool", x * 900)[0, 0, 0] == 54000
    w = np.full((1, 64, 1), 0.5, np.float16)
    w[:, ::2] *= -1
    assert (value("Conv", x * 900, w) == 0).all()


def test_what_averages_count() -> None:
    x = np.arange(1, 6, dtype=f32).reshape(1, 1, 5)
    attrs: dict[str, Attr] = {"kernel_shape": (3,), "strides": (2,), "pads": (1, 0)}
    assert value("AveragePool", x, **attrs).tolist() == [[[1.5, 3]]]
    assert value("AveragePool", x, count_include_pad=1, **attrs).tolist() == [[[1, 3]]]
    # the last window hangs over by one, which never counts
    got = value("AveragePool", x, ceil_mode=1, count_include_pad=1, **attrs)
    assert got.tolist() == [[[1, 3, 4.5]]]


def test_the_last_window_starts_inside() -> None:
    x = np.arange(4, dtype=f32).reshape(1, 1, 4)
    got = value("MaxPool", x, kernel_shape=(1,), strides=(2,), pads=(0, 1), ceil_mode=1)
    assert got.tolist() == [[[0, 2]]]


def test_pools_of_integers() -> None:
    x = np.array([[[-128, -5, 3]]], np.int8)
    got = value("MaxPool", x, kernel_shape=(2,), pads=(1, 1))
    assert got.dtype == np.int8
    assert got.tolist() == [[[-128, -5, 3, 3]]]


def test_norms_of_windows() -> None:
    x = np.random.default_rng(0).standard_normal((1, 2, 6)).astype(f32)
    for p in (1, 2, 3):
        wanted = np.linalg.norm(x.reshape(1, 2, 3, 2), p, axis=3)
        got = value("LpPool", x, kernel_shape=(2,), strides=(2,), p=p)
        np.testing.assert_allclose(got, wanted, rtol=1e-5)
        whole = value("GlobalLpPool", x, p=p)
        np.testing.assert_allclose(whole[..., 0], np.linalg.norm(x, p, axis=2), rtol=1e-5)


def test_col2im_undoes_im2col_up_to_how_often_an_element_is_seen() -> None:
    image = np.arange(12, dtype=f32).reshape(1, 1, 3, 4)
    blocks = [image[0, 0, i : i + 2, j : j + 2].reshape(-1) for i in range(2) for j in range(3)]
    columns = np.stack(blocks, 1)[None]
    got = value("Col2Im", columns, image_shape=(3, 4), block_shape=(2, 2))
    times = np.outer([1, 2, 1], [1, 2, 2, 1])
    np.testing.assert_array_equal(got[0, 0], image[0, 0] * times)


def test_a_mean_of_nothing_is_0() -> None:
    """As onnxruntime has it: what a window of far elements sees may be padding alone."""
    x = np.ones((1, 1, 1), np.float32)
    far = {"kernel_shape": (2,), "dilations": (2,), "pads": (1, 1)}
    assert value("AveragePool", x, **far).tolist() == [[[0.0]]]
    x = np.arange(1, 4, dtype=np.float32).reshape(1, 1, 3)
    assert value("AveragePool", x, **far).tolist() == [[[2.0, 2.0, 2.0]]]
