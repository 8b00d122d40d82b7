"""Pairs that are equal in parts: the boxes are right, and the classical pairs are there."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superopt.generate.engine.rule_files import partial_text
from superopt.generate.enumeration.find_equations import FoundEquations, find_equations
from superopt.generate.enumeration.partial_equality import (
    MIN_SHARE,
    PartialEquality,
    instance_positions,
    mask_boxes,
    partial_equalities,
)
from superopt.generate.enumeration.pattern import (
    Equation,
    Pattern,
    PatternCall,
    PatternVariable,
    call_count,
    term_text,
)
from superopt.generate.families.registry import FAMILIES
from superopt.generate.generalize.term_graphs import term_value
from superopt.ir import graph
from superopt.ir.evaluate import evaluate
from superopt.te.expr.dtype import F32
from superopt.te.expr.tensor import TensorType

SEED = 3


@pytest.fixture(scope="module")
def found() -> FoundEquations:
    return find_equations(FAMILIES["borders"](), 3, SEED, keep_last_values=True)


@pytest.fixture(scope="module")
def pairs(found: FoundEquations) -> list[PartialEquality]:
    return partial_equalities(found)


@given(st.integers(1, 3).flatmap(lambda n: st.tuples(*[st.integers(1, 5)] * n)), st.randoms())
def test_boxes_are_the_mask(shape: tuple[int, ...], rng: object) -> None:
    """Boxes cover all that is equal, nothing else, and nothing twice."""
    same = np.array([rng.random() < 0.6 for _ in range(int(np.prod(shape)))])  # type: ignore[attr-defined]
    same = same.reshape(shape)
    covered = np.zeros(shape, int)
    for box in mask_boxes(same):
        covered[tuple(slice(a, b) for a, b in box)] += 1
    assert np.array_equal(covered, same.astype(int))


@pytest.mark.ci
def test_pairs_agree_in_their_boxes_over_floats_and_nowhere_else(
    found: FoundEquations, pairs: list[PartialEquality]
) -> None:
    family = found.bank.family
    rng = np.random.default_rng(SEED)
    assert len(pairs) > 50
    for p in pairs:
        inputs = tuple(
            graph.Input(f"v{k}", TensorType(F32, family.inputs[n]))
            for k, n in enumerate(p.equation.inputs)
        )
        sides = [term_value(s, family, inputs) for s in (p.equation.left, p.equation.right)]
        feeds = {
            i.name: rng.uniform(0.5, 2, family.inputs[n]).astype(np.float32)
            for i, n in zip(inputs, p.equation.inputs, strict=True)
        }
        left, right = evaluate(graph.Graph(inputs, tuple(sides)), feeds)
        inside = np.zeros(p.shape, bool)
        for box in p.boxes:
            inside[tuple(slice(a, b) for a, b in box)] = True
        assert MIN_SHARE <= p.share == inside.mean() < 1
        close = np.isclose(left, right, rtol=1e-4, atol=1e-5)
        assert close[inside].all(), term_text(p.equation.left, family)
        if "Pool" not in term_text(p.equation.left, family):  # a maximum may be the same by chance
            assert not close[~inside].all(), term_text(p.equation.left, family)


def _named(p: Pattern, found: FoundEquations) -> str:
    text = term_text(p, found.bank.family)
    for noise in (" strides=(1, 1)", " group=1", " kernel_shape=(3, 3)", " dilations=(1, 1)"):
        text = text.replace(noise, "")
    return text


ROWS = "Pad pads=(0, 0, 1, 0, 0, 0, 1, 0)"
CLASSICAL = {
    "two images side by side through one convolution": (
        "Concat axis=3(Conv pads=(1, 1, 1, 1)(x, y), Conv pads=(1, 1, 1, 1)(z, y))",
        "Conv pads=(1, 1, 1, 1)(Concat axis=3(x, z), y)",
    ),
    "two images stacked": (
        "Concat axis=2(Conv pads=(1, 1, 1, 1)(x, y), Conv pads=(1, 1, 1, 1)(z, y))",
        "Conv pads=(1, 1, 1, 1)(Concat axis=2(x, z), y)",
    ),
    "rows split into a batch": (
        "Reshape shape=(2, 1, 3, 4)(Conv pads=(1, 1, 1, 1)(x, y))",
        "Conv pads=(1, 1, 1, 1)(Reshape shape=(2, 1, 3, 4)(x), y)",
    ),
    "dilated convolution with every second row beside": (
        "Reshape shape=(1, 1, 3, 8)(Conv dilations=(2, 1) pads=(2, 1, 2, 1)(x, y))",
        "Conv pads=(1, 1, 1, 1)(Reshape shape=(1, 1, 3, 8)(x), y)",
    ),
    "one kernel size for another, inside": (
        f"{ROWS}(Conv pads=(0, 0, 0, 0)(x, {ROWS}(y)))",
        "Conv pads=(0, 0, 0, 0)(x, y)",
    ),
    "one padding for another, inside": (
        f"{ROWS}(Conv pads=(0, 0, 0, 0)(x, y))",
        "Conv pads=(1, 0, 1, 0)(x, y)",
    ),
}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", CLASSICAL)
def test_the_classical_pairs_are_found(
    name: str, found: FoundEquations, pairs: list[PartialEquality]
) -> None:
    said = {
        frozenset((_named(p.equation.left, found), _named(p.equation.right, found))): p
        for p in pairs
    }
    pair = said[frozenset(CLASSICAL[name])]
    assert pair.share > MIN_SHARE


def test_side_by_side_only_the_seam_differs(
    found: FoundEquations, pairs: list[PartialEquality]
) -> None:
    sides = CLASSICAL["two images side by side through one convolution"]
    (pair,) = (
        p
        for p in pairs
        if {_named(p.equation.left, found), _named(p.equation.right, found)} == {*sides}
    )
    assert pair.shape == (1, 1, 6, 8)
    assert pair.boxes == (((0, 1), (0, 1), (0, 6), (0, 3)), ((0, 1), (0, 1), (0, 6), (5, 8)))


def test_pairs_are_written_one_a_line(found: FoundEquations, pairs: list[PartialEquality]) -> None:
    text = partial_text(pairs, found.bank.family)
    assert len(text.splitlines()) == len(pairs)
    assert text == partial_text(list(reversed(pairs)), found.bank.family)


def test_instances_have_a_smaller_pair(pairs: list[PartialEquality]) -> None:
    """What is left out is a pair that is kept, with terms in it."""
    of_others = instance_positions(pairs)
    kept = [p for n, p in enumerate(pairs) if n not in of_others]
    assert 50 < len(kept) < len(pairs)
    least = min(call_count(p.equation.left) for p in kept)
    assert all(call_count(pairs[n].equation.left) > least for n in of_others)


@pytest.mark.parametrize(
    ("sides", "expected"),
    [
        (
            (
                PatternCall(0, (PatternCall(3, (PatternVariable(0),)),)),
                PatternCall(1, (PatternCall(3, (PatternVariable(0),)),)),
            ),
            True,
        ),
        (
            (
                PatternCall(0, (PatternCall(3, (PatternVariable(0),)),)),
                PatternCall(1, (PatternCall(4, (PatternVariable(0),)),)),
            ),
            False,
        ),
        (
            (
                PatternCall(2, (PatternCall(3, (PatternVariable(0),)),)),
                PatternCall(1, (PatternCall(3, (PatternVariable(0),)),)),
            ),
            False,
        ),
        ((PatternCall(0, (PatternVariable(0),)), PatternCall(1, (PatternVariable(0),))), False),
    ],
)
def test_an_instance_has_one_term_on_both_sides(
    sides: tuple[Pattern, Pattern], expected: bool
) -> None:
    base = Equation(
        PatternCall(0, (PatternVariable(0),)), PatternCall(1, (PatternVariable(0),)), ("x",)
    )
    some = [PartialEquality(e, (4,), (), 0.5) for e in (base, Equation(*sides, ("x",)))]
    assert (1 in instance_positions(some)) == expected
    assert 0 not in instance_positions(some)


def test_what_only_the_first_side_reads_may_be_anything() -> None:
    base = Equation(
        PatternCall(0, (PatternVariable(0), PatternVariable(1))),
        PatternCall(1, (PatternVariable(0),)),
        ("x", "x"),
    )
    more = Equation(
        PatternCall(0, (PatternVariable(0), PatternCall(3, (PatternVariable(1),)))),
        PatternCall(1, (PatternVariable(0),)),
        ("x", "x"),
    )
    other = Equation(
        PatternCall(0, (PatternCall(3, (PatternVariable(0),)), PatternVariable(1))),
        PatternCall(1, (PatternVariable(0),)),
        ("x", "x"),
    )
    some = [PartialEquality(e, (4,), (), 0.5) for e in (base, more, other)]
    assert instance_positions(some) == {1}
