"""Axes in rules: that two of them must not be the same, and laws of joins from laws of parts."""

from functools import partial

import pytest

from superopt.generate.build import instance
from superopt.generate.choice import most_general
from superopt.generate.claims import Claim, claims, joined, stated
from superopt.generate.closing import said
from superopt.generate.family import Family, parts, use
from superopt.generate.pattern import Equation, Hole, Made
from superopt.generate.sound import Held

SHAPE = (5, 4, 3)
MOVED = Family(
    "moved",
    {**dict.fromkeys("xy", SHAPE), "w": (3, 2), "v": (4, 3)},
    {},
    (
        use("Softmax", 1, axis=2),
        use("ReduceMax", 1, axes=(2,), keepdims=1),
        use("Concat", 2, axis=0),
        *parts("Split", 2, axis=0, split=(2, 3)),
        use("Slice", 1, axes=(1,), starts=(1,), ends=(3,), steps=(1,)),
        use("Transpose", 1, perm=(1, 0, 2)),
        use("ReduceMean", 1, axes=(0,), keepdims=1),
        use("MatMul", 2),
        use("Transpose", 1, perm=(0, 2, 1)),
        use("ReduceMax", 1, axes=(1,), keepdims=1),
    ),
    120,
)
SOFTMAX, MAX, CONCAT, FIRST, SECOND, SLICE, TURN, MEAN, MATMUL, FLIP, OTHER = range(len(MOVED.uses))
X = Hole(0)


def through(outer: int, inner: int, after: int | None = None) -> Equation:
    """outer(inner(x)) = after(outer(x))."""
    right = Made(inner if after is None else after, (Made(outer, (X,)),))
    return Equation(Made(outer, (Made(inner, (X,)),)), right, ("x",))


def read(c: Claim) -> str:
    held = most_general(c, MOVED, 0, partial(instance, c, MOVED))
    assert isinstance(held, Held), said(c, MOVED)
    assert held.proved
    assert not held.bounded
    return str(held.rule).partition(": ")[2].partition(" ; ")[0].partition("): ")[2]


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
def test_what_is_asked_of_axes(law: Equation, rule: str) -> None:
    text = read(stated(law, MOVED))
    place = 0
    for part in rule.split("{}"):
        assert part in text[place:], text
        place = text.index(part, place) + len(part)


def test_joins_pass_through_what_parts_pass_through() -> None:
    law = through(FIRST, SOFTMAX)
    mirrored = Equation(law.right, law.left, law.inputs)
    found = joined(stated(mirrored, MOVED), MOVED)
    apart = "Concat axis=0(Softmax axis=2(x), Softmax axis=2(y))"
    together = "Softmax axis=2(Concat axis=0(x, y))"
    forth, back = f"({apart}) => {together}", f"({together}) => {apart}"
    assert [said(c, MOVED) for c in found] == [forth, back]
    assert found[0].shapes == ((2, 4, 3), (3, 4, 3))
    assert all(c in claims(law, MOVED) for c in found)
    for c in found:
        assert read(c).endswith("where k != j")


@pytest.mark.parametrize(
    "equation",
    [
        # the second part alone says the same of the first
        Equation(
            Made(SOFTMAX, (Made(SECOND, (X,)),)), Made(SECOND, (Made(SOFTMAX, (X,)),)), ("x",)
        ),
        # the whole tensor is there, too
        Equation(
            Made(MATMUL, (Made(FIRST, (X,)), Made(TURN, (X,)))),
            Made(FIRST, (Made(MATMUL, (X, Made(TURN, (X,)))),)),
            ("x",),
        ),
        Equation(Made(FIRST, (X,)), Made(FIRST, (Made(SOFTMAX, (X,)),)), ("x",)),
    ],
)
def test_other_parts_say_nothing_of_joins(equation: Equation) -> None:
    assert joined(stated(equation, MOVED), MOVED) == []


def test_axes_that_are_kept_cost_no_ranks() -> None:
    """With `keepdims` as it is the law is one of batches; with a name for it, of matrices only."""
    family = Family(
        "kept",
        {"x": (3, 5), "y": (5, 4)},
        {},
        (use("MatMul", 2), use("ReduceMean", 1, axes=(0,), keepdims=1)),
        20,
    )
    x, y = Hole(0), Hole(1)
    law = Equation(Made(1, (Made(0, (x, y)),)), Made(0, (Made(1, (x,)), y)), ("x", "y"))
    c = stated(law, family)
    held = most_general(c, family, 0, partial(instance, c, family))
    assert isinstance(held, Held)
    assert "(x: f, y: f): ReduceMean(MatMul(x, y), axes=(-2,), keepdims=1)" in str(held.rule)
