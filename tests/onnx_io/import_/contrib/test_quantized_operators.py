"""Operators of com.microsoft on quantized values: kernels give their definition and, where it has
them and does not saturate, what onnxruntime gives."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest

import superopt
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import read_model
from tests.support.onnx_io.quantized_case import Case, draw_bytes, draw_scale
from tests.support.onnx_io.quantized_operators import DRAWS

DEFAULT_SEEDS = 10
SLOW_SEEDS = 60
ONLY_A_SCHEMA = ("QLinearReduceMean",)  # onnxruntime has no kernel on a CPU


def runtime_results(case: Case) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(case.model().SerializeToString(), options)
    return [np.asarray(r) for r in session.run(None, case.feeds())]


def check_close(got: np.ndarray, want: np.ndarray, of: object) -> None:
    assert (got.shape, got.dtype) == (want.shape, want.dtype), of
    if got.dtype.kind == "f":
        size = float(np.abs(want).max(initial=1))
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-4 * size, err_msg=str(of))
    else:
        steps = np.abs(got.astype(int) - want.astype(int))
        assert steps.max(initial=0) <= 1, of
        assert (steps > 0).mean() < 0.05 or steps.size < 40, of


@pytest.mark.one_in(20)
@pytest.mark.parametrize(
    "seed",
    [
        *range(DEFAULT_SEEDS),
        *(pytest.param(s, marks=pytest.mark.slow) for s in range(DEFAULT_SEEDS, SLOW_SEEDS)),
    ],
)
@pytest.mark.parametrize("kind", DRAWS)
def test_random_operators_give_their_definition(kind: str, seed: int) -> None:
    case = DRAWS[kind](np.random.default_rng(seed))
    exe = superopt.compile(case.model(), threads=1)
    assert not exe.fallback_nodes({}), case
    got = exe.run(case.feeds())
    theirs = case.wanted if kind in ONLY_A_SCHEMA else runtime_results(case)
    for k, (want, other) in enumerate(zip(case.wanted, theirs, strict=True)):
        check_close(got[f"y{k}"], want, case)
        check_close(got[f"y{k}"], other, case)


@pytest.mark.parametrize("kind", ["MatMulIntegerToFloat", "QLinearSoftmax", "QLinearAdd", "QGemm"])
def test_any_first_size(kind: str) -> None:
    case = next(c for c in cases(kind) if c.attrs.get("axis") != 0 and not c.attrs.get("transA"))
    case.inputs = tuple(n for n in case.inputs if n[-1] != "s")
    exe = superopt.compile(case.model("n" if kind != "QLinearAdd" else None), threads=1)
    check_close(exe.run(case.feeds())["y0"], case.wanted[0], case)


def cases(kind: str) -> list[Case]:
    return [DRAWS[kind](np.random.default_rng(seed)) for seed in range(20)]


def test_a_mask_times_the_least_float() -> None:
    """As in exported BERTs. The least float is -127 steps, which float32 does not hold."""
    step = np.float32(-np.finfo(np.float32).min / 127)
    operands = [("x", np.array([-128, 127], np.int8)), ("xs", np.float32(1 / 255))]
    operands += [("xz", np.int8(-128)), ("b", np.int8(-127)), ("bs", step), ("bz", np.int8(0))]
    operands += [("ys", np.float32(step / 2)), ("yz", np.int8(127))]
    case = Case("QLinearMul", operands, {}, ("x",), [np.array([127, -127], np.int8)])
    got = superopt.compile(case.model(), threads=1).run(case.feeds())["y0"]
    np.testing.assert_array_equal(got, case.wanted[0])
    np.testing.assert_array_equal(got, runtime_results(case)[0])


def test_absent_zero_points_are_zero() -> None:
    rng = np.random.default_rng(0)
    x = draw_bytes(rng, (3, 5), np.dtype(np.int8))
    scale = draw_scale(rng)
    operands = [("x", x), ("xs", scale), ("xz", None), ("ys", scale), ("yz", None)]
    case = Case("QLinearLeakyRelu", operands, {"alpha": 0.5}, ("x",), [x])
    got = superopt.compile(case.model(), threads=1).run({"x": x})["y0"]
    np.testing.assert_array_equal(got, np.where(x < 0, np.rint(x / 2), x).astype(np.int8))


@pytest.mark.parametrize(
    ("op", "operands", "attrs", "reason"),
    [
        ("QLinearMul", {"b": np.zeros(3, np.float32)}, {}, "not of int8 or uint8"),
        ("QLinearMul", {"as": np.ones(3, np.float32)}, {}, "not one number"),
        ("QLinearMul", {"az": np.int16(1)}, {}, "a zero point"),
        ("QGemm", {"c": np.zeros(4, np.float32)}, {}, "not of int32"),
        ("QAttention", {}, {"do_rotary": 1}, "do_rotary"),
        ("GatherBlockQuantized", {}, {"bits": 3}, "3 bits"),
        ("MatMulNBits", {"groups": np.zeros(150, np.int32)}, {}, "rows each"),
    ],
)
def test_other_forms_are_opaque(
    op: str, operands: dict[str, np.ndarray], attrs: dict[str, object], reason: str
) -> None:
    """They run in onnxruntime, if it has them, and the reason is said."""
    case = next(c for c in cases(op) if op != "QGemm" or dict(c.operands)["c"] is not None)
    names = dict(case.operands) | operands
    case.operands, case.attrs = [*names.items()], case.attrs | attrs
    reasons = import_model(read_model(case.model())).opaque_reasons
    assert any(reason in why for _, why in reasons), reasons
