"""Models refute a guard only if their numbers falsify it."""

from random import Random

import pytest

from superopt.verifier.context import ProofContext
from superopt.verifier.poly import polynomial
from superopt.verifier.poly.models import (
    MAX_MODELS,
    SAMPLE_SIZES,
    Model,
    _satisfies,
    extend_models,
    has_countermodel,
    sample_models,
)


@pytest.mark.parametrize(
    ("kind", "held"),
    [("ge", (False, True, True)), ("eq", (False, True, False)), ("ne", (True, False, True))],
)
def test_guards_at_minus_one_zero_and_one(kind: str, held: tuple[bool, ...]) -> None:
    context = ProofContext()
    model = Model(Random(0), 0, {})
    assert tuple(model.holds(kind, polynomial.const(context, n)) for n in (-1, 0, 1)) == held


def test_models_satisfy_their_hypotheses() -> None:
    context = ProofContext()
    n, m = (polynomial.symbol(context, name) for name in "nm")
    found = sample_models((("ge", n - m - 1),))
    assert len(found) == MAX_MODELS
    assert all(one.poly_value(n) > one.poly_value(m) for one in found)
    assert len({(one.poly_value(n), one.poly_value(m)) for one in found}) > 3
    more = extend_models(found, (("eq", m - 1),))
    assert 0 < len(more) <= MAX_MODELS
    assert all(one.poly_value(m) == 1 for one in more)
    assert len(extend_models(found, ())) == MAX_MODELS
    assert sample_models((("ge", polynomial.const(context, -1)),)) == []
    assert len(sample_models(())) == MAX_MODELS


def test_sizes_of_models_are_at_least_the_least() -> None:
    context = ProofContext()
    sizes = {Model(Random(n), n, {}).poly_value(polynomial.symbol(context, "n")) for n in range(99)}
    assert sizes == set(SAMPLE_SIZES) == {1, 2, 3, 4, 7}


def test_a_variable_has_any_value_below_its_extent_and_none_below_zero() -> None:
    context = ProofContext()
    for extent in (0, 1, 5):
        v = polynomial.fresh_var(polynomial.const(context, extent))
        at = polynomial.atom_poly(v)
        models = [Model(Random(n), n, {}) for n in range(99)]
        held = [one for one in models if _satisfies(one, (("ge", at),))]
        assert {one.poly_value(at) for one in held} == set(range(extent))
        assert {_satisfies(one, (("ge", at),)) for one in models} == {extent > 0}


def test_a_variable_is_often_the_first_second_or_last_one() -> None:
    v = polynomial.atom_poly(polynomial.fresh_var(polynomial.const(ProofContext(), 100)))
    found = [Model(Random(n), n, {}).poly_value(v) for n in range(400)]
    for value in (0, 1, 99):
        assert 0.15 < found.count(value) / len(found) < 0.35
    assert len(set(found)) > 50
    one = Model(Random(0), 0, {})
    assert len({one.poly_value(v) for _ in range(9)}) == 1


def test_quotients_minima_and_elements() -> None:
    context = ProofContext()
    n, m = (polynomial.symbol(context, name) for name in "nm")
    (n_atom,), (m_atom,) = n.terms[0][0], m.terms[0][0]
    model = Model(Random(0), 0, {n_atom.number: 7, m_atom.number: 3})
    assert model.poly_value(polynomial.atom_poly(polynomial.quotient_atom(n, m))) == 2
    assert model.poly_value(polynomial.minimum(n, m)) == 3
    assert model.poly_value(polynomial.minimum(m, n)) == 3
    assert model.poly_value(n * m * 2 - 1) == 41
    single = polynomial.atom_poly(polynomial.quotient_atom(n, n - 6))
    assert model.poly_value(single) == 7
    for nothing in (n - 7, n - 8):
        undefined = polynomial.atom_poly(polynomial.quotient_atom(n, nothing))
        assert not _satisfies(model, (("ge", undefined),))
    element = polynomial.element_index("x", m)
    assert {Model(Random(k), k, {m_atom.number: 3}).poly_value(element) for k in range(40)} == {
        0,
        1,
        2,
    }


def test_a_countermodel_falsifies_a_guard() -> None:
    context = ProofContext()
    n, m = (polynomial.symbol(context, name) for name in "nm")
    models = sample_models((("ge", n - m),))
    assert has_countermodel(models, "eq", n - m) is True
    assert has_countermodel(models, "ge", n - m) is False
    assert has_countermodel([], "eq", n - m) is False
    v = polynomial.atom_poly(polynomial.fresh_var(polynomial.const(context, 2)))
    found = [has_countermodel([one], "eq", v) for one in models for _ in range(20)]
    assert set(found) == {True, False}  # v is 0 or 1, drawn twice
    assert found.count(True) > 0.55 * len(found)
    none = polynomial.atom_poly(polynomial.fresh_var(polynomial.const(context, 0)))
    assert has_countermodel(models, "eq", none) is False
