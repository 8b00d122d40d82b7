"""Products that may be computed in bfloat16, and processors that can."""

from dataclasses import replace

import pytest

from superopt.kernels.processor import AMX
from superopt.kernels.runtime.amx import INTEGER_FEATURES, NEEDED_FEATURES, request_amx
from superopt.kernels.runtime.engine import Machine, host, psabi_machine

# Graphs in ONNX's text syntax; inputs whose names begin with "w" are constants.
GRAPHS = {
    "one row tile": "(float[16, 64] x, float[64, 32] w) => (float[16, 32] y) { y = MatMul(x, w) }",
    "one row": "(float[1, 96] x, float[96, 48] w) => (float[1, 48] y) { y = MatMul(x, w) }",
    "few rows": "(float[5, 96] x, float[96, 48] w) => (float[5, 48] y) { y = MatMul(x, w) }",
    "ragged sum": "(float[33, 100] x, float[100, 80] w) => (float[33, 80] y) { y = MatMul(x, w) }",
    "long sum": "(float[70, 1200] x, float[1200, 64] w) => (float[70, 64] y) { y = MatMul(x, w) }",
    "epilogue": """(float[2, 40, 64] x, float[64, 96] w, float[96] wb, float[2, 40, 96] z)
        => (float[2, 40, 96] y) { a = MatMul(x, w) b = Add(a, wb) c = Relu(b) y = Add(c, z) }""",
    "prologue": """(float[40, 64] x, float[64, 32] w) => (float[40, 32] y)
        { a = Exp(x) y = MatMul(a, w) }""",
    "transposed weight": """(float[24, 64] x, float[48, 64] w) => (float[24, 48] y)
        { y = Gemm<transB = 1>(x, w) }""",
    "heads": """(float[1, 4, 20, 32] x, float[128, 64] w) => (float[1, 20, 64] y)
        { t = Transpose<perm = [0, 2, 1, 3]>(x) s = Reshape(t, ws) y = MatMul(s, w) }""",
    "3 x 3": """(float[1, 64, 14, 14] x, float[32, 64, 3, 3] w) => (float[1, 32, 14, 14] y)
        { a = Relu(x) y = Conv<pads = [1, 1, 1, 1]>(a, w) }""",
    "7 x 7 pixels": """(float[1, 48, 7, 7] x, float[32, 48, 3, 3] w) => (float[1, 32, 7, 7] y)
        { a = Relu(x) y = Conv<pads = [1, 1, 1, 1]>(a, w) }""",
    "stride": """(float[2, 32, 29, 29] x, float[48, 32, 3, 3] w) => (float[2, 48, 15, 15] y)
        { a = Relu(x) b = Conv<pads = [1, 1, 1, 1], strides = [2, 2]>(a, w) y = Relu(b) }""",
    "1 x 1 of stride 2": """(float[1, 64, 28, 28] x, float[32, 64, 1, 1] w)
        => (float[1, 32, 14, 14] y) { a = Relu(x) y = Conv<strides = [2, 2]>(a, w) }""",
    "dilation": """(float[1, 32, 19, 19] x, float[16, 32, 3, 3] w) => (float[1, 16, 15, 15] y)
        { a = Relu(x) y = Conv<dilations = [2, 2]>(a, w) }""",
    "uneven width": """(float[1, 32, 9, 53] x, float[32, 32, 1, 3] w) => (float[1, 32, 9, 53] y)
        { a = Relu(x) y = Conv<pads = [0, 1, 0, 1]>(a, w) }""",
    "along one axis": """(float[1, 32, 60] x, float[32, 32, 5] w) => (float[1, 32, 56] y)
        { a = Relu(x) y = Conv(a, w) }""",
    "parts of a result": """(float[1, 32, 13, 13] x, float[32, 32, 1, 1] w,
        float[48, 32, 3, 3] w2) => (float[1, 80, 13, 13] z) { a = Relu(x) b = Conv(a, w)
        c = Conv<pads = [1, 1, 1, 1]>(a, w2) y = Concat<axis = 1>(b, c) z = Relu(y) }""",
}


def lacks(instructions: str) -> str:
    """Why this processor cannot run the instructions; empty if it can."""
    there = {f[1:] for f in host().features.split(",") if f.startswith("+")}
    missing = [f for f in NEEDED_FEATURES[instructions] if f not in there]
    if not missing and instructions == AMX and not request_amx():
        return "the system does not permit AMX"
    return f"this processor lacks {', '.join(missing)}" if missing else ""


def require(instructions: str) -> None:
    if why := lacks(instructions):
        pytest.skip(why)


def machine_with(instructions: str) -> Machine:
    """A processor that has the instructions."""
    base = psabi_machine("x86-64-v4")
    needed = {**NEEDED_FEATURES, **INTEGER_FEATURES}[instructions]
    more = ",".join(f"+{f}" for f in needed)
    return replace(base, features=f"{base.features},{more}")
