"""The table of wrong elements in docs/explanation/integers.md."""

from __future__ import annotations

import sys

import numpy as np

from tests.support.paths import SCRIPTS

sys.path.insert(0, str(SCRIPTS))

from wrong_integer_elements import (
    convolution,
    describe_difference,
    exact_matmul,
    matmul_integer,
    qgemm,
    runners,
)


def test_the_model_of_the_instruction_gives_the_table() -> None:
    found = []
    for case in (matmul_integer(8), convolution(8), qgemm(), matmul_integer(7), convolution(7)):
        ((_, run),) = runners(case, "model")
        found.append(describe_difference(case, run()))
    assert found == [
        ("8,092 of 8,192", "78,935"), ("4,520 of 6,272", "42"), ("1 of 1", "82"),
        ("0 of 8,192", "0"), ("0 of 6,272", "0"),
    ]  # fmt: skip


def test_superopt_is_exact() -> None:
    for case in (matmul_integer(8), convolution(8)):
        ((_, run),) = runners(case, "superopt")
        count, most = describe_difference(case, run())
        assert int(count.split()[0]) <= 3
        assert int(most) <= 1


def test_the_definition_is_onnxs() -> None:
    """As ONNX's reference evaluates the models."""
    from onnx.reference import ReferenceEvaluator

    for case in (matmul_integer(8), convolution(8)):
        case.model.opset_import[0].version = 21  # the reference's oldest DequantizeLinear is of 19
        (y,) = ReferenceEvaluator(case.model).run(None, {"x": case.x})
        off = np.abs(y - case.result(exact_matmul)) / case.step
        assert np.count_nonzero(np.rint(off)) <= 3
        assert off.max() < 1.01
