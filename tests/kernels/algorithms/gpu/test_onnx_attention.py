"""ONNX's Attention on a GPU: one kernel for scores, softmax and product, whatever masks them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from superopt.compilation.cuda import load_compiler
from superopt.onnx_io.read.source import read_model
from tests.support.compilation.models import model, reference
from tests.support.gpu.compilation import near
from tests.support.gpu.models import drawn, node

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("interpreted")]
F, B = TensorProto.FLOAT, TensorProto.BOOL
N, T = 20, 37


def attention(mask: int = 0, *shape: int, few: int = 2, **how: Any) -> onnx.ModelProto:
    """Of two heads, and a mask of this type, if any."""
    given = {"q": (F, (2, 2, N, 16)), "k": (F, (2, few, T, 16)), "v": (F, (2, few, T, 24))}
    given |= {"m": (mask, shape)} if mask else {}
    some = [helper.make_tensor_value_info(x, kind, sizes) for x, (kind, sizes) in given.items()]
    y = helper.make_tensor_value_info("y", F, (2, 2, N, 24))
    g = helper.make_graph([node("Attention", *given, "y", **how)], "g", some, [y])
    return helper.make_model(g, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)


def feeds(m: onnx.ModelProto) -> dict[str, np.ndarray]:
    out = {}
    for v in m.graph.input:
        sizes = [d.dim_value for d in v.type.tensor_type.shape.dim]
        x = drawn(*sizes, of=v.name)
        if v.type.tensor_type.elem_type == B:
            x = x > 0
            x[..., 3, :] = False  # a query that sees no key
        out[v.name] = x
    return out


MODELS = {
    "plain": (lambda: attention(), 1),
    "causal": (lambda: attention(is_causal=1), 1),
    "causal, shared keys": (lambda: attention(is_causal=1, few=1), 1),
    "masked": (lambda: attention(F, N, T), 3),
    "hidden": (lambda: attention(B, N, T), 3),
    "hidden by batch": (lambda: attention(B, 2, 1, N, T), 3),
    "masked and causal": (lambda: attention(F, N, T, is_causal=1), 4),
}


@pytest.mark.round_robin(2)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("name", MODELS)
def test_scores_are_not_in_memory(name: str, precision: str) -> None:
    """Nor queries and keys that are scaled. Beside it are kernels that look for queries without
    keys."""
    make, kernels = MODELS[name]
    m = make()
    exe = load_compiler.compile_model(read_model(m), precision)
    near(exe.run(feeds(m)), reference(m, feeds(m)), precision)
    program = exe.variant({}).program
    used = [o.algorithm for o in program.options.values()]
    assert used.count("online_attention") == 1
    assert not {"row_wise", "gemm"} & set(used)
    assert len(program.calls) <= kernels


@pytest.mark.parametrize(
    ("by", "kernels"), [(0.3, 1), (-7.0, 1), (1e-30, 2)], ids=["near 1", "below 0", "far"]
)
def test_a_product_of_what_is_scaled(by: float, kernels: int) -> None:
    """The sum is scaled instead, unless it might overflow then."""
    nodes = [node("Mul", "x", "s", "a"), node("MatMul", "a", "w", "y")]
    m = model(nodes, {"x": (F, [24, 40]), "w": (F, [40, 33])}, ["y"], {"s": np.float32(by)})
    exe = load_compiler.compile_model(read_model(m))
    near(exe.run(feeds(m)), reference(m, feeds(m)), "fp32")
    assert len(exe.variant({}).program.calls) == kernels
