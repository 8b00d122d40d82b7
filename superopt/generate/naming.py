"""What generated rules are called, and what they say whatever they are called."""

from __future__ import annotations

import zlib

from superopt.rules.rule import Rule, parse_rules


def said_of(rule: Rule) -> int:
    """A checksum of what a rule says, whatever its name."""
    return zlib.crc32(str(rule).partition("(")[2].encode())


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
