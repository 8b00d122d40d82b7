"""Corrections of pairs of one's own: what they need of a program, and what there is of nothing."""

from __future__ import annotations

import numpy as np
import pytest

from superopt.ir import graph as g
from superopt.ir.evaluate import evaluate
from superopt.partial.boxes import Box, Span, where
from superopt.partial.generalise import generalised
from superopt.partial.pairs import correction, partial_rule
from superopt.partial.regions import regions
from superopt.partial.restrict import restricted, shape_of
from superopt.partial.sizes import at
from superopt.partial.symbolic import NoFormula
from superopt.pipeline.partial_page import page
from superopt.rules.rule import parse_rules, show_side
from superopt.te.domain import Reals
from superopt.te.dtype import F64
from tests.partial.test_regions import apply, given_, inputs_of

X, K = given_("x", 1, 2, 9, 9), given_("k", 2, 2, 3, 3)
SIX, ZERO = (g.constant(np.float32(n)) for n in (6, 0))
WINDOW = {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}


def pool(x: g.Value, **attrs: object) -> g.Value:
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
def test_a_part_needs_less(v: g.Value, columns: Span) -> None:
    """And it is that part of the whole."""
    box: Box = (*(Span(0, n) for n in shape_of(v)[:3]), columns)
    part = restricted(v, box)
    made = [g.results(n)[0] for n in g.nodes([part]) if n.op.name != "Slice"]
    assert all(shape_of(x)[3] < 9 for x in made)
    given = inputs_of(v)
    feeds = {i.name: np.random.default_rng(0).normal(size=shape_of(i)) * 5 for i in given}
    whole, own = evaluate(g.Graph(given, (v, part)), feeds, Reals(F64))
    np.testing.assert_allclose(own, np.asarray(whole)[where(box)])


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
    (fixed,) = made.corrected
    assert fixed.proved
    assert "MaxPool(Slice(x," in show_side(fixed.rule.rhs)
    assert "Slice(Concat(MaxPool" not in show_side(fixed.rule.rhs)


def test_numbers_stay_numbers() -> None:
    """Pairs with a Clip had no correction."""
    (pair,) = parse_rules(
        "a(x: f[n,w], y: f[n,w]): Clip(Concat(x, y, axis=1), 0, 0.5) => Concat(x, y, axis=1)"
    )
    some = [at(pair, {"n": n, "w": w}) for n, w in ((2, 5), (3, 7))]
    values = [s.left for s in some if s is not None]
    made = generalised(values, [s.sizes for s in some if s is not None])
    assert show_side((made,)) == "Clip(Concat(x, y, axis=1), 0, 0.5)"
    low = apply("Clip", X, None, SIX)  # type: ignore[arg-type]
    assert show_side((generalised([low, low], [{}, {}]),)) == "Clip(x, None, 6)"
    other = apply("Clip", X, None, ZERO)  # type: ignore[arg-type]
    with pytest.raises(NoFormula, match="not one number"):
        generalised([low, other], [{"n": 1}, {"n": 2}])


def test_nothing_is_drawn_of_nothing() -> None:
    (pair,) = parse_rules("empty(x: f[0,c]): Relu(x) => Neg(x)")
    found = page("empty", [pair])
    assert found is not None
    assert found.picture == ()
    assert not found.different


def test_a_correction_where_no_image_is() -> None:
    """A batch of none."""
    (pair,) = parse_rules(POOLS)
    some = at(pair, {"n": 0, "c": 2, "h": 8, "w": 8})
    if some is not None:
        found = regions(some.left, some.right)
        assert not found.equal
        with pytest.raises(ValueError, match="right nowhere"):
            correction("recomputed", some, found)
