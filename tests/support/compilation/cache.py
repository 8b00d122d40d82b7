"""Compiled models in a cache of the test's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from superopt.compilation.cache import entries
from superopt.compilation.model.compiler import Compiler
from tests.support.compilation.models import F, model


def at_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, where whole models are; files count as being at rest at once."""
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(entries, "_MIN_REST_NS", -1)
    monkeypatch.setattr(entries, "_MIN_REST_WHOLE_SECONDS_NS", -1)
    return tmp_path / "cache" / "ready"


def counting(compiler: Any, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Grows whenever this compiler is asked for steps."""
    calls: list[object] = []
    own = compiler.compile_variant

    def counted(*args: object) -> object:
        calls.append(args)
        return own(*args)

    monkeypatch.setattr(compiler, "compile_variant", counted)
    return calls


def written(path: Path, m: onnx.ModelProto) -> Path:
    path.write_bytes(m.SerializeToString())
    return path


def scaled(by: float) -> onnx.ModelProto:
    weights = {"w": np.full((4, 4), by, np.float32)}
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    return model([node], {"x": (F, [2, 4])}, ["y"], weights)


ONES = np.ones((2, 4), np.float32)


def record_compilations(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, int]]:
    """Return the sizes for which a class or a program is compiled from now on."""
    out: list[dict[str, int]] = []
    for name in ("compile_class", "compile_variant"):
        original: Any = getattr(Compiler, name)

        def record(
            self: Compiler, sizes: Any, *args: Any, _call: Any = original, **more: Any
        ) -> Any:
            out.append(dict(sizes))
            return _call(self, sizes, *args, **more)

        monkeypatch.setattr(Compiler, name, record)
    return out
