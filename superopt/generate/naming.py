"""What generated rules are called, and what they say whatever they are called."""

from __future__ import annotations

import zlib
from typing import NamedTuple

from superopt.rules.lang.rule import Rule, parse_rules


class _Written(NamedTuple):
    rule: Rule
    text: str
    said: int


# By identity, since to hash a rule takes as long as to write it; the rule is kept with its text, so
# that no other one gets its identity.
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
    """The rule as text; each is written once, and a thousand of them are asked for often."""
    return _written(rule).text


def said_of(rule: Rule) -> int:
    """A checksum of what a rule says, whatever its name."""
    return _written(rule).said


def renamed(rule: Rule, names: set[str]) -> Rule:
    """The rule under a name that is none of these, to which it is added."""
    name, n = rule.name, 1
    while name in names:
        n += 1
        name = f"{rule.name}-{n}"
    names.add(name)
    if name == rule.name:
        return rule
    (made,) = parse_rules(str(rule).replace(rule.name, name, 1))
    return made
