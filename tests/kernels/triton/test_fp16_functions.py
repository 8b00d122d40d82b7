"""Functions of halves on a GPU, whose errors are no larger than those of what is stored."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from superopt.compilation.cuda import load_compiler
from superopt.compilation.model.executable import Executable
from superopt.kernels.triton.codegen import triton_text
from superopt.onnx_io.read.source import read_model
from tests.support.compilation.models import F, model, reference
from tests.support.gpu.compilation import feeds, near
from tests.support.gpu.device import choose
from tests.support.gpu.models import drawn, node

pytestmark = pytest.mark.gpu
LARGE_ARGUMENTS = [3.0, 3.2, 10.0, 1e3, 6e4, np.inf]


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    choose(monkeypatch)


def between(*after: tuple[str, ...]) -> onnx.ModelProto:
    """Two products, and what is made of the first one's `a` until there is `b`."""
    nodes = [
        node("MatMul", "x", "w", "a"),
        *(node(*x) for x in after),
        node("MatMul", "b", "v", "y"),
    ]
    known = {"w": drawn(32, 48, scale=0.3), "v": drawn(48, 32, scale=0.2), "c": np.float32(0.5)}
    return model(nodes, {"x": (F, [64, 32])}, ["y"], known | {"one": np.float32(1)})


def texts(exe: Executable) -> str:
    return "\n".join(
        triton_text(k, exe.device.dot_precision).source
        for k in exe.variant({}).program.kernels.values()
    )


def test_an_fp16_erf() -> None:
    """Within 2.5e-5, and 1 where it is, but for how halves are rounded."""
    half = TensorProto.FLOAT16
    m = model([node("Erf", "x", "y")], {"x": (half, [512])}, ["y"])
    m.graph.output[0].type.tensor_type.elem_type = half
    x = np.linspace(-5, 5, 512).astype(np.float16)
    x[:13] = [*LARGE_ARGUMENTS, *(-n for n in LARGE_ARGUMENTS), np.nan]
    exe = load_compiler.compile_model(read_model(m))
    assert "_erf_short(" in texts(exe)
    got = exe.run({"x": x})["y"].astype(np.float64)
    true = np.array([math.erf(v) for v in x.astype(np.float64)])
    assert (np.abs(got - true)[13:] <= 2**-11 * np.abs(true[13:]) + 2.6e-5).all()
    assert list(got[:12]) == [1] * 6 + [-1] * 6
    assert np.isnan(got[12])


GELU = (("Mul", "a", "c", "h"), ("Erf", "h", "e"), ("Add", "e", "one", "f"), ("Mul", "a", "f", "b"))
HALVED = (("Erf", "a", "e"), ("Div", "e", "c", "b"))
GROWING = (("Erf", "a", "e"), ("Exp", "e", "b"))


@pytest.mark.parametrize(
    ("after", "precision", "short"),
    [(GELU, "fp16", True), (HALVED, "bf16", True), (GELU, "fp32", False), (GELU, "tf32", False),
     (GROWING, "fp16", False)],
)  # fmt: skip
def test_where_errors_stay_as_large(
    after: tuple[tuple[str, ...], ...], precision: str, short: bool
) -> None:
    """Not in what is stored in 32 bits, nor where they grow."""
    m = between(*after)
    exe = load_compiler.compile_model(read_model(m), precision)
    near(exe.run(feeds(m)), reference(m, feeds(m)), precision)
    text = texts(exe)
    assert ("_erf_short(" in text, "tl.erf(" in text) == (short, not short)


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_not_for_fp16_values_of_the_model(precision: str) -> None:
    """What a model computes in 32 bits and casts is rounded once: 1 - erf(x) is small."""
    half = TensorProto.FLOAT16
    after = (("Erf", "x", "e"), ("Sub", "one", "e", "f"), ("Mul", "f", "k", "h"))
    nodes = [*(node(*x) for x in after), node("Cast", "h", "y", to=half)]
    m = model(nodes, {"x": (F, [64])}, ["y"], {"one": np.float32(1), "k": np.float32(1000)})
    m.graph.output[0].type.tensor_type.elem_type = half
    x = np.linspace(2.2, 3, 64).astype(np.float32)
    exe = load_compiler.compile_model(read_model(m), precision)
    assert "_erf_short(" not in texts(exe)
    true = np.array([1000 * math.erfc(v) for v in x.astype(np.float64)])
    assert np.abs(exe.run({"x": x})["y"] - true).max() < 2e-3


def test_not_where_it_decides() -> None:
    """An integer of it is 0 below 1, however near."""
    after = (("Erf", "a", "e"), ("Cast", "e", "i"), ("Cast", "i", "b"))
    m = between(*after)
    kinds = iter((TensorProto.INT32, F))
    for n in m.graph.node:
        if n.op_type == "Cast":
            n.attribute.append(onnx.helper.make_attribute("to", next(kinds)))
    assert "_erf_short(" not in texts(load_compiler.compile_model(read_model(m), "fp16"))
