"""ONNX's node tests pass on `ir.evaluate`, all but those left out by the tables of `suite`.

Which cases run is committed in backend_suite.txt, so that none is lost unnoticed;
`python scripts/backend_suite.py` writes it.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from superopt.onnx_io.import_.schema import find_operator
from tests.support.ops import suite


@pytest.mark.one_in(35)
@pytest.mark.parametrize(
    ("name", "bound"), [pytest.param(n, b, id=n.removeprefix("test_")) for n, b in suite.listed()]
)
def test_case(name: str, bound: bool) -> None:
    case = suite.cases().get(name)
    if case is None:
        pytest.skip(f"onnx {onnx.__version__} has no case {name}")
    prepared = suite.prepare(case)
    assert isinstance(prepared, suite.Runnable), prepared
    assert bool(prepared.bound) == bound
    suite.run(prepared)


@pytest.mark.skipif(
    suite.listed_version() != onnx.__version__, reason="the list is of another version of onnx"
)
def test_every_other_case_is_left_out_for_a_reason() -> None:
    names = {n for n, _ in suite.listed()}
    assert set(suite.case_names()) == set(suite.cases())
    for name, case in suite.cases().items():
        if name in names:
            continue
        prepared = suite.prepare(case)
        assert isinstance(prepared, suite.LeftOut), f"{name} runs, but is not listed"
        assert prepared.reason, f"{name} is left out for no reason of the tables: {prepared}"


def test_what_the_tables_leave_out_has_no_expression() -> None:
    newest = onnx.defs.onnx_opset_version()
    for operators in suite.OPAQUE.values():
        for name in operators.split():
            assert find_operator(name, "", newest) is None, f"{name} has a tensor expression"


def test_enough_cases_run_and_the_page_says_how_many(root: Path) -> None:
    count = len(suite.listed())
    assert count >= 900
    page = (root / "docs" / "benchmarks" / "backend_suite.md").read_text(encoding="utf-8")
    assert f"| run | {count} |" in page
    assert f"| passed | {count} |" in page


@pytest.mark.parametrize(
    "name", ["test_add", "test_argmax_default_axis_example", "test_cast_e8m0_FLOAT_to_FLOAT8E8M0"]
)
def test_a_wrong_result_fails(name: str) -> None:
    prepared = suite.prepare(suite.cases()[name])
    assert isinstance(prepared, suite.Runnable)
    (right,) = prepared.expected
    suite.run(prepared)
    for wrong in (right[..., :1], right.astype(np.complex64), right + right.dtype.type(1)):
        with pytest.raises(AssertionError):
            suite.run(replace(prepared, expected=(wrong,)))
