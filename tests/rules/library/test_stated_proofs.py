"""The proofs that ship are of rules that ship, and say what the prover says."""

from dataclasses import replace
from pathlib import Path

import pytest

from superopt.rules.lang.rule import parse_rules
from superopt.rules.library import records
from superopt.rules.library.load import load_library
from superopt.rules.library.records import (
    RECORDS,
    LibraryRecords,
    Proof,
    Scope,
    format_records,
    library_records,
    parse_records,
    proof_key,
    tier,
    write_records,
)
from superopt.verifier.prove import Limits, prove
from superopt.verifier.verdict import Proved

PROVED = [r for r in load_library() if tier(r) == "A"]


def test_every_proof_is_of_a_rule_of_the_library() -> None:
    assert {proof_key(r) for r in load_library() if tier(r) != "C"} == set(library_records().proof)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("rule", PROVED[::60], ids=lambda r: r.name)
def test_what_ships_as_proved_is(rule: object) -> None:
    verdict = prove(rule, Limits(seconds=60, work=60_000, work_beyond=200_000))  # type: ignore[arg-type]
    assert isinstance(verdict, Proved)
    assert verdict.is_complete
    kept = library_records().proof[proof_key(rule)]  # type: ignore[arg-type]
    # Which of several ways is tried first hangs on what was proved before, and so do questions.
    assert verdict.proof._replace(ms=kept.ms, queries=kept.queries) == kept


def test_what_is_not_proved_has_a_reason() -> None:
    others = {proof_key(r) for r in load_library() if tier(r) == "C"}
    assert others == set(library_records().unproved)
    assert all(library_records().unproved.values())


def test_records_are_parsed_as_they_were_written() -> None:
    one = Scope("ranks 0 to 4", 6, ("sizes from 1", "explicit pads"))
    proof = {
        "a": Proof(one, ("n == m",), 7, 2, 1.5),
        "b": Proof(replace(one, instances=1), (), 7, 0, 0.0, bound=0),
        "c": Proof(replace(one, assumes=()), (), 7, 0, 1.0, bound=3),
    }
    every = LibraryRecords(
        proof,
        unproved={"d": "no instance"},
        mutants={"a": [2, 3]},
        float_class={"a": "E2", "d": None},
        error_growth={"a": 0.5},
        axioms={"b": {"names": ["x"], "steps": [["Relu(x)", ""]], "ms": 1.5}},
    )
    text = format_records(every)
    assert parse_records(text) == every
    assert text.count("\n") == 2 + 4 + 3  # scopes, rules, brackets
    assert proof["a"].summary == (
        "ranks 0 to 4; 6 ways to fit; sizes from 1; explicit pads; refused unless n == m"
    )


def test_the_file_of_records_is_written_by_its_writer() -> None:
    assert format_records(library_records()) == RECORDS.read_text(encoding="utf-8")


def test_one_field_is_written_and_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = library_records()
    monkeypatch.setattr(records, "RECORDS", tmp_path / "records.json")
    try:
        write_records(mutants={"0": [1, 2]})
        assert library_records() == replace(before, mutants={"0": [1, 2]})
    finally:
        library_records.cache_clear()


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
