"""Each kernel of twelve exported models on a GPU, beside its definition in float64."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.gpu.device import REAL, choose
from tests.support.gpu.models import values_of_heads
from tests.support.paths import SCRIPTS

sys.path.insert(0, str(SCRIPTS))

import gpu_exports
import gpu_kernel_errors
from gpu_kernel_errors import difference, kernel_errors

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    choose(monkeypatch)


@pytest.mark.slow
@pytest.mark.skipif(not REAL, reason="compares kernels on a device: SUPEROPT_TEST_GPU=1")
@pytest.mark.parametrize("precision", gpu_kernel_errors.LIMITS)
@pytest.mark.parametrize("name", gpu_exports.EXPORTS)
def test_every_kernel_of_an_exported_model(name: str, precision: str, tmp_path: Path) -> None:
    for library in ("torchvision", "timm", "transformers", "onnxscript"):
        pytest.importorskip(library, reason=f"models are exported by {library}")
    found = list(kernel_errors(gpu_exports.export(name, tmp_path), precision, label=name))
    assert found
    assert not [str(x) for x in found if not x.ok]


@pytest.mark.parametrize("precision", gpu_kernel_errors.LIMITS)
def test_every_kernel_of_a_small_model(precision: str) -> None:
    small = values_of_heads() if REAL else values_of_heads(1, 2, 16, 16)
    found = list(kernel_errors(small, precision, vendor=False))
    assert [x.option.split()[0] for x in found] == ["gemm", "gemm"]
    assert all(x.ok for x in found)


def test_a_wrong_kernel_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result of zeros, which is what is left where the assembler drops a product."""
    monkeypatch.setattr(gpu_kernel_errors, "_read", lambda p, buffer: 0 * buffer)
    found = list(kernel_errors(values_of_heads(1, 2, 16, 16), "fp32", vendor=False))
    assert not any(x.ok for x in found)
    assert all(x.error > 0.5 for x in found)


@pytest.mark.parametrize(
    ("got", "want", "error"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 3.0], [1.0, 2.0], 1 / (2 + 2.5**0.5)),
        ([np.nan, 2.0], [np.nan, 2.0], 0.0),
        ([1.0, 2.0], [np.nan, 2.0], np.inf),
        ([np.nan, 2.0], [1.0, 2.0], np.inf),
        ([0.5], [0.0], 0.5),
    ],
)
def test_differences(got: list[float], want: list[float], error: float) -> None:
    assert difference(np.array(got), np.array(want)) == pytest.approx(error)
