"""Slice, Pad and their like: bounds in one form, symbolic extents, what runtimes disagree on."""

import numpy as np
import pytest

from superopt.ir.graph import node
from superopt.ir.op import Attr, InferError
from superopt.ops import OPS
from superopt.ops.movement.slicing import PAST_START, TO_END, onnx_bound
from superopt.te.expr.dtype import F32
from superopt.te.expr.node import Dim, Size
from superopt.te.expr.tensor import TensorType
from tests.support.ops.build import made, operands, value

N, S = Size("n"), Size("s")
X = np.arange(60, dtype=np.float32).reshape(3, 4, 5)


def sliced(extent: Dim, start: Dim, end: Dim, step: int = 1) -> tuple[object, dict[str, Attr]]:
    """(result size, canonical attributes) of one axis cut."""
    (x,) = operands((TensorType(F32, (extent,)),))
    n = node(OPS["Slice"], (x,), starts=(start,), ends=(end,), axes=(0,), steps=(step,))
    assert n is node(OPS["Slice"], (x,), **dict(n.attrs))
    assert n.type.shape is not None
    return n.type.shape[0], dict(n.attrs)


def test_slices_are_numpy_s() -> None:
    for start in (-9, -3, -1, 0, 2, 4, 9):
        for end in (-9, -2, 0, 3, 9, TO_END):
            for step in (1, 2, 3):
                got = value("Slice", X, starts=(start,), ends=(end,), axes=(1,), steps=(step,))
                np.testing.assert_array_equal(got, X[:, start:end:step], f"{start}:{end}:{step}")
    for start in (-3, -1, 0, 2, 9, TO_END):
        for end in (-9, -2, 0, 3, PAST_START):
            for step in (-1, -2):
                got = value("Slice", X, starts=(start,), ends=(end,), axes=(1,), steps=(step,))
                np.testing.assert_array_equal(got, X[:, start:end:step], f"{start}:{end}:{step}")


def test_backwards_from_before_the_first_is_from_the_first() -> None:
    # numpy gives nothing here, ONNX clamps the start to 0
    got = value("Slice", X, starts=(-9,), ends=(PAST_START,), axes=(1,), steps=(-1,))
    np.testing.assert_array_equal(got, X[:, :1])


def test_equal_slices_have_one_form() -> None:
    assert sliced(5, -2, 100)[1] == sliced(5, 3, 5)[1]
    assert sliced(5, 0, 4, 2)[1] == sliced(5, 0, 3, 2)[1]
    assert sliced(5, 2, 3, 4)[1] == sliced(5, 2, 3, 1)[1]
    assert sliced(5, 4, 1)[1] == sliced(5, 0, 0)[1]
    assert sliced(5, 0, TO_END)[1] == {"starts": (), "ends": (), "axes": (), "steps": ()}
    assert sliced(5, -1, -9, -1)[1]["ends"] == (PAST_START,)


def test_symbolic_extents() -> None:
    assert sliced(N, 0, TO_END) == (N, {"starts": (), "ends": (), "axes": (), "steps": ()})
    assert sliced(N, 1, TO_END)[0] == N - 1
    assert sliced(N, -1, TO_END) == (
        1,
        {"starts": (N - 1,), "ends": (N,), "axes": (0,), "steps": (1,)},
    )
    assert sliced(N, 0, -1)[0] == N - 1
    assert sliced(N + 3, 0, 3)[0] == 3
    assert sliced(N + S, N, TO_END)[0] == S
    assert sliced(N + S, 0, N) == (N, {"starts": (0,), "ends": (N,), "axes": (0,), "steps": (1,)})
    assert str(sliced(N, 2, TO_END)[0]) == "max((n + -2), 0)"
    assert str(sliced(N, 0, 2)[0]) == "min(n, 2)"
    assert str(sliced(2 * N, 0, TO_END, 2)[0]) == "n"
    assert sliced(N, TO_END, PAST_START, -1)[0] == N


def test_bounds_are_written_as_numbers_where_onnx_has_one() -> None:
    for start, end in ((-1, TO_END), (0, -1), (-3, TO_END), (2, TO_END), (0, -4)):
        _, attrs = sliced(N, start, end)
        bounds = tuple(onnx_bound(attrs[k][0], N) for k in ("starts", "ends"))  # type: ignore[index]
        assert sliced(N, *bounds)[1] == attrs
        assert bounds[1] == end
    assert onnx_bound(S, N) == S
    cut, attrs = sliced(5, 0, N)  # a table cut to a sequence's length
    assert str(cut) == "min(n, 5)"
    assert onnx_bound(attrs["ends"][0], 5) == N  # type: ignore[index]


def test_pads_are_numpy_s() -> None:
    for mode in ("constant", "edge", "reflect", "wrap"):
        wanted = np.pad(X, ((1, 2), (0, 0), (2, 1)), mode)  # type: ignore[call-overload]
        got = value("Pad", X, pads=(1, 0, 2, 2, 0, 1), mode=mode)
        np.testing.assert_array_equal(got, wanted, mode)
    x = X[0, :, :1]
    for mode in ("edge", "reflect", "wrap"):  # several times around, and one element
        wanted = np.pad(x, ((9, 5), (2, 2)), mode)  # type: ignore[call-overload]
        np.testing.assert_array_equal(value("Pad", x, pads=(9, 2, 5, 2), mode=mode), wanted, mode)


def test_negative_pads_cut() -> None:
    got = value("Pad", X, np.array(7, np.float32), pads=(0, -1, 0, 1, 0, -2))
    np.testing.assert_array_equal(got[:3], X[:, 1:, :-2])
    assert (got[3] == 7).all()
    np.testing.assert_array_equal(
        value("Pad", X, pads=(-1, -2), axes=(-1,), mode="wrap"), X[..., 1:-2]
    )


def test_pads_of_symbolic_sizes() -> None:
    n = made("Pad", "f32[n,3] pads=(1,0,s,0)")
    assert str(n.type) == "f32[(n + s + 1), 3]"
    assert dict(made("Pad", "f32[2,3] pads=(1,2) axes=(-1,)").attrs) == {
        "pads": (0, 1, 0, 2),
        "axes": None,
        "mode": "constant",
    }
    assert str(made("CenterCropPad", "f32[n,9] shape=(n,4)").type) == "f32[n, 4]"


REFUSED = [
    ("Slice", "f32[5] starts=(0,) ends=(3,) steps=(0,)", "on axis 0: the step is 0"),
    ("Slice", "f32[5] starts=(0,0) ends=(3,)", "2 starts, 1 ends, 2 axes, 2 steps"),
    ("Slice", "f32[5] starts=(0,0) ends=(3,1) axes=(0,-1)", "name axis 0 twice"),
    ("Slice", "f32[n] starts=(s-m,) ends=(n,)", "is the bound ((m * -1) + s) negative?"),
    ("Slice", "f32[5] starts=(4,) ends=(9223372036854775807,) steps=(-1,)", "runtimes differ"),
    ("Slice", "f32[n] starts=(-1,) ends=(-3,) steps=(-1,)", "max((n + -3), -1) negative?"),
    ("Pad", "f32[2,3] pads=(1,1)", "Pad of f32[2, 3]: 2 pads for 2 axes"),
    ("Pad", "f32[2] pads=(-1,-2)", "on axis 0 by -1 and -2: -1 < 0"),
    ("Pad", "f32[2] f64[] pads=(1,1)", "Pad of f32[2]: constant_value is f64[]"),
    ("Pad", 'f32[4] pads=(2,-1) mode="wrap"', "by wrap: 2 and -1 crop and extend one axis"),
    ("Pad", 'f32[0] pads=(2,1) mode="edge"', "an empty axis has no elements to repeat"),
    ("Pad", 'f32[4] pads=(2,1) mode="mirror"', "mode mirror is not constant, edge, reflect"),
    ("Pad", "string[2] pads=(1,1)", "Pad of string[2]: strings have no zero"),
    ("CenterCropPad", "f32[5,4] shape=(2,)", "CenterCropPad of f32[5, 4] to (2,): 2 axes"),
    ("CenterCropPad", "f32[n] shape=(2,)", "is n < 2?"),
    ("Trilu", "f32[3]", "Trilu of f32[3]: it takes a matrix"),
    ("ReverseSequence", "f32[4,3] i64[4]", "ReverseSequence of f32[4, 3] by i64[4]"),
    ("ReverseSequence", "f32[4,3] i64[3] time_axis=1", "axes 1 and 1 are not 0 and 1"),
]


@pytest.mark.parametrize(("name", "text", "message"), REFUSED)
def test_refused(name: str, text: str, message: str) -> None:
    with pytest.raises(InferError) as e:
        made(name, text)
    assert message in str(e.value)


def test_triangles() -> None:
    for k in (-9, -1, 0, 2, 9):
        np.testing.assert_array_equal(value("Trilu", X, k=k), np.triu(X, k))
        np.testing.assert_array_equal(value("Trilu", X, k=(k,), upper=0), np.tril(X, k))
    np.testing.assert_array_equal(value("Trilu", X > 9), np.triu(X > 9))
