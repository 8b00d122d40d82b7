"""Proofs of rules from axioms: the second proof, independent of the first and readable.

The axioms (superopt.rules.axiom) are proved at the level of indices, and balanced; rules of the
library that do not follow from others are axioms, too. A proof is an `unsat` of Z3, its core made
minimal, and a chain of rewrites by the axioms of the core, where one is found.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from superopt.rules.rule import Rule
from superopt.rules.syntax import Param
from superopt.rules.term import App, walk
from superopt.verifier.axiom.chain import Step, chain
from superopt.verifier.axiom.encode import clause
from superopt.verifier.axiom.formulas import Unsaid
from superopt.verifier.axiom.logic import Clause
from superopt.verifier.axiom.text import show
from superopt.verifier.axiom.theory import Theory

EFFORT = (60_000, 250_000)  # of Z3: with the operators of the rule only, with more
# What an operator brings with it: what it is made of, or what its laws speak of.
BESIDE = {
    "Sub": "Add Neg Expand Mul",
    "Div": "Mul Reciprocal Expand Neg Add",
    "Add": "Mul Expand",
    "Mul": "Expand",
    "Relu": "Max Min Expand",
    "Max": "Expand",
    "Min": "Expand",
    "ReduceMean": "ReduceSum Div Mul",
    "AveragePool": "ReduceMean",
    "Gemm": "MatMul Add Mul Transpose",
}
MOST_THEORIES = 40  # that are kept
KINDS = {"any": 0, "num": 1}  # which numbers a rule is about; all others 2


@dataclass(frozen=True, slots=True)
class Axiom:
    """guarded: it is used only where both sides are known to have one type."""

    clause: Clause
    operators: frozenset[str]
    kind: str
    guarded: bool = False


@dataclass(frozen=True, slots=True)
class AxiomProof:
    """names: of the axioms used, a minimal set. steps: a chain for each result of the rule, empty
    where none was found. ms: of Z3, to prove the rule from these axioms; search: to find them."""

    names: tuple[str, ...]
    steps: tuple[tuple[Step, ...], ...]
    ms: float
    search: float

    def shown(self) -> tuple[tuple[str, str], ...]:
        """The chain as text: a term, and the axiom that made it of the one before."""
        return tuple((show(s.term), s.axiom) for chain in self.steps for s in chain)


def axiom(rule: Rule, guarded: bool = False) -> Axiom | None:
    """`rule` as an axiom; None where clauses cannot say it."""
    try:
        return Axiom(clause(rule), operators(rule), kind(rule), guarded)
    except Unsaid:
        return None


def operators(rule: Rule) -> frozenset[str]:
    """The names of those in a rule."""
    sides = (*rule.lhs, *rule.rhs)
    return frozenset(p.op.name for s in sides for p in walk(s) if isinstance(p, App))


def kind(rule: Rule) -> str:
    """The kind of numbers that a rule is about."""
    kinds = [p.kind for p in rule.params if isinstance(p, Param)]
    found = next((k for k in kinds if not k.startswith(("i", "bool"))), "")
    return found or ("i" if any(k.startswith("i") for k in kinds) else "any")


@dataclass(slots=True)
class Axioms:
    """A growing set of axioms, and theories of parts of it."""

    every: list[Axiom] = field(default_factory=list)
    theories: dict[tuple[str, ...], Theory] = field(default_factory=dict)

    def add(self, one: Axiom) -> None:
        self.every.append(one)

    def proved(self, rule: Rule) -> AxiomProof | None:
        """A proof of `rule`; None where there is none within limits."""
        found = self.follows(rule)
        if found is None:
            return None
        back = {converse(a.clause.name) for a in found[0]}
        also = [a for a in self.every if a.clause.name in back and not a.guarded]
        return explained(rule, *found, also)

    def follows(self, rule: Rule) -> tuple[tuple[Axiom, ...], float] | None:
        """Axioms from which `rule` follows, and milliseconds of Z3; None if it is not shown."""
        try:
            goal = clause(rule)
        except Unsaid:
            return None
        about = kind(rule)
        own = operators(rule)
        more = own.union(*(BESIDE.get(o, "").split() for o in own))
        spent = 0.0
        for these, effort in zip((own, more), EFFORT, strict=True):
            some = [a for a in self.every if a.operators <= these and fits(a.kind, about)]
            theory = self.theory(some)
            core, seconds = theory.proves(goal, effort)
            spent += seconds
            if core is None:
                continue
            if not theory.consistent(goal, effort):  # all would follow
                return None
            return tuple(a for a in some if a.clause.name in core), spent * 1000
        return None

    def theory(self, some: Sequence[Axiom]) -> Theory:
        names = tuple(a.clause.name for a in some)
        found = self.theories.get(names)
        if found is None:
            while len(self.theories) >= MOST_THEORIES:
                self.theories.pop(next(iter(self.theories)))
            found = self.theories[names] = theory_of(some)
        return found


def converse(name: str) -> str:
    """The name of the same axiom from right to left."""
    return name[:-1] if name.endswith("~") else name + "~"


def explained(
    rule: Rule, used: Sequence[Axiom], search: float, also: Sequence[Axiom] = ()
) -> AxiomProof:
    """A proof from as few of these axioms as will do, with a chain, if one is found. also: axioms
    from right to left, which Z3 does not need: what is equal is equal. search: milliseconds."""
    goal = clause(rule)
    least = minimal(goal, used)
    core, seconds = theory_of(least).proves(goal, EFFORT[1])
    ms = seconds * 1000 if core is not None else search  # found beside others, by chance
    names = {a.clause.name for a in least}
    both = [*least, *(a for a in also if converse(a.clause.name) in names - {a.clause.name})]
    steps: list[tuple[Step, ...]] = []
    with Theory().given(goal) as holds:
        for a, b in goal.sides:
            found = chain(a, b, [x.clause for x in both], holds)
            if found is None:
                steps = []
                break
            steps.append(found)
    return AxiomProof(tuple(a.clause.name for a in least), tuple(steps), ms, search)


def fits(axiom: str, goal: str) -> bool:
    """May a law about numbers of one kind be used for those of another?"""
    return axiom == goal or KINDS.get(axiom, 2) < KINDS.get(goal, 2)


def theory_of(some: Iterable[Axiom]) -> Theory:
    theory = Theory()
    for a in some:
        theory.assume(a.clause, a.guarded)
    return theory


def minimal(goal: Clause, used: Sequence[Axiom]) -> Sequence[Axiom]:
    """A part of `used` from which nothing can go."""
    for one in tuple(used):
        fewer = [a for a in used if a is not one]
        if theory_of(fewer).proves(goal, EFFORT[1])[0] is not None:
            used = fewer
    return used
