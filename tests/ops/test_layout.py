"""Operators that move elements: one form, symbolic sizes, corners, and what they refuse."""

import numpy as np
import pytest

from superopt.ir.graph import Node, node
from superopt.ir.op import Attr, InferError
from superopt.ops import OPS
from superopt.te.expr.dtype import F32
from superopt.te.expr.node import Size
from superopt.te.expr.tensor import TensorType
from tests.support.ops.build import example, made, operands, value, values

N, S = Size("n"), Size("s")


def shape(name: str, *dims: tuple[object, ...], **attrs: Attr) -> str:
    """The results' types of `name` on f32 operands of these shapes."""
    types = tuple(TensorType(F32, d) for d in dims)  # type: ignore[arg-type]
    made_node = node(OPS[name], operands(types), **attrs)
    return " ".join(str(t) for t in made_node.types)


REFUSED = [
    ("Concat", "f32[2,3] f32[3,3] axis=1", "Concat on axis 1 of (2, 3) and (3, 3)"),
    ("Concat", "f32[2,3] i64[2,3] axis=1", "f32[2, 3] and i64[2, 3]: dtypes differ"),
    ("Concat", "f32[2,3] f32[2,3] axis=2", "axis 2 is not in [-2, 2)"),
    ("Split", "f32[2,5] axis=1 split=(2,2)", "into (2, 2): 4 != 5"),
    ("Split", "f32[2,5] axis=1 split=(7,-2)", "into (7, -2): -2 < 0"),
    ("Split", "f32[2,5] axis=1", "Split of f32[2, 5] needs the sizes or the number of its parts"),
    ("Split", "f32[2] num_outputs=4", "into 4 parts: 2 are too few"),
    ("Split", "f32[n] num_outputs=2", "on axis 0: is n a multiple of 2?"),
    ("Transpose", "f32[2,3] perm=(0,0)", "perm (0, 0) is not a permutation of rank 2"),
    ("Transpose", "f32[2,3] perm=1", "perm 1 is one number: it names all 2 axes"),
    ("Reshape", "f32[2,6] shape=(3,5)", "Reshape of (2, 6) to (3, 5): 12 elements != 15"),
    ("Reshape", "f32[2,6] shape=(-1,-1)", "to (-1, -1): more than one -1"),
    ("Reshape", "f32[0,6] shape=(-1,0) allowzero=1", "-1 together with a 0"),
    ("Reshape", "f32[6] shape=(6,0)", "no axis 1 to keep"),
    ("Reshape", "f32[7] shape=(-1,2)", "Reshape of (7,) to (3, 2): 7 elements != 6"),
    ("Reshape", "f32[n] shape=(m,)", "Reshape of (n,) to (m,): n elements != m"),
    ("Squeeze", "f32[2,1] axes=(0,)", "Squeeze of f32[2, 1] on axis 0: 2 != 1"),
    ("Squeeze", "f32[n,1]", "Squeeze of f32[n, 1] without axes: is a symbolic size 1?"),
    ("Unsqueeze", "f32[2] axes=(0,-3)", "axes (0, -3) name an axis twice"),
    ("Flatten", "f32[2,3] axis=3", "axis 3 is not in [-2, 2]"),
    ("Expand", "f32[2,3] shape=(4,)", "Expand of f32[2, 3] to (4,): "),
    ("Expand", "f32[n] shape=(4,)", "n"),
    ("Tile", "f32[2,3] repeats=(2,)", "Tile of f32[2, 3] by (2,): 1 repeats"),
    ("DepthToSpace", "f32[1,6,2,2] blocksize=2", "6 channels are not a multiple of 4"),
    ("DepthToSpace", "f32[6,2,2] blocksize=2", "it takes four axes"),
    ("DepthToSpace", 'f32[1,4,2,2] blocksize=2 mode="RCD"', "mode RCD is not one of DCR, CRD"),
    ("SpaceToDepth", "f32[1,4,3,2] blocksize=2", "by 2: 3 is not a multiple of 2"),
]


@pytest.mark.parametrize(("name", "text", "message"), REFUSED)
def test_refused(name: str, text: str, message: str) -> None:
    with pytest.raises(InferError) as e:
        made(name, text)
    assert message in str(e.value)


SAME = [
    ("Concat", "f32[2,3] f32[2,5]", {"axis": -1}, {"axis": 1}),
    ("Split", "f32[2,5]", {"axis": 1, "num_outputs": 2}, {"axis": -1, "split": (3, 2)}),
    ("Transpose", "f32[2,3]", {}, {"perm": (1, 0)}),
    ("Reshape", "f32[2,6]", {"shape": (0, -1, 2)}, {"shape": (2, 3, 2)}),
    ("Reshape", "f32[0,6]", {"shape": (0, 3)}, {"shape": (0, 3), "allowzero": 1}),
    ("Squeeze", "f32[2,1,1]", {}, {"axes": (-1, 1)}),
    ("Unsqueeze", "f32[2,3]", {"axes": (-1, 0)}, {"axes": (0, 3)}),
    ("Flatten", "f32[2,3,4]", {"axis": -1}, {"axis": 2}),
    ("Expand", "f32[3,1]", {"shape": (2, 1, 4)}, {"shape": (2, 3, 4)}),
    ("Tile", "f32[3]", {"repeats": 2}, {"repeats": (2,)}),
]


@pytest.mark.parametrize(("name", "text", "one", "other"), SAME)
def test_equal_nodes_are_one(
    name: str, text: str, one: dict[str, Attr], other: dict[str, Attr]
) -> None:
    inputs = operands(example(text)[0])
    first = node(OPS[name], inputs, **one)
    assert first is node(OPS[name], inputs, **other)
    assert first is node(OPS[name], inputs, **dict(first.attrs))


def test_sizes_stay_symbolic() -> None:
    assert shape("Concat", (N, 3), (N, S), axis=1) == "f32[n, (s + 3)]"
    assert shape("Split", (2 * N, 3), num_outputs=2) == "f32[n, 3] f32[n, 3]"
    assert shape("Split", (N + 2,), split=(N, 2)) == "f32[n] f32[2]"
    assert shape("Reshape", (N, S, 12), shape=(0, -1, 3, 4)) == "f32[n, s, 3, 4]"
    assert shape("Reshape", (N, S, 12), shape=(-1, 12)) == "f32[(n * s), 12]"
    assert shape("Reshape", (N, 8), shape=(-1, 4)) == "f32[(n * 2), 4]"
    assert shape("Reshape", (N, 4), shape=(-1, 8)) == "f32[((n * 4) // 8), 8]"
    assert shape("Flatten", (N, 3, S)) == "f32[n, (s * 3)]"
    assert shape("Expand", (N, 1), shape=(1, S)) == "f32[n, s]"
    assert shape("Tile", (N, 3), repeats=(2, S)) == "f32[(n * 2), (s * 3)]"
    assert shape("DepthToSpace", (N, 8, S, 3), blocksize=2) == "f32[n, 2, (s * 2), 6]"
    assert shape("SpaceToDepth", (N, 2, 2 * S, 4), blocksize=2) == "f32[n, 8, s, 2]"


def test_values_at_symbolic_sizes_are_those_of_numpy() -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    np.testing.assert_array_equal(value("Flatten", x, axis=2), x.reshape(6, 4))
    np.testing.assert_array_equal(value("Tile", x, repeats=(1, 2, 3)), np.tile(x, (1, 2, 3)))
    np.testing.assert_array_equal(value("Expand", x[:, :1], shape=(3, 1)), x[:, :1].repeat(3, 1))
    parts = values("Split", x, axis=2, num_outputs=3)
    for got, wanted in zip(parts, np.array_split(x, [2, 4], 2), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.one_in(0)
def test_a_thousand_parts_are_joined_without_deep_recursion() -> None:
    parts = [np.full((1,), n, np.int64) for n in range(1000)]
    np.testing.assert_array_equal(value("Concat", *parts, axis=0), np.arange(1000))


def test_empty_tensors() -> None:
    empty = np.zeros((0, 3), np.float32)
    assert value("Reshape", empty, shape=(3, 0), allowzero=1).shape == (3, 0)
    assert value("Tile", empty, repeats=(2, 2)).shape == (0, 6)
    assert value("Concat", empty, np.ones((2, 3), np.float32), axis=0).shape == (2, 3)
    assert value("Transpose", empty).shape == (3, 0)


def test_strings_move_too() -> None:
    x = np.array([["a", "b"], ["c", "d"]], object)
    assert value("Transpose", x).tolist() == [["a", "c"], ["b", "d"]]
    assert value("Gather", x, np.array([1]), axis=0).tolist() == [["c", "d"]]


def test_space_and_depth_are_inverse() -> None:
    x = np.random.default_rng(0).standard_normal((2, 8, 3, 5)).astype(np.float32)
    for mode in ("DCR", "CRD"):
        there = value("DepthToSpace", x, blocksize=2, mode=mode)
        np.testing.assert_array_equal(value("SpaceToDepth", there, blocksize=2, mode=mode), x)


def test_the_type_of_a_node_says_its_shape() -> None:
    n: Node = made("Reshape", "f32[2,6] shape=(3,4)")
    assert str(n.type) == "f32[3, 4]"
