"""The proofs that ship are of rules that ship, and say what the prover says."""

import json
from dataclasses import replace

import pytest

from scripts.verify_rules import stored
from superopt.rules.lang.rule import parse_rules
from superopt.rules.library.load import load_library
from superopt.rules.library.records import (
    Proof,
    library_proofs,
    proof_key,
    read_proof,
    tier,
    unproved_reasons,
)
from superopt.verifier.prove import Limits, prove
from superopt.verifier.verdict import Proved

PROVED = [r for r in load_library() if tier(r) == "A"]


def test_every_proof_is_of_a_rule_of_the_library() -> None:
    assert {proof_key(r) for r in load_library() if tier(r) != "C"} == set(library_proofs())


@pytest.mark.one_in(8)
@pytest.mark.parametrize("rule", PROVED[::60], ids=lambda r: r.name)
def test_what_ships_as_proved_is(rule: object) -> None:
    verdict = prove(rule, Limits(seconds=60, work=60_000, work_beyond=200_000))  # type: ignore[arg-type]
    assert isinstance(verdict, Proved)
    assert verdict.is_complete
    kept = library_proofs()[proof_key(rule)]  # type: ignore[arg-type]
    # Which of several ways is tried first hangs on what was proved before, and so do questions.
    same = {"ms": kept.ms, "queries": kept.queries, "mutants": kept.mutants}
    assert replace(verdict.proof, **same) == kept  # type: ignore[arg-type]


def test_what_is_not_proved_has_a_reason() -> None:
    others = {proof_key(r) for r in load_library() if tier(r) == "C"}
    assert others == set(unproved_reasons())
    assert all(unproved_reasons().values())


def test_a_proof_comes_back_as_it_was_written() -> None:
    written = Proof("ranks 0 to 4; 6 ways to fit", ("sizes from 1",), ("n == m",), 7, 2, 1.5)
    for mutants in (None, (9, 10)):
        proof = replace(written, mutants=mutants)
        assert read_proof(json.loads(json.dumps(stored(proof))), mutants) == proof
    assert written.summary == "ranks 0 to 4; 6 ways to fit; sizes from 1; refused unless n == m"


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
