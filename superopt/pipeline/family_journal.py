"""The journal of families and their mutants in a file, and checks of its entries.

It contains a family's pairs, their prices, and why some are rejected. A changed entry changes which
pairs are proved; nothing counts as proved, or as cheaper, because a file says so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from superopt.generate.enumerated import Enumerated, read
from superopt.generate.family import Family
from superopt.generate.journal import Journal
from superopt.generate.pattern import Equation, Hole, Leaf, Made, Pattern


def readable(journal: Journal, families: Mapping[str, Family]) -> Journal:
    """Drop entries of the journal that have an unknown form; they are computed again."""
    for key, value in list(journal.known.items()):
        name, _, what = key.partition(" ")
        if name not in families or not _fine(what, value, families[name]):
            del journal.known[key]
            journal.lost.append(0)
    return journal


def _fine(what: str, value: str, family: Family) -> bool:
    try:
        if what == "pairs":
            return _of_family(read(json.loads(value)), family)
        number, _, step = what.partition(" ")
        return number.isdecimal() and _step(step, json.loads(value))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return False


def _step(step: str, x: Any) -> bool:
    match step, x:
        case (("price" | "corrected"), str()):  # why it is rejected
            return True
        case "price", int() | float():
            return True
        case "corrected", [bool(), int() | float()]:
            return True
        case "", {"dropped": str()}:
            return True
    return False


def _of_family(found: Enumerated, family: Family) -> bool:
    levels = bool(found.levels) and all(isinstance(v.cut, int) for v in found.levels)
    return levels and all(_equation(p.sides, family) for p in found.partial)


def _equation(e: Equation, family: Family) -> bool:
    inputs = all(name in family.inputs for name in e.inputs)
    return inputs and all(_pattern(p, len(e.inputs), family) for p in (e.left, e.right))


def _pattern(p: Pattern, inputs: int, family: Family) -> bool:
    match p:
        case Hole(n):
            return 0 <= n < inputs
        case Leaf(name):
            return name in family.constants
        case Made(n, operands):
            fits = 0 <= n < len(family.uses) and len(operands) == family.uses[n].arity
            return fits and all(_pattern(o, inputs, family) for o in operands)
