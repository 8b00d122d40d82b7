"""Records about rules in certificates and reports: text, tier, digest of a library."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from superopt.rules.lang.readable import readable_condition
from superopt.rules.lang.rule import LIBRARY, Rule

# Beside the library: what scripts/verify_rules.py --write proved, and why not the others.
PROOFS = "proofs.json"
UNPROVED = "unproved.json"
MUTANTS = "mutants.json"  # refused and tried mutants of each rule: --mutants
FLOATS = "floats.json"  # float classes computed by scripts/float_classes.py --write
MAX_CONDITIONS_SHOWN = 4  # conditions in one line


@dataclass(frozen=True, slots=True)
class Proof:
    """What the prover showed of a rule.

    scope: the ranks that the proof covers. assumes: its assumptions and omissions. conditions: what
    the right side needs beyond the left for some shapes; a match is refused without it.
    obligations: reads shown to be in bounds, elements shown to be equal, sums matched by a
    bijection. queries: calls of Z3. ms: CPU time. mutants: changed rules refused, and tried; None
    if none were tried. bound: the largest size covered; 0 if the operands have one shape, and the
    proof is complete; None for all sizes.
    """

    scope: str
    assumes: tuple[str, ...]
    conditions: tuple[str, ...]
    obligations: int
    queries: int
    ms: float
    mutants: tuple[int, int] | None = None
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
        return "; ".join((self.scope, *self.assumes, *needs))


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
    return library_proofs().get(key) or _SESSION_PROOFS.get(key)


def record_proof(rule: Rule, proved: Proof) -> None:
    """Record a proof of `rule` for this process."""
    _SESSION_PROOFS[proof_key(rule)] = proved


@lru_cache(maxsize=1)
def library_proofs() -> Mapping[str, Proof]:
    """Return the proof of each proved library rule, by `proof_key`."""
    mutants, every = _load_json(MUTANTS), _load_json(PROOFS)
    return MappingProxyType({key: read_proof(every[key], mutants.get(key)) for key in every})


def read_proof(entry: dict[str, Any], mutants: Sequence[int] | None = None) -> Proof:
    """Return a proof as scripts/verify_rules.py writes it. mutants: how many were refused, and
    tried."""
    return Proof(
        entry["scope"],
        tuple(entry["assumes"]),
        tuple(entry["conditions"]),
        entry["obligations"],
        entry["queries"],
        entry["ms"],
        None if mutants is None else (mutants[0], mutants[1]),
        entry.get("bound"),
    )


@lru_cache(maxsize=1)
def library_float_classes() -> Mapping[str, tuple[str, float | None]]:
    """Return the computed float class of each library rule, by `proof_key`; for E2 also the ratio
    of the right side's error to the left side's (`exactness.growth`), if measured."""
    return MappingProxyType({key: (c, grown) for key, (c, grown) in _load_json(FLOATS).items()})


@lru_cache(maxsize=1)
def unproved_reasons() -> Mapping[str, str]:
    """Return why the prover did not prove the other rules, by `proof_key`."""
    return MappingProxyType(_load_json(UNPROVED))


def _load_json(name: str) -> dict[str, Any]:
    path = LIBRARY / name
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


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
