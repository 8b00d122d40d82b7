"""Whole runs: the same bytes for the same seed, resumed, and rules that hold elsewhere."""

import json
from functools import partial
from pathlib import Path

import pytest

from superopt.api import generate_rules
from superopt.errors import UsageError
from superopt.generate.build import instance
from superopt.generate.choice import most_general
from superopt.generate.claims import claims
from superopt.generate.closing import said
from superopt.generate.complete import completeness
from superopt.generate.families import FAMILIES
from superopt.generate.family import Family, use
from superopt.generate.find import find
from superopt.generate.generalise import readings, title
from superopt.generate.journal import Journal
from superopt.generate.library import text
from superopt.generate.pairs import equal_pairs, every_term
from superopt.generate.pattern import show
from superopt.generate.run import Wanted, generate
from superopt.generate.sound import Held
from superopt.rules.rule import Rule, parse_rules
from superopt.rules.trial import Passed, try_rule

NAMES = ["sums", "matrices"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("rules")
    generate_rules(out, families=NAMES, max_ops=2)
    return out


def rules(folder: Path) -> list[Rule]:
    return [r for n in NAMES for r in parse_rules((folder / f"{n}.rules").read_text(), n)]


def test_rules_hold_on_shapes_that_did_not_make_them(folder: Path) -> None:
    found = rules(folder)
    assert len(found) > 20
    for rule in found:
        verdict = try_rule(rule, seed=1234, count=20)
        assert isinstance(verdict, Passed), f"{rule}: {verdict}"


def test_the_laws_of_a_textbook_are_found(folder: Path) -> None:
    texts = "\n".join(str(r) for r in rules(folder))
    for law in (
        "MatMul(MatMul(x, y), z) => MatMul(x, MatMul(y, z))",
        "Transpose(Transpose(x, perm=p), perm=p) => x",
        "Transpose(Relu(x), perm=p) => Relu(Transpose(x, perm=p))",
    ):
        assert law in texts, law


def test_the_same_bytes_with_more_processes(tmp_path: Path) -> None:
    for jobs in (1, 2):
        generate_rules(tmp_path / str(jobs), families=["order"], max_ops=2, jobs=jobs)
    one, two = ((tmp_path / jobs / "order.rules").read_bytes() for jobs in "12")
    assert one == two
    assert one.count(b"=>") > 5


def test_a_run_that_was_killed_goes_on(folder: Path, tmp_path: Path) -> None:
    """What the journal has is not tried again; a half-written line is."""
    lines = (folder / "journal.jsonl").read_bytes().splitlines(keepends=True)
    assert len(lines) > 40
    (tmp_path / "journal.jsonl").write_bytes(b"".join(lines[:-10]) + lines[-10][:20])
    made = generate_rules(tmp_path, families=NAMES, max_ops=2)
    assert made.lost == (len(lines) - 9,)
    for name in NAMES:
        file = f"{name}.rules"
        assert (tmp_path / file).read_bytes() == (folder / file).read_bytes()


def test_the_journal_of_another_run_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="journal of another run"):
        generate_rules(folder, families=NAMES, max_ops=3)


def test_a_journal_keeps_what_it_is_given(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "journal.jsonl"
    journal = Journal.open(path, "a run")
    journal.add("one", "two")
    journal.close()
    assert Journal.open(path, "a run").known == {"one": "two"}


def test_the_account_adds_up(folder: Path) -> None:
    for family in json.loads((folder / "account.json").read_text()):
        kept = family["claims"] - family["covered"] - family["unread"] - len(family["idle"])
        assert kept == family["rules"] + len(family["derivable"])
        assert 0 < family["followed"] < family["laws"]


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        ({"families": ["poems"]}, "there is no family 'poems'"),
        ({"max_ops": 0}, "max_ops 0"),
        ({"jobs": 0}, "jobs 0"),
        ({"seed": -1}, "seed -1"),
    ],
)
def test_what_makes_no_sense_is_refused(
    asked: dict[str, object], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=complaint):
        generate_rules(tmp_path, **asked)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", FAMILIES)
def test_every_reading_is_a_rule(name: str) -> None:
    family = FAMILIES[name]()
    found = find(family, 2, seed=0)
    for claim in (c for e in found.equations for c in claims(e, family)):
        for _, reading in readings(claim, family):
            (rule,) = parse_rules(f"{reading} ; float=E2")
            assert rule.name == title(claim, family)


def test_a_library_reads_back(folder: Path) -> None:
    found = rules(folder)
    again = parse_rules(text(found), "again")
    # a rule from right to left has the name of the one from left to right
    assert {(r.lhs, r.rhs) for r in again} == {(r.lhs, r.rhs) for r in found}


def test_all_that_is_equal_follows_from_the_library(folder: Path) -> None:
    """Every application of up to 2 operators, from the smallest term of its class."""
    found = find(FAMILIES["matrices"](), 2, seed=0)
    done = completeness(found, rules(folder))
    assert done.pairs > 20
    assert done.missed == ()


def test_brute_force_follows_from_the_library() -> None:
    """Every term of up to 3 operators, with all terms as operands, of a reduced set."""
    uses = (use("MatMul", 2), use("Add", 2), use("Relu", 1), use("Transpose", 1, perm=(1, 0)))
    family = Family("reduced", dict.fromkeys("xyz", (3, 3)), {}, uses, 9)
    made = generate(Wanted(((family, 3),)), Journal())
    found = find(family, 3, seed=0)
    pairs = every_term(found, 3)
    assert len(pairs) > len(equal_pairs(found)) > 50
    assert completeness(found, made.rules["reduced"], pairs=pairs).missed == ()


def test_a_joined_operand_is_taken_apart() -> None:
    """(x z) (y / w) = x y + z w is a rule about any tensor in place of (y / w)."""
    family = FAMILIES["matrices"]()
    found = find(family, 3, seed=0)
    every = [c for e in found.equations for c in claims(e, family)]
    names = {said(c, family): c for c in every}
    (claim,) = (
        c for s, c in names.items() if s.startswith("(MatMul(Concat axis=1(x, z), y)) => Add")
    )
    held = most_general(claim, family, 0, partial(instance, claim, family))
    assert isinstance(held, Held)
    assert held.proved
    assert "MatMul(Concat(x, z, axis=k), y) => Add(MatMul(x, Split(y, axis=k - 1" in str(held.rule)


TWICE = "Transpose perm=(1, 0)(Transpose perm=(1, 0)(x)) = x"


def test_what_a_library_lacks_is_named(folder: Path) -> None:
    found = find(FAMILIES["matrices"](), 2, seed=0)
    without = [r for r in rules(folder) if "Transpose(Transpose" not in str(r)]
    assert len(without) < len(rules(folder))
    missed = completeness(found, without).missed
    family = found.bank.family
    assert {f"{show(e.left, family)} = {show(e.right, family)}" for e in missed} == {TWICE}
