"""Proofs of rules from axioms: a second, readable proof, independent of the first.

The axioms (superopt.rules.axioms.load) are proved at the level of indices, and balanced. Library
rules that do not follow from other rules are axioms, too. A proof is an `unsat` of Z3 with a
minimal core, and a chain of rewrites by the axioms of the core, if one is found.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from superopt.rules.lang.rule import Rule
from superopt.rules.lang.syntax import Param
from superopt.rules.lang.term import App, walk
from superopt.verifier.axiom.chain import Step, find_chain
from superopt.verifier.axiom.encode import encode_rule
from superopt.verifier.axiom.formulas import NotExpressible
from superopt.verifier.axiom.logic import Clause
from superopt.verifier.axiom.printer import show
from superopt.verifier.axiom.theory import Theory

RLIMITS = (60_000, 250_000)  # rlimit of Z3: with the rule's own operators, with related ones
# Operators related to each operator: its parts, or those in its laws.
RELATED_OPERATORS = {
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
MAX_THEORIES = 40  # cached theories
KIND_GENERALITY = {"any": 0, "num": 1}  # generality of the numbers of a rule; all others 2


@dataclass(frozen=True, slots=True)
class Axiom:
    """guarded: the axiom applies only where both sides are known to have one type."""

    clause: Clause
    operators: frozenset[str]
    kind: str
    guarded: bool = False


@dataclass(frozen=True, slots=True)
class AxiomProof:
    """names: a minimal set of axioms. steps: a chain for each result of the rule, empty if none was
    found. ms: time of Z3 to prove the rule from these axioms; search_ms: time to find them."""

    names: tuple[str, ...]
    steps: tuple[tuple[Step, ...], ...]
    ms: float
    search_ms: float

    def chain_text(self) -> tuple[tuple[str, str], ...]:
        """Return the chain as text: each term, and the axiom that produced it."""
        return tuple((show(s.term), s.axiom) for chain in self.steps for s in chain)


def as_axiom(rule: Rule, guarded: bool = False) -> Axiom | None:
    """Return `rule` as an axiom; None if it is not expressible."""
    try:
        return Axiom(encode_rule(rule), operator_names(rule), number_kind(rule), guarded)
    except NotExpressible:
        return None


def operator_names(rule: Rule) -> frozenset[str]:
    """Return the names of the operators in a rule."""
    sides = (*rule.lhs, *rule.rhs)
    return frozenset(p.op.name for s in sides for p in walk(s) if isinstance(p, App))


def number_kind(rule: Rule) -> str:
    """Return the kind of numbers that a rule is about."""
    kinds = [p.kind for p in rule.params if isinstance(p, Param)]
    found = next((k for k in kinds if not k.startswith(("i", "bool"))), "")
    return found or ("i" if any(k.startswith("i") for k in kinds) else "any")


@dataclass(slots=True)
class Axioms:
    """A growing set of axioms, and cached theories of subsets."""

    axioms: list[Axiom] = field(default_factory=list)
    theories: dict[tuple[str, ...], Theory] = field(default_factory=dict)

    def add(self, one: Axiom) -> None:
        self.axioms.append(one)

    def prove(self, rule: Rule) -> AxiomProof | None:
        """Return a proof of `rule`; None if none is found within limits."""
        found = self.find_core(rule)
        if found is None:
            return None
        back = {converse_name(a.clause.name) for a in found[0]}
        also = [a for a in self.axioms if a.clause.name in back and not a.guarded]
        return explain(rule, *found, also)

    def find_core(self, rule: Rule) -> tuple[tuple[Axiom, ...], float] | None:
        """Return axioms from which `rule` follows, and milliseconds of Z3; None if that is not
        shown."""
        try:
            goal = encode_rule(rule)
        except NotExpressible:
            return None
        about = number_kind(rule)
        own = operator_names(rule)
        more = own.union(*(RELATED_OPERATORS.get(o, "").split() for o in own))
        spent = 0.0
        for these, effort in zip((own, more), RLIMITS, strict=True):
            axioms = [
                a for a in self.axioms if a.operators <= these and is_kind_applicable(a.kind, about)
            ]
            theory = self.theory(axioms)
            core, seconds = theory.prove(goal, effort)
            spent += seconds
            if core is None:
                continue
            if not theory.is_consistent(goal, effort):  # everything would follow
                return None
            return tuple(a for a in axioms if a.clause.name in core), spent * 1000
        return None

    def theory(self, axioms: Sequence[Axiom]) -> Theory:
        names = tuple(a.clause.name for a in axioms)
        found = self.theories.get(names)
        if found is None:
            while len(self.theories) >= MAX_THEORIES:
                self.theories.pop(next(iter(self.theories)))
            found = self.theories[names] = build_theory(axioms)
        return found


def converse_name(name: str) -> str:
    """Return the name of the converse axiom."""
    return name[:-1] if name.endswith("~") else name + "~"


def explain(
    rule: Rule, used: Sequence[Axiom], search_ms: float, extra: Sequence[Axiom] = ()
) -> AxiomProof:
    """Return a proof from a minimal set of axioms, with a chain if one is found. extra: converse
    axioms, which only the chain needs. search_ms: milliseconds."""
    goal = encode_rule(rule)
    least = minimize(goal, used)
    core, seconds = build_theory(least).prove(goal, RLIMITS[1])
    ms = seconds * 1000 if core is not None else search_ms  # found with other axioms present
    names = {a.clause.name for a in least}
    both = [*least, *(a for a in extra if converse_name(a.clause.name) in names - {a.clause.name})]
    steps: list[tuple[Step, ...]] = []
    with Theory().assuming(goal) as holds:
        for a, b in goal.sides:
            found = find_chain(a, b, [x.clause for x in both], holds)
            if found is None:
                steps = []
                break
            steps.append(found)
    return AxiomProof(tuple(a.clause.name for a in least), tuple(steps), ms, search_ms)


def is_kind_applicable(axiom: str, goal: str) -> bool:
    """True if a law about numbers of one kind holds for those of another."""
    return axiom == goal or KIND_GENERALITY.get(axiom, 2) < KIND_GENERALITY.get(goal, 2)


def build_theory(axioms: Iterable[Axiom]) -> Theory:
    theory = Theory()
    for a in axioms:
        theory.assume(a.clause, a.guarded)
    return theory


def minimize(goal: Clause, used: Sequence[Axiom]) -> Sequence[Axiom]:
    """Return a minimal subset of `used` that still proves the goal."""
    for one in tuple(used):
        fewer = [a for a in used if a is not one]
        if build_theory(fewer).prove(goal, RLIMITS[1])[0] is not None:
            used = fewer
    return used
