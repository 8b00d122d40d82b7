"""Facts about integers at one point of a proof, and their consequences.

A fact is p >= 0, p == 0 or p != 0. The ranges of variables and sizes are tried first, on the
polynomials themselves, then sums with one or two hypotheses. Only the rest goes to Z3: `unsat`
means implied, every other answer means unknown.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from superopt.verifier.context import ProofContext
from superopt.verifier.poly import polynomial
from superopt.verifier.poly.bounds import (
    eliminate_quotient,
    is_independent_linear,
    is_nonnegative,
    is_sum_of_nonnegative,
    lower_bound,
)
from superopt.verifier.poly.guards import Guard, eq, ge, negate
from superopt.verifier.poly.models import Model, extend_models, has_countermodel, sample_models
from superopt.verifier.poly.polynomial import Monomial, Poly, Quotient, Symbol
from superopt.verifier.poly.solver import is_implied

MAX_COARSEN_DEPTH = 1  # nested checks while a guard is coarsened
CHECKS_PER_CLOCK_CHECK = 256  # checks between two looks at the clock


@dataclass(slots=True, eq=False)
class Facts:
    """Hypotheses, with cached answers."""

    context: ProofContext
    hypotheses: tuple[Guard, ...] = ()
    answers: dict[Guard, bool] = field(default_factory=dict)
    nonneg_polys: tuple[Poly, ...] = ()  # polynomials that the hypotheses make >= 0
    weak_answers: dict[Guard, bool] = field(default_factory=dict)
    nonneg: tuple[object, ...] = ()  # normal forms of elements assumed to be >= 0
    positive: tuple[object, ...] = ()  # and > 0
    order_answers: dict[object, bool] = field(default_factory=dict)
    samples: list[Model] | None = None
    parent: Facts | None = None
    children: dict[tuple[Guard, ...], Facts] = field(default_factory=dict)
    equal_products: tuple[
        tuple[Monomial, Monomial], ...
    ] = ()  # products that are equal, in both directions
    quotients: tuple[Quotient, ...] = ()  # of sizes, in the hypotheses

    def __post_init__(self) -> None:
        lows: list[Poly] = []
        same = [h.p.terms for h in self.hypotheses if h.kind == "eq" and len(h.p.terms) == 2]
        pairs = [(m, n) for (m, c), (n, d) in same if m and n and c == -d and abs(c) == 1]
        self.equal_products = tuple(p for m, n in pairs for p in ((m, n), (n, m)))
        for h in self.hypotheses:
            if h.kind == "ge":
                lows.append(h.p)
                while (more := eliminate_quotient(lows[-1])) is not None:
                    lows.append(more)
            elif h.kind == "eq":
                lows += [h.p, -h.p]
        self.nonneg_polys = tuple(lows)
        quotients = [a for h in self.hypotheses for a in h.p.atoms() if isinstance(a, Quotient)]
        self.quotients = tuple(a for a in dict.fromkeys(quotients) if not a.p.vars)

    def with_guards(self, *guards: Guard) -> Facts:
        new = tuple(g for g in guards if g not in self.hypotheses)
        if not new:
            return self
        found = self.children.get(new)
        if found is None:
            found = self.children[new] = Facts(
                self.context,
                (*self.hypotheses, *new),
                nonneg=self.nonneg,
                positive=self.positive,
                parent=self,
            )
        return found

    def models(self) -> list[Model]:
        """Return some numbers that satisfy the hypotheses."""
        if self.samples is None:
            own = self.hypotheses[len(self.parent.hypotheses) :] if self.parent else ()
            if self.parent is None:
                self.samples = sample_models(tuple((h.kind, h.p) for h in self.hypotheses))
            else:
                new = tuple((h.kind, h.p) for h in own)
                self.samples = extend_models(self.parent.models(), new)
        return self.samples

    def with_order(self, element: object, strict: bool) -> Facts:
        """Return the facts where an element is at least 0, or above 0."""
        return Facts(
            self.context,
            self.hypotheses,
            self.answers,
            nonneg=(*self.nonneg, element),
            positive=(*self.positive, element) if strict else self.positive,
            samples=self.samples,
        )

    def holds(self, g: Guard, use_solver: bool = True) -> bool:
        """True if `g` is shown to follow. `use_solver` False: without Z3."""
        found = self.answers.get(g)
        if found is None and not use_solver:
            found = self.weak_answers.get(g)
        if found is None:
            found = self._holds(g, use_solver)
            (self.answers if use_solver or found else self.weak_answers)[g] = found
        return found

    def _holds(self, g: Guard, use_solver: bool) -> bool:
        self.context.quick_checks += 1
        if not self.context.quick_checks % CHECKS_PER_CLOCK_CHECK:
            self.context.check_deadline()
        if g in self.hypotheses:
            return True
        n = g.p.value
        if n is not None:
            return {"ge": n >= 0, "eq": n == 0, "ne": n != 0}[g.kind]
        if g.kind == "ge" and is_nonnegative(g.p):
            return True
        if g.kind == "ne" and (is_nonnegative(g.p - 1) or is_nonnegative(-g.p - 1)):
            return True
        if has_countermodel(self.models(), g.kind, g.p):
            return False
        if g.kind == "ge":
            same = eliminate_quotient(g.p)
            if same is not None:
                return self.holds(ge(same), use_solver)
            if self.nonneg_polys:
                if self._is_sum_of_hypotheses(g.p):
                    return True
            elif is_independent_linear(g.p):
                return False
            coarser = self._coarsen_once(g)
            if coarser is not g:
                return self.holds(coarser, use_solver)
        elif not self.nonneg_polys and is_independent_linear(g.p):
            return False
        return use_solver and self.ask_solver(g)

    def _is_sum_of_hypotheses(self, p: Poly) -> bool:
        """True if p, or its lower bound without variables, is a sum of what is known to be >= 0."""
        if is_sum_of_nonnegative(p, self.nonneg_polys):
            return True
        low = lower_bound(p)
        return low is not None and low is not p and is_sum_of_nonnegative(low, self.nonneg_polys)

    def _coarsen_once(self, g: Guard) -> Guard:
        """Return `coarsen(g)` without Z3; `g` itself while a guard is being coarsened."""
        if self.context.coarsen_depth >= MAX_COARSEN_DEPTH:
            return g
        self.context.coarsen_depth += 1
        try:
            return coarsen(g, self, False)
        finally:
            self.context.coarsen_depth -= 1

    def ask_solver(self, g: Guard) -> bool:
        """True if Z3 proves that `g` follows."""
        self.context.check_budget()
        self.context.queries += 1
        return is_implied(self.hypotheses, g)

    def is_contradictory(self) -> bool:
        """True if the hypotheses are shown to be unsatisfiable."""
        return not self.models() and self.ask_solver(ge(polynomial.const(self.context, -1)))

    def is_last_contradicted(self) -> bool:
        """True if the last hypothesis contradicts the others."""
        if not self.hypotheses:
            return False
        *before, last = self.hypotheses
        return Facts(self.context, tuple(before)).holds(negate(last))


def without_hypotheses(context: ProofContext) -> Facts:
    """Return the facts of a proof without hypotheses: one object, which keeps its answers."""
    if context.no_hypotheses is None:
        context.no_hypotheses = Facts(context)
    return context.no_hypotheses


def _coarsen_quotient(g: Guard, facts: Facts, use_solver: bool) -> Guard | None:
    """Return an equivalent of a guard with a quotient, without it, by an equality of two products:
    (i + b j) // s < n is j < a where n s is a b and 0 <= i < b."""
    same = eliminate_quotient(g.p)
    if same is None or any(isinstance(a, Quotient) for a in same.atoms()):
        return None
    for old, new in facts.equal_products:
        p = polynomial.replace_product(same, old, new)
        found = coarsen(ge(p), facts, use_solver) if p is not same else None
        if found is not None and found.p is not p:
            return found
    return None


def coarsen(g: Guard, facts: Facts, use_solver: bool) -> Guard:
    """Replace d k + r >= 0 by k >= 0 where 0 <= r < d, and by k >= 1 where -d <= r < 0."""
    if g.kind == "ge" and facts.equal_products:
        other = _coarsen_quotient(g, facts, use_solver)
        if other is not None:
            return other
    if g.kind != "ge" or all(len(m) < 2 for m, _ in g.p.terms):
        return g
    for d in {tuple(a for a in m if isinstance(a, Symbol)) for m, _ in g.p.terms if len(m) > 1}:
        q = polynomial.from_terms(g.p.context, {d: 1})
        whole, rest = polynomial.divide(g.p, q)
        if not whole.vars or len(whole.terms) >= len(g.p.terms):
            continue
        for low in (0, 1):
            r = rest + q * low
            if facts.holds(ge(r), use_solver) and facts.holds(ge(q - 1 - r), use_solver):
                return ge(whole - low)
    return g


__all__ = [
    "Facts",
    "Guard",
    "coarsen",
    "eq",
    "ge",
    "is_nonnegative",
    "negate",
]
