"""The models that the benchmark of kernels measures, and its table."""

import sys
from collections.abc import Callable

import numpy as np
import onnx
import pytest

import superopt
from superopt.compilation.cpu.native_segment import NativeSegment
from tests.support.paths import SCRIPTS

sys.path.insert(0, str(SCRIPTS))

from bench_kernels import missed, text
from kernel_cases import FAMILIES, Case, conv, model
from peers import difference

CASES = [case for cases in FAMILIES.values() for case in cases]
SMALL = [c for c in CASES if sum(map(np.prod, [*c.inputs.values(), *c.weights.values()])) < 3e5]


def test_names_differ_within_a_family() -> None:
    for cases in FAMILIES.values():
        assert len({case.name for case in cases}) == len(cases)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_models_are_valid_and_of_static_shape(case: Case) -> None:
    made = model(case)
    onnx.checker.check_model(made, full_check=True)
    (y,) = made.graph.output
    assert all(d.dim_value > 0 for d in y.type.tensor_type.shape.dim)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("case", SMALL, ids=lambda c: c.name)
def test_small_ones_have_kernels(case: Case) -> None:
    steps = superopt.compile(model(case)).variant({})
    assert steps
    assert all(isinstance(step, NativeSegment) for step in steps)


def test_what_a_convolution_is_called() -> None:
    case = conv(8, 14, 16, (1, 7), stride=2, groups=4)
    assert case.name == "1x7 8@14 to 16 stride 2 groups 4"
    assert case.weights["w"] == (16, 2, 1, 7)
    assert model(case).graph.output[0].type.tensor_type.shape.dim[3].dim_value == 7


def measured(**more: object) -> dict:
    return {
        "us": {"superopt": 100.0, "onnxruntime": 210.0, "openvino": 200.0},
        "ratio": 2.0, "error": 1.4e-6, "kernels_us": 90.0, "operations": 9_000_000, "share": 0.88,
        "by": "flops", "foreign": False, "flops": 1e11, "target": {"share": 0.0, "ratio": 0.0},
        **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, ""),
        ({"ratio": 0.95}, ""),
        ({"ratio": 0.94}, "slower"),
        ({"target": {"share": 0.9, "ratio": 0.0}}, "target missed"),
        ({"target": {"share": 0.88, "ratio": 0.0}}, ""),
        ({"target": {"share": 0.0, "ratio": 2.1}}, "target missed"),
        ({"ratio": 0.9, "target": {"share": 0.9, "ratio": 0.0}}, "slower, target missed"),
    ],
)
def test_what_is_noted(more: dict, said: str) -> None:
    assert missed(measured(**more)) == said


def test_text(golden: Callable[[str, str], None]) -> None:
    cases = {
        "8x8x8": measured(target={"share": 0.9, "ratio": 0.0}),
        "3x3": measured(ratio=0.5, by="bytes", target={"share": 0.0, "ratio": 1.8}),
        "odd": measured(foreign=True, flops=1.1e11),
    }
    family = {"date": "2030-01-02", "load": 0.25, "cases": cases}
    about = {"machine": "a machine", "ort": "1.0", "openvino": "2030.1", "seconds": "2"}
    found = {
        "about": {**about, "note": "The machine was quiet."},
        "threads": {"1": {"products": family}, "2": {"products": family}},
    }
    golden("bench-kernels.md", text(found))


def test_difference() -> None:
    assert difference(np.array([1.0, 3.0]), np.array([1.0, 1.0])) == 2.0
    assert difference(np.array([4, 4]), np.array([4, 4])) == 0.0
    assert difference(np.array([4, 4]), np.array([4, 5])) == 1.0
