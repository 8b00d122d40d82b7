"""The generated function of a class of sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from superopt.compilation.cpu.class_function import build_class_function
from superopt.compilation.model.steps import ModelBinding
from superopt.compilation.runtime.output_buffers import MIN_REUSED_BYTES
from superopt.plan.program.size_formulas import SizeFormulas

FORMULAS = SizeFormulas(
    names=("n", "m"),
    guards=("1 <= s0", "12 // s1 == 4"),
    words=("s0", "t0", "(t0 + 1)"),
    memory_bytes="(t0 * 4)",
    workspace_bytes="64",
    output_shapes=(("s0", "t0"), ()),
    shared=("(s0 * s1)",),
)


class RecordedProgram:
    """It records its calls, and writes the number of the call to the second output."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[np.ndarray], int, int]] = []

    def call(self, arrays: tuple[np.ndarray, ...], memory: int, workspace: int) -> None:
        self.calls.append((list(arrays), memory, workspace))
        arrays[3][...] = len(self.calls)


@pytest.fixture
def program() -> RecordedProgram:
    return RecordedProgram()


def function(program: RecordedProgram, kept: Any = ((), ())) -> Any:
    binding = ModelBinding((1, 0), {"count": 1, "y": 0, "again": 1})
    dtypes = np.dtype("f4"), np.dtype("i8")
    return build_class_function(program, FORMULAS, dtypes, binding, kept)  # type: ignore[arg-type]


def test_a_call_evaluates_the_formulas(program: RecordedProgram) -> None:
    x, z = np.zeros(3), np.ones(2)
    out = function(program)({"m": 3, "n": 5}, [x, z])
    ((given, memory, workspace),) = program.calls
    assert given[0] is z
    assert given[1] is x
    assert given[2] is out["y"]
    np.testing.assert_array_equal(given[4], np.array([5, 15, 16]))
    assert (memory, workspace) == (60, 64)
    assert [*out] == ["count", "y", "again"]
    assert out["y"].shape == (5, 15)
    assert out["y"].dtype == np.float32
    assert out["count"] is out["again"]
    assert out["count"] == 1


@pytest.mark.parametrize(
    "sizes",
    [{"n": 0, "m": 3}, {"n": 5, "m": 4}, {"n": 5, "m": 0}, {"n": 5}, {"n": 5, "m": 3, "k": 1}],
)
def test_sizes_of_another_class_run_nothing(sizes: Any, program: RecordedProgram) -> None:
    assert function(program)(sizes, [np.zeros(3), np.ones(2)]) is None
    assert not program.calls


def test_only_large_outputs_are_kept(program: RecordedProgram) -> None:
    kept: tuple[list[np.ndarray], ...] = ([], [])
    run = function(program, kept)
    small, large = 8, int((MIN_REUSED_BYTES // 12) ** 0.5) + 1
    for n, count in ((small, 0), (large, 1)):
        assert run({"n": n, "m": 3}, [np.zeros(3), np.ones(2)])["y"].shape == (n, 3 * n)
        assert len(kept[0]) == count
    assert not kept[1]
