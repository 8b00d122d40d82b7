"""Names of generated rules, their texts, and checksums of their statements."""

from __future__ import annotations

import zlib
from functools import lru_cache
from typing import NamedTuple

from superopt.rules.lang.rule import Rule, parse_rules


class _CachedText(NamedTuple):
    rule: Rule
    text: str
    checksum: int


# By identity, since hashing a rule takes as long as writing it; the rule is kept with its text, so
# that its identity is not reused.
_TEXT_CACHE: dict[int, _CachedText] = {}


def _cached_text(rule: Rule) -> _CachedText:
    found = _TEXT_CACHE.get(id(rule))
    if found is None:
        text = str(rule)
        found = _TEXT_CACHE[id(rule)] = _CachedText(
            rule, text, zlib.crc32(text.partition("(")[2].encode())
        )
    return found


def rule_text(rule: Rule) -> str:
    """Return the rule as text, from a cache: a thousand of them are needed often."""
    return _cached_text(rule).text


@lru_cache(maxsize=1 << 12)
def parse_rule(text: str) -> Rule:
    """Return the rule of a text, from a cache: tasks send the same thousand texts."""
    (rule,) = parse_rules(text)
    return rule


def statement_checksum(rule: Rule) -> int:
    """Return a checksum of a rule's statement, independent of its name."""
    return _cached_text(rule).checksum


def rename_rule(rule: Rule, taken_names: set[str]) -> Rule:
    """Return the rule under a name that is not in `taken_names`, and add it there."""
    name, n = rule.name, 1
    while name in taken_names:
        n += 1
        name = f"{rule.name}-{n}"
    taken_names.add(name)
    if name == rule.name:
        return rule
    (made,) = parse_rules(str(rule).replace(rule.name, name, 1))
    return made
