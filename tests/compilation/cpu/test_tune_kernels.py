"""Tuning: every option of a space computes the same, and what was measured is kept."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import superopt
from superopt.compilation.cpu.native_segment import NativeSegment
from superopt.cost import tuning_records
from superopt.cost.learned_ranking import (
    FEATURE_ALGORITHMS,
    MIN_MEASUREMENTS,
    LearnedRanking,
    cpu_option_features,
)
from superopt.cost.store import Key, Measurement, Store
from superopt.cost.tuning_records import TimedOption
from superopt.ir import graph as ir_graph
from superopt.kernels.algorithms.space import best_option, options
from superopt.kernels.loops.option import Option
from superopt.kernels.runtime.cpu import host
from superopt.loading.model import load_model
from superopt.loading.request import Request
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import read_model
from superopt.optimization.optimization_result import decision_log
from superopt.optimization.optimize import optimize
from superopt.plan.graph.simplify import simplify_graph
from superopt.plan.passes import plan_program
from superopt.plan.program.execute import load_program
from superopt.plan.program.plan import Settings
from superopt.plan.program.program import Program
from superopt.rules.library.load import load_library
from tests.support.compilation.models import F, model, near, net, picture, reference


def matrices() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((1600, 40)).astype(np.float32) / 40,
        "c": rng.standard_normal((16, 16, 3, 3)).astype(np.float32) / 12,
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Softmax", ["a"], ["y"]),
        helper.make_node("Conv", ["p", "c"], ["z"], pads=[2] * 4, dilations=[2, 2]),
        helper.make_node("ReduceMax", ["z"], ["m"], axes=[1]),
        helper.make_node("ReduceMin", ["x"], ["l"], axes=[1]),
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]),
    ]
    outputs = ["y", "m", "l", "t"]
    return model(nodes, {"x": (F, [6, 1600]), "p": (F, [1, 16, 9, 9])}, outputs, weights)


def squares() -> onnx.ModelProto:
    """Products that may be computed by parts, once and twice."""
    rng = np.random.default_rng(0)
    known = {
        "w": rng.standard_normal((64, 128)).astype(np.float32) / 8,
        "c": rng.standard_normal((64, 64, 1, 1)).astype(np.float32) / 8,
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["y"]),
        helper.make_node("Relu", ["p"], ["q"]),
        helper.make_node("Conv", ["q", "c"], ["z"]),
    ]
    return model(nodes, {"x": (F, [21, 64]), "p": (F, [1, 64, 5, 7])}, ["y", "z"], known)


MODELS = {"net": net, "matrices": matrices, "squares": squares}


def graph_of(m: object) -> ir_graph.Graph:
    return simplify_graph(import_model(read_model(m)).graph)  # type: ignore[arg-type]


def each_option(p: Program, many: int = 12) -> Iterator[tuple[str, Option]]:
    for key, problem in p.problems.items():
        some = list(options(problem))
        assert some[0] == best_option(problem)
        assert len(set(some)) == len(some)
        # All of a small space; of a large one some, far apart.
        for option in some[:: 1 + len(some) // many]:
            yield key, option


@pytest.mark.parametrize("many", [4, pytest.param(24, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", list(MODELS))
def test_every_option_computes_the_same(name: str, many: int) -> None:
    m = MODELS[name]()
    graph = graph_of(m)
    sizes = {"n": 1} if name == "net" else {}
    rng = np.random.default_rng(1)
    shapes = [[n if isinstance(n, int) else 1 for n in i.type.shape or ()] for i in graph.inputs]
    given = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    feeds = {i.name: a for i, a in zip(graph.inputs, given, strict=True)}
    wanted = reference(m, feeds)
    found: dict[str, list[Option]] = defaultdict(list)
    for key, option in each_option(plan_program(graph, sizes, Settings(host().width)), many):
        found[key].append(option)
    assert sum(map(len, found.values())) > 1.5 * many
    # One of each kernel at a time: a program for each option takes far longer.
    for n in range(max(map(len, found.values()))):
        chosen = {key: some[n % len(some)] for key, some in found.items()}
        made = plan_program(graph, sizes, Settings(host().width, chosen))
        assert made.options.items() >= chosen.items()
        got = [np.empty_like(a) for a in wanted.values()]
        load_program(made, host(), 1, None)(given, got)
        near(dict(zip(wanted, got, strict=True)), wanted)


def test_options_print_and_parse() -> None:
    some = [o for p in MODELS.values() for _, o in each_option(
        plan_program(graph_of(p()), {"n": 1}, Settings(host().width)))]  # fmt: skip
    assert {o.algorithm for o in some} == set(FEATURE_ALGORITHMS)
    for o in some:
        assert Option.parse(str(o)) == o
    with pytest.raises(ValueError, match="rows"):
        Option.parse("direct rows")


def test_an_option_of_another_problem_is_not_taken() -> None:
    graph = graph_of(matrices())
    first = plan_program(graph, {}, Settings(host().width))
    wrong = dict.fromkeys(first.problems, Option.make("winograd", m=9))
    assert plan_program(graph, {}, Settings(host().width, wrong)).options == first.options
    wrong = dict.fromkeys(first.problems, Option.make("spell", n=1))
    assert plan_program(graph, {}, Settings(host().width, wrong)).options == first.options


@pytest.mark.ci
def test_what_was_chosen_is_used_from_then_on(tmp_path: Path) -> None:
    m = net(9)
    found = superopt.tune(m, budget=6, shapes={"n": 1}, store=tmp_path)
    assert found.kernels
    assert all(0 < k.measured <= k.options for k in found.kernels)
    assert found.tuned_seconds <= found.default_seconds
    with Store.open(tmp_path) as store:
        chosen = tuning_records.chosen_options(store, tuning_records.cpu_target(1))
        rows = tuning_records.measured_options(store, tuning_records.cpu_target(1))
    assert len(rows) >= sum(k.measured for k in found.kernels) - len(found.kernels)
    exe = superopt.compile(m, store=tmp_path)
    x = picture(1, 9)
    near(exe(x=x), reference(m, {"x": x}))
    (step,) = exe.variants[(("n", 1),)]
    used = step.code.program.options  # type: ignore[union-attr]
    assert used == {key: chosen[key] for key in used}


@pytest.mark.slow
def test_without_tiles_what_is_tuned_has_none(tmp_path: Path) -> None:
    m = net(14)
    superopt.tune(m, budget=5, shapes={"n": 1}, store=tmp_path, float_class="E1")
    exe = superopt.compile(m, store=tmp_path, float_class="E1")
    with Store.open(tmp_path) as store:
        chosen = tuning_records.chosen_options(store, tuning_records.cpu_target(1))
    (step,) = exe.variant({"n": 1})
    assert isinstance(step, NativeSegment)
    found = step.code.program.options
    assert chosen
    assert chosen == {key: found[key] for key in chosen}
    assert not {o.algorithm for o in found.values()} & {"winograd", "strassen"}
    (other,) = superopt.compile(m, store=tmp_path).variant({"n": 1})
    assert isinstance(other, NativeSegment)
    assert not chosen.keys() & other.code.program.options.keys()


def test_the_budget_holds_and_progress_is_reported(tmp_path: Path) -> None:
    events: list[object] = []
    found = superopt.tune(net(9), budget=0.5, shapes={"n": 1}, store=tmp_path,
                          progress=events.append)  # fmt: skip
    assert found.seconds < 20
    assert events
    with pytest.raises(superopt.UsageError, match="budget"):
        superopt.tune(net(9), budget=0, shapes={"n": 1}, store=tmp_path)


def test_a_ranking_learns_what_is_fast() -> None:
    """Times by a law that hangs on the numbers of options: half of the problems are learned from,
    and in the others the fastest option is among the first that are said."""
    pytest.importorskip("lightgbm")
    rng = np.random.default_rng(0)
    space = [
        Option.make("gemm", rows=r, vectors=v, k_block=0) for r in range(1, 9) for v in (1, 2, 4)
    ]

    def law(numbers: tuple[int, ...], o: Option) -> float:
        tile = o["rows"] * o["vectors"]
        waste = -(-numbers[4] // o["rows"]) * o["rows"] / numbers[4]
        return 1e-6 * numbers[0] * numbers[1] * waste * (1 + abs(tile - 12) / 12)

    problems = [
        (int(n) * int(m), int(k), 4096, 4096, int(m), int(n), 64)
        for n, m, k in rng.integers(8, 100, (30, 3))
    ]
    seen = [
        TimedOption(f"p{n}", p, o, law(p, o)) for n, p in enumerate(problems[:15]) for o in space
    ]
    assert LearnedRanking.train(seen[: MIN_MEASUREMENTS - 1]) is None
    ranking = LearnedRanking.train(seen)
    assert ranking is not None
    found = []
    for p in problems[15:]:
        order = ranking.order(p, space)
        assert sorted(map(str, order)) == sorted(map(str, space))
        best_first = min(law(p, o) for o in order[:6])
        found.append(best_first / min(law(p, o) for o in space))
    assert np.median(found) < 1.05
    assert len({len(cpu_option_features(problems[0], o)) for o in space}) == 1


def merged() -> onnx.ModelProto:
    """Two products of one operand, which are one by a rule."""
    rng = np.random.default_rng(0)
    known = {k: rng.standard_normal((32, 32)).astype(np.float32) for k in "ab"}
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["p"]),
        helper.make_node("MatMul", ["x", "b"], ["q"]),
        helper.make_node("Mul", ["p", "q"], ["y"]),
    ]
    return model(nodes, {"x": (F, [4, 32])}, ["y"], known)


def products(graph: ir_graph.Graph) -> int:
    return sum(n.op.name == "MatMul" for n in ir_graph.nodes(graph))


def test_the_graph_that_was_found_is_compiled(tmp_path: Path) -> None:
    m = merged()
    source = read_model(m)
    done = optimize(
        load_model(source), Request(budget=10, rules=load_library(), cost="roofline", target="cpu")
    )
    done.scratch.remove()
    assert done.winner is not None
    before = superopt.compile(m, store=tmp_path)
    on = tuning_records.cpu_target(1)
    with Store.open(tmp_path) as store:
        tuning_records.store_rewrites(
            store, on, source.sha256, decision_log(done), (1.0, 1.0, 1.0, 1)
        )
    after = superopt.compile(m, store=tmp_path)
    assert products(before.model.graph) == 2
    assert products(after.model.graph) == 1
    feeds = {"x": np.random.default_rng(1).standard_normal((4, 32)).astype(np.float32)}
    near(after.run(feeds), before.run(feeds))
    same = superopt.compile(m, store=tmp_path, float_class="E1")
    assert products(same.model.graph) == 2
    with Store.open(tmp_path) as store:  # of another version's rules
        log = decision_log(done).replace(done.winner.variant.steps[0].rule, "forgotten")
        tuning_records.store_rewrites(store, on, source.sha256, log, (1.0, 1.0, 1.0, 1))
    again = superopt.compile(m, store=tmp_path)
    assert products(again.model.graph) == 2


def test_records_of_other_names_of_options_are_not_read(tmp_path: Path) -> None:
    """The kinds have a number, which changes with these names."""
    on = tuning_records.cpu_target(1)
    with Store.open(tmp_path) as store:
        for kind in ("kernel", "tuned"):  # before there was a number
            row = Key(kind, "k gemm rows=6 vectors=4 k_block=0", ((1,) * 7,), (), on)
            store.put({row: Measurement(1.0, 1.0, 1.0, 1, 1.0)})
        assert tuning_records.measured_options(store, on) == []
        assert tuning_records.chosen_options(store, on) == {}


@pytest.mark.parametrize(
    "text", ["", "elementwise lanes=x", "elementwise lanes", "nonsense rows=3"]
)
def test_unknown_entries_of_a_store_are_ignored(text: str, tmp_path: Path) -> None:
    """What no version wrote is left out, and nothing fails."""
    m = net(9)
    exe = superopt.compile(m, store=tmp_path)
    (step,) = exe.variant({"n": 1})
    assert isinstance(step, NativeSegment)
    key = next(iter(step.code.program.options))
    with Store.open(tmp_path) as store:
        on = tuning_records.cpu_target(1)
        for kind in (tuning_records.CHOSEN_KIND, tuning_records.MEASURED_KIND):
            row = Key(kind, f"{key} {text}", ((1,),), (), on)
            store.put({row: Measurement(1.0, 1.0, 1.0, 1, 1.0)})
        assert key not in tuning_records.chosen_options(store, on) or text.startswith("nonsense")
        tuning_records.measured_options(store, on)
    again = superopt.compile(m, store=tmp_path)
    (other,) = again.variant({"n": 1})
    assert isinstance(other, NativeSegment)
    assert other.code.program.options == step.code.program.options
