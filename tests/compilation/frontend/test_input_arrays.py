"""Inputs of compiled models: what is taken, and what is said of those that do not fit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

import superopt
from superopt.compilation.frontend.input_arrays import (
    InputPort,
    ShapePattern,
    match_sizes,
    sorted_sizes,
    static_bytes,
)
from superopt.errors import UsageError
from superopt.loading.array_files import read_inputs, write_npz
from tests.support.compilation.models import F, I, matmul, model

DIMS = st.lists(st.sampled_from(["n", "m", "batch", 1, 2, 3]), max_size=3)
X = np.arange(12, dtype=np.float32).reshape(3, 4)
WRONG: dict[str, tuple[dict, str]] = {
    "name": ({"X": X}, "no input 'X'"),
    "missing": ({}, "no value for input 'x'"),
    "dtype": ({"x": X.astype(np.float64)}, "float64"),
    "shape": ({"x": X[:, :3]}, "axis 1 is 3, not 4"),
    "rank": ({"x": X[0]}, "pass an array of rank 2"),
    "kind": ({"x": "abc"}, "is a str"),
    "rows of a list": ({"x": [[1, 2, 3, 4], [5]]}, "is a list, not an array"),
    "mask": ({"x": np.ma.masked_array(X, X > 3)}, "input 'x' is a masked array"),
    "beyond memory": (
        {"x": np.broadcast_to(X[:1], (2**48, 4))},
        "'x' of shape [281474976710656, 4",
    ),
    "words": ({"x": [["a"] * 4]}, "is a list, not an array"),
    "beyond its type": ({"x": [[10**400] * 4]}, "is a list, not an array"),
}


def port(shape: Sequence[int | str], dtype: type | None = np.float32) -> InputPort:
    return InputPort("x", None if dtype is None else np.dtype(dtype), tuple(shape), "")


@given(st.lists(DIMS, max_size=4), st.data())
def test_a_pattern_finds_the_sizes_of_inputs(
    dims: list[list[int | str]], data: st.DataObject
) -> None:
    ports = [port(shape) for shape in dims]
    pattern = ShapePattern.of_ports(ports)
    assert pattern is not None
    sizes = {name: data.draw(st.integers(0, 3)) for name in ("n", "m", "batch")}
    shapes = [tuple(d if isinstance(d, int) else sizes[d] for d in shape) for shape in dims]
    if shapes and data.draw(st.booleans()):  # any other shape of an input
        k = data.draw(st.integers(0, len(shapes) - 1))
        shapes[k] = tuple(data.draw(st.lists(st.integers(0, 3), max_size=3)))
    wanted = match_sizes(ports, [np.empty(shape) for shape in shapes])
    found = pattern.sizes(tuple(shapes))
    assert found == (None if wanted is None else sorted_sizes(wanted))


def test_expressions_and_values_without_a_type_have_no_pattern() -> None:
    assert ShapePattern.of_ports([port(["n"]), port(["n + 1"])]) is None
    assert ShapePattern.of_ports([port(["n"], None)]) is None


def test_bytes_of_inputs_whose_sizes_are_fixed() -> None:
    ports = [port([]), port([2, 3]), port([0, 2], np.int64), port(["n"]), port([1], np.object_)]
    assert [*map(static_bytes, ports)] == [4, 24, 0, None, None]


@pytest.mark.parametrize("name", WRONG)
def test_inputs_that_do_not_fit_are_named(name: str) -> None:
    feeds, why = WRONG[name]
    with pytest.raises(UsageError) as caught:
        superopt.compile(matmul()).run(feeds)
    assert why in str(caught.value)


@pytest.mark.parametrize("number", [-1, 300, 1.5, float("nan")])
def test_numbers_of_a_list_that_do_not_fit_are_refused(number: float) -> None:
    u8 = TensorProto.UINT8
    exe = superopt.compile(model([helper.make_node("Neg", ["x"], ["y"])], {"x": (I, [2])}, ["y"]))
    assert exe(x=[3, -4])["y"].tolist() == [-3, 4]
    cast = [helper.make_node("Cast", ["x"], ["y"], to=F)]
    with pytest.raises(UsageError, match="values that do not fit uint8"):
        superopt.compile(model(cast, {"x": (u8, [2])}, ["y"]))(x=[1, number])


def test_tensors_that_give_nothing_are_refused() -> None:
    class Elsewhere(Tensor):
        def __dlpack__(self, **given: object) -> object:
            raise BufferError("on another device")

    with pytest.raises(UsageError, match="on another device"):
        superopt.compile(matmul())(x=Elsewhere(X))


def test_arrays_of_any_kind_are_taken() -> None:
    exe = superopt.compile(matmul())
    wanted = X @ np.arange(8, dtype=np.float32).reshape(4, 2)
    held = X.copy()
    held.flags.writeable = False
    wide = np.zeros((3, 8), np.float32)
    wide[:, ::2] = X
    for x in (X, held, X.T.copy().T, wide[:, ::2], X.tolist(), Tensor(X)):
        np.testing.assert_allclose(exe(x=x)["y"], wanted)
    assert exe(x=np.zeros((0, 4), np.float32))["y"].shape == (0, 2)


class Tensor:
    """What another library gives: only DLPack."""

    def __init__(self, x: np.ndarray) -> None:
        self.x = x

    def __dlpack__(self, **given: object) -> object:
        return self.x.__dlpack__(**given)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.x.__dlpack_device__()


def test_arrays_are_written_to_just_this_file(tmp_path: Path) -> None:
    given = {
        "file": np.arange(3),
        "a/b: c": np.ones((2, 0), np.float32),
        "words": np.array(["x", "longer"], object),
        "allow_pickle": np.float64(2),
    }
    write_npz(tmp_path / "y", given)
    assert [p.name for p in tmp_path.iterdir()] == ["y"]
    found = read_inputs(tmp_path / "y")
    assert found is not None
    assert found.keys() == given.keys()
    for name, x in given.items():
        assert np.array_equal(found[name], np.asarray(x))
    with pytest.raises(UsageError, match="there is no folder"):
        write_npz(tmp_path / "no" / "y", given)


def test_any_name_is_one_of_an_input() -> None:
    """That of the method's own first argument, too."""
    nodes = [helper.make_node("Neg", ["self"], ["y"])]
    exe = superopt.compile(model(nodes, {"self": (F, [2])}, ["y"]))
    x = np.ones(2, np.float32)
    np.testing.assert_array_equal(exe(self=x)["y"], -x)


def test_bfloat16_by_dlpack() -> None:
    """numpy has no name for it; torch has, and so have tensors of it."""
    torch = pytest.importorskip("torch")
    nodes = [helper.make_node("Neg", ["x"], ["y"])]
    exe = superopt.compile(model(nodes, {"x": (TensorProto.BFLOAT16, [3, 4])}, ["y"]))
    x = torch.arange(24.0, dtype=torch.bfloat16).view(4, 6) / 8
    for part in (
        x[:3, 1:5],
        x[:3, 1:5].contiguous(),
        x.view(6, 4).T[:3, :4],
        x[:1, :4].expand(3, 4),
    ):
        got = exe(x=part)["y"]
        np.testing.assert_array_equal(got.astype(np.float32), -part.float().numpy())
    with pytest.raises(UsageError, match="float32"):
        exe(x=x[:3, 1:5].float())
    with pytest.raises(UsageError):
        exe(x=torch.empty(3, 4, dtype=torch.bfloat16, device="meta"))


def test_texts_of_numpys_own_are_taken(tmp_path: Path) -> None:
    """As files have them, for which nothing is pickled."""
    pytest.importorskip("onnxruntime")
    node = helper.make_node("Identity", ["x"], ["y"])
    exe = superopt.compile(model([node], {"x": (TensorProto.STRING, [2])}, ["y"]))
    write_npz(tmp_path / "x.npz", {"x": np.array(["a", "longer"], object)})
    feeds = read_inputs(tmp_path / "x.npz")
    assert feeds is not None
    assert exe.run(feeds)["y"].tolist() == ["a", "longer"]
    with pytest.raises(UsageError, match="is float32"):
        exe(x=np.zeros(2, np.float32))


def test_a_file_of_one_array_has_no_names(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    with pytest.raises(UsageError, match="it is a single unnamed array"):
        read_inputs(tmp_path / "x.npy")
