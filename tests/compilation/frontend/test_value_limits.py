"""Calls with values that caches have no room for are refused before anything is written."""

from __future__ import annotations

import pytest

import superopt
from superopt.compilation.frontend.input_arrays import ValueLimit
from superopt.errors import UsageError
from tests.support.onnx_io.limit_cases import (
    ALLOWED,
    REFUSED,
    cache_case,
    feeds,
    masked_case,
)


@pytest.mark.parametrize(("make", "length", "values"), ALLOWED)
def test_values_within_the_limits_are_run(make: object, length: int, values: dict) -> None:
    case = make()  # type: ignore[operator]
    exe = superopt.compile(case.model(), threads=1, specialize="never")
    exe.run(feeds(case, length, **values))


@pytest.mark.parametrize(("make", "length", "values", "what", "why"), REFUSED)
def test_values_beyond_the_limits_are_refused(
    make: object, length: int, values: dict, what: str, why: str
) -> None:
    case = make()  # type: ignore[operator]
    exe = superopt.compile(case.model(), threads=1, specialize="never")
    with pytest.raises(UsageError, match=what) as error:
        exe.run(feeds(case, length, **values))
    assert why in str(error.value)


def test_a_repeated_call_checks_values() -> None:
    case = cache_case()
    exe = superopt.compile(case.model(), threads=1, specialize="never")
    for _ in range(3):
        exe.run(feeds(case, 1, at=7, valid=8))
    assert exe.last_call is not None
    with pytest.raises(UsageError, match="'at' has the value 8"):
        exe.run(feeds(case, 1, at=8, valid=8))


def test_a_repeated_call_checks_sums() -> None:
    case = masked_case()
    exe = superopt.compile(case.model(), threads=1, specialize="never")
    for _ in range(3):
        exe.run(feeds(case, 1, mask=1))
    assert exe.last_call is not None
    with pytest.raises(UsageError, match="'mask' has the sum 16"):
        exe.run(feeds(case, 1, mask=2))


def test_circular_writes_have_no_greatest_index() -> None:
    case = cache_case()
    case.nodes.clear()
    case.outputs.pop("y")
    case.add("TensorScatter", ["pk", "q", "at"], ["nk"], axis=2, mode="circular")
    exe = superopt.compile(case.model(), threads=1, specialize="never")
    (port,) = (p for p in exe.input_ports if p.name == "at")
    (limit,) = port.limits
    assert isinstance(limit, ValueLimit)
    assert (limit.least, limit.greatest) == ("0", "")
    exe.run(feeds(case, 2, at=1000, valid=8))


def test_a_saved_model_keeps_the_limits(tmp_path: object) -> None:
    case = cache_case()
    exe = superopt.compile(case.model(), threads=1, specialize="never")
    exe.run(feeds(case, 1, at=7, valid=8))
    exe.save(tmp_path / "model.so")  # type: ignore[operator]
    other = superopt.load(tmp_path / "model.so")  # type: ignore[operator]
    with pytest.raises(UsageError, match="'at' has the value 8"):
        other.run(feeds(case, 1, at=8, valid=8))
