"""Kernels are right by the costs of each processor, whatever it is run on; and what a row says is
what schedules do."""

from __future__ import annotations

import numpy as np
import pytest

from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.algorithms.space import best_option, build_choice
from superopt.kernels.llvm.register_tiles import register_tiles
from superopt.kernels.loops.layout import Layout, ScatteredLayout, parse_layout
from superopt.kernels.loops.lower import lower_kernel
from superopt.kernels.loops.schedule import schedule_text
from superopt.kernels.processor import AVX2, XEON, ZEN4, ZEN5, Processor
from superopt.kernels.runtime.cpu import load_kernel
from superopt.te.expr.dtype import F32
from superopt.te.expr.tensor import Tensor, compute, reduce_sum
from tests.support.kernels.build import product
from tests.support.kernels.options import run_option

PROCESSORS = {p.name: p for p in (ZEN5, ZEN4, XEON, AVX2)}
CASES = {
    "rows beyond L2": ("MatMul", [(301, 1024), (1024, 96)], True),
    "terms that four does not divide": ("MatMul", [(37, 770), (770, 80)], True),
    "long sums": ("MatMul", [(33, 3072), (3072, 48)], True),
    "not constant": ("MatMul", [(2, 200, 64), (2, 64, 160)], False),
    "many channels": ("Conv", [(1, 512, 7, 9), (32, 512, 3, 3)], True),
    "few channels": ("Conv", [(1, 32, 11, 13), (48, 32, 3, 3)], True),
    "pixels": ("Conv", [(1, 64, 6, 7), (80, 64, 1, 1)], True),
}


def problem(case: str, processor: Processor) -> tuple[Problem, list[Tensor]]:
    op, shapes, is_constant = CASES[case]
    pads = (shapes[1][-1] // 2,) * 4
    t, [x, w] = product(op, *shapes, **({"pads": pads} if op == "Conv" else {}))
    layouts: dict[Tensor, Layout | ScatteredLayout] = {}
    if op == "Conv":
        layouts = {
            x: parse_layout(f"i0 i1//16 i2+{pads[0]} i3+{pads[0]} i1%16"),
            t: parse_layout("i0 i1//16 i2 i3 i1%16"),
        }
    width = 32 if processor is AVX2 else 64
    return Problem(t, layouts, {w} if is_constant else set(), width, processor=processor), [x, w]


def chosen_schedule(case: str, processor: Processor) -> str:
    p, _ = problem(case, processor)
    choice = build_choice(p, best_option(p))
    return schedule_text(choice.schedules[choice.root])


@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize("case", CASES)
def test_the_choice_is_right(case: str, name: str) -> None:
    p, operands = problem(case, PROCESSORS[name])
    rng = np.random.default_rng(1)
    given = {i: rng.standard_normal(i.shape).astype(np.float32) for i in operands}
    wanted = np.zeros(p.tensor.shape, np.float32)  # type: ignore[arg-type]
    load_kernel(lower_kernel("k", operands, [p.tensor]))(*given.values(), wanted)
    got = run_option(p, best_option(p), given).reshape(wanted.shape)
    np.testing.assert_allclose(got, wanted, atol=2e-5 * np.abs(wanted).max())


def test_a_xeon_unrolls_sums_and_blocks_rows() -> None:
    found = chosen_schedule("rows beyond L2", XEON)
    assert "split(k0, 4)" in found
    assert "unroll(k0.i)" in found
    assert "i0.o.o" in found  # 301 x 1024 x 4 bytes are in blocks of 512 KiB
    assert "i0.o.o" not in chosen_schedule("long sums", XEON)
    assert "unroll(k0.i)" not in chosen_schedule("terms that four does not divide", XEON)
    assert "unroll(k0.i)" not in chosen_schedule("rows beyond L2", ZEN5)


def test_a_xeon_blocks_channels() -> None:
    p, _ = problem("many channels", XEON)
    plain = Problem(p.tensor, p.layouts, p.constants, 64, allow_winograd=False, processor=XEON)
    assert best_option(plain)["k_block"] == 1152
    few, _ = problem("few channels", XEON)
    assert dict(best_option(few).knobs).get("k_block", 0) == 0


@pytest.mark.parametrize(("name", "algorithm"), [("Xeon", "packed_gemm"), ("Zen 5", "gemm")])
def test_who_packs_aligned_panels(name: str, algorithm: str) -> None:
    p, _ = problem("not constant", PROCESSORS[name])
    assert best_option(p).algorithm == algorithm


@pytest.mark.parametrize("name", PROCESSORS)
def test_strassen_does_not_pay_on_a_xeon(name: str) -> None:
    t, [_, w] = product("MatMul", (512, 768), (768, 768))
    width = 32 if name == "AVX2" else 64
    found = best_option(Problem(t, {}, {w}, width, processor=PROCESSORS[name]))
    assert (found.algorithm == "strassen") == (not name.startswith("Xeon"))


def test_unrolled_tiles_leave_registers_for_the_next_vectors() -> None:
    tiles = {
        name: {(rows, vectors) for _, rows, vectors in register_tiles(512, 768, 16, processor=p)}
        for name, p in PROCESSORS.items()
    }
    assert (9, 3) in tiles[ZEN5.name] - tiles[XEON.name]
    assert {(8, 3), (14, 2), (6, 4)} <= tiles[XEON.name]


def test_merged_dimensions_of_a_sum_are_loops() -> None:
    """The heads of attention, and the elements of each: without quotients in the inner loop."""
    x, w = Tensor("x", F32, (12, 16, 64)), Tensor("w", F32, (768, 48))
    t = compute((16, 48), lambda i, j: reduce_sum(768, lambda k: x[k // 64, i, k % 64] * w[k, j]))
    p = Problem(t, {}, {w}, 64, processor=XEON)
    choice = build_choice(p, best_option(p))
    assert "split(k0, 64); split(k0.i, 4)" in schedule_text(choice.schedules[choice.root])
    made = str(lower_kernel("k", [x, w], [t], choice.schedules, packed=[w]))
    assert "// 64" not in made
    assert "% 64" not in made
