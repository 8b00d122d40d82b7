"""What certificates and reports say of a rule: its text, its tier, the digest of a library."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from superopt.rules.readable import readable
from superopt.rules.rule import LIBRARY, Rule

# Beside the library: what scripts/verify_rules.py --write proved, and why not the others.
PROOFS = "proofs.json"
UNPROVED = "unproved.json"
MUTANTS = "mutants.json"  # and how many mutants of each rule were refused, of how many: --mutants
FLOATS = "floats.json"  # their float classes as scripts/float_classes.py --write computed them
MOST_NEEDS = 4  # conditions that are said in a line


@dataclass(frozen=True, slots=True)
class Proof:
    """What the prover showed of a rule.

    scope: for which ranks the proof holds. assumes: what it takes for granted, or leaves out.
    conditions: what the right side needs beyond the left in some of the ways in which operands
    fit: a match is refused without.
    obligations: reads that were shown to be in bounds, elements that were shown to be equal, sums
    that were matched one to one. queries: questions to Z3 on the way. ms: of one processor.
    mutants: changed rules that were refused, and that were tried; None where none were. bound: it
    is for sizes up to this only; 0 where the operands have one shape, and it is for all there is.
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
    def readable(self) -> tuple[str, ...]:
        """The conditions, each as a reader would write it; none that always holds."""
        return tuple(dict.fromkeys(filter(None, map(readable, self.conditions))))

    @property
    def said(self) -> str:
        """For what it holds, and what a match is refused without, where the sizes do not fit."""
        every = self.readable
        shown = list(every[:MOST_NEEDS])
        if len(every) > MOST_NEEDS:
            shown.append(f"and {len(every) - MOST_NEEDS} more")
        needs = [f"refused unless {', '.join(shown)}"] if shown else []
        return "; ".join((self.scope, *self.assumes, *needs))


_LEARNT: dict[str, Proof] = {}  # by `proof_key`, of what this process proved


def tier(rule: Rule) -> str:
    """How far `rule` is proved: A for all sizes, B up to a bound, C tested only. A rule of the
    user's is as far as one of the library that reads the same, or as this process proved it."""
    found = proof(rule)
    if found is None:
        return "C"
    return "A" if found.bound is None else "B"


def fixed(rule: Rule) -> bool:
    """Is it proved for the one shape that its operands have?"""
    found = proof(rule)
    return found is not None and found.bound == 0


def proof(rule: Rule) -> Proof | None:
    """The proof of `rule`, where there is one."""
    key = proof_key(rule)
    return proofs().get(key) or _LEARNT.get(key)


def learn(rule: Rule, proved: Proof) -> None:
    """From now on `rule` is proved."""
    _LEARNT[proof_key(rule)] = proved


@lru_cache(maxsize=1)
def proofs() -> Mapping[str, Proof]:
    """The proof of each rule of the library that has one, by `proof_key`."""
    mutants, every = _stored(MUTANTS), _stored(PROOFS)
    return MappingProxyType({key: read_proof(every[key], mutants.get(key)) for key in every})


def read_proof(entry: dict[str, Any], mutants: Sequence[int] | None = None) -> Proof:
    """As scripts/verify_rules.py writes it; how many mutants were refused, of how many."""
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
def floats() -> Mapping[str, tuple[str, float | None]]:
    """The computed float class of each rule of the library, by `proof_key`; of E2, how many times
    the left side's error the right side's is (`exactness.growth`), where that was measured."""
    return MappingProxyType({key: (c, grown) for key, (c, grown) in _stored(FLOATS).items()})


@lru_cache(maxsize=1)
def unproved() -> Mapping[str, str]:
    """Why the prover did not prove the others, by `proof_key`."""
    return MappingProxyType(_stored(UNPROVED))


def _stored(name: str) -> dict[str, Any]:
    path = LIBRARY / name
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


_KEYS: dict[Rule, str] = {}  # of rules whose keys were stored with them


def remember_proof_keys(keys: Mapping[Rule, str]) -> None:
    """From now on `proof_key` does not compute those of these rules."""
    _KEYS.update(keys)


def proof_key(rule: Rule) -> str:
    """64 bits of the SHA-256 of what a rule says; its float class and where it is from are no part
    of it, since no proof is about them."""
    if (known := _KEYS.get(rule)) is not None:
        return known
    said = statement(rule).partition(" ; float=")[0]
    return hashlib.sha256(said.encode()).hexdigest()[:16]


@lru_cache(maxsize=1 << 13)  # the library has 2,292 rules, each asked several times
def statement(rule: Rule) -> str:
    """The text of `rule` in the direction in which it is applied."""
    return str(rule)


def digest(rules: Iterable[Rule]) -> str:
    """The SHA-256 of names and texts of `rules`, in their order, in hex."""
    out = hashlib.sha256()
    for r in rules:
        out.update(f"{r.name}\t{r.text or r}\n".encode())
    return out.hexdigest()
