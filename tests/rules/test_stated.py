"""The proofs that ship are of rules that ship, and say what the prover says."""

import pytest

from superopt.rules.rule import load_library, parse_rules
from superopt.rules.stated import proof_key, proofs, tier
from superopt.verifier.prove import Limits, prove
from superopt.verifier.verdict import Proved

PROVED = [r for r in load_library() if tier(r) == "A"]


def test_every_proof_is_of_a_rule_of_the_library() -> None:
    assert {proof_key(r) for r in PROVED} == set(proofs())


@pytest.mark.parametrize("rule", PROVED[::60], ids=lambda r: r.name)
def test_what_ships_as_proved_is(rule: object) -> None:
    verdict = prove(rule, Limits(seconds=60, work=60_000, beyond=100_000))  # type: ignore[arg-type]
    assert isinstance(verdict, Proved)
    assert verdict.whole
    assert verdict.said == proofs()[proof_key(rule)]  # type: ignore[arg-type]


def test_a_rule_that_reads_otherwise_has_no_proof() -> None:
    true = PROVED[0]
    assert tier(true) == "A"
    (other,) = parse_rules("wrong(x: f, y: f): Sub(x, y) => Sub(y, x) ; float=E0")
    assert tier(other) == "C"


def test_neither_float_class_nor_origin_is_part_of_a_proof() -> None:
    one, two = (
        parse_rules(f"r(x: f): Relu(Relu(x)) => Relu(x) ; float={c} ; origin={o}")[0]
        for c, o in (("E0", "hand"), ("E1", "generated"))
    )
    assert proof_key(one) == proof_key(two)
