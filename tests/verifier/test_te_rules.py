"""Rules on tensor expressions: all of the library are proved, wrong ones are not."""

from __future__ import annotations

import pytest

from superopt.rules.te.rewrite import load_te_library
from superopt.rules.te.term import TeRule, parse_te_rules
from superopt.verifier.prove import Limits
from superopt.verifier.te_rules import prove_te_rule
from superopt.verifier.verdict import Proved

LIBRARY = {rule.name: rule for rule in load_te_library()}

# Each is a rule of the library, changed in one place.
WRONG = {
    "a factor that depends on the terms": (
        "r(c): sum(*k < n, x(*k) * c(*k)) => sum(*k, x(*k)) * sum(*k, c(*k))"
    ),
    "a factor of a maximum": "r(c: number): max(*k < n, x(*k) * c) => max(*k, x(*k)) * c",
    "a factor once": (
        "r(c: number): sum(*k < n, store(x(*k) * c) * store(z(*k) * c))"
        " => sum(*k, x(*k) * z(*k)) * c"
    ),
    "parts without the rest": (
        "r(x): sum(*k < n, x(*k)) => sum(j < prod(*p), store[j < prod(*p), ...]("
        "sum(*k.r < m, x(unravel(j, *p) * m + k.r)))[j, ...])"
        " where (p, m) in sizes(n), n == p * m + 1"
    ),
    "parts beyond the end": (
        "r(x): sum(*k < n, x(*k)) => sum(j < prod(*p), sum(*k.r < m,"
        " select(all(i < n), x(i), identity(sum, x))))"
        " where (p, m) in sizes(n), p * m <= n, i=unravel(j, *p) * m + k.r"
    ),
    "a maximum filled with zeros": (
        "r(x): max(*k < n, x(*k)) => max(j < prod(*p), max(*k.r < m,"
        " select(all(i < n), x(i), 0)))"
        " where (p, m) in sizes(n), n <= p * m, i=unravel(j, *p) * m + k.r"
    ),
    "parts that overlap": (
        "r(x): sum(k < n, x(k)) => sum(j < p, k.r < m, x(j + k.r))"
        " where (p, m) in sizes(n), n == p + m - 1"
    ),
    "reductions of two kinds": (
        "r(x): sum(*k < n, store(max(*j < m, x(*k, *j)))) => max(*k, *j, x(*k, *j))"
    ),
    "the wrong element of an axis": ("r(x): sum(*h < n, k < l, x(*h, k)) => sum(*h, x(*h, 0))"),
    "terms that may count": (
        "r(x, s: size, c: nat): sum(*h < n, k < l, x(*h, k)) => sum(*h, k.new < m,"
        " x(*h, s * k.new + c)) where (m, s, c) in terms(k), s * (m - 1) + c < l"
    ),
    "terms out of bounds": (
        "r(x, s: size, c: nat): sum(k < l, x(k)) => sum(k.new < m, x(s * k.new + c))"
        " where (m, s, c) in terms(k), x(k) == sum(j < m, select(k == s * j + c, x(k), 0))"
    ),
    "digits in another order": (
        "r(x, e: run): sum(k < l, x(unravel(k, *e))) => sum(*k.d < e, x(ravel(*k.d, *e)))"
        " where 2 <= count(*e), l == prod(*e)"
    ),
    "a channel of another group": (
        "r(x, g: axis): sum(c < m, x(g * m + c)) => sum(c < m, store[*a, *b, d < l * m]("
        "x(d))[*a, *b, c]) where axes(*a < u, g < l, *b < v)"
    ),
    "axes that are exchanged": (
        "r(x, m: size): tensor(*a < u, c < n, x(*a, c)) => tensor(*a, c.w < m, c.r < l,"
        " x(*a, c.r * m + c.w)) where l in divide(n, m), n == l * m"
    ),
    "a mask above": (
        "r(m: constant, i: axis, j: axis, d: int): m[i, j] => i + d < j"
        " where d in diagonal(m), m[i, j] == (j <= i + d)"
    ),
    "a row without its axis": ("r(x): sum(*k < n, exp(x(*k))) => sum(*k, store[...](exp(x(*k))))"),
    "an element of another row": (
        "r(e): e(*i) => store[*a, *i](e(*i))[*a, 0] where axes(*a < u, *i < n), 1 <= count(*i)"
    ),
    "a narrower type": "r(x: f32[...]): store(f16(x)) => f32(f16(x))",
    "conditions that contradict each other": (
        "r(x): sum(k < n, x(k)) => sum(k, x(k)) where n <= 2, 3 <= n"
    ),
}


def parsed(text: str) -> TeRule:
    (rule,), _ = parse_te_rules(text, "test")
    return rule


@pytest.mark.parametrize("name", LIBRARY)
def test_proved(name: str) -> None:
    verdict = prove_te_rule(LIBRARY[name])
    assert isinstance(verdict, Proved), verdict
    assert verdict.scope.instances > 0


@pytest.mark.parametrize("name", WRONG)
def test_not_proved(name: str) -> None:
    assert not isinstance(prove_te_rule(parsed(WRONG[name]), Limits(seconds=5)), Proved)


def test_a_proof_needs_its_conditions() -> None:
    """Each condition on sizes of the library is used."""
    needed = {
        "n <= p * m": "split-sum",
        "n == l * m": "split-groups",
        "l == prod(*e)": "digits-max",
    }
    for condition, name in needed.items():
        text = LIBRARY[name].text
        assert condition in text
        without = text.replace(f", {condition}", "")
        assert without != text
        assert not isinstance(prove_te_rule(parsed(without), Limits(seconds=5)), Proved), name
