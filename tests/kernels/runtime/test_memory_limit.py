"""The address space that is left: what is said where it is not enough for LLVM."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from onnx import helper

import superopt
from superopt.errors import ModelError
from superopt.kernels.runtime import memory_limit
from tests.support.compilation.models import F, model

PROBE = """
import resource
from superopt.kernels.runtime.memory_limit import remaining_address_space, require_address_space
assert remaining_address_space() is None
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, resource.RLIM_INFINITY))
before = remaining_address_space()
assert 0 < before < 1 << 30
require_address_space(1000)
held = bytearray(100 << 20)
assert 100 << 20 <= before - remaining_address_space() < 110 << 20
try:
    require_address_space(0, before)
except MemoryError as e:
    print(e)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="others do not tell what is mapped")
def test_what_is_left() -> None:
    found = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True)
    assert found.stdout.startswith("compiling needs up to"), found.stderr


@pytest.mark.parametrize("left", [1 << 20, memory_limit.LLVM_BYTES + (1 << 14)])
def test_llvm_is_not_called_with_little_memory_left(
    left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would end the process. The second one is enough for the model, and not for its code."""
    node = helper.make_node("Sin", ["x"], ["y"], f"what was not compiled before {left}")
    m = model([node], {"x": (F, [3, 11])}, ["y"])
    monkeypatch.setattr(memory_limit, "remaining_address_space", lambda: left)
    with pytest.raises(ModelError, match="out of memory"):
        superopt.compile(m)
    monkeypatch.undo()
    x = np.ones((3, 11), np.float32)
    np.testing.assert_allclose(superopt.compile(m)(x=x)["y"], np.sin(x), rtol=1e-6)
