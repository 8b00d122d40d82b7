"""Rules within quantization steps: proved, and refused where rounding may move a result farther."""

from __future__ import annotations

import pytest

from superopt.errors import UsageError
from superopt.rules.lang.rule import Rule, parse_rules
from superopt.rules.library.load import load_file
from superopt.rules.trial.try_rule import Passed, try_rule
from superopt.rules.trial.try_rule import Refuted as Differs
from superopt.verification.rule_verdict import judge_rule
from superopt.verifier.prove import Limits
from superopt.verifier.prove_bounded import best_proof
from superopt.verifier.rounding.rule_steps import STEPS_NOTE, prove_within_steps
from superopt.verifier.verdict import Proved, Refuted, Unknown

LIMITS = Limits(seconds=20)
SMALL = "k * value(s) * value(t) <= 8 * value(o)"
REQUANTIZE = """
requantize(x: i8, s: f32[], z: i8[], o: f32[], p: i8[]):
    QuantizeLinear(DequantizeLinear(x, s, z), o, p) => {right}
    where value(s) > 1e-12, value(o) > 1e-12, value(o) < 1e12, {bound} ; steps=1 ; float=E2
"""
RIGHT = "QuantizeLinear(Mul(Sub(Cast(x, to=f32), Cast(z, to=f32)), Div(s, o)), 1.0, p)"
BOUND = "value(s) <= 4096 * value(o)"
PRODUCT = """
product(x: u8[m, k], w: i8[k, n], s: f32[], z: u8[], t: f32[], v: i8[], o: f32[], p: u8[]):
    QuantizeLinear(MatMul(DequantizeLinear(x, s, z), DequantizeLinear(w, t, v)), o, p)
    => QuantizeLinear(Mul(Cast(MatMulInteger(x, w, z, v), to=f32), Mul(s, t)), o, p)
    where value(s) > 1e-12, value(t) > 1e-12, value(o) > 1e-12, value(o) < 1e12, {bounds}
    ; steps=1 ; float=E2
"""
BOUNDS = "k <= 16384, k ** 2 * value(s) * value(t) <= 128 * value(o), " + SMALL


def rule(text: str) -> Rule:
    (found,) = parse_rules(text)
    return found


def requantize(right: str = RIGHT, bound: str = BOUND) -> Rule:
    return rule(REQUANTIZE.format(right=right, bound=bound))


def product(bounds: str = BOUNDS) -> Rule:
    return rule(PRODUCT.format(bounds=bounds))


@pytest.mark.parametrize("one", load_file("requantized.rules"), ids=lambda r: r.name)
def test_rules_of_the_library_are_proved(one: Rule) -> None:
    assert one.steps == 1
    found = best_proof(one, LIMITS)
    assert isinstance(found, Proved), found
    assert any(a.startswith(STEPS_NOTE) for a in found.scope.assumes)


def test_a_merged_scale_is_within_a_step() -> None:
    assert isinstance(prove_within_steps(requantize(), LIMITS), Proved)


def test_a_bound_of_the_scales_is_needed() -> None:
    found = prove_within_steps(requantize(bound="value(s) < 1e12"), LIMITS)
    assert isinstance(found, Unknown)
    assert "rounding errors are up to" in found.reason


def test_the_scale_must_be_above_zero() -> None:
    text = REQUANTIZE.replace("value(o) > 1e-12, ", "").format(right=RIGHT, bound=BOUND)
    found = prove_within_steps(rule(text), LIMITS)
    assert not isinstance(found, Proved)


def test_a_shift_by_a_step_is_refuted() -> None:
    shifted = requantize("QuantizeLinear(Add(DequantizeLinear(x, s, z), o), o, p)")
    assert isinstance(prove_within_steps(shifted, LIMITS), Refuted)
    assert isinstance(try_rule(shifted), Differs)
    assert judge_rule(shifted, 0, 20.0).decision == "refuted"


def test_half_a_step_more_is_refuted() -> None:
    moved = requantize("QuantizeLinear(Add(DequantizeLinear(x, s, z), Mul(o, 0.5)), o, p)")
    assert isinstance(prove_within_steps(moved, LIMITS), Refuted)


def test_a_scale_that_is_slightly_larger_is_refuted() -> None:
    larger = requantize("QuantizeLinear(DequantizeLinear(x, s, z), Mul(o, 1.0625), p)")
    assert isinstance(prove_within_steps(larger, LIMITS), Refuted)


def test_an_offset_that_cancels_is_not_proved() -> None:
    """Equal over the real numbers, but of 10^8 steps float32 keeps none."""
    offset = "Mul(o, 100000000.0)"
    text = f"QuantizeLinear(Sub(Add(DequantizeLinear(x, s, z), {offset}), {offset}), o, p)"
    found = prove_within_steps(requantize(text), LIMITS)
    assert isinstance(found, Unknown)
    assert "rounding errors are up to" in found.reason
    small = text.replace("100000000.0", "64.0")
    assert isinstance(prove_within_steps(requantize(small), LIMITS), Proved)


@pytest.mark.parametrize("fn", ["Floor", "Ceil"])
def test_another_rounding_is_refused(fn: str) -> None:
    """Such a side is no QuantizeLinear of its own: rounded before, the sides are not equal."""
    text = f"QuantizeLinear({fn}(Div(DequantizeLinear(x, s, z), o)), 1.0, p)"
    assert not isinstance(prove_within_steps(requantize(text), LIMITS), Proved)
    whole = f"Cast({fn}(Div(DequantizeLinear(x, s, z), o)), to=i8)"
    found = prove_within_steps(requantize(whole), LIMITS)
    assert isinstance(found, Unknown)
    assert "steps= is of QuantizeLinear" in found.reason


def test_other_zero_points_are_refused() -> None:
    found = prove_within_steps(requantize(RIGHT.replace(", p)", ", z)")), LIMITS)
    assert isinstance(found, Unknown)
    assert "one zero point" in found.reason


def test_products_need_a_bound_of_terms_and_scales() -> None:
    assert isinstance(prove_within_steps(product(), LIMITS), Proved)
    for missing in (
        "k ** 2 * value(s) * value(t) <= 128 * value(o)",  # int32 may overflow
        "k <= 16384, k * value(s) * value(t) <= 8 * value(o)",
        "k <= 16384",
    ):
        assert isinstance(prove_within_steps(product(missing), LIMITS), Unknown)


def test_the_bound_of_products_is_near_the_largest_that_is_proved() -> None:
    """Twice the scales, and the bound is above a step."""
    wide = BOUNDS.replace("128", "256")
    assert isinstance(prove_within_steps(product(wide), LIMITS), Unknown)


def test_more_steps_allow_larger_scales() -> None:
    text = PRODUCT.format(bounds=BOUNDS.replace("128", "256")).replace("steps=1", "steps=2")
    assert isinstance(prove_within_steps(rule(text), LIMITS), Proved)


def test_steps_are_printed_and_parsed() -> None:
    one = requantize()
    assert "; steps=1 ; float=E2" in str(one)
    assert parse_rules(str(one)) == [one]
    with pytest.raises(UsageError, match="steps=one is not a number"):
        parse_rules(REQUANTIZE.format(right=RIGHT, bound=BOUND).replace("steps=1", "steps=one"))


def test_the_trial_allows_steps_and_no_more() -> None:
    assert isinstance(try_rule(requantize()), Passed)
    none = requantize("QuantizeLinear(DequantizeLinear(x, s, z), Mul(o, 2.0), p)")
    assert isinstance(try_rule(none), Differs)
