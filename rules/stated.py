"""What certificates and reports say of a rule: its text, its tier, the digest of a library."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType

from superopt.rules.rule import LIBRARY, Rule

PROOFS = "proofs.json"  # beside the library: what scripts/verify_rules.py --write proved


_LEARNT: dict[str, str] = {}  # scopes, by `proof_key`, of what this process proved


def tier(rule: Rule) -> str:
    """How far `rule` is proved: A for all sizes, C tested only. A rule of the user's is as far as
    one of the library that reads the same, or as this process proved it."""
    return "A" if scope(rule) else "C"


def scope(rule: Rule) -> str:
    """For what the proof of `rule` holds, and what a match is refused without; "" without one."""
    key = proof_key(rule)
    return proofs().get(key) or _LEARNT.get(key, "")


def learn(rule: Rule, proved: str) -> None:
    """From now on `rule` is proved, for this scope."""
    _LEARNT[proof_key(rule)] = proved


@lru_cache(maxsize=1)
def proofs() -> Mapping[str, str]:
    """The scope of the proof of each rule that has one, by `proof_key`."""
    path = LIBRARY / PROOFS
    found: dict[str, str] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return MappingProxyType(found)


def proof_key(rule: Rule) -> str:
    """64 bits of the SHA-256 of what a rule says; its float class and where it is from are no part
    of it, since no proof is about them."""
    said = statement(rule).partition(" ; float=")[0]
    return hashlib.sha256(said.encode()).hexdigest()[:16]


@lru_cache(maxsize=1 << 10)
def statement(rule: Rule) -> str:
    """The text of `rule` in the direction in which it is applied."""
    return str(rule)


def digest(rules: Iterable[Rule]) -> str:
    """The SHA-256 of names and texts of `rules`, in their order, in hex."""
    out = hashlib.sha256()
    for r in rules:
        out.update(f"{r.name}\t{r.text or r}\n".encode())
    return out.hexdigest()
