"""`exe.accuracy()`: compiled models against the originals in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import superopt
from superopt.errors import UsageError
from superopt.pipeline.executable import Executable
from tests.plan.test_compile import in_parts, net


def test_what_is_right_and_what_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    exe = superopt.compile(net("s"))
    found = exe.accuracy({"s": 14}, sets=1)
    assert found.ok, str(found)
    for x in found.outputs:
        assert 0 < x.mean < x.largest < 1e-4
    assert "in fp32: within the tolerance, on 1 set of drawn inputs" in str(found)
    run = Executable.run

    def wrong(self: Executable, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
        return {k: x * np.float32(1.01) for k, x in run(self, feeds).items()}

    monkeypatch.setattr(Executable, "run", wrong)
    assert not exe.accuracy({"s": 14}, sets=1).ok


def test_a_node_without_an_expression_has_no_value_in_float64() -> None:
    with pytest.raises(UsageError, match="NonZero is opaque"):
        superopt.compile(in_parts()).accuracy()
