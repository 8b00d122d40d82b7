"""Which rules divide by what may be zero, though what they replace does not."""

import re

import pytest

from superopt.rules.lang.rule import parse_rules
from superopt.rules.library.load import load_library
from superopt.rules.trial.new_divisors import new_divisors


@pytest.mark.parametrize(
    ("rule", "by"),
    [
        ("Mul(x, y) => Div(x, Div(1, y))", ["y"]),
        ("Add(x, y) => Add(x, Reciprocal(Reciprocal(y)))", ["y"]),
        ("Mul(x, y) => Exp(Add(Log(x), Log(y)))", ["x", "y"]),
        ("Add(z, Mul(y, Div(z, x))) => Div(Add(x, y), Div(x, z))", ["z"]),
        ("Add(x, Div(x, Sub(y, 1))) => Div(x, Sub(1, Div(1, y)))", ["y"]),
        ("Mul(x, y) => Mul(x, Pow(Pow(y, -1), -1))", ["y"]),
        ("Mul(x, y) => Mul(x, Div(y, Sub(1, Exp(x))))", ["Sub(1, Exp(x))"]),
        ("Mul(x, y) => Mul(x, Div(y, Add(1, Neg(Exp(x)))))", ["Add(1, Neg(Exp(x)))"]),
        ("Add(z, Div(x, y)) => Relu(Div(x, Concat(y, z, axis=0)))", ["z"]),
        # Zero is not positive, nor is a sum or a product with it.
        ("Neg(x) => Neg(Div(x, Max(Relu(x), 0)))", ["Max(Relu(x), 0)"]),
        ("Neg(x) => Neg(Div(x, Add(Relu(x), 0)))", ["Add(Relu(x), 0)"]),
        ("Neg(x) => Neg(Div(x, Mul(Exp(x), 0)))", ["0"]),
        ("Neg(x) => Neg(Div(x, 0))", ["0"]),
        ("Neg(x) => Neg(Div(x, Add(-1, Exp(x))))", ["Add(-1, Exp(x))"]),
        # What the result itself is a quotient of, its own value tells.
        ("Sub(0, Div(x, y)) => Div(x, Sub(0, y))", []),
        ("Add(z, Div(x, y)) => Div(Add(x, Mul(y, z)), y)", []),
        # The left side has the same divisor, in another form.
        ("Div(x, y) => Mul(x, Div(1, y))", []),
        ("Div(Div(x, y), z) => Mul(x, Div(1, Mul(z, y)))", []),
        ("Div(x, Sub(y, z)) => Neg(Div(x, Sub(z, y)))", []),
        ("Div(x, Add(y, y)) => Mul(0.5, Div(x, y))", []),
        ("Div(x, Neg(y)) => Neg(Div(x, y))", []),
        ("Div(x, Sqrt(y)) => Mul(x, Div(1, Sqrt(y)))", []),
        # It is never zero.
        ("Sub(x, y) => Log(Div(Exp(x), Exp(y)))", []),
        ("Mul(x, 2) => Mul(1, Div(x, 0.5))", []),
        ("Relu(x) => Mul(x, Div(Relu(x), Add(1, Abs(x))))", []),
        ("Neg(x) => Neg(Div(x, Add(Mul(x, x), 0.1)))", []),
        ("Neg(x) => Neg(Div(x, Add(Exp(x), 0)))", []),
        ("Neg(x) => Neg(Div(x, Neg(Exp(x))))", []),
    ],
)
def test_what_is_divided_by_anew(rule: str, by: list[str]) -> None:
    params = ", ".join(f"{n}: f" for n in "xyz" if re.search(rf"\b{n}\b", rule))
    (parsed,) = parse_rules(f"r({params}): {rule}")
    assert list(new_divisors(parsed)) == by


def test_a_batch_norm_divides_by_the_root_of_its_variance() -> None:
    folded = [r for r in load_library() if r.name in ("conv-bn", "bn-affine", "gemm-bn")]
    assert len(folded) == 3
    assert not any(map(new_divisors, folded))


def test_few_rules_of_the_library_do() -> None:
    found = [r for r in load_library() if new_divisors(r)]
    assert found
    assert len(found) < 30
    assert {r.origin for r in found} == {"generated"}  # derivations may need them; by hand, none
