"""Corrections of pairs of one's own: what they need of a program, and what there is of nothing."""

from __future__ import annotations

import numpy as np
import pytest

from superopt.ir import graph
from superopt.ir.evaluate import evaluate
from superopt.optimization.report.partial_rule_page import partial_rule_page
from superopt.partial.correct.generalize import generalize
from superopt.partial.correct.partial_rules import corrected_value, partial_rule
from superopt.partial.correct.restrict import restrict, static_shape
from superopt.partial.correct.sized_pairs import pair_at
from superopt.partial.correct.symbolic_boxes import NoFormula
from superopt.partial.regions.boxes import Box, Span, slices
from superopt.partial.regions.find import find_regions
from superopt.rules.lang.rule import parse_rules, show_side
from superopt.te.eval.domain import Reals
from superopt.te.expr.dtype import F64
from tests.support.partial.regions import apply, given_, inputs_of

X, K = given_("x", 1, 2, 9, 9), given_("k", 2, 2, 3, 3)
SIX, ZERO = (graph.constant(np.float32(n)) for n in (6, 0))
WINDOW = {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}


def pool(x: graph.Value, **attrs: object) -> graph.Value:
    return apply("MaxPool", x, **{**WINDOW, **attrs})


@pytest.mark.parametrize(
    "v",
    [
        pool(X),
        pool(X, kernel_shape=(5, 5), pads=(2, 2, 2, 2), strides=(2, 2)),
        pool(X, dilations=(2, 2), pads=(2, 2, 2, 2)),
        pool(apply("Clip", apply("Conv", X, K, pads=(1, 1, 1, 1)), ZERO, SIX)),
        apply("Sigmoid", apply("Max", pool(X), X)),
    ],
)
@pytest.mark.parametrize("columns", [Span(0, 2), Span(1, 4), Span(3, 5)])
def test_a_part_needs_less(v: graph.Value, columns: Span) -> None:
    """And it is that part of the whole."""
    box: Box = (*(Span(0, n) for n in static_shape(v)[:3]), columns)
    part = restrict(v, box)
    made = [graph.results(n)[0] for n in graph.nodes([part]) if n.op.name != "Slice"]
    assert all(static_shape(x)[3] < 9 for x in made)
    given = inputs_of(v)
    feeds = {i.name: np.random.default_rng(0).normal(size=static_shape(i)) * 5 for i in given}
    whole, own = evaluate(graph.Graph(given, (v, part)), feeds, Reals(F64))
    np.testing.assert_allclose(own, np.asarray(whole)[slices(box)])


POOLS = """
pools(x: f[n,c,h,w], y: f[n,c,h,w]):
    Concat(MaxPool(x, kernel_shape=(5,5), pads=(2,2,2,2)),
           MaxPool(y, kernel_shape=(5,5), pads=(2,2,2,2)), axis=3)
    => MaxPool(Concat(x, y, axis=3), kernel_shape=(5,5), pads=(2,2,2,2))
"""


def test_of_pools_only_columns_are_computed_again() -> None:
    """The correction was a cut of the whole program, which saves nothing."""
    (pair,) = parse_rules(POOLS)
    made = partial_rule(pair)
    (fixed,) = made.corrections
    assert fixed.is_proved
    assert "MaxPool(Slice(x," in show_side(fixed.rule.rhs)
    assert "Slice(Concat(MaxPool" not in show_side(fixed.rule.rhs)


def test_numbers_stay_numbers() -> None:
    """Pairs with a Clip had no correction."""
    (pair,) = parse_rules(
        "a(x: f[n,w], y: f[n,w]): Clip(Concat(x, y, axis=1), 0, 0.5) => Concat(x, y, axis=1)"
    )
    some = [pair_at(pair, {"n": n, "w": w}) for n, w in ((2, 5), (3, 7))]
    values = [s.program for s in some if s is not None]
    made = generalize(values, [s.sizes for s in some if s is not None])
    assert show_side((made,)) == "Clip(Concat(x, y, axis=1), 0, 0.5)"
    low = apply("Clip", X, None, SIX)  # type: ignore[arg-type]
    assert show_side((generalize([low, low], [{}, {}]),)) == "Clip(x, None, 6)"
    other = apply("Clip", X, None, ZERO)  # type: ignore[arg-type]
    with pytest.raises(NoFormula, match="not one number"):
        generalize([low, other], [{"n": 1}, {"n": 2}])


def test_nothing_is_drawn_of_nothing() -> None:
    (pair,) = parse_rules("empty(x: f[0,c]): Relu(x) => Neg(x)")
    found = partial_rule_page("empty", [pair])
    assert found is not None
    assert found.picture == ()
    assert not found.different


def test_a_correction_where_no_image_is() -> None:
    """A batch of none."""
    (pair,) = parse_rules(POOLS)
    some = pair_at(pair, {"n": 0, "c": 2, "h": 8, "w": 8})
    if some is not None:
        found = find_regions(some.program, some.mutant)
        assert not found.equal
        with pytest.raises(ValueError, match="equal nowhere"):
            corrected_value("recomputed", some, found)
