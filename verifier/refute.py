"""The smallest instance on which the two sides of a rule differ."""

from __future__ import annotations

from superopt.rules.rule import Rule
from superopt.verifier.instance import Instance


def counterexample(
    one: Instance, rule: Rule
) -> tuple[str, int, tuple[int, ...], str, str] | None:
    """(shapes, output, index, left, right)."""
    return None
