"""Axes in rules: that two of them must not be the same, and laws of joins from laws of parts."""

from functools import partial

import pytest

from superopt.generate.enumeration.pattern import Equation, PatternCall, PatternVariable
from superopt.generate.families.family import Family, operator_use, result_uses
from superopt.generate.generalize.candidates import (
    RewriteCandidate,
    as_candidate,
    joined_candidates,
    rewrite_candidates,
)
from superopt.generate.generalize.closure import candidate_text
from superopt.generate.generalize.select_rule import most_general_rule
from superopt.generate.generalize.soundness import SoundRule
from superopt.generate.generalize.term_graphs import rule_instance

SHAPE = (5, 4, 3)
MOVED = Family(
    "moved",
    {**dict.fromkeys("xy", SHAPE), "w": (3, 2), "v": (4, 3)},
    {},
    (
        operator_use("Softmax", 1, axis=2),
        operator_use("ReduceMax", 1, axes=(2,), keepdims=1),
        operator_use("Concat", 2, axis=0),
        *result_uses("Split", 2, axis=0, split=(2, 3)),
        operator_use("Slice", 1, axes=(1,), starts=(1,), ends=(3,), steps=(1,)),
        operator_use("Transpose", 1, perm=(1, 0, 2)),
        operator_use("ReduceMean", 1, axes=(0,), keepdims=1),
        operator_use("MatMul", 2),
        operator_use("Transpose", 1, perm=(0, 2, 1)),
        operator_use("ReduceMax", 1, axes=(1,), keepdims=1),
    ),
    120,
)
SOFTMAX, MAX, CONCAT, FIRST, SECOND, SLICE, TURN, MEAN, MATMUL, FLIP, OTHER = range(len(MOVED.uses))
X = PatternVariable(0)


def through(outer: int, inner: int, after: int | None = None) -> Equation:
    """outer(inner(x)) = after(outer(x))."""
    right = PatternCall(inner if after is None else after, (PatternCall(outer, (X,)),))
    return Equation(PatternCall(outer, (PatternCall(inner, (X,)),)), right, ("x",))


def read(c: RewriteCandidate) -> str:
    held = most_general_rule(c, MOVED, 0, partial(rule_instance, c, MOVED))
    assert isinstance(held, SoundRule), candidate_text(c, MOVED)
    assert held.is_proved
    assert not held.is_rank_bounded
    return str(held.rule).partition(": ")[2].partition(" ; ")[0].partition("): ")[2]


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("law", "rule"),
    [
        (through(SLICE, SOFTMAX), "Slice(Softmax(x, axis=k), axes=m, {}) => {} where k not in m"),
        (through(FIRST, SOFTMAX), "Split(Softmax(x, axis=j), {} => {} k != j"),
        (through(TURN, SOFTMAX), "Transpose(Softmax(x, axis=k), perm=p) => {} == range(k, len(p))"),
        (
            through(FLIP, MAX, after=OTHER),
            "Transpose(ReduceMax(x, axes=m, {}) => {}axes=permute({}, m)",
        ),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_conditions_on_axes(law: Equation, rule: str) -> None:
    text = read(as_candidate(law, MOVED))
    place = 0
    for part in rule.split("{}"):
        assert part in text[place:], text
        place = text.index(part, place) + len(part)


def test_joins_pass_through_what_parts_pass_through() -> None:
    law = through(FIRST, SOFTMAX)
    mirrored = Equation(law.right, law.left, law.inputs)
    found = joined_candidates(as_candidate(mirrored, MOVED), MOVED)
    apart = "Concat axis=0(Softmax axis=2(x), Softmax axis=2(y))"
    together = "Softmax axis=2(Concat axis=0(x, y))"
    forth, back = f"({apart}) => {together}", f"({together}) => {apart}"
    assert [candidate_text(c, MOVED) for c in found] == [forth, back]
    assert found[0].shapes == ((2, 4, 3), (3, 4, 3))
    assert all(c in rewrite_candidates(law, MOVED) for c in found)
    for c in found:
        assert read(c).endswith("where k != j")


@pytest.mark.parametrize(
    "equation",
    [
        # the second part alone says the same of the first
        Equation(
            PatternCall(SOFTMAX, (PatternCall(SECOND, (X,)),)),
            PatternCall(SECOND, (PatternCall(SOFTMAX, (X,)),)),
            ("x",),
        ),
        # the whole tensor is there, too
        Equation(
            PatternCall(MATMUL, (PatternCall(FIRST, (X,)), PatternCall(TURN, (X,)))),
            PatternCall(FIRST, (PatternCall(MATMUL, (X, PatternCall(TURN, (X,)))),)),
            ("x",),
        ),
        Equation(
            PatternCall(FIRST, (X,)), PatternCall(FIRST, (PatternCall(SOFTMAX, (X,)),)), ("x",)
        ),
    ],
)
def test_other_parts_say_nothing_of_joins(equation: Equation) -> None:
    assert joined_candidates(as_candidate(equation, MOVED), MOVED) == []


def test_axes_that_are_kept_cost_no_ranks() -> None:
    """With `keepdims` as it is the law is one of batches; with a name for it, of matrices only."""
    family = Family(
        "kept",
        {"x": (3, 5), "y": (5, 4)},
        {},
        (operator_use("MatMul", 2), operator_use("ReduceMean", 1, axes=(0,), keepdims=1)),
        20,
    )
    x, y = PatternVariable(0), PatternVariable(1)
    law = Equation(
        PatternCall(1, (PatternCall(0, (x, y)),)),
        PatternCall(0, (PatternCall(1, (x,)), y)),
        ("x", "y"),
    )
    c = as_candidate(law, family)
    held = most_general_rule(c, family, 0, partial(rule_instance, c, family))
    assert isinstance(held, SoundRule)
    assert "(x: f, y: f): ReduceMean(MatMul(x, y), axes=(-2,), keepdims=1)" in str(held.rule)
