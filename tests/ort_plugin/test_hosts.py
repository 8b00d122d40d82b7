"""Hosts of the execution provider: a C program, and other versions of onnxruntime in Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import superopt
from tests.support.compilation.exporting import CC
from tests.support.compilation.models import net, reference
from tests.support.ort_plugin.sessions import MISSING, REASON, export

pytestmark = pytest.mark.skipif(MISSING, reason=REASON)
# A folder of another version (`pip install --target`): `.ci/run` has the oldest one.
OTHER = os.environ.get("SUPEROPT_TEST_ONNXRUNTIME", "")
SCRIPT = """
import sys
import numpy, onnxruntime
provider, model, _ = sys.argv[1:]
onnxruntime.register_execution_provider_library("superopt", provider)
found = onnxruntime.get_ep_devices()
options = onnxruntime.SessionOptions()
own = [d for d in found if d.ep_name == "SuperoptExecutionProvider"]
options.add_provider_for_devices(own, {})
session = onnxruntime.InferenceSession(model, options)
for y in session.run(["y", "d"], {"x": numpy.ones((2, 3, 9, 9), numpy.float32)}):
    print(f"{y.sum(dtype=float):.4f}")
assert session.get_providers()[0] == "SuperoptExecutionProvider"
print(onnxruntime.__version__)
"""


def sums(text: str) -> list[float]:
    return [float(line) for line in text.splitlines()[:2]]


def expected_sums() -> list[float]:
    found = reference(net(), {"x": np.ones((2, 3, 9, 9), np.float32)})
    return [float(found[name].sum(dtype=np.float64)) for name in ("y", "d")]


def test_a_program_in_c(tmp_path: Path) -> None:
    path, _ = export(net(), tmp_path)
    (library,) = (Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*")
    assert CC is not None
    source = Path(__file__).with_name("host.c")
    host = tmp_path / "host"
    subprocess.run([CC, "-Wall", "-Werror", source, "-ldl", "-o", host], check=True)
    provider = path.parent / "libsuperopt_ort.so"
    done = subprocess.run([host, library, provider, path], capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout, done.stderr)
    np.testing.assert_allclose(sums(done.stdout), expected_sums(), rtol=1e-4)


@pytest.mark.skipif(not OTHER, reason="SUPEROPT_TEST_ONNXRUNTIME names no other onnxruntime")
def test_another_version(tmp_path: Path) -> None:
    path, _ = export(net(), tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(superopt.ort_provider()), str(path), ""],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": OTHER},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(sums(done.stdout), expected_sums(), rtol=1e-4)
    assert done.stdout.split()[-1] != onnxruntime.__version__
