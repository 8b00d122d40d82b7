"""Names of generated rules, and checksums of their statements."""

from __future__ import annotations

import zlib
from typing import NamedTuple

from superopt.rules.lang.rule import Rule, parse_rules


class _Written(NamedTuple):
    rule: Rule
    text: str
    said: int


# By identity, since hashing a rule takes as long as writing it; the rule is kept with its text, so
# that its identity is not reused.
_WRITTEN: dict[int, _Written] = {}


def _written(rule: Rule) -> _Written:
    found = _WRITTEN.get(id(rule))
    if found is None:
        text = str(rule)
        found = _WRITTEN[id(rule)] = _Written(
            rule, text, zlib.crc32(text.partition("(")[2].encode())
        )
    return found


def text_of(rule: Rule) -> str:
    """Return the rule as text, from a cache: a thousand of them are needed often."""
    return _written(rule).text


def said_of(rule: Rule) -> int:
    """Return a checksum of a rule's statement, independent of its name."""
    return _written(rule).said


def renamed(rule: Rule, names: set[str]) -> Rule:
    """Return the rule under a name that is not in `taken_names`, and add it there."""
    name, n = rule.name, 1
    while name in names:
        n += 1
        name = f"{rule.name}-{n}"
    names.add(name)
    if name == rule.name:
        return rule
    (made,) = parse_rules(str(rule).replace(rule.name, name, 1))
    return made
