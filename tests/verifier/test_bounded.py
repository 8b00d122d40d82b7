"""Proofs up to a bound, by exact polynomials."""

from fractions import Fraction

import numpy as np
import pytest

from superopt.rules.lang.rule import parse_rules
from superopt.rules.library.load import load_library
from superopt.rules.library.records import is_proved_for_one_shape, tier
from superopt.te.eval.polynomial import (
    MAX_MONOMIALS,
    NotPolynomial,
    PolynomialDomain,
    constant_polynomial,
)
from superopt.te.expr.dtype import BOOL, F32
from superopt.verifier.elements.scalars import NEAREST_NOTE
from superopt.verifier.prove import Limits
from superopt.verifier.prove_bounded import best_proof, prove_bounded
from superopt.verifier.verdict import Proved, Refuted, Unknown

RULES = {r.name: r for r in load_library()}
TRUE = (
    "(x: f[n, k], y: f[k, m]): Transpose(MatMul(x, y), perm=(1, 0))"
    " => MatMul(Transpose(y, perm=(1, 0)), Transpose(x, perm=(1, 0)))",
    "(x: f[2], y: f[2]): Mul(Sub(x, y), Add(x, y)) => Sub(Mul(x, x), Mul(y, y))",
    "(x: f[3], y: f[3]): Div(Mul(x, y), y) => x",
    "(x: f[3], y: f[3]): Max(x, Max(y, x)) => Max(y, x)",
    "(x: f[n, k]): Softmax(x, axis=-1) => Softmax(Add(x, 0), axis=-1)",
    "(x: f[2, 2]): MatMul(table(((1/3, 1/3), (2/3, 2/3))), x)"
    " => Mul(MatMul(table(((1, 1), (2, 2))), x), lit(1/3))",
)  # fmt: skip
FALSE = (
    "(x: f[n, k], y: f[k, m]): Transpose(MatMul(x, y), perm=(1, 0))"
    " => MatMul(Transpose(y, perm=(1, 0)), Transpose(Neg(x), perm=(1, 0)))",
    "(x: f[2], y: f[2]): Mul(Sub(x, y), Add(x, y)) => Sub(Mul(x, x), Mul(x, y))",
    "(x: f[3], y: f[3]): Max(x, Max(y, x)) => Max(y, y)",
    "(x: f[2, 2]): MatMul(table(((1/3, 1/3), (2/3, 2/3))), x)"
    " => Mul(MatMul(table(((1, 1), (2, 1))), x), lit(1/3))",
)


# Proved of no integers, of no cast that rounds, and not of all shapes where only some were seen.
MORE_THAN_SHOWN = (
    "(x: num[2, 2], y: num[2, 2]): Div(Mul(x, y), y) => x",
    "(x: f32[2, 2], h: f16[]): Add(Cast(Cast(x, to=dtype(h)), to=dtype(x)), Cast(h, to=dtype(x)))"
    " => Add(x, Cast(h, to=dtype(x)))",
    "(x: f32[2, 2]): Cast(Cast(x, to=t), to=u) => x",
)


@pytest.mark.parametrize("text", MORE_THAN_SHOWN)
def test_what_is_said_of_real_numbers_is_no_proof_of_others(text: str) -> None:
    (rule,) = parse_rules(f"r{text}")
    assert isinstance(prove_bounded(rule, 20), Unknown)


def test_sizes_above_the_bound_are_not_the_one_shape() -> None:
    (rule,) = parse_rules(
        "r(x: f[*s]): Mul(x, 2) => Add(x, Expand(ReduceMean(x, axes=range(rank(x)), keepdims=1),"
        " shape=s)) where all(d > 1000 for d in s)"
    )
    verdict = prove_bounded(rule, 20)
    assert not isinstance(verdict, Proved) or verdict.bound != 0


@pytest.mark.parametrize("text", TRUE)
def test_what_is_equal_at_each_size_is_proved(text: str) -> None:
    (rule,) = parse_rules(f"r{text}")
    verdict = prove_bounded(rule, 20)
    assert isinstance(verdict, Proved), str(verdict)
    assert "exact polynomials" in str(verdict)
    assert (NEAREST_NOTE in verdict.scope.assumes) is ("1/3" in text)


def test_elements_of_any_type_are_proved_once_as_floats() -> None:
    (rule,) = parse_rules("r(x: any[n, 2]): Transpose(Transpose(x, perm=(1, 0)), perm=(1, 0)) => x")
    verdict = prove_bounded(rule, 20, bound=3)
    assert isinstance(verdict, Proved)
    assert verdict.obligations == 3


@pytest.mark.parametrize("text", FALSE)
def test_what_is_not_is_not(text: str) -> None:
    (rule,) = parse_rules(f"r{text}")
    assert isinstance(prove_bounded(rule, 20), Unknown)


def test_a_rule_of_one_shape_is_proved_for_all_there_is() -> None:
    verdict = prove_bounded(RULES["winograd-four"], 20)
    assert isinstance(verdict, Proved)
    assert verdict.bound == 0
    assert tier(RULES["winograd-four"]) == "B"
    assert is_proved_for_one_shape(RULES["winograd-four"])
    assert tier(RULES["winograd-two"]) == "A"
    assert not is_proved_for_one_shape(RULES["winograd-two"])


def test_a_wrong_number_in_a_tile_is_found() -> None:
    rule = RULES["winograd-four"]
    for right, wrong in (("1 / 12", "1 / 6"), ("-5, 0, 1", "-4, 0, 1"), ("8, -8, 1", "8, -8, 0")):
        (other,) = parse_rules(str(rule).replace(right, wrong, 1))
        assert str(other) != str(rule)
        assert isinstance(prove_bounded(other, 20), Unknown)


def test_a_bound_is_said() -> None:
    (rule,) = parse_rules(f"r{TRUE[0]}")
    verdict = prove_bounded(rule, 20, bound=3)
    assert isinstance(verdict, Proved)
    assert verdict.bound == 3
    assert "sizes to 3" in str(verdict)
    assert verdict.obligations == 27


def test_time_that_runs_out_is_no_proof() -> None:
    (rule,) = parse_rules(f"r{TRUE[0]}")
    assert isinstance(prove_bounded(rule, 0.0), Unknown)


def test_the_best_proof_is_for_all_sizes() -> None:
    texts = (TRUE[0], TRUE[1], FALSE[1], FALSE[0])
    for text, bound in zip(texts, (None, 0, "refuted", "refuted"), strict=True):
        (rule,) = parse_rules(f"r{text}")
        found = best_proof(rule, Limits(seconds=20))
        if bound == "refuted":
            assert isinstance(found, Refuted)
        else:
            assert isinstance(found, Proved)
            assert found.bound == bound
    (rule,) = parse_rules(f"r{TRUE[0]}")
    found = best_proof(rule, Limits(seconds=20, work=1, work_beyond=1))  # too little for all sizes
    assert isinstance(found, Proved)
    assert found.bound == 4


def test_polynomials_are_exact() -> None:
    domain = PolynomialDomain()
    x, y = domain.symbolic_input("x", (2,))
    third = constant_polynomial(Fraction(1, 3))
    assert third * (x + y) == third * y + third * x
    assert (x - y) * (x + y) != x * x
    assert x - x == constant_polynomial(0)
    one = domain.apply("div", (np.array([x, y]), np.array([x, x])), (F32, F32), F32)
    assert one[0] == constant_polynomial(1)
    assert one[1] != constant_polynomial(1)
    with pytest.raises(NotPolynomial):
        domain.apply("lt", (np.array([x]), np.array([y])), (F32, F32), BOOL)
    large = domain.symbolic_input("z", (MAX_MONOMIALS + 1,))
    with pytest.raises(NotPolynomial, match="terms"):
        domain.reduce("sum", large, (-1,), F32)
