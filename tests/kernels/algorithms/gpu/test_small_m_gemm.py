"""Products of two to eight rows on a GPU: all rows in one program, or by tensor cores, for which
rows are columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from superopt.compilation.cuda import load_compiler
from superopt.kernels.algorithms import space
from superopt.kernels.algorithms.problem import Choice, Problem
from superopt.kernels.loops.option import Option
from superopt.onnx_io.read.source import read_model
from tests.support.compilation.models import F, model, reference
from tests.support.gpu.compilation import feeds, near
from tests.support.gpu.models import drawn, node
from tests.support.gpu.small_m_gemm import CASES, product

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("interpreted")]


def ways(name: str) -> tuple[Problem, list[Option]]:
    p = (
        load_compiler.compile_model(read_model(product(name)), "fp16", vendor=False)
        .variant({})
        .program
    )
    (found,) = (x for x in p.problems.values() if x.constants)
    return found, list(space.options(found, "cuda", False))


@pytest.mark.one_in(9)
@pytest.mark.parametrize("turn", range(18))
@pytest.mark.parametrize("name", list(CASES)[:6])
@pytest.mark.parametrize(
    "precision", ["fp16", *(pytest.param(x, marks=pytest.mark.slow) for x in ("fp32", "bf16"))]
)
def test_every_way(name: str, turn: int, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    choice: Any = space.choose

    def choose(p: Problem, own: Option | None, target: str, vendor: bool) -> Choice:
        some = list(space.options(p, "cuda", vendor)) if p.constants else []
        return (
            space.build_choice(p, some[turn], "cuda")
            if turn < len(some)
            else choice(p, own, target, vendor)
        )

    monkeypatch.setattr(space, "choose", choose)
    m = product(name)
    near(
        load_compiler.compile_model(read_model(m), precision).run(feeds(m)),
        reference(m, feeds(m)),
        precision,
    )


@pytest.mark.parametrize("name", CASES)
def test_which_ways_there_are(name: str) -> None:
    """Rows together from two on; by tensor cores from five on, of eight and less as columns."""
    rows = int(np.prod(CASES[name][0]))
    _, some = ways(name)
    assert len(some) == len(set(some))
    assert any(o.algorithm == "small_m_gemm" for o in some) == (2 <= rows <= 8)
    assert any(o.algorithm == "gemm" for o in some) == (rows >= 5)
    assert any(o.algorithm == "block_reduction" for o in some) == (rows <= 8)


@pytest.mark.parametrize("name", ["five", "of three dimensions", "eight"])
def test_rows_are_columns_of_dots(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    choice: Any = space.choose

    def choose(p: Problem, own: Option | None, target: str, vendor: bool) -> Choice:
        some = [o for o in space.options(p, "cuda", vendor) if o.algorithm == "gemm"]
        return space.build_choice(p, some[0], "cuda") if some else choice(p, own, target, vendor)

    monkeypatch.setattr(space, "choose", choose)
    m = product(name)
    exe = load_compiler.compile_model(read_model(m), "fp16")
    near(exe.run(feeds(m)), reference(m, feeds(m)), "fp16")
    (text,) = (x.text.source for x in exe.variant({}).only_step.gpu_program.loaded.values())
    assert "tl.dot" in text


def test_large_constants_are_for_tensor_cores() -> None:
    """Where reading the constant is what it takes; of small ones a block waits longer for those."""
    for terms, first in ((2048, "gemm"), (256, "small_m_gemm")):
        m = model(
            [node("MatMul", "x", "w", "p"), node("Tanh", "p", "y")], {"x": (F, [8, terms])}, ["y"],
            {"w": drawn(terms, 1024, scale=terms**-0.5)},
        )  # fmt: skip
        p = load_compiler.compile_model(read_model(m), "fp16", vendor=False).variant({}).program
        assert first in {o.algorithm.replace("split_k_gemm", "gemm") for o in p.options.values()}
