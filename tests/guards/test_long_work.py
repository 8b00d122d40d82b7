"""What takes long in one operator, or in one list of a model, looks at the time on the way."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from superopt import guard
from superopt.errors import OutOfTime
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.protos import all_bodies
from superopt.onnx_io.read.source import read_model
from superopt.te.eval import domain
from tests.guards.hostile import BOOL, FLOAT, model, number, value

LIST = 20_000  # entries


@pytest.fixture
def out_of_time() -> Iterator[None]:
    """A call whose time is over."""
    with guard.limited(60) as limits:
        limits.end_within(-1)
        yield


@st.composite
def operands(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Two sides of a product of matrices with broadcast batches."""
    batch = draw(st.lists(st.integers(1, 5), max_size=2))
    rows, inner, columns = draw(st.tuples(*[st.integers(0, 6)] * 3))
    shapes = []
    for matrix in ((rows, inner), (inner, columns)):
        lead = [n if draw(st.booleans()) else 1 for n in batch]
        shapes.append((*lead[draw(st.integers(0, len(lead))) :], *matrix))
    rng = np.random.default_rng(0)
    return rng.integers(-9, 9, shapes[0]) * 1.0, rng.integers(-9, 9, shapes[1]) * 1.0


@given(operands(), st.integers(1, 100))
def test_a_product_in_pieces_is_the_product(
    sides: tuple[np.ndarray, np.ndarray], most: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(domain, "TIMED_PRODUCTS", most)
        found = domain.timed_matmul(*sides)
    np.testing.assert_array_equal(found, np.matmul(*sides), strict=True)


@pytest.mark.parametrize("shape", [(64, 64), (1, 4096), (4096, 1)])
def test_a_large_product_ends_at_the_end(
    shape: tuple[int, int], out_of_time: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, columns = shape
    a, b = np.ones((rows, 64)), np.ones((64, columns))
    assert domain.timed_matmul(a, b).shape == shape  # a small one is computed all the same
    monkeypatch.setattr(domain, "TIMED_PRODUCTS", 1000)
    with pytest.raises(OutOfTime, match="evaluating a graph"):
        domain.timed_matmul(a, b)


def many_initializers() -> onnx.ModelProto:
    weights = [number(f"c{i}", [1.0], "f4") for i in range(LIST)]
    return model([helper.make_node("Relu", ["x"], ["y"])], weights)


def many_outputs() -> onnx.ModelProto:
    nodes = [helper.make_node("Relu", ["x"], [f"y{i}"]) for i in range(LIST)]
    return model(nodes, outputs=[value(f"y{i}", FLOAT, [4]) for i in range(LIST)])


def branches(depth: int, name: str = "y") -> onnx.GraphProto:
    """An If in both branches of an If: 2^depth branches."""
    node = helper.make_node("Relu", ["x"], [name])
    if depth:
        sides = {f"{s}_branch": branches(depth - 1, f"{name}{s[0]}") for s in ("then", "else")}
        node = helper.make_node("If", ["k"], [name], **sides)
    return helper.make_graph([node], name, [], [value(name, FLOAT, None)])


def many_branches() -> onnx.ModelProto:
    test = [
        helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0),
        helper.make_node("Cast", ["m"], ["k"], to=BOOL),
    ]
    return model([*test, *branches(10).node])


@pytest.mark.parametrize("build", [many_initializers, many_outputs, many_branches])
def test_reading_a_long_list_ends_at_the_end(build: object) -> None:
    assert callable(build)
    source = read_model(build().SerializeToString())
    with guard.limited(60) as limits:
        limits.end_within(-1)
        with pytest.raises(OutOfTime, match=r"reading .* was (stopped|skipped)"):
            import_model(source)
        with pytest.raises(OutOfTime, match=r"reading .* was (stopped|skipped)"):
            list(all_bodies(source.skeleton.shared_proto))


def test_what_takes_longer_than_is_left_is_not_begun() -> None:
    source = read_model(many_initializers().SerializeToString())
    with guard.limited(60) as limits:
        limits.end_within(0.1)
        with pytest.raises(OutOfTime, match=r"converting 20001 nodes.* takes at least 0.24 s"):
            _ = source.model
    assert len(source.model.graph.initializers) == LIST


def test_a_message_beyond_the_memory_is_not_parsed() -> None:
    text = helper.make_tensor("t", onnx.TensorProto.STRING, [1], [b"a" * 50_000_000])
    data = model([helper.make_node("Relu", ["x"], ["y"])], [text]).SerializeToString()
    with (
        guard.limited(None, guard.resident_bytes() + 200_000_000),
        pytest.raises(guard.OverMemory, match="reading the model needs 400 MB"),
    ):
        read_model(data)
