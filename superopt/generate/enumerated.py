"""A family enumerated, as text that a journal keeps and processes send to each other."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from superopt.generate.families import FAMILIES
from superopt.generate.family import Family
from superopt.generate.find import Found, Level, find
from superopt.generate.partial import Partial, partial
from superopt.generate.pattern import Equation, Hole, Leaf, Made, Pattern, carried


@dataclass(frozen=True, slots=True)
class Enumerated:
    """What a family's bank comes to, without the bank: see `Found`. partial: pairs that are equal
    in parts. Seconds: of all, and of the pruning."""

    levels: list[Level]
    doubtful: int
    unsayable: int
    equations: int
    minimal: list[Equation]
    partial: list[Partial]
    seconds: float
    pruning: float


def enumerated(what: tuple[Family, int, int]) -> str:
    """Enumerate a family up to a number of operators, from a seed: the text of an `Enumerated`."""
    family, top, seed = what
    begin = time.monotonic()
    found = find(family, top, seed, theory=known(family, top, seed), keep=family.partial)
    pairs = partial(found) if family.partial else []
    return json.dumps(
        {
            "levels": [asdict(v) for v in found.levels],
            "doubtful": found.doubtful,
            "unsayable": found.unsayable,
            "equations": len(found.equations),
            "minimal": [_equation(e) for e in found.minimal],
            "partial": [[_equation(p.sides), p.shape, p.boxes, p.share] for p in pairs],
            "seconds": time.monotonic() - begin,
            "pruning": found.pruning,
        }
    )


def read(text: str) -> Enumerated:
    """What `enumerated` wrote."""
    plain = json.loads(text)
    plain["levels"] = [Level(**v) for v in plain["levels"]]
    plain["minimal"] = [_read_equation(e) for e in plain["minimal"]]
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


@cache
def _theory(name: str, top: int, seed: int) -> Found:
    family = FAMILIES[name]()
    return find(family, min(family.top, top), seed)


def known(family: Family, top: int, seed: int) -> list[Equation]:
    """The equations of the family's theories of up to `top` operators, in its own terms."""
    theories = (_theory(name, top, seed) for name in family.theory)
    return [e for t in theories for e in carried(t.equations, t.bank.family, family)]


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
            raise ValueError(f"{plain!r} is no pattern")
