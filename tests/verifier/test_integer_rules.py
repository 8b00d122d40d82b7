"""Rules over integers: what holds only without overflow is not proved, what holds with it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random

import numpy as np
import pytest

from superopt.rules.lang.rule import Rule, parse_rules
from superopt.rules.trial import try_rule as trial
from superopt.rules.trial.try_rule import try_rule
from superopt.te.expr.dtype import I8, U8, DType
from superopt.verifier.prove import prove
from superopt.verifier.verdict import Proved, Refuted
from tests.support.verifier.integer_claims import (
    KINDS,
    Pairs,
    all_pairs,
    as_claim,
    differs_at,
    is_proved,
    random_claim,
    some_pairs,
)

# Each but the last is true of integers that do not overflow.
FALSE = """
less-shifted(x: i, y: i): Less(Add(x, 1), Add(y, 1)) => Less(x, y)
less-shifted-byte(x: i8, y: i8, z: i8): Less(Add(x, z), Add(y, z)) => Less(x, y)
less-difference(x: i, y: i): Less(Sub(x, y), 0) => Less(x, y)
less-negated(x: i, y: i): Less(Neg(x), Neg(y)) => Less(y, x)
greater-successor(x: i64): Greater(Add(x, 1), x) => Equal(x, x)
square-not-below(x: i32): Less(Mul(x, x), 0) => Less(x, x)
doubled(x: u8, y: u8): Equal(Mul(x, 2), Mul(y, 2)) => Equal(x, y)
max-of-sums(x: i, y: i, z: i): Max(Add(x, z), Add(y, z)) => Add(Max(x, y), z)
max-of-sums-any(x: num, y: num, z: num): Max(Add(x, z), Add(y, z)) => Add(Max(x, y), z)
min-of-negated(x: i, y: i): Min(Neg(x), Neg(y)) => Neg(Max(x, y))
reduced-sums(x: i32[n, m]): ReduceMax(Add(x, 1), axes=(1,)) => Add(ReduceMax(x, axes=(1,)), 1)
arg-of-sums(x: i32[n, m]): ArgMax(Add(x, 1), axis=1) => ArgMax(x, axis=1)
abs-of-abs(x: i): Max(Abs(x), 0) => Abs(x)
abs-of-least(x: i8): Less(Abs(x), 0) => Less(x, x)
abs-of-product(x: i, y: i): Max(Abs(Mul(x, y)), 0) => Mul(Abs(x), Abs(y))
sign-negated(x: num): Sign(Neg(x)) => Neg(Sign(x))
sign-of-product(x: i, y: i): Sign(Mul(x, y)) => Mul(Sign(x), Sign(y))
half-negated(x: i8): Div(Neg(x), 2) => Neg(Div(x, 2))
quotient-of-product(x: i, c: i): Div(Mul(x, c), c) => x where value(c) > 0
half-of-double(x: i32): Div(Mul(x, 2), 2) => x
quotient-of-sum(x: i, c: i): Div(Add(x, c), c) => Add(Div(x, c), 1)
    where value(c) > 0
remainder-of-sum(x: i8): Mod(Add(x, 3), 3) => Mod(x, 3)
remainder-of-multiple(x: i16): Mod(Mul(x, 6), 3) => Mod(Sub(x, x), 3)
remainder-of-large(x: i8): Mod(Mul(x, 16), 12) => Mul(Mod(Mul(x, 4), 3), 4)
widened-product(x: i8, y: i8): Cast(Mul(x, y), to=i32) => Mul(Cast(x, to=i32), Cast(y, to=i32))
widened-sum(x: u8, y: u8): Cast(Add(x, y), to=u16) => Add(Cast(x, to=u16), Cast(y, to=u16))
widened-difference(x: u8, y: u8): Cast(Sub(x, y), to=i32) => Sub(Cast(x, to=i32), Cast(y, to=i32))
widened-negation(x: i8): Cast(Neg(x), to=i16) => Neg(Cast(x, to=i16))
widened-abs(x: i8): Cast(Abs(x), to=i16) => Abs(Cast(x, to=i16))
widened-total(x: i16[n]): Cast(ReduceSum(x), to=i32) => ReduceSum(Cast(x, to=i32))
float-of-sum(x: i8, y: i8): Cast(Add(x, y), to=f32) => Add(Cast(x, to=f32), Cast(y, to=f32))
narrow-and-wide(x: i32): Cast(Cast(x, to=i8), to=i32) => x
narrow-and-compare(x: i32, y: i32): Less(Cast(x, to=i16), Cast(y, to=i16)) => Less(x, y)
by-unsigned(x: i8): Cast(Cast(x, to=u8), to=i32) => Cast(x, to=i32)
by-unsigned-half(x: i16): Div(Cast(x, to=u16), 2) => Cast(Div(x, 2), to=u16)
narrow-max(x: i32, y: i32): Max(Cast(x, to=i8), Cast(y, to=i8)) => Cast(Max(x, y), to=i8)
narrow-truth(x: i32): Cast(Cast(x, to=i8), to=bool) => Cast(x, to=bool)
unsigned-below-zero(x: u8, y: u8): Less(Sub(x, y), x) => Greater(y, 0)
where-shifted(x: i, y: i): Sub(Max(Add(x, 1), Add(y, 1)), 1) => Max(x, y)
square-sum(x: i8[n]): Max(ReduceSum(Mul(x, x), axes=(0,)), 0) => ReduceSum(Mul(x, x), axes=(0,))
padded-windows(x: i8[p, q, n]): MaxPool(Pad(x, -128, pads=(0, 0, 4, 0, 0, 4)), kernel_shape=(2,))
    => Cast(MaxPool(Pad(Cast(x, to=i32), -2147483648, pads=(0, 0, 4, 0, 0, 4)), kernel_shape=(2,)),
            to=i8)
"""

TRUE = """
ring(x: i, y: i, z: i): Mul(Add(x, y), z) => Add(Mul(y, z), Mul(x, z))
ring-of-bytes(x: i8, y: i8): Mul(Sub(x, y), Add(x, y)) => Sub(Mul(x, x), Mul(y, y))
matrices(x: i32[n, k], y: i32[k, m], z: i32[k, m]):
    Add(MatMul(x, y), MatMul(x, z)) => MatMul(x, Add(y, z))
negated-twice(x: i8): Neg(Neg(x)) => x
bytes(x: i8): Mul(Mul(x, 16), 16) => Sub(x, x)
equal-shifted(x: i, y: i, z: i): Equal(Add(x, z), Add(y, z)) => Equal(x, y)
equal-difference(x: u8, y: u8): Equal(Sub(x, y), 0) => Equal(x, y)
equal-negated(x: i8, y: i8): Equal(Neg(x), Neg(y)) => Equal(x, y)
wide-product(x: i8, y: i8): Mul(Cast(x, to=i32), Cast(y, to=i32))
    => Cast(Mul(Cast(x, to=i16), Cast(y, to=i16)), to=i32)
wide-difference(x: u8, y: u8): Sub(Cast(x, to=i32), Cast(y, to=i32))
    => Cast(Sub(Cast(x, to=i16), Cast(y, to=i16)), to=i32)
wide-less(x: i8, y: i8): Less(Cast(x, to=i32), Cast(y, to=i32)) => Less(x, y)
wide-shifted(x: i8, y: i8): Less(Add(Cast(x, to=i32), 1), Add(Cast(y, to=i32), 1)) => Less(x, y)
wide-max(x: u8, y: u8): Max(Add(Cast(x, to=i16), 9), Add(Cast(y, to=i16), 9))
    => Cast(Add(Cast(Max(x, y), to=i32), 9), to=i16)
wide-abs(x: i8): Abs(Cast(x, to=i16)) => Max(Cast(x, to=i16), Neg(Cast(x, to=i16)))
narrow-product(x: i32, y: i32): Cast(Mul(x, y), to=i8) => Mul(Cast(x, to=i8), Cast(y, to=i8))
narrow-total(x: i32[n]): Cast(ReduceSum(x), to=u16) => ReduceSum(Cast(x, to=u16))
narrow-narrow(x: i64): Cast(Cast(x, to=i16), to=u8) => Cast(x, to=u8)
by-unsigned(x: i8): Cast(Cast(x, to=u8), to=i8) => x
by-wide(x: u8): Cast(Cast(x, to=i64), to=u8) => x
by-float(x: i16): Cast(Cast(x, to=f32), to=i16) => x
float-of-wide-sum(x: i8, y: i8): Cast(Add(Cast(x, to=i32), Cast(y, to=i32)), to=f32)
    => Add(Cast(x, to=f32), Cast(y, to=f32))
unsigned-not-below-zero(x: u8): Less(x, 0) => Less(x, x)
unsigned-relu(x: u8): Max(x, 0) => x
even-remainder(x: i8): Mod(Add(x, 4), 4) => Mod(x, 4)
remainder(x: i, y: i): Add(Mod(x, y, fmod=1), Mul(Div(x, y), y)) => x
order(x: i, y: i, z: i): Max(Max(x, y), z) => Max(x, Max(y, z))
order-of-sums(x: i, y: i): Max(Add(x, y), Add(y, x)) => Add(x, y)
moved(x: i8[n, m]): Transpose(Abs(Add(x, x)), perm=(1, 0))
    => Abs(Add(Transpose(x, perm=(1, 0)), Transpose(x, perm=(1, 0))))
"""


@pytest.mark.parametrize("rule", parse_rules(TRUE), ids=lambda r: r.name)
def test_it_is_proved(rule: Rule) -> None:
    verdict = prove(rule)
    assert isinstance(verdict, Proved), str(verdict)
    assert verdict.is_complete


@pytest.mark.parametrize("rule", parse_rules(FALSE), ids=lambda r: r.name)
def test_what_overflow_makes_false_is_not(rule: Rule) -> None:
    verdict = prove(rule)
    assert not isinstance(verdict, Proved)
    assert isinstance(verdict, Refuted) or isinstance(try_rule(rule), trial.Refuted)


CLAIMS = 150  # of each group; about two thirds are proved, and half of the others are false


@pytest.mark.parametrize("group", range(4))
def test_what_is_proved_holds_for_all_bytes(group: int) -> None:
    """Expressions of int8 or uint8 inputs, and of other types in between."""
    seeds = range(CLAIMS * group, CLAIMS * (group + 1))
    proved, false = check_claims(seeds, (I8, U8), lambda kind, _: all_pairs(kind))
    assert proved > CLAIMS / 2
    assert false > CLAIMS / 10


def test_what_is_proved_holds_for_integers_of_any_size() -> None:
    """At the ends of the ranges, near 0, and at random."""
    seeds = range(10_000, 10_000 + CLAIMS)
    proved, false = check_claims(
        seeds, KINDS, lambda kind, seed: some_pairs(kind, np.random.default_rng(seed))
    )
    assert proved > CLAIMS / 2
    assert false > CLAIMS / 10


def check_claims(
    seeds: Iterable[int], kinds: Sequence[DType], pairs: Callable[[DType, int], Pairs]
) -> tuple[int, int]:
    """Return how many random claims are proved, and how many are false, none of them both."""
    proved = false = 0
    for seed in seeds:
        rng = Random(seed)
        kind = rng.choice(kinds)
        sides = random_claim(rng, kind)
        claim = as_claim(*sides)
        wrong = differs_at(claim, kind, *pairs(kind, seed))
        false += wrong is not None
        if is_proved(claim, kind):
            proved += 1
            assert wrong is None, (seed, kind, wrong, *map(str, sides))
    return proved, false
