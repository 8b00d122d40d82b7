"""On a GPU: powers that are whole numbers are these, where a Cast or a type cuts off what is behind
the point; zeros have signs; and what is no number stays so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import superopt
from superopt.compilation.cuda.device import DOT_PRECISIONS
from tests.support.compilation.models import model
from tests.support.gpu.models import node

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("interpreted")]

KINDS = {"int32": TensorProto.INT32, "int64": TensorProto.INT64, "double": TensorProto.DOUBLE}
TYPES: dict[str, Any] = {"int32": np.int32, "int64": np.int64, "double": np.float64}
POWERS = [0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 8.0]


@pytest.mark.round_robin(2)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of roots of what is below 0
@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("power", ["float", "double"])
@pytest.mark.parametrize("kind", KINDS)
def test_whole_powers(kind: str, power: str, held: bool) -> None:
    x = np.arange(-12, 13).astype(TYPES[kind])
    wide = np.float32 if power == "float" else np.float64
    to = TensorProto.INT64
    for number in (0.5, 2.0, 4.0) if held else POWERS:
        y = np.array(number, wide)
        inputs = {"x": (KINDS[kind], [25])}
        if not held:
            inputs["p"] = (getattr(TensorProto, power.upper()), [])
        nodes = [node("Pow", "x", "p", "a"), node("Cast", "a", "y", to=to)]
        m = model(nodes, inputs, ["y"], {"p": y} if held else {})
        got = superopt.compile(m, target="cuda").run({"x": x} | ({} if held else {"p": y}))["y"]
        wanted = np.trunc(np.power(x.astype(np.float64), number))
        some = ~np.isnan(wanted)  # no integer is that
        np.testing.assert_array_equal(got[some], wanted[some].astype(np.int64))


def test_large_whole_powers() -> None:
    """As far as a double has digits for them."""
    x, y = np.arange(1, 8, dtype=np.int64), np.arange(21, dtype=np.float64)
    inputs = {"x": (TensorProto.INT64, [7, 1]), "p": (TensorProto.DOUBLE, [21])}
    m = model([node("Pow", "x", "p", "y")], inputs, ["y"], {})
    got = superopt.compile(m, target="cuda").run({"x": x[:, None], "p": y})["y"]
    wanted = np.array([[int(a) ** int(b) for b in y] for a in x])
    np.testing.assert_allclose(got, wanted, rtol=1e-14)
    np.testing.assert_array_equal(got[wanted < 1 << 53], wanted[wanted < 1 << 53])


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_negative_zeros(precision: str) -> None:
    """Of which one is the reciprocal."""
    x = np.array([0.0, -0.0, 1.0, -2.0], np.float32)
    m = model([node("Neg", "x", "a"), node("Reciprocal", "a", "y")], {"x": (1, [4])}, ["y"], {})
    got = superopt.compile(m, target="cuda", precision=precision).run({"x": x})["y"]
    np.testing.assert_array_equal(got, [-np.inf, np.inf, -1.0, 0.5])


@pytest.mark.parametrize("bits", [0x7FC00000, 0x7FFFFFFF, 0xFFC00000, 0xFFFFFFFF])
def test_nan_stays_nan(bits: int) -> None:
    """Whichever it is, between kernels, too: a GPU makes 0x7fffffff, this machine others."""
    x = np.ones((32, 32), np.float32)
    x[3, 5] = np.uint32(bits).view(np.float32)
    nodes = [node("MatMul", "x", "w", "a"), node("MatMul", "a", "w", "y")]
    w = np.eye(32, dtype=np.float32)
    m = model(nodes, {"x": (1, [32, 32])}, ["y"], {"w": w})
    for precision in DOT_PRECISIONS:
        got = superopt.compile(m, target="cuda", precision=precision).run({"x": x})["y"]
        np.testing.assert_array_equal(np.isnan(got), np.arange(32)[:, None] == [3] * 32)
