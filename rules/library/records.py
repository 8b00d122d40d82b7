"""Records about rules in certificates and reports: text, tier, digest of a library."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache
from typing import Any, NamedTuple

from superopt.rules.lang.readable import readable_condition
from superopt.rules.lang.rule import LIBRARY, Rule

RECORDS = LIBRARY / "records.json"  # a line for each text that recurs in it, and for each rule
MAX_CONDITIONS_SHOWN = 4  # conditions in one line


@dataclass(frozen=True, slots=True)
class Scope:
    """The scope of a proof. instances: ways in which operands fit; the other fields are texts."""

    ranks: str
    instances: int
    assumes: tuple[str, ...]

    @property
    def summary(self) -> str:
        return f"{self.ranks}; {self.instances} {'way' if self.instances == 1 else 'ways'} to fit"

    def __str__(self) -> str:
        return "; ".join((self.summary, *self.assumes))


class Proof(NamedTuple):  # 2,292 are made at once: a tuple takes a third of a dataclass's time
    """What the prover showed of a rule.

    scope: the ranks that the proof covers, its assumptions and omissions. conditions: what the
    right side needs beyond the left for some shapes; a match is refused without it. obligations:
    reads shown to be in bounds, elements shown to be equal, sums matched by a bijection. queries:
    calls of Z3. ms: CPU time. bound: the largest size covered; 0 if the operands have one shape,
    and the proof is complete; None for all sizes.
    """

    scope: Scope
    conditions: tuple[str, ...]
    obligations: int
    queries: int
    ms: float
    bound: int | None = None

    @property
    def readable_conditions(self) -> tuple[str, ...]:
        """The conditions in readable form, without those that always hold."""
        return tuple(dict.fromkeys(filter(None, map(readable_condition, self.conditions))))

    @property
    def summary(self) -> str:
        """The scope, and what a match is refused without."""
        every = self.readable_conditions
        shown = list(every[:MAX_CONDITIONS_SHOWN])
        if len(every) > MAX_CONDITIONS_SHOWN:
            shown.append(f"and {len(every) - MAX_CONDITIONS_SHOWN} more")
        needs = [f"refused unless {', '.join(shown)}"] if shown else []
        return "; ".join((str(self.scope), *needs))


@dataclass(frozen=True, slots=True)
class LibraryRecords:
    """What scripts found out about the library's rules: a table by `proof_key` for each field.

    proof, unproved: scripts/verify_rules.py --write, the proof, or why there is none. mutants: its
    --mutants, changed rules refused, and tried. float_class: scripts/float_classes.py --write, the
    computed class; None for a rule without instances. error_growth: of class E2, the ratio of the
    right side's error to the left side's, if measured. axioms: scripts/prove_axioms.py --write, the
    fields of `report.data.diagram.AxiomProof` that are not empty.
    """

    proof: Mapping[str, Proof]
    unproved: Mapping[str, str]
    mutants: Mapping[str, Sequence[int]]
    float_class: Mapping[str, str | None]
    error_growth: Mapping[str, float]
    axioms: Mapping[str, Mapping[str, Any]]


_SESSION_PROOFS: dict[str, Proof] = {}  # by `proof_key`, proved by this process


def tier(rule: Rule) -> str:
    """Return the proof tier of `rule`: A for all sizes, B up to a bound, C tested only. A user's
    rule has the tier of a library rule with the same text, or of a proof by this process."""
    found = find_proof(rule)
    if found is None:
        return "C"
    return "A" if found.bound is None else "B"


def is_proved_for_one_shape(rule: Rule) -> bool:
    """True if the rule is proved for the one shape that its operands have."""
    found = find_proof(rule)
    return found is not None and found.bound == 0


def find_proof(rule: Rule) -> Proof | None:
    """Return the proof of `rule`, None if there is none."""
    key = proof_key(rule)
    return library_records().proof.get(key) or _SESSION_PROOFS.get(key)


def record_proof(rule: Rule, proved: Proof) -> None:
    """Record a proof of `rule` for this process."""
    _SESSION_PROOFS[proof_key(rule)] = proved


@lru_cache(maxsize=1)
def library_records() -> LibraryRecords:
    """Return the records of the library."""
    return parse_records(RECORDS.read_text(encoding="utf-8"))


def write_records(**changed: Mapping[str, object]) -> None:
    """Replace fields of the library's records, in the file, too."""
    records = replace(library_records(), **changed)  # type: ignore[arg-type]
    RECORDS.write_text(format_records(records), encoding="utf-8")
    library_records.cache_clear()


def parse_records(text: str) -> LibraryRecords:
    """Return the records that `format_records` wrote."""
    file = json.loads(text)
    scopes = [(ranks, tuple(assumes)) for ranks, *assumes in file["scopes"]]
    columns: dict[str, dict[str, Any]] = {f.name: {} for f in fields(LibraryRecords)}
    for key, record in file["rules"].items():
        for name, entry in record.items():
            columns[name][key] = entry

    @cache  # 382 of 2,292 differ
    def scope(number: int, instances: int) -> Scope:
        ranks, assumes = scopes[number]
        return Scope(ranks, instances, assumes)

    proofs = {
        key: Proof(
            scope(entry["scope"], entry["instances"]),
            tuple(entry.get("conditions", ())),
            entry["obligations"],
            entry["queries"],
            entry["ms"],
            entry.get("bound"),
        )
        for key, entry in columns["proof"].items()
    }
    return LibraryRecords(**columns | {"proof": proofs})


def format_records(records: LibraryRecords) -> str:
    """Return records as JSON: a line for each scope, without its instances, and for each rule."""
    scopes = sorted({(p.scope.ranks, *p.scope.assumes) for p in records.proof.values()})
    numbers = {scope: n for n, scope in enumerate(scopes)}
    columns = {f.name: getattr(records, f.name) for f in fields(records)}
    columns["proof"] = {key: _proof_entry(p, numbers) for key, p in records.proof.items()}
    rules = {
        key: {name: column[key] for name, column in columns.items() if key in column}
        for key in sorted(set().union(*columns.values()))
    }
    scope_lines = ",\n".join(map(json.dumps, scopes))
    rule_lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(rules[key])}" for key in rules)
    return f'{{"scopes": [\n{scope_lines}\n], "rules": {{\n{rule_lines}\n}}}}\n'


def _proof_entry(proof: Proof, numbers: Mapping[tuple[str, ...], int]) -> dict[str, object]:
    """Return a proof as JSON, without what is empty. numbers: of scopes."""
    scope = {"scope": numbers[proof.scope.ranks, *proof.scope.assumes]}
    entry = {**scope, "instances": proof.scope.instances, **proof._asdict(), **scope}
    return {k: v for k, v in entry.items() if v not in (None, ())}


_KEYS: dict[Rule, str] = {}  # of rules whose keys were stored with them


def remember_proof_keys(keys: Mapping[Rule, str]) -> None:
    """From now on `proof_key` does not compute those of these rules."""
    _KEYS.update(keys)


def proof_key(rule: Rule) -> str:
    """Return 64 bits of the SHA-256 of a rule's content, without float class and origin, which no
    proof depends on."""
    if (known := _KEYS.get(rule)) is not None:
        return known
    said = statement(rule).partition(" ; float=")[0]
    return hashlib.sha256(said.encode()).hexdigest()[:16]


@lru_cache(maxsize=1 << 13)  # the library has 2,292 rules, each looked up several times
def statement(rule: Rule) -> str:
    """Return the text of `rule` in the direction in which it is applied."""
    return str(rule)


def rules_digest(rules: Iterable[Rule]) -> str:
    """Return the SHA-256 of names and texts of `rules`, in their order, in hex."""
    out = hashlib.sha256()
    for r in rules:
        out.update(f"{r.name}\t{r.text or r}\n".encode())
    return out.hexdigest()
