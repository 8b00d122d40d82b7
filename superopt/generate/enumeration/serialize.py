"""An enumerated family as text, for the journal and for other processes."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from typing import Any

from superopt.generate.enumeration.bank import MAX_LEVEL_BYTES
from superopt.generate.enumeration.equal_pairs import equal_pairs
from superopt.generate.enumeration.find_equations import LevelStats, find_equations
from superopt.generate.enumeration.partial_equality import PartialEquality, partial_equalities
from superopt.generate.enumeration.pattern import (
    Equation,
    Pattern,
    PatternCall,
    PatternConstant,
    PatternVariable,
)
from superopt.generate.families.family import Family


@dataclass(frozen=True, slots=True)
class Enumeration:
    """The result of a family's bank: see `FoundEquations`. pairs: all equal pairs of small terms.
    partial: partially equal pairs. seconds: of the enumeration.
    """

    levels: list[LevelStats]
    doubtful: int
    unsayable: int
    equations: list[Equation]
    pairs: list[Equation]
    partial: list[PartialEquality]
    seconds: float


def enumerate_family(task: tuple[Family, int, int], max_bytes: int = MAX_LEVEL_BYTES) -> str:
    """Enumerate a family up to a number of operators, from a seed; return the text of an
    `Enumeration`. max_bytes: of a level, see `bank.add_level`."""
    family, top, seed = task
    begin = time.monotonic()
    found = find_equations(
        family, top, seed, keep_last_values=family.finds_partial, max_bytes=max_bytes
    )
    parts = partial_equalities(found) if family.finds_partial else []
    pairs = equal_pairs(found) if family.makes_rules else []
    return json.dumps(
        {
            "levels": [asdict(v) for v in found.levels],
            "doubtful": found.doubtful,
            "unsayable": found.non_orientable,
            "equations": [_encode_equation(e) for e in found.equations],
            "pairs": [_encode_equation(e) for e in pairs],
            "partial": [[_encode_equation(p.equation), p.shape, p.boxes, p.share] for p in parts],
            "seconds": time.monotonic() - begin,
        }
    )


def read_enumeration(text: str) -> Enumeration:
    """Parse the text that `enumerate_family` wrote."""
    plain = json.loads(text)
    plain["levels"] = [LevelStats(**v) for v in plain["levels"]]
    for name in ("equations", "pairs"):
        plain[name] = [_read_equation(e) for e in plain[name]]
    plain["partial"] = [
        PartialEquality(
            _read_equation(sides),
            tuple(shape),
            tuple(tuple((a, b) for a, b in box) for box in boxes),
            share,
        )
        for sides, shape, boxes, share in plain["partial"]
    ]
    return Enumeration(**plain)


def _encode_equation(e: Equation) -> list[Any]:
    return [_encode_pattern(e.left), _encode_pattern(e.right), e.inputs]


def _encode_pattern(p: Pattern) -> Any:
    match p:
        case PatternVariable(n):
            return n
        case PatternConstant(name):
            return name
        case PatternCall(use, operands):
            return [use, *map(_encode_pattern, operands)]


def _read_equation(plain: list[Any]) -> Equation:
    left, right, inputs = plain
    return Equation(_read_pattern(left), _read_pattern(right), tuple(inputs))


def _read_pattern(plain: Any) -> Pattern:
    match plain:
        case int(n):
            return PatternVariable(n)
        case str(name):
            return PatternConstant(name)
        case [use, *operands]:
            return PatternCall(use, tuple(map(_read_pattern, operands)))
        case _:
            raise ValueError(f"{plain!r} is not a pattern")
