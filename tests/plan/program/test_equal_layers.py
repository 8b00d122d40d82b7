"""Equal layers with weights of their own: their kernels are built once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

import superopt
from superopt import ort
from superopt.kernels.algorithms.build import BuiltKernel
from superopt.plan.selection import select_kernels
from tests.support.compilation.models import F, Model, model, near

pytest.importorskip("onnxruntime")
LAYERS, WIDTH = 5, 200


def layers(length: int | str) -> Model:
    """Products with normalized rows between them."""
    rng, nodes, weights, x = np.random.default_rng(0), [], {}, "x"
    for n in range(LAYERS):
        weights |= {
            f"w{n}": rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 14,
            f"scale{n}": rng.standard_normal(WIDTH).astype(np.float32),
            f"bias{n}": rng.standard_normal(WIDTH).astype(np.float32),
        }
        y = "y" if n == LAYERS - 1 else f"y{n}"
        nodes += [
            helper.make_node("MatMul", [x, f"w{n}"], [f"p{n}"]),
            helper.make_node("LayerNormalization", [f"p{n}", f"scale{n}", f"bias{n}"], [y]),
        ]
        x = y
    return model(nodes, {"x": (F, [length, WIDTH])}, ["y"], weights)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[BuiltKernel]:
    """The kernels that are built."""
    found: list[BuiltKernel] = []
    build: Any = select_kernels.build_kernels

    def record(*given: Any) -> list[BuiltKernel]:
        made: list[BuiltKernel] = build(*given)
        found.extend(made)
        return made

    monkeypatch.setattr(select_kernels, "build_kernels", record)
    return found


@pytest.mark.parametrize("length", [37, "n"])
def test_kernels_of_equal_layers_are_built_once(
    length: int | str, built: list[BuiltKernel]
) -> None:
    m = layers(length)
    exe = superopt.compile(m, specialize="never")
    session = ort.load_session(m.SerializeToString())
    for n in (37, 21) if length == "n" else (37,):
        x = np.random.default_rng(n).standard_normal((n, WIDTH)).astype(np.float32)
        near(exe(x=x), ort.run(session, {"x": x}))
    names = [b.kernel.name for b in built]
    assert len(names) == len({*names}) < 2 * LAYERS
    assert any(b.kernel.packs for b in built)  # which differ in the layers
