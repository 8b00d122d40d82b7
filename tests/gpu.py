"""Whether tests of a GPU's kernels run there, or in Triton's interpreter on the processor.

Where the environment has SUPEROPT_TEST_GPU=1 they are the same tests, on a device: `pytest -m gpu`.
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

REAL = os.environ.get("SUPEROPT_TEST_GPU") == "1"


def choose(patch: pytest.MonkeyPatch) -> None:
    """Have Triton interpret kernels, which it decides when it is imported, or not; skip the test
    where the extra is not installed."""
    if REAL:
        patch.delenv("TRITON_INTERPRET", raising=False)
    else:
        patch.setenv("TRITON_INTERPRET", "1")
    for name in ("torch", "triton"):
        pytest.importorskip(name, reason=f"the extra gpu is not installed: no {name}")
    if not REAL:
        skip_overflow_checks(patch)


def skip_overflow_checks(patch: pytest.MonkeyPatch) -> None:
    """Leave out the interpreter's overflow checks of integer sums and products: 60% of its time.

    It computes them anew in 64 bits, and drops the result, as its option `debug` is off.
    """
    from triton.runtime.interpreter import interpreter_builder as builder

    patch.setattr(builder, "options", replace(builder.options, sanitize_overflow=False))
