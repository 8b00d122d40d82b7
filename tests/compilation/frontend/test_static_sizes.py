"""Symbolic sizes that nobody gives: superopt chooses some, and says so where they do not fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import superopt
from superopt.api import functions
from superopt.errors import SuperoptError
from superopt.report.compilation import compile_report as text
from tests.support.compilation.models import NONE, F, model, near, of_none, reference


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """What was, and what is new, for a mask of all: q is p + 1."""
    nodes = [
        helper.make_node("Concat", ["x", "new"], ["all"], axis=1),
        helper.make_node("Add", ["all", "mask"], ["y"]),
    ]
    inputs = {"x": (F, [2, "p"]), "new": (F, [2, 1]), "mask": (F, [2, "q"])}
    m = model(nodes, inputs, ["y"])
    m.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", F, [2, "q"]))
    onnx.save(m, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


@pytest.mark.parametrize("what", ["compile_model", "tune", "profile"])
def test_chosen_sizes_that_do_not_fit_are_named(what: str, path: Path) -> None:
    more = {"tune": {"budget": 5.0}, "profile": {"seconds": 0.01}}.get(what, {})
    with pytest.raises(SuperoptError) as e:
        getattr(functions, what)(path, **more)
    assert "p=8,q=8, the default sizes" in e.value.what
    assert "--shape NAME=N" in e.value.todo


def test_others_may_be_given(path: Path) -> None:
    with pytest.raises(SuperoptError, match="at q=8, the default sizes"):
        functions.compile_model(path, shapes={"p": 4})
    with pytest.raises(SuperoptError) as e:
        functions.compile_model(path, shapes={"p": 4, "q": 4})
    assert "chose" not in str(e.value)
    functions.compile_model(path, shapes={"p": 4, "q": 5})
    x, new, mask = (np.ones((2, n), np.float32) for n in (4, 1, 5))
    assert superopt.compile(path)(x=x, new=new, mask=mask)["y"].shape == (2, 5)


def test_nothing_is_timed_at_sizes_that_do_not_fit(path: Path) -> None:
    with pytest.raises(SuperoptError, match="superopt chose p=8,q=8"):
        superopt.bench([path], vs=("superopt",), seconds=0.01)


def test_what_was_compiled_is_said_with_its_sizes(path: Path) -> None:
    found = functions.compile_model(path, shapes={"p": 4, "q": 5})
    assert dict(found.sizes) == {"p": 4, "q": 5}
    assert text.compilation_text(found).startswith("m.onnx, p=4, q=5: 2 nodes as ")


@pytest.mark.parametrize("name", NONE)
def test_sizes_of_none(name: str) -> None:
    exe = superopt.compile(of_none(name))
    for n in (2, 0, 1):
        x = np.random.default_rng(n).standard_normal((n, 4)).astype(np.float32)
        got, wanted = exe.run({"x": x}), reference(of_none(name), {"x": x})
        assert got["y"].shape == wanted["y"].shape
        near(got, wanted)
