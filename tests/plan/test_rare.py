"""Sizes that come for the first time, where a model was compiled for several already."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import superopt
from superopt.errors import ModelError
from superopt.pipeline import rare
from superopt.pipeline.steps import Native
from tests.plan.test_compile import F, model, near

pytest.importorskip("onnxruntime")


@pytest.fixture
def exe(monkeypatch: pytest.MonkeyPatch) -> superopt.Executable:
    monkeypatch.setattr(rare, "SEVERAL", 2)
    w = np.random.default_rng(0).standard_normal((96, 96)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Tanh", ["a"], ["y"])]
    return superopt.compile(model(nodes, {"x": (F, ["n", 96])}, ["y"], {"w": w}))


def rows(n: int) -> np.ndarray:
    return np.random.default_rng(n).standard_normal((n, 96)).astype(np.float32)


def wanted(x: np.ndarray) -> np.ndarray:
    w = np.random.default_rng(0).standard_normal((96, 96)).astype(np.float32)
    return np.tanh(x @ w)


def test_they_run_in_onnxruntime_until_that_takes_as_long_as_compiling(
    exe: superopt.Executable,
) -> None:
    for n in range(3, 40):
        x = rows(n)
        near(exe(x=x), {"y": wanted(x)})
    assert list(exe.variants) == [(("n", 3),), (("n", 4),)]
    exe.rare.made[:] = [exe.rare.spent[(("n", 7),)] / 2]
    for n in (7, 7, 8, 3):
        x = rows(n)
        near(exe(x=x), {"y": wanted(x)})
    assert (("n", 7),) in exe.variants
    assert all(isinstance(s, Native) for steps in exe.variants.values() for s in steps)


def test_without_onnxruntime_each_is_compiled(
    exe: superopt.Executable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(superopt.ort, "available", lambda: None)
    for n in range(3, 9):
        x = rows(n)
        near(exe(x=x), {"y": wanted(x)})
    assert len(exe.variants) == 6


def test_what_onnxruntime_does_not_run_is_compiled(
    exe: superopt.Executable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object) -> None:
        raise ModelError("onnxruntime does not load the model", "it is odd", "compile it")

    for n in (3, 4):
        exe(x=rows(n))
    monkeypatch.setattr(type(exe.compiler), "elsewhere", refuses)
    for n in (5, 6):
        x = rows(n)
        near(exe(x=x), {"y": wanted(x)})
    assert len(exe.variants) == 4
