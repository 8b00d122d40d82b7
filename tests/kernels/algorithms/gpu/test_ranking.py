"""The ranking of blocks for a GPU, by what was measured there (docs/gpu_ways*.json)."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.support.gpu.device import choose
from tests.support.paths import ROOT

DOCS = ROOT / "docs" / "benchmarks"


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import bench_gpu_ways

    return bench_gpu_ways


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("name", "known", "taken", "tuned"),
    [("gpu_ways.json", 20, 1.05, 1.01), ("gpu_ways_models.json", 100, 1.05, 1.02)],
)
def test_the_first_ways_are_nearly_the_best(
    name: str, known: int, taken: float, tuned: float, ways: Any
) -> None:
    """What is taken untuned, and the best that tuning sees, by the best that was measured."""
    first, best = ways.ranked(json.loads((DOCS / name).read_text()))
    assert len(first) >= known
    assert float(np.exp(np.mean(np.log(first)))) < taken
    assert float(np.exp(np.mean(np.log(best)))) < tuned
    assert max(first) < 1.35


@pytest.mark.gpu
def test_the_products_of_a_model(ways: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    choose(monkeypatch)
    model = ways.product("48x32x64", "fp16")
    (case,) = ways.cases("a product", model, "fp16")
    assert (case.name, case.count, case.problem.tensor.shape) == ("a product", 1, (48, 32))
