"""Scatters of whole rows, whose indices are repeated for each element, run as scatters of rows."""

import numpy as np
import pytest

import superopt
from superopt.compilation.cpu.native_segment import NativeSegment
from tests.support.onnx_io.rounds import session, text

ROWS, PLACES = 300, 900  # more than a kernel compares


def scatter(shape: str, reduction: str = "add", axis: int = 0, opset: int = 18) -> str:
    rest = [int(n) for n in shape.split(",")]
    rank = len(rest) + 1
    to = ", ".join(map(str, [PLACES, *rest]))
    ones = "".join(", 1" for _ in rest)
    return f"""<ir_version: 8, opset_import: ["" : {opset}]>
        g (float[{ROWS},{shape}] x, int64[{PLACES}] i, float[{PLACES},{shape}] u)
        => (float[{ROWS},{shape}] y)
        <int64[{rank}] to = {{{to}}}, int64[{rank}] column = {{{PLACES}{ones}}}> {{
            c = Reshape (i, column)
            e = Expand (c, to)
            a = Neg (x)
            b = ScatterElements <axis = {axis}, reduction = "{reduction}"> (a, e, u)
            y = Abs (b)
        }}"""


def drawn(shape: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    rest = [int(n) for n in shape.split(",")]
    return {
        "x": rng.standard_normal((ROWS, *rest), np.float32),
        "i": rng.integers(-ROWS, ROWS, PLACES),
        "u": rng.standard_normal((PLACES, *rest), np.float32),
    }


@pytest.mark.parametrize("shape", ["40", "5,8", "1"])
@pytest.mark.parametrize("reduction", ["add", "max"])
def test_rows(shape: str, reduction: str) -> None:
    m = text(scatter(shape, reduction))
    exe = superopt.compile(m)
    given = drawn(shape)
    (wanted,) = session(m).run(None, given)
    np.testing.assert_allclose(exe.run(given)["y"], wanted, rtol=1e-5, atol=1e-5)
    assert not exe.fallback_nodes({})
    (step,) = exe.variant({})
    assert isinstance(step, NativeSegment)
    shapes = [t.shape for k in step.code.program.kernels.values() for t in k.params]
    assert (PLACES, 1) in shapes  # indices, as of ScatterND


def test_another_axis_stays() -> None:
    m = text(scatter("40", axis=1).replace(f"[{ROWS},", f"[{PLACES},"))
    given = drawn("40") | {"i": np.random.default_rng(0).integers(-40, 40, PLACES)}
    given["x"] = np.zeros((PLACES, 40), np.float32)
    (wanted,) = session(m).run(None, given)
    exe = superopt.compile(m)
    np.testing.assert_allclose(exe.run(given)["y"], wanted, rtol=1e-5, atol=1e-5)
    assert "ScatterND" not in {n.op.name for n, _ in exe.fallback_nodes({})}
