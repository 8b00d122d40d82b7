"""When compiling for new sizes pays, and which code is faster."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from superopt.compilation.model import specialize
from superopt.compilation.model.shape_policy import ShapePolicy


@pytest.mark.parametrize(
    ("spent", "saved", "due"),
    [
        ([0.9], [], False),
        ([0.6, 0.5], [], True),
        ([1.5], [0.5], False),  # of which compiled code saves half
        ([2.5], [0.5], True),
        ([5.0], [-3.0], False),  # it was slower, but may be faster at other sizes
        ([25.0], [-3.0], True),
    ],
)
def test_ski_rental(spent: list[float], saved: list[float], due: bool) -> None:
    policy = ShapePolicy("background", compile_seconds=[0.5, 1.5], saved_parts=saved)
    key = (("n", 4),)
    for seconds in spent:
        policy.add_fallback_time(key, seconds)
    assert policy.is_due(key) is due
    assert not policy.is_due((("n", 5),))
    for name in ("eager", "never"):
        policy.specialize = name  # type: ignore[assignment]
        assert not policy.is_due(key)
    policy.specialize = "background"
    policy.keep_in_fallback(key, "it fails")
    assert not policy.is_due(key)


@pytest.mark.parametrize(("spent", "due"), [(1.5, False), (2.5, True)])
def test_rental_where_no_compilation_was_measured(spent: float, due: bool) -> None:
    """All programs so far came from the cache on disk."""
    policy = ShapePolicy("background")
    policy.add_fallback_time((("n", 4),), spent)
    assert policy.is_due((("n", 4),)) is due


@pytest.mark.parametrize(
    ("taken", "expected"),
    [([3.0], 3.0), ([3.0, 0.5], 0.5), ([3.0, 0.5, 1.5], 1.0), ([0.2, 0.8], 0.8)],
)
def test_rental_counts_what_further_sizes_take(taken: list[float], expected: float) -> None:
    """Compiling for the first sizes also reads rules and loads libraries."""
    policy = ShapePolicy("background")
    for seconds in taken:
        policy.add_compile_time(seconds)
    assert policy.expected_compile_seconds == pytest.approx(expected)
    key = (("n", 4),)
    policy.add_fallback_time(key, 0.9 * expected)
    assert not policy.is_due(key)
    policy.add_fallback_time(key, 0.2 * expected)
    assert policy.is_due(key)


@pytest.mark.parametrize(
    ("own_ms", "other_ms", "pairs"), [(1.0, 1.5, 6), (1.5, 1.0, 6), (1.0, 1.05, 40)]
)
def test_clear_measurements_are_short(
    own_ms: float, other_ms: float, pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, calls = [0.0], []

    def call_of(name: str, ms: float) -> Any:
        def call(arrays: list[Any]) -> None:
            calls.append(name)
            now[0] += ms / 1e3

        return call

    fallback = SimpleNamespace(call=call_of("other", other_ms))
    exe: Any = SimpleNamespace(shape_policy=SimpleNamespace(fallback=fallback), device=None)
    own_call = call_of("own", own_ms)
    variant: Any = SimpleNamespace(run=lambda device, arrays: own_call(arrays))
    monkeypatch.setattr(specialize.time, "perf_counter", lambda: now[0])
    own, other = specialize._measure_pair(exe, variant, [])
    assert (own, other) == (pytest.approx(own_ms / 1e3), pytest.approx(other_ms / 1e3))
    assert calls.count("own") == calls.count("other") == pairs + 1


def test_empty_inputs_are_never_due() -> None:
    policy = ShapePolicy("background", compile_seconds=[0.1])
    policy.add_fallback_time((("n", 0),), 9.0)
    assert not policy.is_due((("n", 0),))
