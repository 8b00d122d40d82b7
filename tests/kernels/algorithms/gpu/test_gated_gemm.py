"""Products of one operand that are made one result, on a GPU: gated products, recurrent cells."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import onnx
import pytest

import superopt
from superopt.compilation.cuda import load_compiler
from superopt.cost import tuning_records
from superopt.cost.gpu_features import problem_numbers
from superopt.cost.store import Store
from superopt.kernels.algorithms import space
from superopt.kernels.algorithms.gpu.gated_gemm import fused_product_count, match_gated
from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.loops.option import Option
from superopt.kernels.runtime import gpu_device
from superopt.onnx_io.read.source import read_model
from superopt.te.expr.dtype import F16, F32
from superopt.te.expr.node import Expr
from superopt.te.expr.tensor import Tensor, cast, compute, reduce_sum
from tests.support.compilation.models import F, model, reference
from tests.support.gpu.compilation import feeds, near
from tests.support.gpu.gates import CELLS, MODELS, cell, gated
from tests.support.gpu.models import drawn, node

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("interpreted")]


def by(
    monkeypatch: pytest.MonkeyPatch, wanted: Callable[[Option], bool], turn: int, turns: int = 3
) -> list[Any]:
    """Gated products are computed by the options that are wanted, one in each turn; those that
    were."""
    choice, used = space.choose, []

    def choose(p: Problem, own: Option | None, target: str, vendor: bool) -> Any:
        some = (
            []
            if match_gated(p) is None
            else [o for o in space.options(p, "cuda", vendor) if wanted(o)]
        )
        if not some:
            return choice(p, own, target, vendor)
        used.append(some[turn * len(some) // turns % len(some)])
        return space.build_choice(p, used[-1], "cuda")

    monkeypatch.setattr(space, "choose", choose)
    return used


@pytest.mark.parametrize(
    "precision", ["fp16", *(pytest.param(x, marks=pytest.mark.slow) for x in ("fp32", "tf32"))]
)
@pytest.mark.parametrize("name", MODELS)
def test_a_gated_product_is_one_kernel(name: str, precision: str) -> None:
    m = MODELS[name]()
    exe = load_compiler.compile_model(read_model(m), precision)
    near(exe.run(feeds(m)), reference(m, feeds(m)), precision)
    program = exe.variant({}).program
    assert len(exe.variant({}).only_step.gpu_program.launches) == 1 + (
        "behind" in name or "whole" in name
    )
    assert [o.algorithm for o in program.options.values()].count("gated_gemm") == 1


@pytest.mark.round_robin(2)
@pytest.mark.parametrize(
    "precision",
    ["fp16", "tf32", *(pytest.param(x, marks=pytest.mark.slow) for x in ("fp32", "bf16"))],
)
@pytest.mark.parametrize("name", CELLS)
def test_a_cell(name: str, precision: str) -> None:
    """All of its gates are one kernel, and the products with the inputs of all steps."""
    made, kernels, wanted = CELLS[name]
    m = made()
    exe = load_compiler.compile_model(read_model(m), precision)
    near(exe.run(feeds(m)), reference(m, feeds(m)), precision)
    program = exe.variant({}).program
    used = [program.options[key] for key in program.call_problems]
    assert [o["gates"] for o in used if o.algorithm == "gated_gemm"] == [*wanted]
    assert len(exe.variant({}).only_step.gpu_program.launches) == kernels


@pytest.mark.slow
@pytest.mark.parametrize("turn", range(5))
@pytest.mark.parametrize("kind", ["gated_gemm", "separate_gates"])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("name", ["four gates", "three gates of sizes that blocks do not divide"])
def test_every_way_of_a_cell(
    name: str, kind: str, turn: int, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _, (gates, *_) = CELLS[name]
    m = made()
    used = by(monkeypatch, lambda o: o.algorithm == kind, turn, 5)
    exe = load_compiler.compile_model(read_model(m), precision)
    near(exe.run(feeds(m)), reference(m, feeds(m)), precision)
    assert used
    assert len(exe.variant({}).only_step.gpu_program.launches) == 1 + (
        1 if kind == "gated_gemm" else gates
    )


@pytest.mark.parametrize(
    ("sizes", "half", "wanted"),
    [
        ((16, 512, 512, 8), True, 8), ((16, 512, 512, 4), False, 4), ((70, 90, 64, 3), True, 3),
        ((256, 512, 512, 2), True, 2),
        ((256, 8192, 2048, 3), True, 2),  # whose blocks would be narrower than is fast
        ((16, 512, 2048, 4), False, 1),  # of which each has a long sum, in parts
    ],
)  # fmt: skip
def test_how_many_should_be_one_kernel(
    sizes: tuple[int, int, int, int], half: bool, wanted: int
) -> None:
    rows, columns, terms, count = sizes
    kind = F16 if half else F32
    x = Tensor("x", kind, (rows, terms))
    some = [Tensor(f"w{n}", kind, (terms, columns)) for n in range(count)]

    def product(w: Tensor, i: Expr, j: Expr) -> Expr:
        return reduce_sum(terms, lambda k: cast(x[i, k], F32) * cast(w[k, j], F32))

    first, *rest = some
    gates = [compute((rows, columns), partial(product, w), name="gate") for w in rest]
    y = compute((rows, columns), lambda i, j: sum((g[i, j] for g in gates), product(first, i, j)))
    found = match_gated(Problem(y, {}, some, 64))
    assert found is not None
    assert fused_product_count(found, half) == wanted
    warps = {o["warps"] for o in islice(space.options(Problem(y, {}, some, 64), "cuda"), 99)}
    assert warps <= {1, 2, 4, 8}


def test_one_row_is_no_product_of_matrices() -> None:
    """The gates are beside each other then, and the constants of all steps are one."""
    program = (
        load_compiler.compile_model(read_model(cell(4, rows=1, steps=3)), "fp16")
        .variant({})
        .program
    )
    assert not any(map(match_gated, program.problems.values()))
    few = sum(math.prod(c.type.shape) for c in program.constants)
    assert few < 4 * (40 + 24 + 1) * 24 * 1.1


@pytest.mark.slow
@pytest.mark.parametrize("turn", range(3))
@pytest.mark.parametrize("kind", ["gated_gemm", "separate_gates", "vendor"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_every_way(
    name: str, kind: str, turn: int, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one kernel or after each other, by ours or the vendor's, it is the same."""
    m = MODELS[name]()
    library = kind == "vendor"
    used = by(
        monkeypatch,
        lambda o: ("vendor" in dict(o.knobs)) if library else o.algorithm == kind, turn,
    )  # fmt: skip
    exe = load_compiler.compile_model(read_model(m), precision)
    near(exe.run(feeds(m)), reference(m, feeds(m)), precision)
    assert used or library
    behind = "behind" in name or "whole" in name
    if used:
        assert (
            len(exe.variant({}).only_step.gpu_program.launches)
            == (1 if kind == "gated_gemm" else 2) + behind
        )


def test_the_vendors_is_offered_where_it_may_be() -> None:
    m = MODELS["of whole blocks"]()
    for vendor, precision in ((True, "fp32"), (False, "fp32")):
        exe = load_compiler.compile_model(read_model(m), precision, vendor=vendor)
        (p,) = [p for p in exe.variant({}).program.problems.values() if match_gated(p) is not None]
        some = list(space.options(p, "cuda", vendor))
        assert len(set(some)) == len(some)
        assert {o.algorithm for o in some} == {"gated_gemm", "separate_gates"}
        assert any("vendor" in dict(o.knobs) for o in some) == vendor


NONE: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "of different operands": lambda: gated(other="t"),
    "whose gate is an output": lambda: gated(out=("g0",)),
    "whose gate is read by columns": lambda: gated((40, 40), 40, turned=True),
    "of one row": lambda: gated((1, 40), 40),
}


@pytest.mark.parametrize("name", NONE)
def test_what_is_not_gated(name: str) -> None:
    m = NONE[name]()
    exe = load_compiler.compile_model(read_model(m), "fp32")
    near(exe.run(feeds(m)), reference(m, feeds(m)), "fp32")
    assert not any(map(match_gated, exe.variant({}).program.problems.values()))


def test_where_it_should_pay() -> None:
    """Not where sums in parts keep more multiprocessors busy; and by what it should take else."""
    long, wide = gated((16, 8192), 64), gated((256, 512), 1024)
    for m, pair in ((long, False), (wide, True)):
        program = load_compiler.compile_model(read_model(m), "fp16").variant({}).program
        found = [x for p in program.problems.values() if (x := match_gated(p)) is not None]
        assert bool(found) == pair
        assert all(fused_product_count(x, True) == x.product_count for x in found)


def test_the_store_says_it(tmp_path: Path) -> None:
    """The fastest of what was measured; of what may be taken, where cuBLAS may not be."""
    m = MODELS["of whole blocks"]()
    made = superopt.compile(m, target="cuda")
    ours: dict[str, Option] = {}
    with Store.open(tmp_path / "s") as store:
        on = tuning_records.gpu_target(
            gpu_device.device_name(made.device.torch_device), made.device.dot_precision
        )
        for key, p in made.variant({}).program.problems.items():
            if match_gated(p) is not None:
                theirs = next(o for o in space.options(p, "cuda") if "vendor" in dict(o.knobs))
                first, *_, ours[key] = space.options(p, "cuda", vendor=False)
                for o, us in ((theirs, 1.0), (ours[key], 2.0), (first, 9.0)):
                    tuning_records.store_times(
                        store, on, key, problem_numbers(p), {o: (us * 1e-6,) * 3 + (1,)}
                    )
    assert ours
    for may in (True, False):
        exe = superopt.compile(m, target="cuda", vendor=may, store=tmp_path / "s")
        options = exe.variant({}).program.options
        assert (ours.items() <= options.items()) != may


def test_a_sum_that_went_elsewhere_is_computed_once() -> None:
    """Of a result whose sum is exchanged with a gate's, and that is a gate of another one."""
    nodes = [node("Softmax", f"x{n}", f"x{n + 1}") for n in range(3)]
    nodes += [node("MatMul", f"x{3 - n}", f"w{n}", f"p{n}") for n in range(4)]
    nodes += [node("Add", "p0", "p1", "a"), node("Tanh", "p2", "b"), node("Add", "a", "b", "c"),
              node("Add", "c", "p3", "y")]  # fmt: skip
    known = {f"w{n}": drawn(64, 64, scale=0.1, of=f"{n}") for n in range(4)}
    m = model(nodes, {"x0": (F, [64, 64])}, ["y"], known)
    exe = load_compiler.compile_model(read_model(m), "fp16", vendor=False)
    near(exe.run(feeds(m)), reference(m, feeds(m)), "fp16")
    r = exe.variant({}).only_step.gpu_program
    texts = [r.loaded[c.kernel.name].text for c in r.calls]
    assert [sum(t.source.count("tl.dot(") for t in texts), len(texts)] == [4, 7]
    assert all(len(t.launches) == 1 for t in texts)  # nothing is computed within another on the way
