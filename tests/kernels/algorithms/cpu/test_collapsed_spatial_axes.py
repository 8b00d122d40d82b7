"""Rows of a picture as one row: the same results, with edges, strides, additions and borders."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import helper

from superopt.kernels.algorithms.cpu.register_tiling import L1_PANEL_TERMS
from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.algorithms.space import best_option, build_choice, options
from superopt.kernels.loops.layout import parse_layout
from superopt.kernels.loops.option import Option
from superopt.kernels.processor import AVX2, ZEN5
from superopt.kernels.runtime.engine import host
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import read_model
from superopt.plan.passes import plan_program
from superopt.plan.program.execute import load_program
from superopt.plan.program.plan import Settings
from tests.support.compilation.models import F, model, near, reference
from tests.support.kernels.build import product

# channels, height, width, outputs, kernel, stride, pads, and what comes after
PROCESSORS = {16: AVX2, 32: ZEN5}
CASES = {
    "1x1": (24, 7, 7, 40, 1, 1, 0, ""),
    "1x1 with an addition": (24, 5, 9, 40, 1, 1, 0, "add"),
    "a result with a border": (24, 7, 7, 32, 1, 1, 0, "conv"),
    "3x3 of stride 2": (16, 13, 11, 32, 3, 2, 1, ""),
    "many rows": (512, 31, 29, 16, 1, 1, 0, ""),
    "of a few columns": (16, 9, 2, 24, 1, 1, 0, "add"),
}


def net(name: str) -> object:
    c, h, w, k, kernel, stride, pad, after = CASES[name]
    rng = np.random.default_rng(3)
    known = {
        "v": rng.standard_normal((c, 3, 1, 1)).astype(np.float32),
        "w": rng.standard_normal((k, c, kernel, kernel)).astype(np.float32),
    }
    how = {"strides": [stride] * 2, "pads": [pad] * 4}
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["a"]),
        helper.make_node("Conv", ["a", "w"], ["y"], **how),
    ]
    if after == "add":
        known["u"] = rng.standard_normal((k, 3, 1, 1)).astype(np.float32)
        nodes += [
            helper.make_node("Conv", ["x", "u"], ["b"]),
            helper.make_node("Add", ["y", "b"], ["z"]),
        ]
    elif after == "conv":
        known["u"] = rng.standard_normal((16, k, 3, 3)).astype(np.float32)
        nodes += [helper.make_node("Conv", ["y", "u"], ["z"], pads=[1] * 4)]
    return model(nodes, {"x": (F, [2, 3, h, w])}, ["z" if after else "y"], known)


LONG = {
    "a long sum": (448, 7, 9, 40, 1, 1, 0, "add"),
    "a long sum of windows": (48, 9, 7, 40, 3, 1, 1, "add"),
    "a long sum, of a width of three vectors": (384, 5, 9, 20, 1, 1, 0, ""),
    "a long sum of windows in steps": (48, 9, 7, 24, 3, 2, 1, "conv"),
}
CASES |= LONG


@pytest.mark.one_in(20)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    ("registers", "threads"), [pytest.param(16, 1, marks=pytest.mark.slow), (16, 2), (32, 2)]
)
@pytest.mark.parametrize("many", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_the_same(name: str, registers: int, threads: int, many: int) -> None:
    ways(name, registers, threads, lambda o: o.algorithm == "collapsed_gemm", many)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("name", LONG)
@pytest.mark.parametrize("threads", [1, 2])
def test_sums_in_short_blocks(name: str, threads: int) -> None:
    ways(name, 16, threads, lambda o: dict(o.knobs).get("k_block") in L1_PANEL_TERMS, 8)


def ways(name: str, registers: int, threads: int, which: Callable[[Option], bool], n: int) -> None:
    """The net by about n of the options that are asked for."""
    m, machine = net(name), host()
    graph = import_model(read_model(m)).graph  # type: ignore[arg-type]
    shape = [n for n in graph.inputs[0].type.shape or () if isinstance(n, int)]
    given = [np.random.default_rng(1).standard_normal(shape).astype(np.float32)]
    wanted = reference(m, {"x": given[0]})
    first = plan_program(graph, {}, Settings(machine.width, processor=PROCESSORS[registers]))
    count = 0
    for key, problem in first.problems.items():
        some = [o for o in options(problem) if which(o)]
        for option in some[:: 1 + len(some) // n]:
            made = plan_program(
                graph, {}, Settings(machine.width, {key: option}, processor=PROCESSORS[registers])
            )
            got = [np.full_like(a, np.nan) for a in wanted.values()]
            load_program(made, machine, threads, None)(given, got)
            near(dict(zip(wanted, got, strict=True)), wanted)
            count += 1
    assert count


def problem(kernel: int, size: int, stride: int, border: int) -> Problem:
    pads = (kernel // 2,) * 4
    shapes = [(1, 256, size, size), (256, 256, kernel, kernel)]
    t, [x, w] = product("Conv", *shapes, strides=(stride, stride), pads=pads)
    lies = {
        x: parse_layout(f"i0 i1//16 i2+{border} i3+{border} i1%16"),
        t: parse_layout("i0 i1//16 i2 i3 i1%16"),
    }
    return Problem(t, lies, {w}, 32, processor=AVX2, strassen_levels=0, allow_winograd=False)


@pytest.mark.parametrize(
    ("kernel", "size", "stride", "border", "how"),
    [
        (1, 13, 1, 0, "collapsed_gemm"),  # 43 tiles of 4 rows in the place of 52
        (1, 28, 1, 0, "gemm"),  # whose width is a multiple
        (3, 14, 2, 1, "collapsed_gemm"),  # 9 tiles of 6 rows in the place of 7 rows
        (3, 14, 2, 0, "gemm"),  # what is beyond the edge is not there
    ],
)
def test_where_it_pays(kernel: int, size: int, stride: int, border: int, how: str) -> None:
    p = problem(kernel, size, stride, border)
    assert best_option(p).algorithm == how
    some = [o for o in options(p) if o.algorithm == "collapsed_gemm"]
    assert bool(some) == (how == "collapsed_gemm" or bool(border) or kernel == 1)
    for o in some:
        assert build_choice(p, o).option == o


@pytest.mark.parametrize("registers", [16, 32])
@pytest.mark.parametrize(
    ("shape", "k", "n"), [((4, 13), 40000, 64), ((2, 7), 16384, 64), ((8, 9), 14336, 128)]
)
def test_a_row_of_factors_that_is_larger_than_a_cache(
    shape: tuple[int, int], k: int, n: int, registers: int
) -> None:
    t, [_, w] = product("MatMul", (*shape, k), (k, n))
    p = Problem(t, {}, {w}, registers * 2, processor=PROCESSORS[registers], strassen_levels=0)
    assert all(build_choice(p, o).option == o for o in options(p))


def test_a_vector_of_several_registers_stays_one() -> None:
    t, [x, w] = product("Conv", (1, 64, 28, 28), (40, 64, 1, 1))
    lies = {v: parse_layout("i0 i2 i3 i1") for v in (x, t)}
    p = Problem(t, lies, {w}, 64, processor=ZEN5, strassen_levels=0)
    some = [o for o in options(p) if o.algorithm in ("gemm", "collapsed_gemm")]
    assert all(o["rows"] * o["vectors"] * 3 < 32 for o in some)


@pytest.mark.parametrize(
    ("channels", "registers", "deep"), [(256, 16, 0), (384, 16, 128), (392, 16, 0), (384, 32, 0)]
)
def test_long_sums_are_in_short_blocks(channels: int, registers: int, deep: int) -> None:
    t, [x, w] = product("Conv", (1, channels, 16, 16), (64, channels, 1, 1))
    lies = {x: parse_layout("i0 i1//16 i2 i3 i1%16"), t: parse_layout("i0 i1//16 i2 i3 i1%16")}
    option = best_option(
        Problem(t, lies, {w}, 32, processor=PROCESSORS[registers], strassen_levels=0)
    )
    assert option["k_block"] == deep
    assert option["vectors"] == 2 or not deep
