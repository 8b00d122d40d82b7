"""False rules of which a proof would have to leave out where they are false."""

from __future__ import annotations

import pytest

from superopt.rules.lang.rule import parse_rules
from superopt.verification.rule_verdict import judge_rule
from superopt.verifier.prove import prove
from superopt.verifier.verdict import Proved

CASTS = {
    "narrow integers": "(x: i64): Cast(Cast(x, to=i8), to=i64) => x",
    "narrow floats": "(x: f32): Cast(Cast(x, to=f16), to=f32) => x",
    "narrow transforms": "(x: f64[b, n, 1]): Cast(Cast(DFT(x, axis=1), to=f32), to=f64)"
    " => DFT(x, axis=1)",
    "two halves": "(x: f16): Cast(Cast(x, to=bf16), to=f16) => x",
    "any type": "(x: any): Cast(Cast(x, to=f32), to=i64) => Cast(x, to=i64)",
    "there and back": "(x: f): Cast(Cast(x, to=f32), to=dtype(x)) => x",
    "by way of another": "(x: num): Cast(Cast(x, to=s), to=t) => Cast(x, to=t)",
    "of a sum": "(x: num, y: num): Cast(Add(x, y), to=t) => Add(Cast(x, to=t), Cast(y, to=t))",
    "of a sign": "(x: num): Cast(Neg(x), to=t) => Neg(Cast(x, to=t))",
    "of the greater": "(x: num, y: num): Max(Cast(x, to=t), Cast(y, to=t))"
    " => Cast(Max(x, y), to=t)",
    "as another": "(x: num, y: any): CastLike(x, y) => x",
}
SIGNS = {
    "logarithms": "(x: f, y: f): Log(Mul(x, y)) => Add(Log(x), Log(y))",
    "of nothing": "(x: f): Sub(Log(x), Log(Neg(x))) => Sub(x, x)",
    "of a square": "(x: f): Max(Log(Mul(x, x)), 0) => Max(Mul(2, Log(x)), 0)",
    "of a power": "(x: f, y: f): Exp(Div(Log(Pow(x, y)), y)) => x",
    "a root of a power": "(x: f, y: f): Pow(Pow(x, y), Div(1, y)) => x",
    "a root of a square": "(x: f): Sqrt(Mul(x, x)) => x",
    "roots": "(x: f, y: f): Sqrt(Mul(x, y)) => Mul(Sqrt(x), Sqrt(y))",
    "powers in turn": "(x: f, y: f): Pow(x, Mul(y, y)) => Pow(Pow(x, y), y)",
    "half an exponent": "(x: f): Sqrt(Exp(x)) => Exp(Mul(x, 2))",
    "a sign": "(x: f): Sign(x) => Div(x, x)",
    "of sums": "(x: f, y: f): Sign(Add(x, y)) => Add(Sign(x), Sign(y))",
    "equal, too": "(x: f, y: f): GreaterOrEqual(x, y) => Greater(x, y)",
}
NUMBERS = {
    "by rank": "(x: f): Relu(x) => Mul(Relu(x), lit(1 + rank(x) // 5))",
    "by type": "(x: f): Relu(x) => Mul(Relu(x), lit(2 if dtype(x) == f16 else 1))",
    "by alike elements": "(x: f, c: f): Add(x, c) => Mul(Add(x, c), lit(1 if all_equal(c) else 2))",
    "by a size": "(x: f): Mul(x, lit(size(x, 0))) => Mul(x, lit(size(x, -1)))",
}
SIZES = {
    "refused below 9": "(x: f[m, p, n]): Resize(x, sizes=(6,), axes=(2,)) =>"
    " Mul(Resize(x, sizes=(6,), axes=(2,)), lit(max(n, 8) - 7)) where n == 3 or n >= 9",
    "refused on the right": "(x: f[m, p, n]): Slice(x, starts=(0,), ends=(1,), axes=(2,)) =>"
    " Resize(x, sizes=(1,), axes=(2,)) where n == 1 or n >= 9",
    "an odd number of halves": "(x: f[m, n]): ReduceSum(Split(x, axis=1, num_outputs=2)[0],"
    " axes=(1,)) => ReduceSum(Slice(x, starts=(0,), ends=(n // 2,), axes=(1,)), axes=(1,))",
    # the part that nobody picks may be empty, and the other one the whole
    "a first part": "(x: num, y: num): Split(Mul(x, y), axis=-3, split=g)[0]"
    " => Mul(Split(x, axis=-3, split=(1, 1))[0], Split(y, axis=-3, split=g)[0]) where len(g) == 2",
    "a second part": "(x: num, y: num): Split(Mul(y, x), axis=k, split=g)[1]"
    " => Mul(x, Split(y, axis=k, split=(1, 1))[1])"
    " where len(g) == 2, rank(x) <= 2, rank(y) <= 2",
}
COUNTS = {
    "four": "(x: f[a, b, c, d], *, k: nat):"
    ' SpaceToDepth(DepthToSpace(x, blocksize=k, mode="DCR"), blocksize=k)'
    " => Mul(x, lit(max(k, 3) - 2))",
    "steps": "(x: f, *, t: likely((1,), (2,), (-1,))): Slice(x, starts=b, ends=e, axes=(0,),"
    " steps=t) => Mul(Slice(x, starts=b, ends=e, axes=(0,), steps=t), lit(max(t[0], 2) - 1))",
}  # fmt: skip


@pytest.mark.one_in(25)
@pytest.mark.parametrize("name", [*CASTS, *NUMBERS, *SIZES, *SIGNS])
def test_it_is_not_proved(name: str) -> None:
    text = (CASTS | NUMBERS | SIZES | SIGNS)[name]
    (rule,) = parse_rules(f"wrong{text} ; float=E3", "wrong.rules")
    assert not isinstance(prove(rule), Proved)
    assert judge_rule(rule, 0, 10).decision != "proved"


@pytest.mark.parametrize("name", COUNTS)
def test_what_is_proved_up_to_a_number_is_not_called_proved(name: str) -> None:
    (rule,) = parse_rules(f"wrong{COUNTS[name]} ; float=E3", "wrong.rules")
    assert judge_rule(rule, 0, 10).decision != "proved"


RIGHT = (
    "(x: num): Cast(Transpose(x, perm=p), to=t) => Transpose(Cast(x, to=t), perm=p)",
    "(x: f, y: f): Mul(y, Log(x)) => Log(Pow(x, y))",
    "(x: f, y: f): Mul(Sqrt(x), Sqrt(y)) => Sqrt(Mul(x, y))",
    "(x: f): Log(Reciprocal(x)) => Neg(Log(x))",
    "(x: f): Neg(Log(x)) => Log(Reciprocal(x))",
    "(x: f): Exp(Mul(x, 0.5)) => Sqrt(Exp(x))",
    "(x: f, y: f): Log(Mul(x, Exp(y))) => Add(Log(x), y)",
    "(x: f): Mul(Sign(x), Abs(x)) => x",
    "(x: f, y: f): Sign(Mul(x, y)) => Mul(Sign(x), Sign(y))",
    "(x: num, y: num): Or(Greater(x, y), Equal(x, y)) => GreaterOrEqual(x, y)",
    "(x: f): Div(x, 1.4142135381698608) => Mul(x, 0.7071067690849304)",
    "(x: i32): Cast(Cast(x, to=i64), to=f32) => Cast(x, to=f32)",
    "(x: f32): Cast(x, to=f32) => x",
    "(c: bool, x: f): Mul(x, Cast(c, to=dtype(x))) => Mul(Cast(c, to=dtype(x)), x)",
    "(x: num, y: num): Sub(Add(x, y), y) => x where shape(x) == shape(Add(x, y))",
)


@pytest.mark.parametrize("text", RIGHT)
def test_what_is_like_them_and_true_is(text: str) -> None:
    (rule,) = parse_rules(f"right{text} ; float=E3", "right.rules")
    assert isinstance(prove(rule), Proved)


@pytest.mark.parametrize(
    "text",
    [
        "(x: f, y: f): Add(x, y) => Div(Mul(Add(x, y), Sub(y, 7)), Sub(y, 7))",
        "(x: f): Add(x, 5) => Exp(Log(Add(x, 5)))",
        "(x: f, y: f): Where(IsNaN(x), y, x) => x",
    ],
)
def test_an_exception_that_the_rule_names_refutes_it(text: str) -> None:
    (rule,) = parse_rules(f"wrong{text} ; float=E3", "wrong.rules")
    assert judge_rule(rule, 0, 10).decision == "refuted"
