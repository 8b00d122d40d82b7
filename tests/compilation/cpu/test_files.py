"""A model's file that is written again, or renamed, while the compiled model lives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import superopt
from superopt.errors import ModelError, UsageError
from tests.support.compilation.models import F, model


def product(number: float) -> onnx.ModelProto:
    w = np.full((64, 64), number, np.float32)
    return model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": (F, ["n", 64])}, ["y"], {"w": w}
    )


def ones(n: int) -> np.ndarray:
    return np.ones((n, 64), np.float32)


def test_one_that_is_written_again_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other sizes would be compiled of its new weights, or end the process where it is shorter."""
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path / "cache"))
    path, saved = tmp_path / "m.onnx", tmp_path / "m.superopt"
    onnx.save(product(1), path)
    exe = superopt.compile(path, specialize="eager")
    assert exe(x=ones(1))["y"][0, 0] == 64
    exe.save(saved)
    loaded = superopt.load(saved, specialize="eager")
    for file, own in ((path, exe), (saved, loaded)):
        with file.open("r+b") as f:
            f.truncate(100)
        with pytest.raises(ModelError, match="was written again since it was read"):
            own(x=ones(2))
    assert exe(x=ones(1))["y"][0, 0] == 64


def test_one_that_another_is_renamed_over_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path / "cache"))
    path, other = tmp_path / "m.onnx", tmp_path / "n.onnx"
    onnx.save(product(1), path)
    onnx.save(product(2), other)
    exe = superopt.compile(path)
    other.replace(path)
    assert exe(x=ones(3))["y"][0, 0] == 64
    assert superopt.compile(path)(x=ones(3))["y"][0, 0] == 128


@pytest.mark.parametrize("what", [3, None, bytearray(b"model"), ["m.onnx"]])
def test_invalid_models(what: object) -> None:
    with pytest.raises(UsageError, match="is not a model"):
        superopt.compile(what)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="is not a path"):
        superopt.load(what)  # type: ignore[arg-type]
