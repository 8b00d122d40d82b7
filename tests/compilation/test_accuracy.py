"""`exe.accuracy()`: compiled models against the originals in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import superopt
from superopt.compilation.accuracy import measure_accuracy
from superopt.compilation.model.executable import Executable
from superopt.errors import UsageError
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.import_.model import Model
from superopt.onnx_io.read.source import read_model
from tests.support.compilation.models import F, model, net


def test_what_is_right_and_what_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    exe = superopt.compile(net("s"))
    found = exe.accuracy({"s": 14}, sets=1)
    assert found.passed, str(found)
    for x in found.outputs:
        assert 0 < x.mean_error < x.max_error < 1e-4
    assert "in fp32: within the tolerance, on 1 set of random inputs" in str(found)
    run = Executable.run

    def wrong(self: Executable, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
        return {k: x * np.float32(1.01) for k, x in run(self, feeds).items()}

    monkeypatch.setattr(Executable, "run", wrong)
    assert not exe.accuracy({"s": 14}, sets=1).passed


def test_a_node_without_an_expression_has_no_value_in_float64() -> None:
    m = model([helper.make_node("NonZero", ["x"], ["z"])], {"x": (F, [3])}, ["z"], {})
    with pytest.raises(UsageError, match="NonZero is opaque"):
        superopt.compile(m).accuracy()


def test_an_output_without_one_is_left_out_and_named() -> None:
    w = np.ones((8, 5), np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("NonZero", ["y"], ["z"]),
    ]
    m = model(nodes, {"x": (F, [3, 8])}, ["z", "y"], {"w": w})
    found = superopt.compile(m).accuracy(sets=1)
    assert [x.name for x in found.outputs] == ["y"]
    assert found.passed
    assert str(found).endswith("z is not compared: NonZero has no tensor expression\n")


def test_inputs_are_what_all_of_the_model_takes() -> None:
    """Also what is not compared: indices of a table."""
    node = helper.make_node
    nodes = [
        node("Gather", ["w", "ids"], ["a"]),
        node("NonZero", ["a"], ["z"]),
        node("Add", ["x", "x"], ["y"]),
    ]
    given = {"ids": (TensorProto.INT64, [4]), "x": (F, [4])}
    m = model(nodes, given, ["z", "y"], {"w": np.ones((2, 8), np.float32)})
    assert superopt.compile(m).accuracy(sets=3).passed


@dataclass
class Answering:
    """A model that is said to be of a precision, with these outputs."""

    model: Model
    precision: str
    how: Callable[[np.ndarray], np.ndarray]

    def run(self, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
        return {"y": self.how(feeds["x"] @ WEIGHTS)}


WEIGHTS = np.random.default_rng(0).standard_normal((8, 5)).astype(np.float32) * np.float32(1e6)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16"])
def test_what_is_beyond_a_precisions_numbers_excuses_nothing(precision: str) -> None:
    """Sums of some 1e6, which 16 bits (fp16) have not, and tf32 has."""
    made = model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": (F, [3, 8])}, ["y"], {"w": WEIGHTS}
    )
    m = import_model(read_model(made))
    wrong: list[Callable[[np.ndarray], np.ndarray]] = [
        lambda y: y * np.float32("nan"), lambda y: y * 0 + np.float32("inf"), lambda y: -y,
        lambda y: np.where(np.arange(y.size).reshape(y.shape) == 4, np.float32("nan"), y),
    ]  # fmt: skip
    assert measure_accuracy(Answering(m, precision, lambda y: y), {}, 1).passed
    for how in wrong:
        assert not measure_accuracy(Answering(m, precision, how), {}, 1).passed
    with pytest.raises(UsageError, match="0 sets of inputs"):
        measure_accuracy(Answering(m, precision, lambda y: y), {}, 0)
