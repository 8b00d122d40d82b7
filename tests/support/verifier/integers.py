"""Polynomials of a few atoms and all of their small values, to compare proofs with arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from math import prod

from superopt.verifier.context import ProofContext
from superopt.verifier.poly.guards import Guard
from superopt.verifier.poly.polynomial import (
    Atom,
    Min,
    Poly,
    Quotient,
    Symbol,
    Var,
    atom_poly,
    const,
    fresh_var,
    minimum,
    quotient_atom,
    symbol,
)

Point = Mapping[Atom, int]


class Integers:
    """Sizes n >= 1, m >= 1, s >= 2, z >= 0 and variables i < n, j < 3 of one proof."""

    def __init__(self) -> None:
        self.context = ProofContext()
        self.n, self.m, self.s = (
            symbol(self.context, name, low) for name, low in (("n", 1), ("m", 1), ("s", 2))
        )
        self.z = symbol(self.context, "z", 0)
        self.i, self.j = (atom_poly(fresh_var(p)) for p in (self.n, self.const(3)))

    def const(self, n: int) -> Poly:
        return const(self.context, n)

    def quotient(self, p: Poly, q: Poly | int) -> Poly:
        return atom_poly(quotient_atom(p, self.const(q) if isinstance(q, int) else q))

    def minimum(self, p: Poly, q: Poly) -> Poly:
        return minimum(p, q)

    def points(self, largest: int = 4) -> Iterator[Point]:
        """Every value of the sizes up to `largest`, with every value of the variables."""
        for n, m, s, z in product(
            range(1, largest + 1), range(1, 4), range(2, largest + 1), range(3)
        ):
            for i, j in product(range(n), range(3)):
                values = (n, m, s, z, i, j)
                polys = (self.n, self.m, self.s, self.z, self.i, self.j)
                yield {atom_of(p): v for p, v in zip(polys, values, strict=True)}


def atom_of(p: Poly) -> Atom:
    """The only atom of a polynomial."""
    (a,) = p.atoms()
    return a


def value_at(p: Poly, point: Point) -> int:
    """The value of a polynomial by the definitions of its atoms."""
    return sum(c * prod(_atom_value(a, point) for a in m) for m, c in p.terms)


def _atom_value(a: Atom, point: Point) -> int:
    match a:
        case Symbol() | Var():
            return point[a]
        case Quotient():
            return value_at(a.p, point) // value_at(a.q, point)
        case Min():
            return min(value_at(a.p, point), value_at(a.q, point))
        case _:
            raise ValueError(a)


def guard_holds(g: Guard, point: Point) -> bool:
    n = value_at(g.p, point)
    return {"ge": n >= 0, "eq": n == 0, "ne": n != 0}[g.kind]
