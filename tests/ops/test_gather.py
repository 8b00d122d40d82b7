"""Gathering, scattering, one-hot, and tensors made out of sizes."""

import numpy as np
import pytest

from superopt.ir.graph import node
from superopt.ir.op import InferError
from superopt.ops import OPS
from superopt.te.expr.dtype import BF16, BOOL, F16, F32, F64, I32, I64
from superopt.te.expr.node import Size
from tests.support.ops.build import made, value

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
N = Size("n")


def test_gathers_are_numpy_s() -> None:
    at = np.array([[0, -1], [2, 1]])
    np.testing.assert_array_equal(value("Gather", X, at, axis=1), np.take(X, at, 1))
    np.testing.assert_array_equal(value("Gather", X, np.array(-2), axis=2), X[:, :, -2])
    at = np.array([[[1, -1, 0, 2]], [[0, 0, 2, -3]]])
    wanted = np.take_along_axis(X, at % 3, 1)
    np.testing.assert_array_equal(value("GatherElements", X, at, axis=1), wanted)
    at = np.array([[1, -1], [0, 2]])
    np.testing.assert_array_equal(value("GatherND", X, at), X[at[:, 0], at[:, 1]])


def test_an_index_out_of_range_is_an_error() -> None:
    with pytest.raises(IndexError, match=r"an index is not in \[-2, 2\)"):
        value("Gather", X, np.array([2]), axis=0)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatters_are_loops(reduction: str) -> None:
    rng = np.random.default_rng(1)
    merge = {
        "none": lambda a, b: b,
        "add": np.add,
        "mul": np.multiply,
        "max": np.maximum,
        "min": np.minimum,
    }[reduction]
    at = rng.integers(-3, 3, (2, 5, 2))  # several for one place
    new = rng.standard_normal(at.shape).astype(np.float32)
    wanted = X.copy()
    for i in np.ndindex(at.shape):
        place = (i[0], at[i], i[2])
        wanted[place] = merge(wanted[place], new[i])
    got = value("ScatterElements", X, at, new, axis=1, reduction=reduction)
    np.testing.assert_allclose(got, wanted, rtol=1e-6)

    tuples = rng.integers(0, 2, (3, 2, 2))
    new = rng.standard_normal((3, 2, 4)).astype(np.float32)
    wanted = X.copy()
    for j in np.ndindex(3, 2):
        place = tuple(tuples[j])
        wanted[place] = merge(wanted[place], new[j])
    got = value("ScatterND", X, tuples, new, reduction=reduction)
    np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_nothing_scattered_changes_nothing() -> None:
    none = np.zeros((0, 1), np.int64)
    got = value("ScatterND", X, none, np.zeros((0, 3, 4), np.float32))
    np.testing.assert_array_equal(got, X)


REFUSED = [
    ("Gather", "f32[5] f32[2]", "Gather: indices are f32, not i32 or i64"),
    ("GatherElements", "f32[5,2] i64[2]", "GatherElements of f32[5, 2] at i64[2]: ranks differ"),
    ("GatherND", "f32[5,2] i64[2,3]", "3 indices in each tuple"),
    ("GatherND", "f32[5,2] i64[2,n]", "n indices in each tuple"),
    ("GatherND", "f32[5,2] i64[2,1] batch_dims=1", "batches differ"),
    ("ScatterElements", "f32[5] i64[2] f32[3]", "of f32[3] at i64[2] into f32[5]"),
    ("ScatterElements", 'f32[5] i64[2] f32[2] reduction="sub"', "reduction sub is not one of none"),
    ("ScatterElements", 'bool[5] i64[2] bool[2] reduction="add"', "no add of bool"),
    ("ScatterND", "f32[5,2] i64[3,1] f32[3,3]", "of f32[3, 3] at i64[3, 1] into f32[5, 2]"),
    ("ScatterND", "f32[9000] i64[9000,1] f32[9000]", "9000 places times 9000 updates > 16777216"),
    ("ScatterND", "f32[n] i64[2,1] f32[2]", "comparing n places with 2 updates"),
    ("ConstantOfShape", "input=(2,-1)", "-1 is not a size"),
    ("EyeLike", "f32[3]", "EyeLike of f32[3] as f32: it takes a matrix of numbers"),
    ("Range", "start=0 limit=5 delta=0", "Range from 0 to 5: step 0"),
    ("Range", "start=0 limit=n delta=0.5", "from 0 to n by 0.5: sizes and fractions mixed"),
]


@pytest.mark.parametrize(("name", "text", "message"), REFUSED)
def test_refused(name: str, text: str, message: str) -> None:
    with pytest.raises(InferError) as e:
        made(name, text)
    assert message in str(e.value)


def test_sizes_of_a_tensor() -> None:
    assert value("Shape", X).tolist() == [2, 3, 4]
    assert value("Shape", X, start=-2, end=9).tolist() == [3, 4]
    assert value("Shape", X, start=2, end=1).tolist() == []
    assert value("Size", X) == 24
    (x,) = made("Size", "f32[2,3]").inputs
    assert node(OPS["Shape"], (x,), end=-1) is node(OPS["Shape"], (x,), start=-9, end=1)


def test_constants_and_ranges() -> None:
    assert value("ConstantOfShape", input=(2,)).tolist() == [0, 0]
    assert value("ConstantOfShape", input=(), value=3, dtype=I32).dtype == np.int32
    assert value("ConstantOfShape", input=(1,), value=True, dtype=BOOL).tolist() == [True]
    assert value("Range", start=3, limit=9, delta=2).tolist() == [3, 5, 7]
    assert value("Range", start=9, limit=3, delta=-2).tolist() == [9, 7, 5]
    assert value("Range", start=3, limit=3, delta=1).tolist() == []
    for dtype, kind in ((F32, np.float32), (F64, np.float64)):
        got = value("Range", start=0.0, limit=1.0, delta=0.1, dtype=dtype)
        np.testing.assert_array_equal(got, np.arange(0, 1, 0.1).astype(kind))
    assert value("Range", start=0, limit=2, delta=1, dtype=F16).dtype == np.float16
    assert str(made("Range", "start=0 limit=n delta=1").type) == "i64[n]"
    assert str(made("Range", "start=1 limit=n delta=2").type) == "i64[(n // 2)]"
    assert made("Range", "start=0 limit=2 delta=1 dtype=bf16").type.dtype == BF16


def test_identity_matrices() -> None:
    x = np.zeros((2, 4), np.int32)
    assert (value("EyeLike", x, k=1) == np.eye(2, 4, 1)).all()
    assert value("EyeLike", x, dtype=F64).dtype == np.float64
    assert value("EyeLike", x, dtype=I64, k=-1).tolist() == np.eye(2, 4, -1).tolist()
