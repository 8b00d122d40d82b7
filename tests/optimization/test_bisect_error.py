"""The step that adds most to the error of a rewritten model."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from superopt.check.compare import Comparison
from superopt.check.numeric_check import PlaceResult
from superopt.check.random_inputs import INPUT_KINDS
from superopt.ir import graph as ir_graph
from superopt.optimization.bisect_error import bisect_error, largest_added_error
from tests.support.optimization.models import data
from tests.support.optimization.running import report, rules, run, trace

# What the second does in one pass over x it does with sums that cancel.
VARIANCE = """
variance(x: f[n, k]):
    ReduceMean(Mul(Sub(x, ReduceMean(x, axes=(1,), keepdims=1)),
                   Sub(x, ReduceMean(x, axes=(1,), keepdims=1))), axes=(1,), keepdims=1)
    => Sub(ReduceMean(Mul(x, x), axes=(1,), keepdims=1),
           Mul(ReduceMean(x, axes=(1,), keepdims=1), ReduceMean(x, axes=(1,), keepdims=1)))
    ; float=E2
"""
MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
spread (float[64, 8192] x) => (float[64, 1] y)
{
  offset = Constant<value = float {OFFSET}> ()
  a = Relu(x)
  b = Relu(a)
  moved = Add(b, offset)
  mean = ReduceMean<axes = [1]>(moved)
  d = Sub(moved, mean)
  s = Mul(d, d)
  v = ReduceMean<axes = [1]>(s)
  t = Transpose<perm = [1, 0]>(v)
  y = Transpose<perm = [1, 0]>(t)
}
"""


# The sums of squares cancel to 1/10 beside the small offset, to 1/100 beside the large one.
SMALL_OFFSET, LARGE_OFFSET = MODEL.replace("OFFSET", "1.0"), MODEL.replace("OFFSET", "4.0")


def test_a_rule_that_loses_digits_is_left_out_and_the_others_stay() -> None:
    done = run(data(LARGE_OFFSET), rules=rules(VARIANCE), budget=60.0)
    assert done.winner is not None
    assert {s.rule for s in done.winner.variant.steps} >= {"relu-relu", "transpose-transpose"}
    assert "variance" not in {s.rule for s in done.winner.variant.steps}
    assert "searched again without variance, from the graph after step 1" in done.notes
    assert any("rounding errors grow too large at y" in note for note in done.notes)


# A variance of each of two inputs: the larger one, which is rewritten first, is near 0.
TWO_VARIANCES = """
<ir_version: 8, opset_import: ["" : 17]>
spread (float[64, 32768] x, float[64, 8192] z) => (float[64, 1] y, float[64, 1] w)
{
  offset = Constant<value = float {4.0}> ()
  mean = ReduceMean<axes = [1]>(x)
  d = Sub(x, mean)
  s = Mul(d, d)
  y = ReduceMean<axes = [1]>(s)
  r = Relu(z)
  moved = Add(r, offset)
  mean2 = ReduceMean<axes = [1]>(moved)
  d2 = Sub(moved, mean2)
  s2 = Mul(d2, d2)
  w = ReduceMean<axes = [1]>(s2)
}
"""


def test_the_steps_before_the_one_that_loses_digits_stay() -> None:
    done = run(data(TWO_VARIANCES), rules=rules(VARIANCE), budget=60.0)
    assert "searched again without variance, from the graph after step 1" in done.notes
    assert done.winner is not None
    assert [s.rule for s in done.winner.variant.steps] == ["variance"]
    y, w = done.winner.variant.graph.outputs
    assert (y.op.name, w.op.name) == ("Sub", "ReduceMean")  # type: ignore[union-attr]


def test_digits_that_are_lost_on_inputs_for_which_no_time_is_left_are_seen() -> None:
    seen: list[str] = []
    done = run(
        data(LARGE_OFFSET),
        rules=rules(VARIANCE),
        progress=lambda event: seen.append(event.stage),
        stop=lambda: "check" in seen,
    )
    used = done.winner.variant.steps if done.winner else ()
    assert "variance" not in {s.rule for s in used}


def test_the_step_that_adds_most_is_named() -> None:
    found = report(run(data(SMALL_OFFSET), rules=rules(VARIANCE), budget=60.0))
    assert {"variance", "relu-relu"} <= {s.rule for s in found.steps}
    worst = found.worst_step
    assert worst is not None, found.worst_step_note
    assert worst.rules == ("variance",)
    assert found.steps[worst.first - 1].rule == "variance"
    assert (worst.first, worst.of, worst.output) == (worst.last, len(found.steps), "y")
    assert worst.before < worst.after
    (output,) = found.check.outputs if found.check else ()
    assert worst.inputs in INPUT_KINDS
    assert worst.after <= output.max_error  # which is of the worst of all inputs


def test_no_step_is_named_where_none_adds_error() -> None:
    found = report(run(data(SMALL_OFFSET)))
    assert {s.rule for s in found.steps} >= {"relu-relu"}
    assert found.worst_step is None
    assert found.worst_step_note == "no output has a larger error than the original's"


def growing(at: dict[int, float]) -> Callable[[ir_graph.Graph], float]:
    """The error of a graph: what each output that is negated adds."""

    def error_of(graph: ir_graph.Graph) -> float:
        done = [n for n, v in enumerate(graph.outputs) if isinstance(v, ir_graph.Node)]
        return sum(at.get(n, 0.0) for n in done if graph.outputs[n].op.name == "Neg")  # type: ignore[union-attr]

    return error_of


@pytest.mark.parametrize("rounds", [[1], [3], [1, 1, 1, 1], [2, 5, 1, 4], [7, 1]])
def test_bisection_finds_the_only_step_that_adds(rounds: list[int]) -> None:
    steps, graphs = trace(rounds)
    for n in range(len(steps)):
        error_of = growing({n: 2.0})
        ends = (error_of(graphs[0]), error_of(graphs[-1]))
        assert bisect_error(steps, ends, error_of, lambda: False) == (n + 1, n + 1, 0.0, 2.0)


def test_bisection_goes_to_the_half_that_adds_more() -> None:
    steps, _ = trace([1] * 16)
    error_of = growing({2: 1.0, 9: 3.0, 12: -1.0})
    assert bisect_error(steps, (0.0, 3.0), error_of, lambda: False) == (10, 10, 1.0, 4.0)


def test_bisection_says_how_far_it_came() -> None:
    steps, _ = trace([1] * 16)
    asked: list[ir_graph.Graph] = []

    def error_of(graph: ir_graph.Graph) -> float:
        asked.append(graph)
        return growing({9: 3.0})(graph)

    assert bisect_error(steps, (0.0, 3.0), error_of, lambda: len(asked) == 2) == (9, 12, 0.0, 3.0)
    assert bisect_error(steps, (0.0, 3.0), lambda graph: None, lambda: False) == (1, 16, 0.0, 3.0)


def test_most_is_added_as_a_part_of_what_is_allowed() -> None:
    small = Comparison(3e-6, 0, 0, 1e-6, 1e-4, 1e-6, "")
    large = Comparison(5e-3, 0, 0, 4e-3, 1e-4, 1e-2, "")
    exact = Comparison(0, 0, 0, 0, 0, 0, "")
    results = [
        PlaceResult(n, "normal", c) for n, c in zip("abc", (large, small, exact), strict=True)
    ]
    found = largest_added_error(results)
    assert found is not None
    assert found.place == "b"
    assert largest_added_error([replace(results[2])]) is None
