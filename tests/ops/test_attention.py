"""Attention and rotary embedding: variants against numpy, symbolic sizes, what they refuse."""

import numpy as np
import pytest

from superopt.ir.graph import node, results
from superopt.ir.op import Attr, InferError
from superopt.ops import OPS
from superopt.te.expr.dtype import F32, F64
from superopt.te.expr.node import Size
from superopt.te.expr.tensor import TensorType
from tests.support.ops.build import made, operands, value, values

RNG = np.random.default_rng(0)
B, S, T, P = Size("b"), Size("s"), Size("t"), Size("p")
Q = RNG.standard_normal((2, 4, 3, 8))
K = RNG.standard_normal((2, 2, 5, 8))
V = RNG.standard_normal((2, 2, 5, 6))


def reference(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, bias: np.ndarray | float = 0.0, softcap: float = 0
) -> np.ndarray:
    times = q.shape[1] // k.shape[1]
    k, v = k.repeat(times, 1), v.repeat(times, 1)
    x = q @ k.swapaxes(2, 3) / np.sqrt(q.shape[3])
    x = (softcap * np.tanh(x / softcap) if softcap else x) + bias
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True) @ v


def close(got: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-12)


def hidden(allowed: np.ndarray) -> np.ndarray:
    return np.where(allowed, 0, -np.inf)


def test_heads_are_grouped_and_scores_capped() -> None:
    close(value("Attention", Q, K, V), reference(Q, K, V))
    close(value("Attention", Q, K, V, softcap=2.0), reference(Q, K, V, softcap=2))
    close(value("FlexAttention", Q, K, V), reference(Q, K, V))


def test_operands_of_three_axes() -> None:
    def flat(x: np.ndarray) -> np.ndarray:
        return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)

    got = values("Attention", flat(Q), flat(K), flat(V), q_num_heads=4, kv_num_heads=2)
    close(got[0], flat(reference(Q, K, V)))
    close(got[1], K)
    close(got[2], V)


def test_masks() -> None:
    for mask in (RNG.standard_normal(s) for s in ((5,), (3, 5), (4, 1, 5), (2, 1, 3, 5))):
        close(value("Attention", Q, K, V, mask), reference(Q, K, V, mask))
    allowed = RNG.random((3, 5)) < 0.7
    allowed[:, 0] = True
    close(value("Attention", Q, K, V, allowed), reference(Q, K, V, hidden(allowed)))
    short = value("Attention", Q, K, V, RNG.standard_normal((3, 4)) * 0)
    close(short, reference(Q, K[:, :, :4], V[:, :, :4]))


def test_a_query_that_sees_no_key_gives_zeros() -> None:
    allowed = np.ones((3, 5), bool)
    allowed[1] = False
    y, _, _, weights = values("Attention", Q, K, V, allowed, qk_matmul_output_mode=3)
    assert (y[:, :, 1] == 0).all()
    assert (weights[:, :, 1] == 0).all()
    close(y[:, :, 2], reference(Q, K, V)[:, :, 2])


def test_causal_queries_follow_the_past() -> None:
    rows, columns = np.arange(3)[:, None], np.arange(5)
    close(value("Attention", Q, K, V, is_causal=1), reference(Q, K, V, hidden(columns <= rows)))
    y, keys, past_values, _ = values(
        "Attention", Q, K[:, :, 2:], V[:, :, 2:], None, K[:, :, :2], V[:, :, :2], is_causal=1
    )
    close(y, reference(Q, K, V, hidden(columns <= rows + 2)))
    close(keys, K)
    close(past_values, V)


def test_windows_and_padded_caches() -> None:
    rows, columns = np.arange(3)[:, None], np.arange(5)
    near = (columns >= rows - 1) & (columns <= rows + 2)
    got = value("Attention", Q, K, V, left_window_size=1, right_window_size=2)
    close(got, reference(Q, K, V, hidden(near)))
    valid = np.array([5, 4])
    got = value("Attention", Q, K, V, None, None, None, valid, is_causal=1)
    bias = np.stack([hidden(columns <= rows + n - 3) for n in valid])[:, None]
    close(got, reference(Q, K, V, bias))


def test_what_the_fourth_result_shows() -> None:
    mask = RNG.standard_normal((3, 5))
    shown = [
        values("Attention", Q, K, V, mask, softcap=2.0, qk_matmul_output_mode=m)[3]
        for m in range(4)
    ]
    raw = Q @ K.repeat(2, 1).swapaxes(2, 3) / np.sqrt(8)
    close(shown[0], raw)
    close(shown[1], 2 * np.tanh(raw / 2))
    close(shown[2], shown[1] + mask)
    close(shown[3].sum(-1), np.ones((2, 4, 3)))


def test_softmax_in_another_precision() -> None:
    half = [x.astype(np.float16) for x in (Q, K, V)]
    wide = value("Attention", *half, softmax_precision=F64)
    assert wide.dtype == np.float16
    np.testing.assert_allclose(wide, reference(*(x.astype(np.float64) for x in half)), atol=3e-3)


def types(*shapes: tuple[object, ...] | None, **attrs: Attr) -> str:
    kinds = tuple(None if s is None else TensorType(F32, s) for s in shapes)  # type: ignore[arg-type]
    inputs = operands(tuple(k for k in kinds if k is not None))
    left = iter(inputs)
    n = node(OPS["Attention"], [None if k is None else next(left) for k in kinds], **attrs)
    return " ".join(str(v.type) for v in results(n))


def test_sizes_stay_symbolic() -> None:
    got = types((B, 4, S, 8), (B, 2, T, 8), (B, 2, T, 6), (S, T), is_causal=1)
    assert got == "f32[b, 4, s, 6] f32[b, 2, t, 8] f32[b, 2, t, 6] f32[b, 4, s, t]"
    past = ((B, 2, P, 8), (B, 2, P, 6))
    got = types((B, 4, S, 8), (B, 2, S, 8), (B, 2, S, 6), None, *past)
    assert (
        got == "f32[b, 4, s, 6] f32[b, 2, (p + s), 8] f32[b, 2, (p + s), 6] f32[b, 4, s, (p + s)]"
    )
    got = types((B, S, 32), (B, S, 16), (B, S, 12), q_num_heads=4, kv_num_heads=2)
    assert got.startswith("f32[b, s, 24] f32[b, 2, s, 8]")


def test_attributes_have_one_form() -> None:
    n = made("Attention", "f32[1,2,3,4] f32[1,2,3,4] f32[1,2,3,4]")
    same = node(
        n.op, n.inputs, q_num_heads=2, kv_num_heads=2, softmax_precision=F32, softcap=0, is_causal=0
    )
    assert same is n
    r = made("RotaryEmbedding", "f32[1,2,3,8] f32[1,3,4] f32[1,3,4]")
    assert r is node(r.op, r.inputs, rotary_embedding_dim=8, num_heads=2)


REFUSED = [
    ("Attention", "f32[1,3,8] f32[1,3,8] f32[1,3,8]", "f32[1, 3, 8] in None heads"),
    (
        "Attention",
        "f32[1,3,8] f32[1,3,8] f32[1,3,8] q_num_heads=3 kv_num_heads=2",
        "8 is not a multiple of 3 heads",
    ),
    ("Attention", "f32[1,3,2,4] f32[1,2,2,4] f32[1,2,2,4]", "3 heads of q are not a multiple of 2"),
    ("Attention", "f32[1,2,2,4] f32[1,2,2,5] f32[1,2,2,4]", "head size, 4 != 5"),
    ("Attention", "f32[1,2,2,4] f32[1,2,3,4] f32[1,2,2,4]", "keys and values, 3 != 2"),
    ("Attention", "f32[1,2,2,4] f32[2,2,2,4] f32[1,2,2,4]", "batch, 1 != 2"),
    ("Attention", "f32[1,2,2,4] f16[1,2,2,4] f32[1,2,2,4]", "dtypes"),
    ("Attention", "f32[1,2,2,4] f32[1,2,2,4] f32[1,2,2,4] i32[2,2]", "a mask of i32[2, 2]"),
    ("Attention", "f32[1,2,2,4] f32[1,2,2,4] f32[1,2,2,4] f32[3,2]", "mask f32[3, 2], 3 != 2"),
    (
        "Attention",
        "f32[1,2,2,4] f32[1,2,2,4] f32[1,2,2,4] f32[2,2] f32[1,2,2,4]",
        "past_key needs past_value",
    ),
    (
        "Attention",
        "f32[1,2,2,4] f32[1,2,2,4] f32[1,2,2,4] f32[2,2] f32[1,2,2,3] f32[1,2,2,4]",
        "past f32[1, 2, 2, 3] of f32[1, 2, 2, 4]",
    ),
    (
        "Attention",
        "f32[1,2,2,4] f32[1,2,2,4] f32[1,2,2,4] qk_matmul_output_mode=4",
        "qk_matmul_output_mode 4",
    ),
    (
        "Attention",
        "f32[1,2,2,4] f32[1,2,2,4] f32[1,2,2,4] left_window_size=-2",
        "-2 is less than -1",
    ),
    ("FlexAttention", "f32[1,2,4] f32[1,2,4] f32[1,2,4]", "it takes four axes and one dtype"),
    ("RotaryEmbedding", "f32[1,3,8] f32[1,3,4] f32[1,3,4]", "of f32[1, 3, 8] in None heads"),
    ("RotaryEmbedding", "f32[1,2,3,8] f32[1,3,3] f32[1,3,3]", "4 angles, position_ids none"),
    ("RotaryEmbedding", "f32[1,2,3,8] f32[9,4] f32[9,4] i64[1,2]", "position_ids i64[1, 2]"),
    (
        "RotaryEmbedding",
        "f32[1,2,3,8] f32[9,4] f32[9,4] i64[1,3] rotary_embedding_dim=10",
        "rotary_embedding_dim 10 is odd or above 8",
    ),
    ("CausalConvWithState", "f32[1,2,5] f32[2,2,3]", "it takes (batch, channels, length)"),
    ("CausalConvWithState", "f32[1,2,5] f32[2,1,3] f32[3]", "the bias is f32[3]"),
    (
        "CausalConvWithState",
        "f32[1,2,5] f32[2,1,3] f32[2] f32[1,2,3]",
        "the state is f32[1, 2, 3], not 2 long",
    ),
    (
        "CausalConvWithState",
        'f32[1,2,5] f32[2,1,3] activation="relu"',
        "activation relu is not one of none, silu, swish",
    ),
]


@pytest.mark.parametrize(("name", "text", "message"), REFUSED)
def test_refused(name: str, text: str, message: str) -> None:
    with pytest.raises(InferError) as e:
        made(name, text)
    assert message in str(e.value)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("dim", [0, 4])
def test_pairs_are_rotated(interleaved: int, dim: int) -> None:
    x = RNG.standard_normal((2, 3, 5, 8))
    turned = dim or 8
    angles = RNG.standard_normal((9, turned // 2))
    at = RNG.integers(0, 9, (2, 5))
    attrs: dict[str, Attr] = {"interleaved": interleaved, "rotary_embedding_dim": dim}
    got = value("RotaryEmbedding", x, np.cos(angles), np.sin(angles), at, **attrs)
    part = x[..., :turned]
    first, second = (part[..., ::2], part[..., 1::2]) if interleaved else np.split(part, 2, -1)
    z = (first + 1j * second) * np.exp(1j * angles[at])[:, None]
    if interleaved:
        wanted = np.stack([z.real, z.imag], -1).reshape(part.shape)
    else:
        wanted = np.concatenate([z.real, z.imag], -1)
    close(got[..., :turned], wanted)
    close(got[..., turned:], x[..., turned:])
    flat = x.swapaxes(1, 2).reshape(2, 5, 24)
    own = angles[at]
    got3 = value("RotaryEmbedding", flat, np.cos(own), np.sin(own), num_heads=3, **attrs)
    close(got3, got.swapaxes(1, 2).reshape(2, 5, 24))


def test_a_convolution_continues_from_its_state() -> None:
    x, w = RNG.standard_normal((2, 3, 8)), RNG.standard_normal((3, 1, 4))
    whole, last = values("CausalConvWithState", x, w)
    first, state = values("CausalConvWithState", x[..., :5], w)
    second, end = values("CausalConvWithState", x[..., 5:], w, None, state)
    close(np.concatenate([first, second], 2), whole)
    close(end, last)
    close(last, x[..., 5:])
