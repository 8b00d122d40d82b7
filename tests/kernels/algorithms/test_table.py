"""The table of algorithms: every name has a problem, and schedules print and parse."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest

from scripts.tree_models import forest, regressor
from superopt.kernels.algorithms import space
from superopt.kernels.algorithms.build import build_kernels
from superopt.kernels.algorithms.problem import Choice, Problem
from superopt.kernels.algorithms.table import ALGORITHMS, algorithm_table
from superopt.kernels.loops.option import Option
from superopt.kernels.loops.schedule import PRIMITIVES, parse_schedule, schedule_text
from superopt.kernels.processor import AVX2
from superopt.kernels.runtime.amx import INTEGER_FEATURES, NEEDED_FEATURES
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import read_model
from superopt.plan.graph.simplify import simplify_graph
from superopt.plan.passes import plan_program
from superopt.plan.program.plan import Settings
from superopt.plan.program.target import gpu_target
from superopt.te.expr.dtype import F16
from tests.support.compilation.nbits import NBitsProduct
from tests.support.kernels.graphs import graph_model

# Graphs in ONNX's text syntax; inputs whose names begin with "w" are constants.
GRAPHS = {
    "GEMM": """(float[512, 1024] x, float[1024, 1024] w) => (float[512, 1024] y)
        { y = MatMul(x, w) }""",
    "GEMM of two inputs": """(float[64, 256] x, float[256, 512] z) => (float[64, 512] y)
        { y = MatMul(x, z) }""",
    "GEMM of few blocks": """(float[64, 4096] x, float[4096, 64] w) => (float[64, 64] y)
        { y = MatMul(x, w) }""",
    "GEMV": "(float[1, 256] x, float[256, 512] z) => (float[1, 512] y) { y = MatMul(x, z) }",
    "few rows": """(float[4, 512] x, float[512, 512] w) => (float[4, 512] y)
        { y = MatMul(x, w) }""",
    "few columns": """(float[512, 256] x, float[256, 3] w) => (float[512, 3] y)
        { y = MatMul(x, w) }""",
    "gates": """(float[48, 40] x, float[40, 33] w, float[40, 33] w2) => (float[48, 33] y)
        { a = MatMul(x, w) b = MatMul(x, w2) c = Sigmoid(a) d = Mul(a, c) e = Mul(d, b)
        y = Neg(e) }""",
    "convolution": """(float[1, 64, 28, 28] x, float[64, 64, 3, 3] w) => (float[1, 64, 28, 28] y)
        { y = Conv<pads = [1, 1, 1, 1]>(x, w) }""",
    "convolution of 13 x 13": """(float[1, 64, 13, 13] x, float[64, 64, 1, 1] w)
        => (float[1, 64, 13, 13] y) { a = Relu(x) b = Conv(a, w) y = Relu(b) }""",
    "grouped convolution": """(float[1, 48, 14, 14] x, float[48, 12, 3, 3] w)
        => (float[1, 48, 14, 14] y) { y = Conv<group = 4, pads = [1, 1, 1, 1]>(x, w) }""",
    "depthwise convolution": """(float[1, 64, 28, 28] x, float[64, 1, 3, 3] w)
        => (float[1, 64, 28, 28] y) { y = Conv<group = 64, pads = [1, 1, 1, 1]>(x, w) }""",
    "convolution of few channels": """(float[1, 4, 28, 64] x, float[8, 4, 3, 3] w)
        => (float[1, 8, 28, 64] y) { a = Relu(x) b = Conv<pads = [1, 1, 1, 1]>(a, w)
        y = Relu(b) }""",
    "convolution of bytes": """(uint8[1, 64, 14, 14] x, int8[64, 64, 3, 3] w)
        => (int32[1, 64, 14, 14] y) { y = ConvInteger<pads = [1, 1, 1, 1]>(x, w) }""",
    "integers": """(uint8[64, 128] x, int8[128, 64] w) => (int32[64, 64] y)
        { y = MatMulInteger(x, w) }""",
    "attention": """(float[1, 12, 512, 64] q, float[1, 12, 512, 64] k, float[1, 12, 512, 64] v)
        => (float[1, 12, 512, 64] y) { t = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(q, t)
        p = Softmax<axis = 3>(s) y = MatMul(p, v) }""",
    "softmax": "(float[64, 512] x) => (float[64, 512] y) { y = Softmax<axis = 1>(x) }",
    "sum": "(float[64, 512] x) => (float[64] y) { y = ReduceL1<axes = [1], keepdims = 0>(x) }",
    "sum of 8191": """(float[64, 8191] x) => (float[64] y)
        { y = ReduceL1<axes = [1], keepdims = 0>(x) }""",
    "transpose": "(float[96, 128] x) => (float[128, 96] y) { y = Transpose<perm = [1, 0]>(x) }",
    "elementwise": "(float[96, 128] x) => (float[96, 128] y) { y = Tanh(x) }",
}
OPTIONS_PER_NAME = 6  # that are scheduled, of each problem and name


def tree_model() -> onnx.ModelProto:
    return regressor(forest(np.random.default_rng(7), 130, 3, 5, grow=0.9), 5)


@cache
def problems(target: str) -> dict[str, Problem]:
    """Return the problems of the graphs as they are planned for a target."""
    models = {name: graph_model(text) for name, text in GRAPHS.items()}
    if target == "cpu":
        models["trees"] = tree_model()
        models |= {f"bits {m}": NBitsProduct(1024, 96).model([m]) for m in (1, 20)}
        models["bits with zeros"] = NBitsProduct(1024, 96, zero="packed").model([1])
        models["bits of rounded rows"] = NBitsProduct(1024, 96, level=4).model([20])
        settings = [Settings(32, processor=AVX2), Settings(64)]
        settings += [Settings(64, bf16_instructions=name) for name in NEEDED_FEATURES]
        settings += [Settings(64, integer_instructions=name) for name in INTEGER_FEATURES]
    else:
        settings = [Settings(64, allow_winograd=False, target=gpu_target(storage_dtype=F16))]
    out = {}
    for name, m in models.items():
        graph = simplify_graph(import_model(read_model(m)).graph, is_cpu=target == "cpu")
        for n, how in enumerate(settings):
            found = plan_program(graph, {"n": 9}, how).problems
            out |= {f"{name} {n} {key}": p for key, p in found.items()}
    return out


@cache
def choices(target: str) -> list[tuple[Problem, Choice]]:
    """Return choices of options of each name for each problem."""

    def planned_choices() -> Iterator[tuple[Problem, Choice]]:
        for p in problems(target).values():
            counts: dict[str, int] = {}
            for o in space.options(p, target):
                counts[o.algorithm] = counts.get(o.algorithm, 0) + 1
                if counts[o.algorithm] <= OPTIONS_PER_NAME:
                    yield p, space.build_choice(p, o, target)

    return list(planned_choices())


@pytest.mark.parametrize("target", ALGORITHMS)
def test_every_name_has_a_problem(target: str) -> None:
    names = {name for a in ALGORITHMS[target] for name in a.names}
    assert {how.option.algorithm for _, how in choices(target)} == names


@pytest.mark.parametrize("target", ALGORITHMS)
def test_schedules_print_and_parse(target: str) -> None:
    schedules = {s for _, how in choices(target) for s in how.schedules.values()}
    assert len(schedules) > 50
    assert [schedule_text(s) for s in schedules if parse_schedule(schedule_text(s)) != s] == []


@pytest.mark.parametrize("target", ALGORITHMS)
def test_options_print_and_parse(target: str) -> None:
    found = {how.option for _, how in choices(target)}
    assert [o for o in found if Option.parse(str(o)) != o] == []


def test_every_primitive_is_used() -> None:
    used = {type(p) for t in ALGORITHMS for _, how in choices(t) for s in how.schedules.values()
            for p in s}  # fmt: skip
    assert {name for name, primitive in PRIMITIVES.items() if primitive not in used} == set()


@pytest.mark.parametrize("target", ALGORITHMS)
def test_choices_are_kernels_of_the_problem(target: str) -> None:
    for p, how in choices(target):
        kernels = build_kernels(p, how)
        assert kernels[-1].writes is p.tensor
        assert len(kernels) == len(how.producers) + 1
        calls = [k for k in kernels if k.kernel.library]
        assert bool(calls) == ("vendor" in str(how.option)), how.option


def test_the_default_is_an_option_of_the_least_predicted_time() -> None:
    for target in ALGORITHMS:
        for p in problems(target).values():
            first, *rest = space.options(p, target)
            assert first == space.best_option(p, target) == space.choose(p, None, target).option
            assert first not in rest
            assert len({*rest}) == len(rest)


def test_an_option_of_another_problem_is_refused() -> None:
    p = next(p for name, p in problems("cpu").items() if name.startswith("softmax"))
    with pytest.raises(ValueError, match="k_block=0 is not an option of"):
        space.build_choice(p, Option.parse("gemm rows=1 vectors=1 k_block=0"), "cpu")


def test_recognisers_run_once_for_a_problem() -> None:
    p = next(iter(problems("cuda").values()))
    own = replace(p)  # nothing is matched yet
    assert own.matches == {}
    first = [*space.options(own, "cuda")]
    held = dict(own.matches)
    assert held
    assert [*space.options(own, "cuda")] == first
    assert all(own.matches[name] is found for name, found in held.items())
    assert pickle.loads(pickle.dumps(own)).tensor.type == p.tensor.type


@pytest.mark.parametrize("vendor", [True, False])
def test_vendor_libraries_can_be_excluded(vendor: bool) -> None:
    found = [str(o) for p in problems("cuda").values() for o in space.options(p, "cuda", vendor)]
    assert any("vendor" in o for o in found) == vendor


def test_the_reference_lists_the_algorithms(root: Path) -> None:
    page = (root / "docs" / "reference" / "algorithms.md").read_text()
    assert algorithm_table() in page, "write algorithm_table() there"


def test_the_files_of_the_table_exist(root: Path) -> None:
    for line in algorithm_table().splitlines()[2:]:
        assert (root / line.split("`")[-2]).is_file(), line
