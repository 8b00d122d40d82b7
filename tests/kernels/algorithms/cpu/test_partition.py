"""How threads share kernels: enough parts of equal size, in an order in which little is read."""

from __future__ import annotations

import numpy as np
import pytest

from superopt.kernels.algorithms.build import build_kernels
from superopt.kernels.algorithms.cpu.partition import divide_tiles, imbalance, traffic
from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.algorithms.space import best_option, build_choice, options
from superopt.kernels.llvm.codegen import chunk_count
from superopt.kernels.loops.layout import parse_layout
from superopt.kernels.loops.lower import lower_kernel
from superopt.kernels.processor import AVX2, XEON, ZEN5, Processor
from superopt.kernels.runtime.cpu import load_kernel
from superopt.te.expr.tensor import Tensor
from tests.support.kernels.build import product
from tests.support.kernels.options import run_option

PROCESSORS = {"Xeon": XEON, "Zen 5": ZEN5, "AVX2": AVX2}
# Channels, side, outputs, window: of resnet50. Rows, terms, columns: of BERT.
CONVOLUTIONS = [
    (64, 56, 64, 3), (128, 28, 128, 3), (256, 14, 256, 3), (512, 7, 512, 3), (64, 56, 64, 1),
    (64, 56, 256, 1), (512, 28, 128, 1), (256, 14, 1024, 1), (2048, 7, 512, 1),
]  # fmt: skip
PRODUCTS = [(128, 768, 768), (128, 768, 3072), (128, 3072, 768)]


def convolution(
    c: int, side: int, out: int, k: int, processor: Processor, threads: int
) -> tuple[Problem, list[Tensor]]:
    pads = (k // 2,) * 4
    t, [x, w] = product("Conv", (1, c, side, side), (out, c, k, k), pads=pads)
    lanes = 8 if processor is AVX2 else 16
    layouts = {
        x: parse_layout(f"i0 i1//{lanes} i2+{k // 2} i3+{k // 2} i1%{lanes}"),
        t: parse_layout(f"i0 i1//{lanes} i2 i3 i1%{lanes}"),
    }
    return Problem(t, layouts, {w}, 4 * lanes, processor=processor, threads=threads), [x, w]


def matrix_product(
    m: int, k: int, n: int, processor: Processor, threads: int
) -> tuple[Problem, list[Tensor]]:
    t, [x, w] = product("MatMul", (1, m, k), (k, n))
    width = 32 if processor is AVX2 else 64
    return Problem(t, {}, {w}, width, processor=processor, threads=threads), [x, w]


def part_counts(p: Problem) -> list[int]:
    found = build_kernels(p, build_choice(p, best_option(p)))
    return [chunk_count(k.kernel) for k in found]


@pytest.mark.parametrize("threads", [4, 16])
@pytest.mark.parametrize("name", PROCESSORS)
def test_kernels_have_parts_enough(name: str, threads: int) -> None:
    some = [convolution(*case, PROCESSORS[name], threads)[0] for case in CONVOLUTIONS]
    some += [matrix_product(*case, PROCESSORS[name], threads)[0] for case in PRODUCTS]
    for p in some:
        if best_option(p).algorithm == "strassen":
            continue  # its parts are those of its form
        for count in part_counts(p):
            assert count / (-(-count // threads) * threads) > 0.74, (best_option(p), count)


def test_one_thread_has_large_parts() -> None:
    p, _ = convolution(64, 56, 256, 1, XEON, 1)
    assert part_counts(p) == [8]


@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize("threads", [3, 16])
def test_kernels_of_many_threads_are_right(name: str, threads: int) -> None:
    cases = [
        convolution(32, 13, 48, 3, PROCESSORS[name], threads),
        convolution(512, 7, 32, 3, PROCESSORS[name], threads),
        convolution(48, 11, 80, 1, PROCESSORS[name], threads),
        matrix_product(37, 3072, 48, PROCESSORS[name], threads),
    ]
    for p, operands in cases:
        is_right(p, operands, [best_option(p)])


def test_winograd_of_blocks_of_rows_is_right() -> None:
    p, operands = convolution(32, 22, 48, 3, XEON, 16)
    some = [o for o in options(p) if o.algorithm == "winograd" and o["separate"]]
    divided = [o for o in some if o["block"] < -(-22 // o["m"])]
    blocks = {(o["m"], o["block"]): o for o in divided}
    assert {(4, 1), (4, 2), (2, 1), (2, 4)} <= set(blocks)  # 6 and 11 rows of tiles
    is_right(p, operands, list(blocks.values()))


def is_right(p: Problem, operands: list[Tensor], some: list) -> None:
    rng = np.random.default_rng(1)
    given = {i: rng.standard_normal(i.shape).astype(np.float32) for i in operands}
    wanted = np.zeros(p.tensor.shape, np.float32)  # type: ignore[arg-type]
    load_kernel(lower_kernel("k", operands, [p.tensor]))(*given.values(), wanted)
    for option in some:
        got = run_option(p, option, given).reshape(wanted.shape)
        np.testing.assert_allclose(got, wanted, atol=3e-5 * np.abs(wanted).max())


def test_parts_of_long_sums_have_row_tiles_for_k_blocks() -> None:
    p, _ = matrix_product(128, 3072, 768, XEON, 16)
    assert best_option(p)["k_block"] == 768
    assert part_counts(p) == [64]  # of four row tiles, 16 panels
    p, _ = convolution(512, 7, 512, 3, XEON, 16)
    assert best_option(p)["k_block"] == 0  # a part has a row tile or two
    p, _ = convolution(512, 7, 512, 3, XEON, 1)
    assert best_option(p)["k_block"] == 1152


@pytest.mark.parametrize("threads", [2, 4, 16, 61])
def test_tiles_are_divided_evenly(threads: int) -> None:
    for tiles in (1, 7, 10, 16, 131, 523):
        for others in (1, 4, 11, 64):
            parts, time = divide_tiles(tiles, others, threads)
            assert 1 <= parts <= tiles
            fewest = divide_tiles(tiles, others, threads, min(3, tiles))
            assert fewest[0] >= min(3, tiles)
            assert time <= fewest[1] * (1 + 1e-9)
            if tiles * others >= 8 * threads:
                assert time < 1.5
                assert parts * others >= threads


def test_one_thread_divides_by_caches_alone() -> None:
    assert divide_tiles(131, 4, 1) == (1, 1.0)
    assert divide_tiles(131, 4, 1, 4) == (4, 1.0)  # 33 tiles, of 132
    assert divide_tiles(13, 4, 1, 2) == (2, 1.0)
    assert imbalance(3, 1) == 1.0


def test_the_order_of_parts() -> None:
    """Panel by panel where constants are large, else row by row: others wrote most rows of a."""
    assert traffic(0.4e6, 9.4e6, 16, 64, 16)[1]
    assert not traffic(1.8e6, 0.1e6, 56, 4, 16)[1]
    read, _ = traffic(1.6e6, 1.6e6, 16, 16, 16)
    assert read == pytest.approx(1.7e6)  # a share of rows, and all constants
