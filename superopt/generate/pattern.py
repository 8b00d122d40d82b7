"""Terms over a bank's uses, and the equations between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, permutations

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
    """Two terms with equal results. inputs: inputs of the family with the shapes at which it was
    found, one for each variable in order."""

    left: Pattern
    right: Pattern
    inputs: tuple[str, ...]


def holes(p: Pattern) -> Iterator[int]:
    """Yield the numbers of the variables in order of occurrence, with repetitions."""
    match p:
        case Hole(n):
            yield n
        case Made(_, operands):
            for o in operands:
                yield from holes(o)


def size(p: Pattern) -> int:
    """Return the number of uses."""
    return 1 + sum(map(size, p.operands)) if isinstance(p, Made) else 0


def depth(p: Pattern) -> int:
    """Return the nesting depth of uses."""
    return 1 + max(map(depth, p.operands)) if isinstance(p, Made) else 0


def uses(p: Pattern) -> Iterator[int]:
    """Yield the uses of a pattern, outermost first."""
    if isinstance(p, Made):
        yield p.use
        for o in p.operands:
            yield from uses(o)


def parts_of(p: Pattern) -> Iterator[Pattern]:
    """Yield a pattern and all its subterms, outermost first."""
    yield p
    if isinstance(p, Made):
        for o in p.operands:
            yield from parts_of(o)


def replaced(p: Pattern, part: Pattern, by: Pattern) -> Pattern:
    """Return the pattern with a subterm replaced."""
    if p == part:
        return by
    return (
        Made(p.use, tuple(replaced(o, part, by) for o in p.operands)) if isinstance(p, Made) else p
    )


def filled(p: Pattern, of: Mapping[int, Pattern]) -> Pattern:
    """Return the pattern with patterns for its variables."""
    match p:
        case Hole(n):
            return of.get(n, p)
        case Leaf():
            return p
        case Made(u, operands):
            return Made(u, tuple(filled(o, of) for o in operands))


def within(p: Pattern, q: Pattern) -> bool:
    """True if `p` is `q` or a subterm of it."""
    return p == q or (isinstance(q, Made) and any(within(p, o) for o in q.operands))


def embedded(p: Pattern, q: Pattern) -> bool:
    """True if removing operators around their operands turns `q` into `p` (the homeomorphic
    embedding: no terminating chain of rewrites has a term before a larger one, Kruskal).
    """
    if p == q:
        return True
    if not isinstance(q, Made):
        return False
    if any(embedded(p, o) for o in q.operands):
        return True
    return (
        isinstance(p, Made)
        and p.use == q.use
        and all(embedded(o, r) for o, r in zip(p.operands, q.operands, strict=True))
    )


def show(p: Pattern, family: Family) -> str:
    """Return a term as text."""
    match p:
        case Hole(n):
            return "xyzwabcdefgh"[n]
        case Leaf(name):
            return name
        case Made(u, operands):
            return f"{family.uses[u]}({', '.join(show(o, family) for o in operands)})"


MOST_PAIRINGS = 24  # of the occurrences of one variable that are tried


def apart(e: Equation, n: int) -> Iterator[Equation]:
    """Yield the equation with every occurrence of variable `number` split into its own variable,
    for each pairing of those on the left with those on the right.

    Nothing if it occurs once, or not equally often on both sides. A family with two inputs has (x +
    y) + y = x + (y + y), and the law has three variables.
    """
    left, right = list(holes(e.left)), list(holes(e.right))
    many = left.count(n)
    if many < 2 or right.count(n) != many:
        return
    fresh = (n, *range(len(e.inputs), len(e.inputs) + many - 1))
    inputs = (*e.inputs, *(e.inputs[n] for _ in fresh[1:]))
    first = _split(e.left, n, iter(fresh))
    for order in islice(permutations(fresh), MOST_PAIRINGS):
        yield Equation(first, _split(e.right, n, iter(order)), inputs)


def _split(p: Pattern, n: int, numbers: Iterator[int]) -> Pattern:
    match p:
        case Hole(m):
            return Hole(next(numbers)) if m == n else p
        case Leaf():
            return p
        case Made(u, operands):
            return Made(u, tuple(_split(o, n, numbers) for o in operands))


def in_order(e: Equation) -> Equation:
    """Return the equation with its variables numbered by occurrence."""
    order = tuple(dict.fromkeys([*holes(e.left), *holes(e.right)]))
    to = {n: k for k, n in enumerate(order)}
    inputs = tuple(e.inputs[n] for n in order) if e.inputs else ()
    return Equation(renumbered(e.left, to), renumbered(e.right, to), inputs)


@dataclass(slots=True)
class Reader:
    """Reads terms from a bank: each class by its first application."""

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
        """Return the smallest term of class `c`, with variables numbered as the family's inputs."""
        found = self._known.get(c)
        if found is None:
            found = self._known[c] = self.application(int(self.bank.first[c]))
        return found

    def application(self, row: int) -> Pattern:
        """Return an application with its operands' smallest terms."""
        a = self.bank.apps
        left, right = int(a.left[row]), int(a.right[row])
        operands = (self.term(left),) if right < 0 else (self.term(left), self.term(right))
        return Made(int(a.use[row]), operands)

    def equation(self, row: int) -> Equation:
        """Return the equation of the application and the smallest term of its class, with variables
        numbered by occurrence."""
        left, right = self.application(row), self.term(int(self.bank.apps.of[row]))
        return in_order(Equation(left, right, tuple(self.bank.family.inputs)))


def renumbered(p: Pattern, to: Mapping[int, int]) -> Pattern:
    match p:
        case Hole(n):
            return Hole(to[n])
        case Leaf():
            return p
        case Made(u, operands):
            return Made(u, tuple(renumbered(o, to) for o in operands))
