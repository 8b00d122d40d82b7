"""Why a rule applies or not, in words."""

from __future__ import annotations

import numpy as np
import pytest

from superopt.ir.graph import Constant, constant, producer
from superopt.rules.library.load import load_library
from superopt.rules.match.explain import explain, show_attempts
from superopt.rules.match.graph_context import graph_context
from superopt.rules.match.matcher import matches
from tests.support.ir.random_graphs import dense
from tests.support.rules.places import graph, rule

G = (
    "x: f32[2, 4]",
    "w: f32[4, 4]",
    "c = const f32[4, 4] [" + ", ".join(["1.0"] * 8 + ["2.0"] * 8) + "]",
    "two = const f32[] 2.0",
    "%0 = MatMul(x, w)",
    "%1 = Relu(%0)",
    "%2 = Mul(%1, two)",
    "%3 = Transpose(%2)",
    "%4 = Concat(%2, %2, %0, axis=1)",
    "%5 = Clip(%4, two)",
    "%0, %3, %5",
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("r(x: f): Relu(Abs(x)) => x", "operand 0 of Relu is from MatMul, the rule needs Abs"),
        ("r(x: f): Mul(Abs(x), 2) => x",
         "operand 0 of Mul is from Relu, the rule needs Abs (in either order)"),
        ("r(x: f): Mul(x, 3) => x",
         "operand 1 of Mul is a constant of type f32[], the rule needs the number 3"
         " (in either order)"),
        ("r(x: f, a: f, b: f): Clip(x, a, b) => x", "Clip has 2 operands, the rule needs 3"),
        ("r(x: f): Transpose(x, perm=(0, 1)) => x",
         "Transpose has perm=(1, 0), the rule needs (0, 1)"),
        ("r(x: f): Transpose(x, perm=(rank(x) - 2, 1)) => x",
         "Transpose has perm=(1, 0), the rule needs (rank(x) - 2, 1) = (0, 1)"),
        ("r(x: f, y: f): Concat(x, x, y) => x", "language"),
        ("r(x: f, y: f): Concat(x, x, y, axis=0) => x", "Concat has axis=1, the rule needs 0"),
        ("r(x: f, y: f): Concat(x, y, y, axis=k) => x", "y stands for two different values"),
        ("r(x: f, y: f): Concat(Abs(x), Neg(y), axis=k) => x",
         "none of its 3 operands in a row are Abs and Neg"),
        ("r(x: f64): Relu(x) => x", "the element type is f32, the rule needs x: f64"),
        ("r(x: f[n, n]): Relu(x) => x", "the type is f32[2, 4], the rule needs x: f[n, n]"),
        ("r(x: f[n]): Relu(x) => x", "the type is f32[2, 4], the rule needs x: f[n]"),
        ("r(x: f, w: f): MatMul(x, w) => x where const(w)",
         "condition const(w) does not hold (w is input w)"),
        ("r(x: f[n, k], w: f): MatMul(x, w) => x where n > k",
         "condition n > k does not hold (k is 4; n is 2)"),
        ("r(x: f, w: f): MatMul(x, w) => x where value(w) == 1",
         "condition value(w) == 1 is not known: input w is not a uniform constant"
         " (w is input w)"),
        ("r(x: f, w: f): Relu(MatMul(x, w)) => x where single_use(MatMul(x, w))",
         "condition single_use(MatMul(x, w)) does not hold"),
        ("r(x: f): Relu(x) => x where m == 1 // 0, m > 1", "m == 1 // 0 is not known"),
    ],
)  # fmt: skip
def test_why_it_failed(text: str, reason: str) -> None:
    if reason == "language":
        with pytest.raises(Exception, match="needs the attribute axis"):
            rule(text)
        return
    attempts = explain(rule(text), graph(*G))
    assert attempts
    assert all(a.outcome == "failed" for a in attempts)
    assert all(a.passed < a.steps for a in attempts)
    assert reason in [a.reason[: len(reason)] for a in attempts]


def test_where_it_applies_or_is_refused() -> None:
    g = graph(*G)
    (good,) = explain(rule("r(x: f): Relu(x) => Neg(x)"), g)
    assert good.outcome == "applies"
    assert good.reason == "becomes Neg(x) where x is a value of type f32[2, 4]"
    assert str(good) == f"r: applies: {good.reason}"
    (bad,) = explain(rule("r(x: f): Relu(x) => Transpose(x)"), g)
    assert bad.outcome == "refused"
    assert bad.reason == (
        "it matches, but the result would have another type: f32[2, 4] would become f32[4, 2]"
    )
    (same,) = explain(rule("r(x: f): Relu(x) => Relu(x)"), g)
    assert same.reason == "it matches, and changes nothing"


def test_around_a_value() -> None:
    g = graph(*G)
    relu = rule("r(x: f, y: f): Mul(Relu(x), y) => y")
    inner = producer(g.outputs[0])
    assert [a.outcome for a in explain(relu, g)] == ["refused"]
    (away,) = explain(relu, g, inner)
    assert away.outcome == "failed"
    assert away.reason == (
        "this is MatMul of type f32[2, 4], which the rule does not reach from any Mul"
    )
    (there,) = explain(relu, graph_context(g), inner.inputs[0] if inner is not None else None)
    assert there.site is not inner  # an input: what reads it, and what is on top of that
    c = constant(np.zeros(3, np.float32))
    assert isinstance(c, Constant)
    (nowhere,) = explain(relu, g, c)
    assert "this is a constant of type f32[3]" in nowhere.reason


def test_a_match_that_covers_something_else() -> None:
    g = graph("x: f32[2]", "%0 = Abs(x)", "%1 = Relu(%0)", "%2 = Relu(x)", "%3 = Max(%1, %2, %0)",
              "%3, %0")  # fmt: skip
    r = rule("r(x: f, y: f): Max(Relu(x), Relu(y)) => x")
    (attempt,) = explain(r, g, g.outputs[1])
    assert str(attempt) == "r: failed: it matches only elsewhere: no match covers the given node"


@pytest.mark.parametrize("seed", range(3))
def test_every_rule_explains_itself_everywhere(seed: int) -> None:
    """Matches and attempts agree, and no reason is empty or fails."""
    g = dense(seed, 20)
    ctx = graph_context(g)
    for r in load_library():
        attempts = explain(r, ctx)
        assert sum(a.outcome != "failed" for a in attempts) == len(list(matches(r, ctx))), r.name
        assert all(a.reason and a.rule == r.name for a in attempts)
        for v in g.outputs[:2]:
            assert explain(r, ctx, v)
        assert show_attempts(attempts).count("\n") < max(len(attempts), 1)


def test_a_summary_counts_equal_lines() -> None:
    g = graph("x: f32[2]", "%0 = Relu(x)", "%1 = Neg(%0)", "%2 = Relu(%1)", "%3 = Relu(%2)", "%3")
    assert show_attempts(explain(rule("r(x: f): Relu(x) => x where rank(x) > 1"), g)) == (
        "r: failed (step 3 of 3): condition rank(x) > 1 does not hold (x is input x)\n"
        "r: failed (step 3 of 3): condition rank(x) > 1 does not hold"
        " (x is a value of type f32[2]) (2 times)"
    )
