"""Terms over a bank's uses, and the equations between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, permutations

from superopt.generate.enumeration.bank import Bank
from superopt.generate.families.family import Family


@dataclass(frozen=True, slots=True)
class PatternVariable:
    """A variable: any class."""

    number: int


@dataclass(frozen=True, slots=True)
class PatternConstant:
    """A constant of the family."""

    name: str


@dataclass(frozen=True, slots=True)
class PatternCall:
    """A use applied to terms."""

    use: int
    operands: tuple[Pattern, ...]


Pattern = PatternVariable | PatternConstant | PatternCall


@dataclass(frozen=True, slots=True)
class Equation:
    """Two terms with equal results. inputs: inputs of the family with the shapes at which it was
    found, one for each variable in order."""

    left: Pattern
    right: Pattern
    inputs: tuple[str, ...]


def variable_numbers(p: Pattern) -> Iterator[int]:
    """Yield the numbers of the variables in order of occurrence, with repetitions."""
    return (q.number for q in subterms(p) if isinstance(q, PatternVariable))


def call_count(p: Pattern) -> int:
    """Return the number of uses."""
    return 1 + sum(map(call_count, p.operands)) if isinstance(p, PatternCall) else 0


def call_depth(p: Pattern) -> int:
    """Return the nesting depth of uses."""
    return 1 + max(map(call_depth, p.operands)) if isinstance(p, PatternCall) else 0


def use_numbers(p: Pattern) -> Iterator[int]:
    """Yield the uses of a pattern, outermost first."""
    return (q.use for q in subterms(p) if isinstance(q, PatternCall))


def subterms(p: Pattern) -> Iterator[Pattern]:
    """Yield a pattern and all its subterms, outermost first."""
    yield p
    if isinstance(p, PatternCall):
        for o in p.operands:
            yield from subterms(o)


def replace_subterm(p: Pattern, part: Pattern, replacement: Pattern) -> Pattern:
    """Return the pattern with a subterm replaced."""
    if p == part:
        return replacement
    return (
        PatternCall(p.use, tuple(replace_subterm(o, part, replacement) for o in p.operands))
        if isinstance(p, PatternCall)
        else p
    )


def substitute(p: Pattern, bindings: Mapping[int, Pattern]) -> Pattern:
    """Return the pattern with patterns for its variables."""
    match p:
        case PatternVariable(n):
            return bindings.get(n, p)
        case PatternConstant():
            return p
        case PatternCall(u, operands):
            return PatternCall(u, tuple(substitute(o, bindings) for o in operands))


def is_subterm(p: Pattern, q: Pattern) -> bool:
    """True if `p` is `q` or a subterm of it."""
    return p == q or (isinstance(q, PatternCall) and any(is_subterm(p, o) for o in q.operands))


def is_embedded(p: Pattern, q: Pattern) -> bool:
    """True if removing operators around their operands turns `q` into `p` (the homeomorphic
    embedding: no terminating chain of rewrites has a term before a larger one, Kruskal).
    """
    if p == q:
        return True
    if not isinstance(q, PatternCall):
        return False
    if any(is_embedded(p, o) for o in q.operands):
        return True
    return (
        isinstance(p, PatternCall)
        and p.use == q.use
        and all(is_embedded(o, r) for o, r in zip(p.operands, q.operands, strict=True))
    )


def term_text(p: Pattern, family: Family) -> str:
    """Return a term as text."""
    match p:
        case PatternVariable(n):
            return "xyzwabcdefgh"[n]
        case PatternConstant(name):
            return name
        case PatternCall(u, operands):
            return f"{family.uses[u]}({', '.join(term_text(o, family) for o in operands)})"


MAX_PAIRINGS = 24  # of the occurrences of one variable that are tried


def split_variable(e: Equation, number: int) -> Iterator[Equation]:
    """Yield the equation with every occurrence of variable `number` split into its own variable,
    for each pairing of those on the left with those on the right.

    Nothing if it occurs once, or not equally often on both sides. A family with two inputs has (x +
    y) + y = x + (y + y), and the law has three variables.
    """
    left, right = list(variable_numbers(e.left)), list(variable_numbers(e.right))
    many = left.count(number)
    if many < 2 or right.count(number) != many:
        return
    fresh = (number, *range(len(e.inputs), len(e.inputs) + many - 1))
    inputs = (*e.inputs, *(e.inputs[number] for _ in fresh[1:]))
    first = _split_occurrences(e.left, number, iter(fresh))
    for order in islice(permutations(fresh), MAX_PAIRINGS):
        yield Equation(first, _split_occurrences(e.right, number, iter(order)), inputs)


def _split_occurrences(p: Pattern, n: int, numbers: Iterator[int]) -> Pattern:
    match p:
        case PatternVariable(m):
            return PatternVariable(next(numbers)) if m == n else p
        case PatternConstant():
            return p
        case PatternCall(u, operands):
            return PatternCall(u, tuple(_split_occurrences(o, n, numbers) for o in operands))


def number_in_order(e: Equation) -> Equation:
    """Return the equation with its variables numbered by occurrence."""
    order = tuple(dict.fromkeys([*variable_numbers(e.left), *variable_numbers(e.right)]))
    to = {n: k for k, n in enumerate(order)}
    inputs = tuple(e.inputs[n] for n in order) if e.inputs else ()
    return Equation(renumber(e.left, to), renumber(e.right, to), inputs)


@dataclass(slots=True)
class TermReader:
    """Reads terms from a bank: each class by its first application."""

    bank: Bank
    _known: dict[int, Pattern]

    @staticmethod
    def for_bank(bank: Bank) -> TermReader:
        names = {c: n for n, c in bank.leaves.items()}
        known: dict[int, Pattern] = {}
        for c, name in names.items():
            inputs = list(bank.family.inputs)
            known[c] = (
                PatternVariable(inputs.index(name)) if name in inputs else PatternConstant(name)
            )
        return TermReader(bank, known)

    def term(self, c: int) -> Pattern:
        """Return the smallest term of class `c`, with variables numbered as the family's inputs."""
        found = self._known.get(c)
        if found is None:
            found = self._known[c] = self.application(int(self.bank.first_application[c]))
        return found

    def application(self, row: int) -> Pattern:
        """Return an application with its operands' smallest terms."""
        a = self.bank.applications
        left, right = int(a.left[row]), int(a.right[row])
        operands = (self.term(left),) if right < 0 else (self.term(left), self.term(right))
        return PatternCall(int(a.use[row]), operands)

    def equation(self, row: int) -> Equation:
        """Return the equation of the application and the smallest term of its class, with variables
        numbered by occurrence."""
        left, right = (
            self.application(row),
            self.term(int(self.bank.applications.result_class[row])),
        )
        return number_in_order(Equation(left, right, tuple(self.bank.family.inputs)))


def renumber(p: Pattern, numbering: Mapping[int, int]) -> Pattern:
    match p:
        case PatternVariable(n):
            return PatternVariable(numbering[n])
        case PatternConstant():
            return p
        case PatternCall(u, operands):
            return PatternCall(u, tuple(renumber(o, numbering) for o in operands))
