"""What takes long in one operator, or in one list of a model, looks at the time on the way."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnx_ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

import superopt
from superopt import guard
from superopt.api import rule_library as api_rule_library
from superopt.errors import OutOfTime
from superopt.loading import rule_library
from superopt.onnx_io.check import forked_checker
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read import ir_conversion as through_ir
from superopt.onnx_io.read.protos import all_bodies
from superopt.onnx_io.read.source import read_model
from superopt.optimization import certificate
from superopt.te.eval import domain
from tests.support.onnx_io.hostile import BOOL, FLOAT, model, number, value

LIST = 20_000  # entries


@pytest.fixture
def out_of_time() -> Iterator[None]:
    """A call whose time is over."""
    with guard.limit_call(60) as limits:
        limits.shorten_deadline(-1)
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
@pytest.mark.parametrize("most", [1000, 1 << 28])
def test_a_product_is_not_begun_after_the_end(
    shape: tuple[int, int], most: int, out_of_time: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, columns = shape
    monkeypatch.setattr(domain, "TIMED_PRODUCTS", most)
    with pytest.raises(OutOfTime, match="evaluating a graph"):
        domain.timed_matmul(np.ones((rows, 64)), np.ones((64, columns)))


def many_initializers() -> onnx.ModelProto:
    weights = [number(f"c{i}", [1.0], "f4") for i in range(LIST)]
    return model([helper.make_node("Relu", ["x"], ["y"])], weights)


@cache
def model_and_skeleton() -> tuple[onnx_ir.Model, through_ir.Skeleton]:
    made = read_model(many_initializers().SerializeToString()).model
    return made, through_ir.skeleton_from_model(made, "m")


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
    with guard.limit_call(60) as limits:
        limits.shorten_deadline(-1)
        with pytest.raises(OutOfTime, match=r"reading .* was (stopped|skipped)"):
            import_model(source)
        with pytest.raises(OutOfTime, match=r"reading .* was (stopped|skipped)"):
            list(all_bodies(source.skeleton.shared_proto))


def test_what_takes_longer_than_is_left_is_not_begun() -> None:
    source = read_model(many_initializers().SerializeToString())
    with guard.limit_call(60) as limits:
        limits.shorten_deadline(0.1)
        with pytest.raises(OutOfTime, match=r"converting 20001 nodes.* takes at least 0.24 s"):
            _ = source.model
    assert len(source.model.graph.initializers) == LIST


def test_a_message_beyond_the_memory_is_not_parsed() -> None:
    text = helper.make_tensor("t", onnx.TensorProto.STRING, [1], [b"a" * 50_000_000])
    data = model([helper.make_node("Relu", ["x"], ["y"])], [text]).SerializeToString()
    with (
        guard.limit_call(None, guard.bytes_in_use() + 200_000_000),
        pytest.raises(guard.MemoryLimitError, match="reading the model needs 400 MB"),
    ):
        read_model(data)


@pytest.mark.ci
@pytest.mark.one_in(3)
@pytest.mark.parametrize("error", [OutOfTime("x"), guard.MemoryLimitError("x"), MemoryError("x")])
def test_an_end_is_no_fault_of_the_model(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither where onnx_ir's model is written nor where it is read."""

    def late(*given: object) -> Iterator[object]:
        raise error

    made, skeleton = model_and_skeleton()
    monkeypatch.setattr(through_ir, "_tensor_holders", late)
    with pytest.raises(type(error)) as raised:
        through_ir.skeleton_from_model(made, "m")
    assert raised.value is error
    with pytest.raises(type(error)) as raised:
        through_ir.model_from_skeleton(skeleton, "m")
    assert raised.value is error


def test_a_check_that_is_killed_says_for_which_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A valid model is not refused because the call ended before its check."""
    monkeypatch.setattr(forked_checker, "_read_until", lambda reader, end: None)
    data = many_initializers().SerializeToString()
    with guard.limit_call(10), pytest.raises(OutOfTime, match="checking a model"):
        forked_checker.check_in_fork(data, 3)
    with guard.limit_call(60):
        found = forked_checker.check_in_fork(data, 3)
    assert found == forked_checker.CheckFailure("it takes more than 30 seconds", False)


@pytest.mark.parametrize("given_up", ["load_library", "read_rules"])
@pytest.mark.parametrize(
    "error", [OutOfTime("reading", "too late", "wait"), guard.MemoryLimitError("x")]
)
def test_optimize_without_time_for_rules_keeps_the_model(
    given_up: str, error: Exception, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The result is the model as it was given, and a note says why."""

    def late(*given: object) -> tuple[()]:
        raise error

    owner = rule_library if given_up == "load_library" else api_rule_library
    monkeypatch.setattr(owner, given_up, late)
    data = model([helper.make_node("Relu", ["x"], ["y"])]).SerializeToString()
    found = superopt.optimize(data, budget=60)
    assert not found.changed
    assert f"the model is unchanged: {' '.join(str(error).split())}" in found.report.notes
    found.save(tmp_path / "same.onnx")
    assert (tmp_path / "same.onnx").read_bytes() == data


def test_a_certificate_without_time_is_not_decided(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def late(*given: object) -> None:
        raise OutOfTime("replaying", "too late", "wait")

    monkeypatch.setattr(certificate, "read_certificate_file", late)
    verdict = superopt.verify(b"", b"", certificate=tmp_path / "c.superopt.json")
    assert (verdict.decision, verdict.reason) == ("unknown", "replaying too late wait")
