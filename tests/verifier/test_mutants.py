"""Mutants of true rules: of every kind, refused, and noticed where they are not."""

from __future__ import annotations

from collections import Counter

import pytest

from scripts import mutation
from scripts.mutation import mixed, put, table
from superopt.rules.lang.rule import parse_rules
from superopt.rules.library.load import load_library
from superopt.rules.library.records import Scope
from superopt.verifier.verdict import Proved
from tests.support.verifier.mutants import KINDS, by_kind

RULES = load_library()
TEXT = """
wide(x: f[n, m], y: f[n, m]):
    Mul(ReduceMax(Sub(Slice(x, starts=(0,), ends=(1,), axes=(0,), steps=(1,)), y),
                  axes=(0,), keepdims=1), 2)
    => Mul(2, ReduceMax(Sub(Slice(x, starts=(0,), ends=(1,), axes=(0,), steps=(1,)), y),
                        axes=(0,), keepdims=1)) where n > 1
"""


def test_there_are_mutants_of_every_kind() -> None:
    (rule,) = parse_rules(TEXT)
    kinds = Counter(kind for kind, _ in by_kind(rule))
    assert set(kinds) == set(KINDS)
    mutants = [m for _, m in by_kind(rule)]
    assert len({(m.rhs, m.where) for m in mutants}) == len(mutants)
    assert all((m.lhs, m.params) == (rule.lhs, rule.params) for m in mutants)
    assert [k for k, _ in mixed(rule, 1)][:6] != [k for k, _ in by_kind(rule)][:6]


@pytest.mark.parametrize("name", ["matmul-assoc", "relu-concat", "reshape-relu"])
def test_they_are_refused(name: str) -> None:
    number = next((n for n, r in enumerate(RULES) if r.name == name), 0)
    outcomes = Counter(t.outcome for t in put(number, 3, 1))
    assert outcomes["refuted"] + outcomes["not shown"] >= 2
    assert not outcomes["survivor"]


def test_a_prover_that_proves_all_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    said = Proved(Scope("any rank", 1, ()), (), (), 0, 0, 0.0, 4)
    monkeypatch.setattr(mutation, "prove", lambda rule, limits: said)
    tried = put(next(n for n, r in enumerate(RULES) if "matmul" in r.name), 3, 1)
    assert [t.outcome for t in tried].count("survivor") == 3
    assert all(" on the left, " in t.shown for t in tried if t.outcome == "survivor")
    assert "| all | 3 |" in table(Counter((t.kind, t.outcome) for t in tried))
