"""A wrong rule never passes: nothing is returned, and the step that did it is named."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from superopt.check.compare import failed_comparison
from superopt.check.numeric_check import PlaceResult
from superopt.errors import CheckFailed, ExitCode
from superopt.ir import graph as ir_graph
from superopt.optimization import bisect_steps
from superopt.optimization.bisect_steps import find_culprit
from superopt.optimization.optimization_result import OptimizationResult
from superopt.verification import candidate_check
from tests.support.optimization import models, running
from tests.support.optimization.models import data
from tests.support.optimization.running import rules, trace


def run(given: bytes, **asked: object) -> OptimizationResult:
    """`optimize` with rules of every float class: what is computed of a wrong one's is E3."""
    return running.run(given, **{"float_class": "E3", **asked})


WRONG = {
    "drops-relu": "drops-relu(x: f): Relu(x) => x ; float=E0",
    "wrong-perm": "wrong-perm(x: f[n, n]): Transpose(x, perm=(1, 0)) => x ; float=E0",
    "max-of-one": "max-of-one(x: f, y: f): Max(x, y) => x ; float=E0",
    "loses-sign": "loses-sign(x: f): Sub(x, x) => Relu(x) ; float=E0",
}

# One activation of each kind, and much that right rules do.
MIXED = """
<ir_version: 8, opset_import: ["" : 17]>
mixed (float[5, 5] x, float[5, 5] z) => (float[5, 5] y, float[5, 5] untouched)
{
  a = Relu(x)
  b = Relu(a)
  c = Transpose<perm = [1, 0]>(b)
  d = Transpose<perm = [1, 0]>(c)
  e = Sub(d, z)
  f = Max(e, x)
  h = Transpose<perm = [1, 0]>(f)
  k = Transpose<perm = [1, 0]>(h)
  y = Add(k, z)
  untouched = Exp(z)
}
"""


@pytest.mark.parametrize(
    ("name", "place", "number"),
    [("drops-relu", "b", None), ("max-of-one", "f", None)],
)
def test_the_wrong_rule_among_right_ones_is_named(name: str, place: str, number: object) -> None:
    with pytest.raises(CheckFailed) as caught:
        run(data(MIXED), rules=rules(WRONG[name], "wrong.rules"))
    error = caught.value
    assert error.code == ExitCode.REFUTED
    assert error.what.startswith(f"the model: rule {name} changes the results at ")
    assert error.what.endswith("; nothing was written")
    assert "output y: at [" in error.why
    assert "(inputs: normal)" in error.why
    assert error.todo == "correct or remove this rule (wrong.rules:1)"
    assert all("\n" not in part for part in (error.what, error.why, error.todo))


def test_the_place_is_the_models_name_and_the_rewrite_is_shown() -> None:
    with pytest.raises(CheckFailed) as caught:
        run(data(MIXED), rules=rules(WRONG["max-of-one"]))
    assert " at f;" in caught.value.what
    assert "replaced Max(" in caught.value.why


def test_a_wrong_rule_before_an_opaque_node_is_caught_at_the_node() -> None:
    with pytest.raises(CheckFailed) as caught:
        run(data(models.RANDOM), rules=rules(WRONG["drops-relu"]))
    assert "rule drops-relu changes the results at " in caught.value.what


def test_a_wrong_rule_in_a_model_that_onnxruntime_cannot_run() -> None:
    with pytest.raises(CheckFailed) as caught:
        run(data(models.CUSTOM), rules=rules(WRONG["drops-relu"]), cost="auto")
    assert "rule drops-relu changes the results" in caught.value.what


def test_a_wrong_rule_that_shows_at_other_sizes_only() -> None:
    # right at a batch of 1, which is the size at which costs are taken
    text = """
<ir_version: 8, opset_import: ["" : 17]>
sizes (float[batch, 4] x) => (float[k, 4] y)
{
  r = Relu(x)
  s = Abs(r)
  y = ReduceMax<axes = [0], keepdims = 1>(s)
}
"""
    wrong = """
first-row(x: f[n, k]):
    ReduceMax(Abs(Relu(x)), axes=(0,))
    => Slice(Relu(x), starts=(0,), ends=(1,), axes=(0,)) ; float=E0
"""
    with pytest.raises(CheckFailed) as caught:
        run(data(text), rules=rules(wrong))
    assert "rule first-row" in caught.value.what
    assert "at batch=2" in caught.value.why


# --- bisection ------------------------------------------------------------------------------------


def wrong_from(n: int) -> Callable[[ir_graph.Graph], bool]:
    """Is output `n` negated?"""

    def is_wrong(graph: ir_graph.Graph) -> bool:
        out = graph.outputs[n]
        return isinstance(out, ir_graph.Node) and out.op.name == "Neg"

    return is_wrong


@pytest.mark.parametrize("rounds", [[1], [3], [1, 1, 1, 1], [2, 5, 1, 4], [7, 1]])
def test_bisection_finds_every_step(rounds: list[int]) -> None:
    steps, graphs = trace(rounds)
    for n in range(sum(rounds)):
        found = find_culprit(steps, wrong_from(n))
        assert found is not None
        assert (found.step.rule, found.number) == (f"r{n}", n + 1)
        assert [s.rule for s in found.steps_before] == [f"r{k}" for k in range(n)]
        assert found.graph_before == (found.steps_before[-1].after if n else graphs[0])
        negated = [v.op.name == "Neg" for v in found.graph_before.outputs]  # type: ignore[union-attr]
        assert negated == [k < n for k in range(sum(rounds))]


def test_bisection_asks_few_questions() -> None:
    steps, _ = trace([1] * 64)
    asked = 0

    def is_wrong(graph: ir_graph.Graph) -> bool:
        nonlocal asked
        asked += 1
        return wrong_from(20)(graph)

    found = find_culprit(steps, is_wrong)
    assert found is not None
    assert found.number == 21
    assert asked <= 8


def test_no_step_is_to_blame_for_a_right_graph() -> None:
    steps, _ = trace([2, 2])
    assert find_culprit(steps, lambda graph: False) is None
    assert find_culprit([], lambda graph: True) is None


# --- errors that no rule made ---------------------------------------------------------------------


def test_a_runtime_that_computes_otherwise_is_not_blamed_on_a_rule_in_float64(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As if onnxruntime gave something else for every rewritten file, but not for the original."""
    found = candidate_check._values_and_reference

    def off(*args: object, **named: object) -> object:
        values, ref = found(*args, **named)  # type: ignore[arg-type]
        return tuple(None if v is None else v + 1 for v in values), ref

    monkeypatch.setattr(candidate_check, "_values_and_reference", off)
    with pytest.raises(CheckFailed) as caught:
        run(data(models.PLAIN))
    assert "writing or running the graph changes the results" in caught.value.what
    assert "in float64 both agree" in caught.value.why


def test_a_graph_that_is_right_when_it_runs_again_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As if onnxruntime's rounding were a little worse in one session of each rewritten file."""
    found = candidate_check._values_and_reference

    def off(*args: object, **named: object) -> object:
        values, ref = found(*args, **named)  # type: ignore[arg-type]
        worse = (None if v is None else v + 3e-5 * np.abs(v).max() * (v != 0) for v in values)
        return tuple(None if v is None else v.astype(np.float32) for v in worse), ref

    monkeypatch.setattr(candidate_check, "_values_and_reference", off)
    result = run(data(models.PLAIN))
    assert result.winner is None
    assert any("run again, the last graph is right" in n for n in result.notes)


def test_folding_is_blamed_where_it_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    from superopt.ir import constant_folding as folding
    from superopt.optimization import candidate

    real = folding.fold_constants

    def bad(graph: ir_graph.Graph, **named: object) -> folding.FoldResult:
        done = real(graph)
        change = {c: ir_graph.constant(c.load() + 1) for c in ir_graph.constants(done.graph)}
        wrong = ir_graph.replace(done.graph, change)
        return folding.FoldResult(
            wrong, done.removed_nodes, done.bytes_before, done.bytes_after, ()
        )

    monkeypatch.setattr(candidate, "fold_constants", bad)
    with pytest.raises(CheckFailed) as caught:
        run(data(models.PLAIN))
    assert "folding constants changes the results" in caught.value.what


def test_a_step_that_only_the_runtime_gets_wrong_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    steps, graphs = trace([1, 1, 1])
    bad = PlaceResult("y", "normal", failed_comparison("off"))
    wrong = candidate_check.WrongResult(graphs[-1], None, None, bad)  # type: ignore[arg-type]
    monkeypatch.setattr(
        bisect_steps, "_differs_in_float64", lambda original, wrong: lambda graph: False
    )
    monkeypatch.setattr(bisect_steps, "_differs_in_runtime", lambda *args: wrong_from(1))

    source = SimpleNamespace(label="m")
    model = SimpleNamespace(source=source, names={graphs[0].outputs[1]: "here"})
    original = SimpleNamespace(model=model)
    error = bisect_steps.explain_wrong_result(original, steps, wrong, {}, tmp_path, 1)  # type: ignore[arg-type]
    assert error.what == "m: rule r1 changes the results at here; nothing was written"
    assert "step 2 of 3" in error.why
    assert "in float64 both agree" in error.why


def test_the_candidates_files_are_gone_after_a_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(CheckFailed):
        run(data(MIXED), rules=rules(WRONG["drops-relu"]))
    assert list(tmp_path.iterdir()) == []
