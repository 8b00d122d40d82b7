"""The atoms of products: elements read, numbers, functions, sums, maxima, indicators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from superopt.verifier.context import ProofContext
from superopt.verifier.poly.polynomial import Atom, Poly, Var

if TYPE_CHECKING:
    from superopt.verifier.elements.normal import NF, Piece


class Factor:
    """An atom of a product. `number` orders atoms; `level` is above all variables bound inside."""

    __slots__ = ("context", "free_vars", "level", "number")
    context: ProofContext
    number: int
    level: int
    free_vars: frozenset[Var]

    def __hash__(self) -> int:
        return self.number

    def __lt__(self, other: Factor) -> bool:
        return self.number < other.number


class Read(Factor):
    """An element of an input."""

    __slots__ = ("index", "name")

    def __init__(self, name: str, index: tuple[Poly, ...]) -> None:
        self.name, self.index = name, index

    def __repr__(self) -> str:
        return f"{self.name}[{', '.join(map(str, self.index))}]"


class Num(Factor):
    """A size or index as a number."""

    __slots__ = ("atom",)

    def __init__(self, atom: Atom) -> None:
        self.atom = atom

    def __repr__(self) -> str:
        return str(self.atom)


class Fn(Factor):
    """An uninterpreted scalar function."""

    __slots__ = ("args", "name")

    def __init__(self, name: str, args: tuple[NF, ...]) -> None:
        self.name, self.args = name, args

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.args))})"


class Exp(Factor):
    """exp of one term with coefficient 1: powers are multiples of the exponent."""

    __slots__ = ("argument",)

    def __init__(self, argument: NF) -> None:
        self.argument = argument

    def __repr__(self) -> str:
        return f"exp({self.argument})"


class Sum(Factor):
    """A sum as one factor, with a negative power: positive powers are expanded."""

    __slots__ = ("argument",)

    def __init__(self, argument: NF) -> None:
        self.argument = argument

    def __repr__(self) -> str:
        return f"({self.argument})"


class Max(Factor):
    """The maximum of pieces, each a value over bound variables under guards."""

    __slots__ = ("pieces",)

    def __init__(self, pieces: tuple[Piece, ...]) -> None:
        self.pieces = pieces

    def __repr__(self) -> str:
        return f"max({' | '.join(map(str, self.pieces))})"


class Truth(Factor):
    """An indicator: 1 where an element compares with 0 ("lt", "eq") or a bool element "is" true,
    else 0."""

    __slots__ = ("argument", "fn")

    def __init__(self, fn: str, argument: NF) -> None:
        self.fn, self.argument = fn, argument

    def __repr__(self) -> str:
        return f"[{self.fn} {self.argument}]"


class Prod(Factor):
    """A product over bound variables."""

    __slots__ = ("piece",)

    def __init__(self, piece: Piece) -> None:
        self.piece = piece

    def __repr__(self) -> str:
        return f"prod({self.piece})"


class TermKey:
    """A term without its coefficient, with a cached hash."""

    __slots__ = ("_hash", "parts")

    def __init__(self, *parts: object) -> None:
        self.parts, self._hash = parts, hash(parts)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, TermKey) and self.parts == other.parts)
