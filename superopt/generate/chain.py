"""Is an equation a consequence of others? A chain of rewrites from one side to the other.

Breadth-first from both sides in turns, over terms of bounded size. Finding none within the limits
says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from superopt.generate.bank import COMMUTATIVE, resulting
from superopt.generate.family import Family, Shape
from superopt.generate.pattern import Equation, Hole, Leaf, Made, Pattern, holes, size, uses


class Applied(NamedTuple):
    """A use of the bank applied to terms. (A tuple is compared and hashed much faster than a
    dataclass is.)"""

    use: int
    operands: tuple[Term, ...]


Term = Applied | str  # a name is a constant, or a variable that nothing rewrites
Bound = dict[int, "Term"]


@dataclass(frozen=True, slots=True)
class Limits:
    """steps: rewrites in a chain. grow: operators more than the larger side has. terms: visited."""

    steps: int = 6
    grow: int = 2
    terms: int = 2000


@dataclass(frozen=True, slots=True)
class Oriented:
    """An equation from left to right, its number, how much larger it makes a term, and the shapes
    of its holes; without any these may have any, as where elements are only moved."""

    left: Pattern
    right: Pattern
    number: int
    size: int
    shapes: tuple[Shape, ...]


class Rewriting:
    """Equations as rewrites in both directions, by the use at their root."""

    def __init__(self, equations: Mapping[int, Equation], family: Family) -> None:
        self.family = family
        self.commutative = commuting(family)
        self.shapes: dict[Term, Shape | None] = {n: s for n, (_, s) in family.constants.items()}
        self.by_use: dict[int, list[Oriented]] = {}
        for number, e in equations.items():
            shapes = tuple(family.inputs[i] for i in e.inputs)
            moves = all("data" in family.uses[u].op.laws for u in (*uses(e.left), *uses(e.right)))
            for left, right in ((e.left, e.right), (e.right, e.left)):
                if not isinstance(left, Made) or set(holes(right)) - set(holes(left)):
                    continue
                more = size(right) - size(left)
                self.by_use.setdefault(left.use, []).append(
                    Oriented(left, right, number, more, () if moves else shapes)
                )

    def shape(self, t: Term) -> Shape | None:
        """The shape of a term; None where its operands do not fit."""
        if t not in self.shapes:
            assert isinstance(t, Applied)
            operands = [self.shape(o) for o in t.operands]
            known = tuple(s for s in operands if s is not None)
            made = (
                resulting(self.family.uses[t.use], known) if len(known) == len(operands) else None
            )
            self.shapes[t] = None if made is None else made[1]
        return self.shapes[t]

    def fits(self, r: Oriented, bound: Bound) -> bool:
        """Is what was a scalar, or broadcast, when the equation was found such a thing again? A law
        of scalars is none of matrices."""
        rank = max((len(s) for s in r.shapes), default=0)
        if not r.shapes:
            return all(self.shape(t) is not None for t in bound.values())
        for n, t in bound.items():
            shape, wanted = self.shape(t), r.shapes[n]
            if shape is None:
                return False
            small = len(wanted) < rank or not wanted or 1 in wanted[len(wanted) // 2 :]
            if small and [d == 1 for d in shape] != [d == 1 for d in wanted]:
                return False
        return True

    def steps(self, t: Term, room: int) -> Iterator[tuple[Term, int]]:
        """Every term one rewrite away, with the equation's number; `room` is how many operators
        more the whole may have."""
        if isinstance(t, str):
            return
        for r in self.by_use.get(t.use, ()):
            if r.size > room:
                continue
            for bound in self.bindings(r.left, t, {}):
                if not self.fits(r, bound):
                    continue
                made = self.built(r.right, bound)
                if term_size(made) - term_size(t) <= room and self.shape(made) == self.shape(t):
                    yield made, r.number
        for n, operand in enumerate(t.operands):
            for made, number in self.steps(operand, room):
                operands = (*t.operands[:n], made, *t.operands[n + 1 :])
                yield self.ordered(t.use, operands), number

    def ordered(self, use: int, operands: tuple[Term, ...]) -> Term:
        """Operands of what commutes in one order."""
        if use in self.commutative:
            operands = tuple(sorted(operands, key=str))
        return Applied(use, operands)

    def bindings(self, p: Pattern, t: Term, bound: Bound) -> Iterator[Bound]:
        match p:
            case Hole(n):
                if n in bound:
                    if bound[n] == t:
                        yield bound
                else:
                    yield {**bound, n: t}
            case Leaf(name):
                if t == name:
                    yield bound
            case Made(u, operands):
                if isinstance(t, str) or t.use != u:
                    return
                yield from self.all(operands, t.operands, bound)
                if u in self.commutative and t.operands[0] != t.operands[1]:
                    yield from self.all(operands, t.operands[::-1], bound)

    def all(
        self, patterns: Sequence[Pattern], terms: Sequence[Term], bound: Bound
    ) -> Iterator[Bound]:
        if not patterns:
            yield bound
            return
        for b in self.bindings(patterns[0], terms[0], bound):
            yield from self.all(patterns[1:], terms[1:], b)

    def built(self, p: Pattern, bound: Bound) -> Term:
        match p:
            case Hole(n):
                return bound[n]
            case Leaf(name):
                return name
            case Made(u, operands):
                return self.ordered(u, tuple(self.built(o, bound) for o in operands))

    def term(self, p: Pattern) -> Term:
        """A pattern as a term: its holes are names that nothing rewrites."""
        match p:
            case Hole(n):
                return f"?{n}"
            case Leaf(name):
                return name
            case Made(u, operands):
                return self.ordered(u, tuple(map(self.term, operands)))

    def chain(self, e: Equation, limits: Limits) -> tuple[int, ...] | None:
        """The numbers of equations that lead from one side to the other; None where none was
        found."""
        self.shapes = {t: s for t, s in self.shapes.items() if isinstance(t, str) and t[0] != "?"}
        self.shapes |= {f"?{n}": self.family.inputs[i] for n, i in enumerate(e.inputs)}
        a, b = self.term(e.left), self.term(e.right)
        if a == b:
            return ()
        most = max(size(e.left), size(e.right)) + limits.grow
        seen: list[dict[Term, tuple[int, ...]]] = [{a: ()}, {b: ()}]
        front: list[list[Term]] = [[a], [b]]
        depth = [0, 0]
        while sum(depth) < limits.steps and len(seen[0]) + len(seen[1]) < limits.terms:
            side = 0 if depth[0] <= depth[1] else 1
            if not front[side]:
                side = 1 - side
            if not front[side]:
                return None
            fresh: list[Term] = []
            for t in front[side]:
                path = seen[side][t]
                for made, number in self.steps(t, most - term_size(t)):
                    if made in seen[side]:
                        continue
                    seen[side][made] = (*path, number)
                    if made in seen[1 - side]:
                        other = seen[1 - side][made]
                        both = ((*path, number), other) if side == 0 else (other, (*path, number))
                        return (*both[0], *reversed(both[1]))
                    fresh.append(made)
                if len(seen[0]) + len(seen[1]) >= limits.terms:
                    break
            front[side] = fresh
            depth[side] += 1
        return None


@lru_cache(maxsize=1 << 18)
def term_size(t: Term) -> int:
    """How many uses there are."""
    return 0 if isinstance(t, str) else 1 + sum(map(term_size, t.operands))


@dataclass(frozen=True, slots=True)
class Pruned:
    """Equations by number: those that are left, and for each other one the chain from which it
    follows. A chain uses what was left then: what is left now, or went away later."""

    left: tuple[int, ...]
    chains: Mapping[int, tuple[int, ...]]


def commuting(family: Family) -> frozenset[int]:
    """The numbers of the uses whose operands may change places."""
    return frozenset(n for n, u in enumerate(family.uses) if u.name in COMMUTATIVE)


def prune(
    equations: Sequence[Equation],
    family: Family,
    limits: Limits,
    theory: Sequence[Equation] = (),
) -> Pruned:
    """Take away what follows from the rest and from `theory` within `limits`, the last equations
    first. In chains the equations of a theory count on from -1 down."""
    left = dict(enumerate(equations))
    known = {-1 - n: e for n, e in enumerate(theory)}
    chains: dict[int, tuple[int, ...]] = {}
    for number in sorted(left, reverse=True):
        e = left.pop(number)
        found = Rewriting({**left, **known}, family).chain(e, limits)
        if found is None:
            left[number] = e
        else:
            chains[number] = found
    return Pruned(tuple(sorted(left)), chains)
