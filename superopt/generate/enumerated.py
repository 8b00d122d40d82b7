"""An enumerated family as text, for the journal and for other processes."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from typing import Any

from superopt.generate.bank import ROOM
from superopt.generate.family import Family
from superopt.generate.find import Level, find
from superopt.generate.pairs import equal_pairs
from superopt.generate.partial import Partial, partial
from superopt.generate.pattern import Equation, Hole, Leaf, Made, Pattern


@dataclass(frozen=True, slots=True)
class Enumerated:
    """The result of a family's bank: see `FoundEquations`. pairs: all equal pairs of small terms.
    partial: partially equal pairs. seconds: of the enumeration.
    """

    levels: list[Level]
    doubtful: int
    unsayable: int
    equations: list[Equation]
    pairs: list[Equation]
    partial: list[Partial]
    seconds: float


def enumerated(what: tuple[Family, int, int], room: int = ROOM) -> str:
    """Enumerate a family up to a number of operators, from a seed; return the text of an
    `Enumeration`. max_bytes: of a level, see `bank.add_level`."""
    family, top, seed = what
    begin = time.monotonic()
    found = find(family, top, seed, keep=family.partial, room=room)
    parts = partial(found) if family.partial else []
    pairs = equal_pairs(found) if family.rules else []
    return json.dumps(
        {
            "levels": [asdict(v) for v in found.levels],
            "doubtful": found.doubtful,
            "unsayable": found.unsayable,
            "equations": [_equation(e) for e in found.equations],
            "pairs": [_equation(e) for e in pairs],
            "partial": [[_equation(p.sides), p.shape, p.boxes, p.share] for p in parts],
            "seconds": time.monotonic() - begin,
        }
    )


def read(text: str) -> Enumerated:
    """Parse the text that `enumerate_family` wrote."""
    plain = json.loads(text)
    plain["levels"] = [Level(**v) for v in plain["levels"]]
    for name in ("equations", "pairs"):
        plain[name] = [_read_equation(e) for e in plain[name]]
    plain["partial"] = [
        Partial(
            _read_equation(sides),
            tuple(shape),
            tuple(tuple((a, b) for a, b in box) for box in boxes),
            share,
        )
        for sides, shape, boxes, share in plain["partial"]
    ]
    return Enumerated(**plain)


def _equation(e: Equation) -> list[Any]:
    return [_pattern(e.left), _pattern(e.right), e.inputs]


def _pattern(p: Pattern) -> Any:
    match p:
        case Hole(n):
            return n
        case Leaf(name):
            return name
        case Made(use, operands):
            return [use, *map(_pattern, operands)]


def _read_equation(plain: list[Any]) -> Equation:
    left, right, inputs = plain
    return Equation(_read_pattern(left), _read_pattern(right), tuple(inputs))


def _read_pattern(plain: Any) -> Pattern:
    match plain:
        case int(n):
            return Hole(n)
        case str(name):
            return Leaf(name)
        case [use, *operands]:
            return Made(use, tuple(map(_read_pattern, operands)))
        case _:
            raise ValueError(f"{plain!r} is not a pattern")
