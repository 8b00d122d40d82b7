"""Terms over a bank's uses, and the equations between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from superopt.generate.bank import Bank
from superopt.generate.family import Family


@dataclass(frozen=True, slots=True)
class Hole:
    """A variable: any class."""

    number: int


@dataclass(frozen=True, slots=True)
class Leaf:
    """A constant of the family."""

    name: str


@dataclass(frozen=True, slots=True)
class Made:
    """A use applied to terms."""

    use: int
    operands: tuple[Pattern, ...]


Pattern = Hole | Leaf | Made


@dataclass(frozen=True, slots=True)
class Equation:
    """Two terms that compute the same; `inputs` are inputs of the family of the shapes at which it
    was found, one for each hole in order."""

    left: Pattern
    right: Pattern
    inputs: tuple[str, ...]


def holes(p: Pattern) -> Iterator[int]:
    """The numbers of the holes, as often and in the order in which they occur."""
    match p:
        case Hole(n):
            yield n
        case Made(_, operands):
            for o in operands:
                yield from holes(o)


def size(p: Pattern) -> int:
    """How many uses there are."""
    return 1 + sum(map(size, p.operands)) if isinstance(p, Made) else 0


def depth(p: Pattern) -> int:
    """How many uses are inside each other."""
    return 1 + max(map(depth, p.operands)) if isinstance(p, Made) else 0


def uses(p: Pattern) -> Iterator[int]:
    """The uses of a pattern, outermost first."""
    if isinstance(p, Made):
        yield p.use
        for o in p.operands:
            yield from uses(o)


def within(p: Pattern, q: Pattern) -> bool:
    """Is `p` a part of `q`, or all of it?"""
    return p == q or (isinstance(q, Made) and any(within(p, o) for o in q.operands))


def show(p: Pattern, family: Family) -> str:
    """A term to be read by people."""
    match p:
        case Hole(n):
            return "xyzwabcdefgh"[n]
        case Leaf(name):
            return name
        case Made(u, operands):
            return f"{family.uses[u]}({', '.join(show(o, family) for o in operands)})"


def apart(e: Equation, backwards: bool) -> Equation | None:
    """The equation with every occurrence of a hole a hole of its own: the first one on the left is
    the first one on the right (the last one, when `backwards`), and so on. None where each hole is
    there once, or not as often on both sides.

    A family of two inputs has (x + y) + y = x + (y + y), and the law is one of three.
    """
    left, right = list(holes(e.left)), list(holes(e.right))
    if sorted(left) != sorted(right) or len(set(left)) == len(left):
        return None
    places: dict[int, list[int]] = {}
    for fresh, n in enumerate(left):
        places.setdefault(n, []).append(fresh)
    numbers = [places[n].pop(-1 if backwards else 0) for n in right]
    inputs = tuple(e.inputs[n] for n in left)
    return Equation(
        _filled(e.left, iter(range(len(left)))), _filled(e.right, iter(numbers)), inputs
    )


def _filled(p: Pattern, numbers: Iterator[int]) -> Pattern:
    match p:
        case Hole():
            return Hole(next(numbers))
        case Leaf():
            return p
        case Made(u, operands):
            return Made(u, tuple(_filled(o, numbers) for o in operands))


@dataclass(slots=True)
class Reader:
    """Reads terms out of a bank: each class by its first application."""

    bank: Bank
    _known: dict[int, Pattern]

    @staticmethod
    def of(bank: Bank) -> Reader:
        names = {c: n for n, c in bank.leaves.items()}
        known: dict[int, Pattern] = {}
        for c, name in names.items():
            inputs = list(bank.family.inputs)
            known[c] = Hole(inputs.index(name)) if name in inputs else Leaf(name)
        return Reader(bank, known)

    def term(self, c: int) -> Pattern:
        """The smallest term of class `c`, holes numbered as the family's inputs are."""
        found = self._known.get(c)
        if found is None:
            found = self._known[c] = self.application(int(self.bank.first[c]))
        return found

    def application(self, row: int) -> Pattern:
        """An application, its operands by their smallest terms."""
        a = self.bank.apps
        left, right = int(a.left[row]), int(a.right[row])
        operands = (self.term(left),) if right < 0 else (self.term(left), self.term(right))
        return Made(int(a.use[row]), operands)

    def equation(self, row: int) -> Equation:
        """The application and the smallest term of its class, with holes in order of use."""
        left, right = self.application(row), self.term(int(self.bank.apps.of[row]))
        order = tuple(dict.fromkeys([*holes(left), *holes(right)]))
        to = {n: k for k, n in enumerate(order)}
        names = tuple(self.bank.family.inputs)
        inputs = tuple(names[n] for n in order)
        return Equation(renumbered(left, to), renumbered(right, to), inputs)


def renumbered(p: Pattern, to: Mapping[int, int]) -> Pattern:
    match p:
        case Hole(n):
            return Hole(to[n])
        case Leaf():
            return p
        case Made(u, operands):
            return Made(u, tuple(renumbered(o, to) for o in operands))
