"""Register tiles are no larger than a machine's registers: what does not fit is slow, not wrong."""

from __future__ import annotations

from typing import Any

import pytest

from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.algorithms.space import best_option, options
from superopt.kernels.llvm.register_tiles import register_tiles
from superopt.kernels.loops.layout import parse_layout
from superopt.kernels.loops.option import Option
from superopt.kernels.processor import AVX2, XEON, ZEN4, ZEN5
from superopt.kernels.runtime.engine import Machine, host
from tests.support.kernels.build import product

CASES: dict[str, tuple[str, list[tuple[int, ...]], dict[str, Any]]] = {
    "3x3": ("Conv", [(1, 64, 28, 28), (128, 64, 3, 3)], {"pads": (1, 1, 1, 1)}),
    "3x3 of stride 2": ("Conv", [(1, 64, 28, 28), (128, 64, 3, 3)], {"strides": (2, 2)}),
    "1x1": ("Conv", [(1, 256, 14, 14), (512, 256, 1, 1)], {}),
    "matrices": ("MatMul", [(128, 768), (768, 768)], {}),
    "few": ("MatMul", [(64, 256), (256, 3)], {}),
}


def problem(case: str, width: int, registers: int) -> Problem:
    op, shapes, attrs = CASES[case]
    t, [x, w] = product(op, *shapes, **attrs)
    lies = {x: parse_layout("i0 i1//16 i2+1 i3+1 i1%16"), t: parse_layout("i0 i1//16 i2 i3 i1%16")}
    return Problem(
        t, lies if op == "Conv" else {}, {w}, width, processor=AVX2 if registers == 16 else ZEN5
    )


def held(o: Option) -> int:
    """Vectors of a tile of the products."""
    knobs = dict(o.knobs)
    return knobs.get("rows", 1) * knobs.get("columns", 1) * knobs.get("vectors", 1)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("width", "registers"), [(64, 32), (32, 16), (16, 16)])
def test_tiles_fit(case: str, width: int, registers: int) -> None:
    p = problem(case, width, registers)
    some = [
        o
        for o in options(p)
        if o.algorithm in ("gemm", "collapsed_gemm", "winograd", "strassen", "small_n_gemm")
    ]
    assert some
    assert all(held(o) < registers for o in some)


def test_a_tile_keeps_the_machine_busy() -> None:
    """Sums are added to again after four cycles: fewer than eight at a time would wait."""
    _, rows, vectors = min(register_tiles(56, 128, 8, processor=AVX2))
    assert 8 <= rows * vectors <= 12
    assert held(best_option(problem("3x3 of stride 2", 32, 16))) <= 12


def test_machines() -> None:
    assert Machine("znver3", "+avx,+avx2", 32).processor is AVX2
    assert Machine("znver4", "+avx512f", 64).processor is ZEN4
    assert Machine("znver5", "+avx512f", 64).processor is ZEN5
    assert Machine("rocketlake", "+avx512f,+amx-tile", 64).processor is XEON
    assert Machine("neoverse-n1", "+neon,+fp-armv8", 16).processor.vector_registers == 32
    assert Machine("x86-64", "+sse2", 16).processor.vector_registers == 16
    assert host().processor.vector_registers in (16, 32)
