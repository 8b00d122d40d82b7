"""Products of matrices on a GPU: how many terms of a sum a step takes."""

from __future__ import annotations

import pytest

from superopt.compilation.cuda import load_compiler
from superopt.kernels.algorithms import space
from superopt.kernels.triton.codegen import triton_text
from superopt.onnx_io.read.source import read_model
from tests.support.compilation.models import F, model, reference
from tests.support.gpu.compilation import feeds, near
from tests.support.gpu.device import choose
from tests.support.gpu.models import drawn, heads, node

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("interpreted")]


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    choose(monkeypatch)


@pytest.mark.parametrize("terms", [61, 67, 127])
def test_terms_that_nothing_divides(terms: int) -> None:
    """Up to 128 they are one block."""
    nodes = [node("MatMul", "x", "w", "y")]
    m = model(nodes, {"x": (F, [32, terms])}, ["y"], {"w": drawn(terms, 24)})
    exe = load_compiler.compile_model(read_model(m), "fp32")
    near(exe.run(feeds(m)), reference(m, feeds(m)), "fp32")
    (used,) = exe.variant({}).program.options.values()
    assert (used.algorithm, used["k_block"], exe.fallback_nodes({})) == ("gemm", terms, [])


@pytest.mark.parametrize(
    ("terms", "precision", "first"), [(128, "fp16", 128), (256, "fp16", 64), (128, "fp32", 32)]
)
def test_steps_of_more_terms(terms: int, precision: str, first: int) -> None:
    """Twice as many at a time are a way, too: the first one of halves where that is one step."""
    nodes = [node("MatMul", "x", "v", "a"), node("MatMul", "a", "w", "y")]
    known = {"v": drawn(16, terms), "w": drawn(terms, 64, scale=terms**-0.5)}
    m = model(nodes, {"x": (F, [64, 16])}, ["y"], known)
    exe = load_compiler.compile_model(read_model(m), precision)
    near(exe.run(feeds(m)), reference(m, feeds(m)), precision)
    program = exe.variant({}).program
    key = program.call_problems[-1]
    deep = 64 if precision == "fp16" else 32
    options = list(space.options(program.problems[key], "cuda", vendor=False))
    assert {o["k_block"] for o in options if o.algorithm == "gemm"} == {deep, 2 * deep}
    assert program.options[key]["k_block"] == first


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_heads_that_share_keys_are_products_of_their_own(precision: str) -> None:
    """Where attention is not one kernel: rows of one block all read the same keys."""
    m = heads(40, 4, 32, grouped=2)
    exe = load_compiler.compile_model(read_model(m), precision, "E1")
    near(exe.run(feeds(m)), reference(m, feeds(m)), precision)
    program = exe.variant({}).program
    some = [c.function for c, k in zip(program.calls, program.call_problems, strict=True)
            if program.options[k].algorithm == "gemm"]  # fmt: skip
    texts = [triton_text(program.kernels[x], exe.device.dot_precision).source for x in some]
    assert [x.count("tl.dot(") for x in texts] == [1] * 4


def test_rows_of_many_matrices_by_a_vector_each() -> None:
    """Programs read terms side by side: a result of one column has no neighbours in a row."""
    m = model([node("MatMul", "x", "w", "y")],
              {"x": (F, [3, 4, 300, 40]), "w": (F, [3, 4, 40, 1])}, ["y"])  # fmt: skip
    exe = load_compiler.compile_model(read_model(m))
    near(exe.run(feeds(m)), reference(m, feeds(m)), "fp32")
    (used,) = exe.variant({}).program.options.values()
    assert used.algorithm == "block_reduction"
