"""Models on a GPU: in Triton's interpreter, which needs the extra `gpu`; on the GPU itself where
the environment has SUPEROPT_TEST_GPU=1."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import superopt
from superopt.compilation.cuda import load_compiler
from superopt.compilation.cuda.device import DOT_PRECISIONS
from superopt.errors import UsageError
from superopt.kernels.algorithms import space
from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.loops.option import Option
from superopt.onnx_io.read.source import read_model
from tests.support.compilation.models import F, model, reference
from tests.support.gpu.compilation import UNITS, feeds, near
from tests.support.gpu.models import (
    ATTENTION,
    MODELS,
    ONE,
    drawn,
    gemms,
    heads,
    node,
)

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("interpreted")]


@pytest.mark.round_robin(2)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("name", MODELS)
def test_the_same(name: str, precision: str) -> None:
    m = MODELS[name]()
    given = feeds(m)
    exe = superopt.compile(m, target="cuda", precision=precision)
    near(exe.run(given), reference(m, given), precision)


@pytest.mark.round_robin(2)
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
@pytest.mark.parametrize(
    "name", ["a mask beyond halves", "chosen by a square", "masked by -inf", "rotary", "one row"]
)
def test_numbers_that_do_not_fit(name: str, precision: str) -> None:
    """Masks that rounding would make infinite, and angles of many turns, stay as they are."""
    m = MODELS[name]()
    exe = superopt.compile(m, target="cuda", precision=precision)
    near(exe.run(feeds(m)), reference(m, feeds(m)), precision)


@pytest.mark.parametrize("precision", DOT_PRECISIONS)
def test_each_precision(precision: str) -> None:
    m = MODELS["a block"]()
    given = feeds(m)
    exe = superopt.compile(m, target="cuda", precision=precision)
    got = exe(**given)
    near(got, reference(m, given), precision)
    exact = superopt.compile(m, target="cuda").run(given)
    same = all(np.array_equal(got[k], exact[k]) for k in got)
    assert same == (precision == "fp32")


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "name", ["a convolution", "of a long sum", "ragged heads", "depthwise", "turned"]
)
@pytest.mark.parametrize("precision", [pytest.param("fp32", marks=pytest.mark.slow), "bf16"])
def test_every_option(name: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ways to compute a problem do not change what it is: of each kind, and of blocks far apart."""
    m = MODELS[name]()
    given, wanted = feeds(m), reference(m, feeds(m))
    tried = set()
    for turn in range(6):

        def choose(
            p: Problem, _: Option | None, target: str, vendor: bool, turn: int = turn
        ) -> Any:
            some = list(dict.fromkeys(space.options(p, "cuda", vendor)))
            option = some[turn * max(len(some) // 6, 1) % len(some)]
            tried.add(option)
            return space.build_choice(p, option, "cuda")

        monkeypatch.setattr(space, "choose", choose)
        near(load_compiler.compile_model(read_model(m), precision).run(given), wanted, precision)
    assert len(tried) > 3


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ATTENTION)
def test_attention_is_one_kernel(name: str) -> None:
    """Of scores, softmax and product, unless the float class keeps products as they are."""
    m = ATTENTION[name]()
    made = load_compiler.compile_model(read_model(m), "fp16").variant({}).program
    assert [o.algorithm for o in made.options.values()].count("online_attention") == 1
    assert "row_wise" not in [o.algorithm for o in made.options.values()]
    exact = load_compiler.compile_model(read_model(m), "fp32", "E1")
    assert "row_wise" in [o.algorithm for o in exact.variant({}).program.options.values()]
    near(exact.run(feeds(m)), reference(m, feeds(m)), "fp32")


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_rows_of_which_nothing_is_left(precision: str) -> None:
    """A row whose keys are all masked is NaN; the other rows are not affected."""
    mask = np.zeros((1, 1, 70, 70), bool)
    mask[..., 7, :] = True
    m = heads(70, 1, 16, mask=mask, chosen=True)
    given, wanted = feeds(m), reference(m, feeds(m))["y"]
    got = load_compiler.compile_model(read_model(m), precision).run(given)["y"]
    assert np.isnan(wanted[:, 7]).all()
    assert np.array_equal(np.isnan(got), np.isnan(wanted))
    near({"y": np.nan_to_num(got)}, {"y": np.nan_to_num(wanted)}, precision)


@pytest.mark.parametrize(
    ("name", "kernels"),
    [("branches", 5), ("products", 3), ("rotary", 2), ("columns", 6), ("nested", 3)],
)
def test_how_many_kernels(name: str, kernels: int) -> None:
    made = load_compiler.compile_model(read_model(ONE[name]()), "fp16").variant({})
    assert len(made.only_step.gpu_program.launches) == kernels


@pytest.mark.round_robin(4)
@pytest.mark.parametrize("precision", DOT_PRECISIONS)
@pytest.mark.parametrize("name", ["a block", "heads", "pointwise", "products", "one row"])
def test_the_vendors_library(name: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Computes what our kernels do, wherever it is offered; and nothing where it is not to."""
    m = {**MODELS, "products": lambda: gemms()}[name]()
    choice = space.choose

    def choose(p: Problem, wanted: Option | None, target: str, vendor: bool) -> Any:
        some = [o for o in space.options(p, "cuda", vendor) if o.algorithm == "vendor"]
        return space.build_choice(p, some[0], "cuda") if some else choice(p, wanted, target, vendor)

    monkeypatch.setattr(space, "choose", choose)
    exe = load_compiler.compile_model(read_model(m), precision)
    near(exe.run(feeds(m)), reference(m, feeds(m)), precision)
    used = [o.algorithm for o in exe.variant({}).program.options.values()]
    given = 2 if precision in ("fp32", "tf32") else 1  # an input of 32 bits is no half
    wanted = {"a block": 3, "heads": given, "pointwise": 1, "products": given}
    assert used.count("vendor") == wanted.get(name, 0)
    if name == "products":  # what has nothing behind it is written where it belongs
        assert len(exe.variant({}).only_step.gpu_program.launches) == 3
    own = load_compiler.compile_model(read_model(m), precision, vendor=False).variant({}).program
    assert "vendor" not in [o.algorithm for o in own.options.values()]


def of_any_number() -> onnx.ModelProto:
    m = MODELS["layer norm"]()
    dim = m.graph.input[0].type.tensor_type.shape.dim[1]
    dim.Clear()
    dim.dim_param = "n"
    m.graph.output[0].type.tensor_type.ClearField("shape")
    return m


def test_symbolic_sizes() -> None:
    m = of_any_number()
    exe = superopt.compile(m, target="cuda")
    for n in (1, 4, 9):
        given = {"x": drawn(3, n, 50)}
        near(exe.run(given), reference(m, given), "fp32")
    assert len(exe.variants) == 3


@pytest.mark.parametrize("precision", DOT_PRECISIONS)
@pytest.mark.parametrize("rows", [1, 3])
def test_a_mean_of_few_is_not_rounded_beside_what_it_is_of(rows: int, precision: str) -> None:
    """Of one row nothing is left, and of some as much as there is, far from zero."""
    nodes = [
        node("ReduceMean", "x", "mean", axes=[0]), node("Sub", "x", "mean", "d"),
        node("Mul", "d", "d", "d2"), node("ReduceMean", "d2", "v", axes=[0]),
        node("Add", "v", "e", "ve"), node("Sqrt", "ve", "s"), node("Div", "d", "s", "y"),
    ]  # fmt: skip
    m = model(nodes, {"x": (F, [rows, 40])}, ["y"], {"e": np.asarray(1e-6, np.float32)})
    x = drawn(rows, 40) + 20
    d = x - x.mean(0, dtype=np.float64)
    exact = d / np.sqrt((d * d).mean(0) + np.float32(1e-6))
    theirs = np.abs(reference(m, {"x": x})["y"] - exact).max()  # of differences of near numbers
    exe = superopt.compile(m, target="cuda", precision=precision)
    ours = np.abs(exe.run({"x": x})["y"] - exact).max()
    assert ours <= max(4 * theirs, UNITS[precision] * np.abs(exact).max())


def test_an_output_that_has_no_axes_and_does_not_say_so() -> None:
    m = model([node("MatMul", "x", "z", "y")], {"x": (F, [3]), "z": (F, [3])}, ["y"], {})
    m.graph.output[0].type.tensor_type.ClearField("shape")
    given = {"x": drawn(3), "z": drawn(3)}
    near(superopt.compile(m, target="cuda").run(given), reference(m, given), "fp32")


def test_sizes_are_those_of_the_model() -> None:
    exe = superopt.compile(of_any_number(), target="cuda")
    for sizes, why in (
        ({}, "symbolic sizes are n"),
        ({"z": 3}, "symbolic sizes are n"),
        ({"n": 2.5}, "the size n is 2.5"),
    ):
        for asked in (exe.fallback_nodes, exe.tune):
            with pytest.raises(UsageError, match=why):
                asked(sizes)  # type: ignore[operator]
    for budget in (-2, 0, float("nan")):
        with pytest.raises(UsageError, match="budget"):
            exe.tune({"n": 4}, budget=budget)


def test_errors() -> None:
    m = MODELS["pointwise"]()
    with pytest.raises(UsageError, match="precisions are fp32, tf32, fp16, bf16"):
        superopt.compile(m, target="cuda", precision="int4")
    for streams in (0, 33):
        with pytest.raises(UsageError, match=r"an integer in \[1, 32\]"):
            superopt.compile(m, target="cuda", streams=streams)
    assert superopt.compile(m, target="cuda", streams=1).compiler.generator.streams == 1
    with pytest.raises(UsageError, match="precisions are fp32, bf16"):
        superopt.compile(m, precision="fp16")
    with pytest.raises(UsageError, match="vendor=False of target cpu"):
        superopt.compile(m, vendor=False)
    with pytest.raises(UsageError, match="it must be True or False"):
        superopt.compile(m, target="cuda", vendor="no")  # type: ignore[arg-type]
    exe = superopt.compile(m, target="cuda")
    with pytest.raises(UsageError, match="inputs are given by name"):
        exe.run(3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no value for input 'x'"):
        exe.run({})
    with pytest.raises(UsageError, match="no input 'u'"):
        exe.run({"u": drawn(1)})
    with pytest.raises(UsageError, match="float64"):
        exe.run({"x": drawn(1, 40, 7, 7).astype(np.float64)})
    with pytest.raises(UsageError):
        exe.run({"x": drawn(1, 40, 7, 8)})
