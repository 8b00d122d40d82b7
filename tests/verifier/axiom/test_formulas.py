"""Conditions of rules as first-order terms."""

from superopt.rules.lang.rule import parse_rules
from superopt.rules.lang.term import Compare, Lit, Logic, Name
from superopt.verifier.axiom.formulas import Formulas, comparison, conjunction
from superopt.verifier.axiom.logic import TRUTH_SORT, fo, number

A, B = (comparison("<", fo(f"?{n}"), number(4)) for n in "ab")


def test_each_part_of_a_conjunction_is_a_condition() -> None:
    (rule,) = parse_rules("t(x: f): Relu(x) => Relu(x)")
    a, b = (Compare(Name(n), (("<", Lit(4)),)) for n in "ab")
    assert Formulas(rule, "f").condition(Logic("and", (a, b))) == [A, B]


def test_conjunction_of_one_term_is_the_term() -> None:
    assert conjunction([A]) is A
    assert conjunction([A, B]) is fo("and", (A, B), TRUTH_SORT)
    assert conjunction([]) is fo("and", (), TRUTH_SORT)


def test_only_names_of_tuples_are_tuples() -> None:
    (rule,) = parse_rules("r(x: f[*s, n]): Reshape(x, shape=to) => Reshape(x, shape=to)")
    run, size = fo("run", (fo("?x"), fo("?a"), fo("?b"))), fo("back", (fo("?x"), fo("?a")))
    formulas = Formulas(rule, "f", {"s": run, "n": size})
    assert [formulas.is_tuple(Name(n)) for n in ("s", "n", "to", "unknown")] == [
        True,
        False,
        True,
        False,
    ]
