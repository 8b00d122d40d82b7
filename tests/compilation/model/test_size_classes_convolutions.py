"""Convolutions of symbolic sizes, by any plan of Winograd's algorithm: each class gives
onnxruntime's results at all sizes that it admits, within its own memory."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from onnx import helper

import superopt
from superopt.compilation.model.compile_class import compile_size_class
from superopt.compilation.model.size_classes import SizeClass
from superopt.kernels.algorithms import space
from superopt.kernels.algorithms.cpu import winograd_convolution
from superopt.kernels.algorithms.cpu.collapsed_spatial_axes import (
    collapsed_options,
    recognise_collapsed,
)
from superopt.kernels.algorithms.cpu.tiled_convolution import TiledConvolution
from superopt.kernels.algorithms.cpu.winograd_plans import Plan, candidate_plans
from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.loops.option import Option
from tests.support.compilation.class_checks import check_classes, draw_sizes
from tests.support.compilation.dynamic_convolutions import convolutional_model
from tests.support.compilation.models import F, model, reference

pytest.importorskip("onnxruntime")
SIZES = (*range(1, 12), 13, 14, 15, 16, 17, 20, 23, 28, 33, 48, 64, 65, 100, 130)
DEFAULT_MODELS = 3
SLOW_MODELS = 300
RNG = np.random.default_rng(0)


@pytest.fixture
def winograd_plans(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """Let convolutions be computed by any plan of Winograd's algorithm; return those chosen."""
    random = Random(0)
    chosen: list[Plan] = []

    def choose(p: Problem, c: TiledConvolution) -> tuple[float, Plan] | None:
        plans = [
            plan
            for m in c.tile_options()
            for _, plan in candidate_plans(c, m, p.lanes, p.processor)
        ]
        chosen.extend(random.sample(plans, min(len(plans), 1)))
        return (0.0, chosen[-1]) if plans else None

    monkeypatch.setattr(winograd_convolution, "_best_plan", choose)
    return chosen


def check_model(seed: int) -> int:
    """Check a model at sizes that its classes admit; return their number."""
    m, inputs = convolutional_model(seed)
    names = sorted({d for d in inputs["x"] if isinstance(d, str)})
    return check_classes(m, inputs, draw_sizes(Random(seed), names, SIZES), seed, 1 + seed % 2)


@pytest.mark.ci
def test_classes_of_random_convolutional_models(winograd_plans: list[Plan]) -> None:
    counts = [check_model(seed) for seed in range(DEFAULT_MODELS)]
    assert sum(n > 0 for n in counts) > DEFAULT_MODELS // 2
    assert len(set(winograd_plans)) >= DEFAULT_MODELS // 2


@pytest.mark.slow
@pytest.mark.parametrize("first", range(DEFAULT_MODELS, SLOW_MODELS, 16))
def test_classes_of_many_random_convolutional_models(
    first: int, winograd_plans: list[Plan]
) -> None:
    for seed in range(first, min(first + 16, SLOW_MODELS)):
        check_model(seed)


def convolution_class(shape: list[object], example: dict[str, int], **attrs: object) -> SizeClass:
    """Return the class of a convolution with windows of 3 x 3."""
    w = RNG.standard_normal((32, shape[1], 3, 3)).astype(np.float32)
    node = helper.make_node("Conv", ["x", "w"], ["y"], **attrs)
    m = model([node], {"x": (F, shape)}, ["y"], {"w": w})
    made = compile_size_class(superopt.compile(m).compiler, example)
    assert made is not None
    step = (made.load_steps() or ())[0]
    assert step is not None
    options = step.code.program.options.values()  # type: ignore[attr-defined]
    assert "winograd" in {o.algorithm for o in options}
    return made


def test_a_class_of_batches_has_all_batches() -> None:
    made = convolution_class(["n", 32, 56, 56], {"n": 3}, pads=[1] * 4)
    assert all(made.formulas.admits({"n": n}) for n in (1, 2, 3, 8, 100))


def test_a_class_of_images_has_larger_ones() -> None:
    made = convolution_class([1, 32, "h", "w"], {"h": 80, "w": 80}, pads=[1] * 4)
    for h, w in ((80, 81), (300, 80), (65, 500), (1000, 1001)):
        assert made.formulas.admits({"h": h, "w": w})


def test_columns_of_a_filter_that_no_output_reads(winograd_plans: list[Plan]) -> None:
    """In an image of two columns, windows with a distance of two read two of their columns."""
    made = convolution_class([2, 16, "m", 2], {"m": 28}, pads=[2, 4, 2, 4], dilations=[2, 2])
    assert made.formulas.admits({"m": 28})


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("attrs", [{"pads": [1] * 4}, {"strides": [2, 2]}], ids=str)
def test_pixels_of_any_number_of_images_are_rows_of_tiles(
    attrs: dict[str, object], threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The axes of an image are collapsed in a class of batches, too."""
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path))
    chosen: list[Option] = []

    def best_collapsed(p: Problem, *rest: Any) -> Option:
        f = recognise_collapsed(p)
        chosen.extend([] if f is None else [next(iter(collapsed_options(p, f)))])
        return best_option(p, *rest) if f is None else chosen[-1]

    best_option = space.best_option
    monkeypatch.setattr(space, "best_option", best_collapsed)
    w = RNG.standard_normal((32, 16, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], **attrs),
        helper.make_node("Relu", ["a"], ["y"]),
    ]
    m = model(nodes, {"x": (F, ["n", 16, 7, 9])}, ["y"], {"w": w})
    exe = superopt.compile(m, specialize="never", threads=threads)
    x = RNG.standard_normal((9, 16, 7, 9)).astype(np.float32)
    exe(x=x[:3])
    program = exe.variants[(("n", 3),)].steps[0].program
    assert chosen
    assert "collapsed_gemm" in {o.algorithm for o in program.options.values()}
    for n in (1, 2, 3, 5, 9):
        wanted = reference(m, {"x": x[:n]})["y"]
        np.testing.assert_allclose(exe(x=x[:n])["y"], wanted, atol=1e-5 * np.abs(wanted).max())
    assert all(v.is_of_class for v in exe.variants.values())
    assert len(exe.size_classes.classes) == 1
