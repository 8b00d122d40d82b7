"""What certificates and reports say of a rule: its text, its tier, the digest of a library."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache

from superopt.rules.rule import Rule

TIER = "C"  # of every rule: tested; A and B where the library says that a rule is proved


def tier(rule: Rule) -> str:
    """How far `rule` is proved: A for all sizes, B for sizes up to a bound, C tested only."""
    return TIER


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
