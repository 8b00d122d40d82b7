"""What one reading was wrong on is seen of the next one without a trial of its own."""

import pytest

from superopt.generate.generalize.soundness import UnsoundRule, can_apply, decide_rule, is_wrong_on
from superopt.rules.lang.rule import Rule, parse_rules
from superopt.rules.trial.instances import Instance, instances
from superopt.rules.trial.try_rule import Refuted, try_rule


def rule(text: str) -> Rule:
    (found,) = parse_rules(f"{text} ; float=E3")
    return found


def off() -> Instance:
    """An instance of two axes on which a difference is no difference the other way round."""
    found = try_rule(rule("a(x: f[n, m], y: f[n, m]): Sub(x, y) => Sub(y, x)"))
    assert isinstance(found, Refuted)
    return found.instance


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("a(x: f, y: f): Sub(x, y) => Sub(y, x)", True),
        ("a(x: f, y: f): Sub(y, x) => Sub(x, y)", True),
        ("a(x: f[*s, m], y: f[*s, m]): Sub(x, y) => Sub(Sub(x, y), x)", True),  # other graphs
        ("a(x: f, y: f): Sub(x, y) => Neg(Sub(y, x))", False),
        ("a(x: f[n], y: f[n]): Sub(x, y) => Sub(y, x)", False),  # says nothing of two axes
        ("a(x: f, y: f): Add(x, y) => Sub(y, x)", False),
    ],
)
def test_what_a_reading_makes_of_an_instance_may_be_wrong(text: str, wrong: bool) -> None:
    assert is_wrong_on(rule(text), off(), seed=0) is wrong


def test_a_refuted_rule_says_on_what() -> None:
    """The prover finds what a short trial does not: pads that go on one side and come on the
    other."""
    wide = rule("a(x: f, y: f): Concat(Pad(x, pads=p), Pad(y, pads=p), axis=k) =>"
                " Pad(Concat(x, y, axis=k), pads=p)")  # fmt: skip
    found = decide_rule(wide, ("E3",), 0, instances(wide, 0))
    assert isinstance(found, UnsoundRule)
    assert found.instance is not None
    assert is_wrong_on(wide, found.instance, seed=0)
    narrow = rule("a(x: any, y: any): Concat(Pad(x, pads=p), Pad(y, pads=p), axis=k) =>"
                  " Pad(Concat(x, y, axis=k), pads=p) where rank(x) < 5")  # fmt: skip
    assert is_wrong_on(narrow, found.instance, seed=0)
    other = rule("a(x: f, y: f): Concat(Pad(x, pads=p), Pad(y, pads=p), axis=k) =>"
                 " Pad(Concat(x, y, axis=k), pads=p) where all(n == 0 for n in p)")  # fmt: skip
    assert not is_wrong_on(other, found.instance, seed=0)


def test_a_rule_fires_on_its_instances() -> None:
    one = rule("a(x: f, y: f): Sub(x, y) => Neg(Sub(y, x))")
    assert can_apply(one, next(iter(instances(one, 0))))
