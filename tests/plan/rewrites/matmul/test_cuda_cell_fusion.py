"""Products of few rows that are one kernel with what is made of them, on a GPU: steps of recurrent
networks, gated products of one row."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from superopt.compilation.cuda import load_compiler
from superopt.kernels.algorithms import space
from superopt.kernels.algorithms.problem import Choice, Problem
from superopt.kernels.loops.option import Option
from superopt.onnx_io.read.source import read_model
from superopt.plan.program.program import Program
from superopt.te.analysis.walk import computed_tensors, reductions
from superopt.te.expr.node import Apply
from tests.support.compilation.models import F, model, reference
from tests.support.compilation.recurrent import feeds as drawn_for
from tests.support.compilation.recurrent import recurrent
from tests.support.gpu.cells import MODELS, PAIRS
from tests.support.gpu.compilation import feeds, near
from tests.support.gpu.models import drawn, node

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("interpreted")]


def products(p: Problem) -> int:
    """How many are within a cell; 0 for what is none."""
    found = [r for s in computed_tensors([p.tensor]) for r in reductions(s.body)]
    some = [r for r in found if isinstance(r.body, Apply) and r.body.fn == "mul"]
    return len(some) if p.row_axes and len(some) > 1 else 0


def found(program: Program) -> list[int]:
    """The products of each cell that runs."""
    return [n for key in program.call_problems if (n := products(program.problems[key]))]


def tangled(seed: int, rows: int = 2) -> onnx.ModelProto:
    """Some products of two rows, or more, with one of few operands, and what is made of any two of
    what there is, at random."""
    rng = np.random.default_rng(seed)
    known = {f"w{n}": drawn(24, 24, scale=24**-0.5) + n / 99 for n in range(3)}
    names, nodes = ["x", "z"], []
    for n in range(9):
        operand = "x" if n < 5 else "p4"
        a, b = rng.choice(names[-4:], 2)
        match rng.integers(6):
            case 0 | 1 | 5:
                nodes.append(node("MatMul", operand, f"w{rng.integers(3)}", f"p{n}"))
            case 2:
                nodes += [node("Sigmoid", a, f"s{n}"), node("Mul", f"s{n}", b, f"p{n}")]
            case 3:
                nodes += [node("Tanh", a, f"t{n}"), node("Add", f"t{n}", b, f"p{n}")]
            case 4:
                nodes += [node("Softsign", a, f"t{n}"), node("Sub", f"t{n}", b, f"p{n}")]
        names.append(f"p{n}")
    read_ = {i for n in nodes for i in n.input}
    nodes.append(node("Sum", *(x for x in names if x not in read_), "y"))
    return model(nodes, {"x": (F, [rows, 24]), "z": (F, [rows, 24])}, ["y", "p4"], known)


def checked(m: onnx.ModelProto, precision: str) -> Program:
    """Its outputs are right; the program that computes them."""
    given = drawn_for(m)
    exe = load_compiler.compile_model(read_model(m), precision)
    near(exe.run(given), reference(m, given), precision)
    return exe.variant({}).program


PRECISIONS = pytest.mark.parametrize(
    "precision",
    ["fp16", *(pytest.param(x, marks=pytest.mark.slow) for x in ("fp32", "tf32", "bf16"))],
)


@pytest.mark.one_in(3)
@PRECISIONS
@pytest.mark.parametrize("name", MODELS)
def test_a_cell_is_one_kernel(name: str, precision: str) -> None:
    made, wanted = MODELS[name]
    assert found(checked(made(), precision)) == wanted


@pytest.mark.one_in(3)
@pytest.mark.parametrize("rows", [2, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("seed", range(12))
def test_any_products(seed: int, rows: int) -> None:
    m = tangled(seed, rows)
    exe = load_compiler.compile_model(read_model(m), "fp32")
    near(exe.run(feeds(m)), reference(m, feeds(m)), "fp32")


def test_there_are_some() -> None:
    made = (
        load_compiler.compile_model(read_model(tangled(seed)), "fp32").variant({}).program
        for seed in range(12)
    )
    assert sum(bool(found(x)) for x in made) > 3


@pytest.mark.one_in(2)
@PRECISIONS
@pytest.mark.parametrize("name", PAIRS)
def test_two_results_of_more_rows(name: str, precision: str) -> None:
    made, wanted = PAIRS[name]
    p = checked(made(), precision)
    used = [p.options[key] for key in p.call_problems]
    assert [o["gates"] for o in used if o.algorithm == "gated_gemm"].count(4) == wanted


@pytest.mark.one_in(4)
@pytest.mark.parametrize("turn", range(6))
@pytest.mark.parametrize("name", ["an LSTM of several rows", "a gated product of one row"])
def test_every_way(name: str, turn: int, monkeypatch: pytest.MonkeyPatch) -> None:
    choice, used = space.choose, []

    def choose(p: Problem, own: Option | None, target: str, vendor: bool) -> Choice:
        if not products(p):
            return choice(p, own, target, vendor)
        some = list(space.options(p, "cuda", vendor))
        used.append(some[turn % len(some)])
        return space.build_choice(p, used[-1], "cuda")

    monkeypatch.setattr(space, "choose", choose)
    m = MODELS[name][0]()
    given = drawn_for(m)
    near(load_compiler.compile_model(read_model(m), "fp32").run(given), reference(m, given), "fp32")
    assert used


@pytest.mark.one_in(2)
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize(("kind", "batch"), [("LSTM", 1), ("GRU", 2), ("LSTM", 16), ("RNN", 2)])
def test_kernels_of_steps_are_one(kind: str, batch: int, direction: str) -> None:
    """Which read their part of what comes from all inputs from where it begins."""
    counts = []
    for steps in (6, 12):
        m = recurrent(kind, steps=steps, batch=batch, hidden=16, size=5, direction=direction)
        made = load_compiler.compile_model(read_model(m), "fp16").variant({})
        counts.append(len({c.kernel.name for c in made.only_step.gpu_program.calls}))
        assert len(made.only_step.gpu_program.launches) > steps
    assert counts[0] == counts[1] < 12


def test_parts_that_begin_anywhere() -> None:
    """Of 216 bytes each: what Triton takes for granted holds of none, and kernels are others."""
    m = recurrent("LSTM", batch=3, hidden=9, steps=4)
    given = drawn_for(m)
    exe = load_compiler.compile_model(read_model(m), "fp16")
    near(exe.run(given), reference(m, given), "fp16")
    begins = [
        r.position
        for c in exe.variant({}).only_step.gpu_program.calls
        for r in c.arguments
        if r.region == "memory"
    ]
    assert all(at % 16 == 0 for at in begins)


def test_hundreds_of_steps() -> None:
    m = recurrent("RNN", steps=257, batch=1, hidden=4)
    given = drawn_for(m)
    exe = load_compiler.compile_model(read_model(m), "fp32")
    near(exe.run(given), reference(m, given), "fp32")
    assert not exe.fallback_nodes({})
