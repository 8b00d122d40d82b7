"""The journal of families and their mutants in a file, and checks of its entries.

It contains a family's pairs, their prices, and why some are rejected. A changed entry changes which
pairs are proved; nothing counts as proved, or as cheaper, because a file says so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from superopt.generate.engine.journal import Journal
from superopt.generate.enumeration.pattern import (
    Equation,
    Pattern,
    PatternCall,
    PatternConstant,
    PatternVariable,
)
from superopt.generate.enumeration.serialize import Enumeration, read_enumeration
from superopt.generate.families.family import Family


def drop_unreadable_entries(journal: Journal, families: Mapping[str, Family]) -> Journal:
    """Drop entries of the journal that have an unknown form; they are computed again."""
    for key, value in list(journal.known.items()):
        name, _, what = key.partition(" ")
        if name not in families or not _is_readable(what, value, families[name]):
            del journal.known[key]
            journal.lost.append(0)
    return journal


def _is_readable(kind: str, value: str, family: Family) -> bool:
    try:
        if kind == "pairs":
            return _fits_family(read_enumeration(json.loads(value)), family)
        number, _, step = kind.partition(" ")
        return number.isdecimal() and _is_step_result(step, json.loads(value))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return False


def _is_step_result(step: str, value: Any) -> bool:
    match step, value:
        case (("price" | "corrected"), str()):  # why it is rejected
            return True
        case "price", int() | float():
            return True
        case "corrected", [bool(), int() | float()]:
            return True
        case "", {"dropped": str()}:
            return True
    return False


def _fits_family(enumerated: Enumeration, family: Family) -> bool:
    levels = bool(enumerated.levels) and all(isinstance(v.cut, int) for v in enumerated.levels)
    return levels and all(_is_equation_of(p.equation, family) for p in enumerated.partial)


def _is_equation_of(e: Equation, family: Family) -> bool:
    inputs = all(name in family.inputs for name in e.inputs)
    return inputs and all(_is_pattern_of(p, len(e.inputs), family) for p in (e.left, e.right))


def _is_pattern_of(p: Pattern, input_count: int, family: Family) -> bool:
    match p:
        case PatternVariable(n):
            return 0 <= n < input_count
        case PatternConstant(name):
            return name in family.constants
        case PatternCall(n, operands):
            fits = 0 <= n < len(family.uses) and len(operands) == family.uses[n].arity
            return fits and all(_is_pattern_of(o, input_count, family) for o in operands)
