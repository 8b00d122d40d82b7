"""Guards: facts about integers, p >= 0, p == 0 or p != 0."""

from __future__ import annotations

from superopt.verifier.poly.polynomial import Poly


class Guard:
    """p >= 0 ("ge"), p == 0 ("eq") or p != 0 ("ne"); equal guards are identical."""

    __slots__ = ("kind", "p")
    kind: str
    p: Poly

    def __new__(cls, kind: str, p: Poly) -> Guard:
        known = p.context.guards[kind]
        found = known.get(p.number)
        if found is None:
            found = known[p.number] = super().__new__(cls)
            found.kind, found.p = kind, p
        return found

    def __hash__(self) -> int:
        return self.p.number

    def __str__(self) -> str:
        sign = {"ge": ">=", "eq": "==", "ne": "!="}[self.kind]
        return f"{self.p} {sign} 0"

    __repr__ = __str__

    def __lt__(self, other: Guard) -> bool:
        return (self.kind, self.p.number) < (other.kind, other.p.number)


def ge(p: Poly) -> Guard:
    return Guard("ge", p)


def eq(p: Poly) -> Guard:
    """Return p == 0 with a positive leading coefficient."""
    return Guard("eq", -p if p.terms and p.terms[-1][1] < 0 else p)


def negate(g: Guard) -> Guard:
    match g.kind:
        case "ge":
            return ge(-g.p - 1)
        case "eq":
            return Guard("ne", g.p)
        case _:
            return Guard("eq", g.p)
