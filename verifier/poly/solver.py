"""Queries to Z3: quantifier-free, about integers, with a limit. Only `unsat` is a proof."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from superopt.verifier.context import ProofContext
from superopt.verifier.poly.guards import Guard, negate
from superopt.verifier.poly.polynomial import Atom, ElementIndex, Min, Poly, Quotient, Symbol, Var

if TYPE_CHECKING:
    import z3
else:
    from superopt.verifier.poly.lazy_z3 import z3

QUERY_TIMEOUT_MS = 60_000  # for one query, if the resource limit fails
QUERY_RLIMIT = 1_500_000  # resource limit of Z3, the same on every machine


@dataclass(slots=True)
class Query:
    z3_context: z3.Context
    terms: dict[Atom, z3.ArithRef] = field(default_factory=dict)
    side_conditions: list[z3.BoolRef] = field(default_factory=list)

    def poly(self, p: Poly) -> z3.ArithRef:
        parts: list[z3.ArithRef] = []
        for m, c in p.terms:
            term: z3.ArithRef | None = None
            for a in m:
                one = self.atom(a)
                term = one if term is None else term * one
            if term is None:
                parts.append(z3.IntVal(c, self.z3_context))
            else:
                parts.append(term if c == 1 else term * c)
        if not parts:
            return z3.IntVal(0, self.z3_context)
        return parts[0] if len(parts) == 1 else z3.Sum(parts)

    def atom(self, a: Atom) -> z3.ArithRef:
        found = self.terms.get(a)
        if found is not None:
            return found
        x = self.terms[a] = z3.Int(f"a{len(self.terms)}", self.z3_context)
        match a:
            case Symbol():
                self.side_conditions.append(x >= a.low)
            case Var():
                self.side_conditions += [x >= 0, x < self.poly(a.extent)]
            case ElementIndex():
                self.side_conditions += [x >= 0, x < self.poly(a.bound)]
            case Quotient():
                p, q = self.poly(a.p), self.poly(a.q)
                whole = q * x
                self.side_conditions += [whole <= p, p < whole + q]
            case Min():
                p, q = self.poly(a.p), self.poly(a.q)
                self.side_conditions += [x <= p, x <= q, z3.Or(x == p, x == q)]
        return x

    def guard(self, g: Guard) -> z3.BoolRef:
        p = self.poly(g.p)
        match g.kind:
            case "ge":
                return p >= 0
            case "eq":
                return p == 0
            case _:
                return p != 0


def solver(context: ProofContext) -> z3.Solver:
    """Return the solver of a proof: what Z3 finds within its limit depends on earlier queries."""
    if context.solver is None:
        z3.set_param("memory_max_size", 2000)
        s = context.solver = z3.SimpleSolver(ctx=z3.Context())
        s.set("auto_config", False)
        s.set("mbqi", False)
        s.set("timeout", QUERY_TIMEOUT_MS)
        s.set("rlimit", QUERY_RLIMIT)
        s.set("ctrl_c", False)  # Python handles interrupts; no query ends as "unknown"
    return context.solver


def is_implied(hypotheses: Iterable[Guard], goal: Guard) -> bool:
    s = solver(goal.p.context)
    s.push()
    try:
        q = Query(s.ctx)
        wanted = [q.guard(h) for h in hypotheses]
        wanted.append(q.guard(negate(goal)))
        s.add(*q.side_conditions, *wanted)
        return bool(s.check() == z3.unsat)
    finally:
        s.pop()


def smt2(hypotheses: Iterable[Guard], goal: Guard) -> str:
    """Return the query of `is_implied` as SMT-LIB 2: unsat if the goal follows."""
    s = solver(goal.p.context)
    s.push()
    try:
        q = Query(s.ctx)
        wanted = [q.guard(g) for g in (*hypotheses, negate(goal))]
        s.add(*q.side_conditions, *wanted)
        return f"(set-logic QF_NIA)\n{s.to_smt2()}"
    finally:
        s.pop()
