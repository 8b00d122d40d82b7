"""Rules on tensor expressions as they are read, what they make of a sample of tensors, and that the
values stay; malformed rules."""

from __future__ import annotations

import numpy as np
import pytest

from superopt.errors import UsageError
from superopt.rules.te.match import Context
from superopt.rules.te.rewrite import RuleSet
from superopt.rules.te.term import parse_te_rules
from superopt.te.eval.interpret import evaluate
from superopt.te.expr.dtype import F16, F32
from superopt.te.expr.node import Const
from superopt.te.expr.tensor import (
    Tensor,
    TensorType,
    apply,
    cast,
    compare,
    compute,
    conjunction,
    placeholder,
    reduce_max,
    reduce_sum,
    select,
)
from tests.support.rules.sample import check_golden

RULES = """
double: x + x => x * 2
zero: x - x => 0
hoist(c): sum(*k < n, x(*k) * c) => sum(*k, x(*k)) * c
hoist-left(c): sum(*k < n, c * x(*k)) => c * sum(*k, x(*k))
split-sum: sum(*k < n, x(*k) + y(*k)) => sum(*k, x(*k)) + sum(*k, y(*k))
one-term: sum(k < 1, x(k)) => x(0)
max-max: max(max(x, y), y) => max(x, y)
max-of-sum(c: number): max(x + c, y + c) => max(x, y) + c
neg-neg: -(-x) => x
scale-number(c: number, d: number): x * c * d => x * (value(c) * value(d))
small(c: number): x * c => x / (1 / value(c)) where 2 <= value(c), value(c) < 5
at-four(c: number): x + c => x + (value(c) * 2 - 4) where abs(value(c)) == 4, 0 < value(c)
not-three(c: number): x / c => x * (1 / value(c)) where value(c) != 3, not value(c) == 7
exp-sum: exp(x) * exp(y) => exp(x + y)
half-cast(x: (f16 | bf16)[...]): f32(x) => f32(x) * 1
choice-zero: select(p, x, y) * 0 => x * 0
stored: sum(*k < n, x(*k) * x(*k)) => store.squares[...](sum(*k, x(*k) * x(*k)))
swap-loads(x: any[...], y: any[...]): x - y => -(y - x)
fold-max: max(*k < n, x(*k) + c) => max(*k, x(*k)) + c
root: sqrt(x) * sqrt(x) => sqrt(x) ** 2
minimum: min(x, y) => -max(-x, -y)
each-{R}: {R}(j < m, {R}(k < n, x(j, k))) => {R}(k < n, {R}(j < m, x(j, k)))
"""
TEXT = RULES.replace("each-{R}", "each R: sum max\neach-{R}")
FACTS = """
even(c: number): x * c where value(c) % 2 == 0
even(x): x + x
positive: exp(x)
positive: max(x, c) where positive(c)
"""
X = placeholder("x", TensorType(F32, (3, 4)))
Y = placeholder("y", TensorType(F32, (3, 4)))
V = placeholder("v", TensorType(F32, (3,)))
H = placeholder("h", TensorType(F16, (3,)))
TWO, FOUR, EIGHT = (Const(n, F32) for n in (2, 4, 8))
TENSORS: dict[str, Tensor] = {
    "twice": compute((3,), lambda i: V[i] + V[i]),
    "nothing": compute((3,), lambda i: V[i] - V[i]),
    "scaled": compute((3,), lambda i: reduce_sum(4, lambda k: X[i, k] * V[i])),
    "scaled from the left": compute((3,), lambda i: reduce_sum(4, lambda k: V[i] * X[i, k])),
    "scaled by its own": compute((3,), lambda i: reduce_sum(4, lambda k: X[i, k] * Y[i, k])),
    "sum of two": compute((3,), lambda i: reduce_sum(4, lambda k: X[i, k] + Y[i, k])),
    "one term": compute((3,), lambda i: reduce_sum(1, lambda k: X[i, k])),
    "maxima": compute((3, 4), lambda i, j: apply(
        "max", apply("max", X[i, j], Y[i, j]), Y[i, j])),
    "maxima of sums": compute((3,), lambda i: apply("max", V[i] + 1, X[i, 0] + 1)),
    "negated": compute((3,), lambda i: apply("neg", apply("neg", V[i]))),
    "numbers": compute((3,), lambda i: V[i] * TWO * FOUR),
    "times 8": compute((3,), lambda i: V[i] * EIGHT),
    "plus 4": compute((3,), lambda i: V[i] + FOUR),
    "times 2": compute((3,), lambda i: V[i] * TWO), "by 8": compute((3,), lambda i: V[i] / EIGHT),
    "by 3": compute((3,), lambda i: V[i] / 3), "minus 4": compute((3,), lambda i: V[i] - FOUR),
    "exponentials": compute((3,), lambda i: apply("exp", V[i]) * apply("exp", X[i, 1])),
    "cast": compute((3,), lambda i: cast(H[i], F32)),
    "guards": compute((3, 4), lambda i, j: select(
        conjunction(compare("lt", i, 2), compare("le", i, j)), X[i, j], Y[i, j]) * 0),
    "squares": compute((3,), lambda i: reduce_sum(4, lambda k: X[i, k] * X[i, k])),
    "difference": compute((3, 4), lambda i, j: X[i, j] - Y[i, j]),
    "shifted maximum": compute((3,), lambda i: reduce_max(4, lambda k: X[i, k] + V[i])),
    "roots": compute((3,), lambda i: apply("sqrt", apply("abs", V[i])) * apply(
        "sqrt", apply("abs", V[i]))),
    "least": compute((3, 4), lambda i, j: apply("min", X[i, j], Y[i, j])),
    "double sum": compute((), lambda: reduce_sum(3, lambda j: reduce_sum(4, lambda k: X[j, k]))),
    "double max": compute((), lambda: reduce_max(3, lambda j: reduce_max(4, lambda k: X[j, k]))),
}  # fmt: skip


def array(t: Tensor) -> np.ndarray:
    shape = tuple(n for n in t.shape if isinstance(n, int))
    made = np.random.default_rng(len(t.name)).integers(-8, 9, shape)
    return made.astype(np.float16 if t.dtype == F16 else np.float32)


def test_rules_as_they_are_read() -> None:
    found, _ = parse_te_rules(TEXT, "sample")
    _, facts = parse_te_rules(FACTS, "facts")
    check_golden("te", "rules", [*map(repr, found), *map(repr, facts)])


def test_rewritten_tensors_have_the_same_values() -> None:
    found, _ = parse_te_rules(TEXT, "sample")
    given = {t.name: array(t) for t in (X, Y, V, H)}
    lines: list[str] = []
    used: set[str] = set()
    for name, t in TENSORS.items():
        before = np.asarray(evaluate(t, given))
        for rule in found:
            for made in RuleSet((rule,)).rewrites(t, Context()):
                after = np.asarray(evaluate(made.tensor, given))
                np.testing.assert_allclose(after, before, rtol=1e-5)
                stored = "".join(f"; {s.name}{list(s.shape)} = {s.body}" for s in made.stored)
                lines.append(f"{name}, {rule.name}: {t.body} => {made.tensor.body}{stored}")
                used.add(rule.name)
    assert used == {rule.name for rule in found}
    check_golden("te", "rewrites", lines)


def test_properties() -> None:
    _, facts = parse_te_rules(FACTS, "facts")
    some = RuleSet(
        (), {p: tuple(f for f in facts if f.predicate == p) for p in ("even", "positive")}
    )
    lines = []
    for name, t in TENSORS.items():
        for predicate in ("even", "positive"):
            assert t.body is not None
            places = [sorted(map(str, env)) for env in some.occurrences(predicate, t.body)]
            if places:
                lines.append(f"{name}, {predicate}: {places}")
    check_golden("te", "properties", lines)


MALFORMED = """
r(x): x +
r(x: f33): x => x
sum(k, x)
r(x): x => [x]
r(x): x is x => x
r(x): x => y.z.w(x)
r(x): x => lambda: x
r: sum(k <= n, x(k)) => x
r: sum(k < n < m, x(k)) => x
r: x => x where x <
r(x) x => x
r: x[1:2] => x
r: 'a' => x
r: f(x, k=1) => x
"""


@pytest.mark.parametrize("text", MALFORMED.strip().splitlines())
def test_malformed_rules_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"sample:1"):
        parse_te_rules(text, "sample")
