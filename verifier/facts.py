"""Facts about integers at one point of a proof, and their consequences.

A fact is p >= 0, p == 0 or p != 0. The ranges of variables and sizes are tried first, on the
polynomials themselves, then sums with one or two hypotheses. Only the rest goes to Z3: `unsat`
means implied, every other answer means unknown.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from superopt.verifier import guard as G
from superopt.verifier import poly as P
from superopt.verifier.bounds import by_sum, lowest, nonneg, simple, without_quotient
from superopt.verifier.guard import Guard, OutOfTime, eq, ge, in_time, negated, start
from superopt.verifier.models import Model, extended, fails, models
from superopt.verifier.poly import Mono, Poly, Quot, Sym
from superopt.verifier.solver import follows

MOST_DEEP = 1  # nested checks while a guard is coarsened
DEPTH = [0]
OFTEN = 256  # checks between two looks at the clock


@dataclass(slots=True, eq=False)
class Facts:
    """Hypotheses, with cached answers."""

    hypotheses: tuple[Guard, ...] = ()
    known: dict[Guard, bool] = field(default_factory=dict)
    lows: tuple[Poly, ...] = ()  # polynomials that the hypotheses make >= 0
    weakly: dict[Guard, bool] = field(default_factory=dict)
    orders: tuple[object, ...] = ()  # normal forms of elements assumed to be >= 0
    above: tuple[object, ...] = ()  # and > 0
    order_known: dict[object, bool] = field(default_factory=dict)
    samples: list[Model] | None = None
    parent: Facts | None = None
    children: dict[tuple[Guard, ...], Facts] = field(default_factory=dict)
    equations: tuple[tuple[Mono, Mono], ...] = ()  # products that are equal, in both directions
    quotients: tuple[Quot, ...] = ()  # of sizes, in the hypotheses

    def __post_init__(self) -> None:
        lows: list[Poly] = []
        same = [h.p.terms for h in self.hypotheses if h.kind == "eq" and len(h.p.terms) == 2]
        pairs = [(m, n) for (m, c), (n, d) in same if m and n and c == -d and abs(c) == 1]
        self.equations = tuple(p for m, n in pairs for p in ((m, n), (n, m)))
        for h in self.hypotheses:
            if h.kind == "ge":
                lows.append(h.p)
                while (more := without_quotient(lows[-1])) is not None:
                    lows.append(more)
            elif h.kind == "eq":
                lows += [h.p, -h.p]
        self.lows = tuple(lows)
        some = [a for h in self.hypotheses for a in h.p.atoms() if isinstance(a, Quot)]
        self.quotients = tuple(a for a in dict.fromkeys(some) if not a.p.vars)

    def plus(self, *guards: Guard) -> Facts:
        new = tuple(g for g in guards if g not in self.hypotheses)
        if not new:
            return self
        found = self.children.get(new)
        if found is None:
            found = self.children[new] = Facts(
                (*self.hypotheses, *new), orders=self.orders, above=self.above, parent=self
            )
        return found

    def models(self) -> list[Model]:
        """Return some numbers that satisfy the hypotheses."""
        if self.samples is None:
            own = self.hypotheses[len(self.parent.hypotheses) :] if self.parent else ()
            if self.parent is None:
                self.samples = models(tuple((h.kind, h.p) for h in self.hypotheses))
            else:
                new = tuple((h.kind, h.p) for h in own)
                self.samples = extended(self.parent.models(), new)
        return self.samples

    def ordered(self, element: object, strictly: bool) -> Facts:
        """Return the facts where an element is at least 0, or above 0."""
        return Facts(
            self.hypotheses,
            self.known,
            orders=(*self.orders, element),
            above=(*self.above, element) if strictly else self.above,
            samples=self.samples,
        )

    def holds(self, g: Guard, strong: bool = True) -> bool:
        """True if `g` is shown to follow. `use_solver` False: without Z3."""
        found = self.known.get(g)
        if found is None and not strong:
            found = self.weakly.get(g)
        if found is None:
            found = self._holds(g, strong)
            (self.known if strong or found else self.weakly)[g] = found
        return found

    def _holds(self, g: Guard, strong: bool) -> bool:
        G.TALLY.quick += 1
        if not G.TALLY.quick % OFTEN:
            G.on_time()
        if g in self.hypotheses:
            return True
        n = g.p.value
        if n is not None:
            return {"ge": n >= 0, "eq": n == 0, "ne": n != 0}[g.kind]
        if g.kind == "ge" and nonneg(g.p):
            return True
        if g.kind == "ne" and (nonneg(g.p - 1) or nonneg(-g.p - 1)):
            return True
        if fails(self.models(), g.kind, g.p):
            return False
        match g.kind:
            case "ge":
                same = without_quotient(g.p)
                if same is not None:
                    return self.holds(ge(same), strong)
                if self.lows:
                    if by_sum(g.p, self.lows):
                        return True
                    low = lowest(g.p)
                    if low is not None and low is not g.p and by_sum(low, self.lows):
                        return True
                elif simple(g.p):
                    return False
                if DEPTH[0] < MOST_DEEP:
                    DEPTH[0] += 1
                    try:
                        same_as = coarser(g, self, False)
                    finally:
                        DEPTH[0] -= 1
                    if same_as is not g:
                        return self.holds(same_as, strong)
            case "eq":
                if simple(g.p) and not self.lows:
                    return False
            case _:
                if simple(g.p) and not self.lows:
                    return False
        return strong and self.asked(g)

    def asked(self, g: Guard) -> bool:
        """True if Z3 proves that `g` follows."""
        in_time()
        start_time = time.perf_counter()
        out = follows(self.hypotheses, g)
        G.TALLY.queries += 1
        G.TALLY.solver_seconds += time.perf_counter() - start_time
        return out

    def contradictory(self) -> bool:
        """True if the hypotheses are shown to be unsatisfiable."""
        if not self.hypotheses:
            return False
        return not self.models() and self.asked(ge(P.const(-1)))

    def impossible(self) -> bool:
        """True if the last hypothesis contradicts the others."""
        last = self.hypotheses[-1] if self.hypotheses else None
        if last is None:
            return False
        before = Facts(self.hypotheses[:-1])
        return before.holds(negated(last))


def _without_quotient(g: Guard, facts: Facts, strong: bool) -> Guard | None:
    """Return an equivalent of a guard with a quotient, without it, by an equality of two products:
    (i + b j) // s < n is j < a where n s is a b and 0 <= i < b."""
    same = without_quotient(g.p)
    if same is None or any(isinstance(a, Quot) for a in same.atoms()):
        return None
    for old, new in facts.equations:
        p = P.replaced(same, old, new)
        found = coarser(ge(p), facts, strong) if p is not same else None
        if found is not None and found.p is not p:
            return found
    return None


def coarser(g: Guard, facts: Facts, strong: bool) -> Guard:
    """Replace d k + r >= 0 by k >= 0 where 0 <= r < d, and by k >= 1 where -d <= r < 0."""
    if g.kind == "ge" and facts.equations:
        other = _without_quotient(g, facts, strong)
        if other is not None:
            return other
    if g.kind != "ge" or all(len(m) < 2 for m, _ in g.p.terms):
        return g
    for d in {tuple(a for a in m if isinstance(a, Sym)) for m, _ in g.p.terms if len(m) > 1}:
        if not d:
            continue
        q = P.made({d: 1})
        whole, rest = P.divided(g.p, q)
        if not whole.vars or len(whole.terms) >= len(g.p.terms):
            continue
        for low in (0, 1):
            r = rest + q * low
            if facts.holds(ge(r), strong) and facts.holds(ge(q - 1 - r), strong):
                return ge(whole - low)
    return g


__all__ = [
    "Facts",
    "Guard",
    "OutOfTime",
    "coarser",
    "eq",
    "ge",
    "in_time",
    "negated",
    "nonneg",
    "start",
]
