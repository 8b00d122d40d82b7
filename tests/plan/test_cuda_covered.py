"""Sums on a GPU of so many terms that no block divides them: the last block goes beyond."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from superopt.compilation.cuda import load_compiler
from superopt.kernels.triton.codegen import triton_text
from superopt.onnx_io.read.source import read_model
from superopt.plan.rewrites.reductions import row_occupancy
from tests.plan.gpu_models import drawn, node
from tests.plan.test_compile import F, model, reference
from tests.plan.test_cuda import conv, feeds, interpreted, near

pytestmark = pytest.mark.gpu
__all__ = ["interpreted"]  # a fixture of this module, too


def product(terms: int, *batch: int, fixed: bool = True) -> onnx.ModelProto:
    w = drawn(terms, 40, scale=terms**-0.5)
    given = {"x": (F, [*batch, 33, terms])}
    if fixed:
        return model([node("MatMul", "x", "w", "y")], given, ["y"], {"w": w})
    given["w"] = (F, [*batch, terms, 40])
    return model([node("MatMul", "x", "w", "y")], given, ["y"])


def summed(op: str, *shape: int, axis: int = -1, fn: str = "Softplus") -> onnx.ModelProto:
    """Of numbers below 0, of which nothing is the largest."""
    nodes = [node(fn, "x", "a"), node("Neg", "a", "b"), node(op, "b", "y", axes=[axis])]
    return model(nodes, {"x": (F, [*shape])}, ["y"], {})


def normal(*shape: int) -> onnx.ModelProto:
    scale = drawn(shape[-1])
    nodes = [node("LayerNormalization", "x", "s", "y", axis=-1)]
    return model(nodes, {"x": (F, [*shape])}, ["y"], {"s": scale})


DOTS = {
    "a matrix": lambda: product(211),
    "a long matrix": lambda: product(1031),
    "of both given": lambda: product(577, fixed=False),
    "matrices": lambda: product(139, 2, fixed=False),
    "channels": lambda: conv(211, 24, 5, 3, pads=[1] * 4),
    "strided channels": lambda: conv(139, 16, 7, 3, strides=[2, 2]),
}
OTHERS = {
    "a sum": lambda: summed("ReduceL1", 3, 2063),
    "the largest": lambda: summed("ReduceMax", 3, 2063),
    "the least": lambda: summed("ReduceMin", 1, 577, 40, axis=1),
    "a product of numbers": lambda: summed("ReduceProd", 2, 1031, fn="Abs"),
    "squares": lambda: summed("ReduceSumSquare", 2, 1031),
    "a softmax": lambda: model([node("Softmax", "x", "y")], {"x": (F, [2, 16411])}, ["y"]),
    "a norm": lambda: normal(2, 16411),
}


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16"])
@pytest.mark.parametrize("name", [*DOTS, *OTHERS])
def test_the_same(name: str, precision: str) -> None:
    m = {**DOTS, **OTHERS}[name]()
    given = feeds(m)
    if name == "a product of numbers":  # near 1, and exact: of 1031 the errors add up
        given = {"x": (1 + drawn(2, 1031) * 1e-3).astype(np.float32)}
    near(
        load_compiler.compile_model(read_model(m), precision).run(given),
        reference(m, given),
        precision,
    )


@pytest.mark.parametrize("name", DOTS)
def test_tensor_cores_multiply(name: str) -> None:
    for precision in ("tf32", "fp16"):
        exe = load_compiler.compile_model(read_model(DOTS[name]()), precision)
        texts = [
            triton_text(k, exe.device.dot_precision).source
            for k in exe.variant({}).program.kernels.values()
        ]
        assert any("tl.dot(" in x for x in texts)


@pytest.mark.parametrize("name", OTHERS)
def test_no_sum_is_term_by_term(name: str) -> None:
    """Nor of so few at a time that there are more than a hundred steps."""
    exe = load_compiler.compile_model(read_model(OTHERS[name]()))
    texts = [
        triton_text(k, exe.device.dot_precision).source
        for k in exe.variant({}).program.kernels.values()
    ]
    steps = [int(x.split("range(0, ")[1].split(")")[0]) for t in texts for x in t.splitlines()
             if " in range(0, " in x]  # fmt: skip
    assert max(steps, default=0) <= 100


LARGE = 1 << 13
ALONE = {
    "a softmax": lambda n: model([node("Softmax", "x", "y")], {"x": (F, [1, n])}, ["y"]),
    "a norm": lambda n: normal(1, n),
}


@pytest.mark.parametrize("name", ALONE)
def test_a_large_row_is_of_many_programs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    m = ALONE[name](LARGE)
    assert len(load_compiler.compile_model(read_model(m)).variant({}).program.kernels) == 1
    monkeypatch.setattr(row_occupancy, "MAX_ROWS_MIN_ELEMENTS", ((1, LARGE),))
    exe = load_compiler.compile_model(read_model(m))
    near(exe.run(feeds(m)), reference(m, feeds(m)), "fp32")
    made = exe.variant({}).only_step.gpu_program
    reads = [n for _, _, n, given, _ in made.launches if any(a is made.inputs[0] for a in given)]
    assert reads
    assert min(reads) > 8
