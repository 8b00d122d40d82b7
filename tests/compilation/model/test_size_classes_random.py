"""Random models of symbolic sizes: each class gives onnxruntime's results at all sizes that it
admits, within its own memory."""

from __future__ import annotations

from random import Random

import pytest

from superopt.plan.graph import partition
from tests.support.compilation.class_checks import check_classes, draw_sizes
from tests.support.compilation.dynamic_graphs import dynamic_model

pytest.importorskip("onnxruntime")
SMALL = (1, 2, 3, 4, 5, 6, 7, 8, 9)
AROUND_TILES = (15, 16, 17, 31, 32, 33, 63, 64, 65)
LARGE = (100, 127, 129, 200, 256, 300)
DEFAULT_MODELS = 8
SLOW_MODELS = 500


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use kernels for the smallest parts between those in onnxruntime, too."""
    monkeypatch.setattr(partition, "SWITCH_US", 0.0)


def check_model(seed: int) -> int:
    """Check a model at sizes that its classes admit; return their number."""
    m, inputs = dynamic_model(seed)
    names = sorted({d for shape in inputs.values() for d in shape if isinstance(d, str)})
    sizes = draw_sizes(Random(seed), names, SMALL, AROUND_TILES, LARGE)
    return check_classes(m, inputs, sizes, seed, 1 + seed % 2)


@pytest.mark.ci
def test_classes_of_random_models() -> None:
    counts = [check_model(seed) for seed in range(DEFAULT_MODELS)]
    assert sum(n > 0 for n in counts) > DEFAULT_MODELS // 2  # most models have classes


@pytest.mark.slow
@pytest.mark.parametrize("first", range(DEFAULT_MODELS, SLOW_MODELS, 22))
def test_classes_of_many_random_models(first: int) -> None:
    for seed in range(first, min(first + 22, SLOW_MODELS)):
        check_model(seed)
