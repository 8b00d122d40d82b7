"""What is known of integers in one place of a proof, and what follows from it.

A fact is p >= 0, p == 0 or p != 0. What the ranges of variables and sizes decide is found on the
polynomials themselves; then a hypothesis is added or two; only the rest goes to Z3, which says
`unsat` (it follows), or anything else (it is not known to).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import z3

from superopt.verifier import poly as P
from superopt.verifier.models import Model, extended, fails, models
from superopt.verifier.poly import Atom, Chosen, Least, Poly, Quot, Sym, Var

MILLISECONDS = 300  # for one query


@dataclass(frozen=True, slots=True)
class Guard:
    """p >= 0 ("ge"), p == 0 ("eq") or p != 0 ("ne")."""

    kind: str
    p: Poly

    def __str__(self) -> str:
        sign = {"ge": ">=", "eq": "==", "ne": "!="}[self.kind]
        return f"{self.p} {sign} 0"

    def __lt__(self, other: Guard) -> bool:
        return (self.kind, self.p.number) < (other.kind, other.p.number)


def ge(p: Poly) -> Guard:
    return Guard("ge", p)


def eq(p: Poly) -> Guard:
    """p == 0, in one form: the first coefficient is positive."""
    return Guard("eq", -p if p.terms and p.terms[-1][1] < 0 else p)


def negated(g: Guard) -> Guard:
    match g.kind:
        case "ge":
            return ge(-g.p - 1)
        case "eq":
            return Guard("ne", g.p)
        case _:
            return Guard("eq", g.p)


@dataclass(slots=True)
class Tally:
    """How much was asked of whom, and until when."""

    quick: int = 0
    queries: int = 0
    solver_seconds: float = 0.0
    deadline: float = float("inf")


TALLY = Tally()


def in_time() -> None:
    """Raises OutOfTime after the deadline."""
    if time.monotonic() > TALLY.deadline:
        raise OutOfTime


class OutOfTime(Exception):
    """The proof's time is over."""


def start(seconds: float) -> Tally:
    """Begin to count anew; OutOfTime is raised after `seconds`."""
    global TALLY
    TALLY = Tally(deadline=time.monotonic() + seconds)
    return TALLY


@dataclass(slots=True, eq=False)
class Facts:
    """Hypotheses, with the answers given so far."""

    hypotheses: tuple[Guard, ...] = ()
    known: dict[Guard, bool] = field(default_factory=dict)
    lows: tuple[Poly, ...] = ()  # what the hypotheses say is >= 0
    weakly: dict[Guard, bool] = field(default_factory=dict)
    orders: tuple[object, ...] = ()  # normal forms of elements that are taken to be >= 0
    order_known: dict[object, bool] = field(default_factory=dict)
    samples: list[Model] | None = None
    parent: Facts | None = None

    def __post_init__(self) -> None:
        lows: list[Poly] = []
        for h in self.hypotheses:
            if h.kind == "ge":
                lows.append(h.p)
                while (more := _without_quotient(lows[-1])) is not None:
                    lows.append(more)
            elif h.kind == "eq":
                lows += [h.p, -h.p]
        self.lows = tuple(lows)

    def plus(self, *guards: Guard) -> Facts:
        new = tuple(g for g in guards if g not in self.hypotheses)
        if not new:
            return self
        return Facts((*self.hypotheses, *new), orders=self.orders, parent=self)

    def models(self) -> list[Model]:
        """Some numbers for which the hypotheses hold."""
        if self.samples is None:
            own = self.hypotheses[len(self.parent.hypotheses) :] if self.parent else ()
            if self.parent is None:
                self.samples = models(tuple((h.kind, h.p) for h in self.hypotheses))
            else:
                new = tuple((h.kind, h.p) for h in own)
                self.samples = extended(self.parent.models(), new)
        return self.samples

    def ordered(self, element: object) -> Facts:
        """Where an element is at least 0, too."""
        return Facts(
            self.hypotheses, self.known, orders=(*self.orders, element), samples=self.samples
        )

    def holds(self, g: Guard, strong: bool = True) -> bool:
        """Does `g` follow? False is: not known; without `strong` Z3 is not asked."""
        found = self.known.get(g)
        if found is None and not strong:
            found = self.weakly.get(g)
        if found is None:
            found = self._holds(g, strong)
            (self.known if strong or found else self.weakly)[g] = found
        return found

    def _holds(self, g: Guard, strong: bool) -> bool:
        TALLY.quick += 1
        if g in self.hypotheses:
            return True
        n = g.p.value
        if n is not None:
            return {"ge": n >= 0, "eq": n == 0, "ne": n != 0}[g.kind]
        if fails(self.models(), g.kind, g.p):
            return False
        match g.kind:
            case "ge":
                if nonneg(g.p):
                    return True
                same = _without_quotient(g.p)
                if same is not None:
                    return self.holds(ge(same), strong)
                if self.lows:
                    if _by_sum(g.p, self.lows):
                        return True
                    low = _lowest(g.p)
                    if low is not None and low is not g.p and _by_sum(low, self.lows):
                        return True
                elif _simple(g.p):
                    return False
            case "eq":
                if _simple(g.p) and not self.lows:
                    return False
            case _:
                if nonneg(g.p - 1) or nonneg(-g.p - 1):
                    return True
                if _simple(g.p) and not self.lows:
                    return False
        return strong and self.asked(g)

    def asked(self, g: Guard) -> bool:
        """Does Z3 say that `g` follows?"""
        in_time()
        start_time = time.perf_counter()
        out = _unsat(self.hypotheses, g)
        TALLY.queries += 1
        TALLY.solver_seconds += time.perf_counter() - start_time
        return out

    def contradictory(self) -> bool:
        """Is there nothing for which all hypotheses hold? False is: not seen."""
        if not self.hypotheses:
            return False
        return not self.models() and self.asked(ge(P.const(-1)))

    def impossible(self) -> bool:
        """Do the hypotheses contradict each other?"""
        last = self.hypotheses[-1] if self.hypotheses else None
        if last is None:
            return False
        before = Facts(self.hypotheses[:-1])
        return before.holds(negated(last))


def _simple(p: Poly) -> bool:
    """A linear polynomial of sizes and variables with ranges independent of each other: what
    `nonneg` does not show is then false somewhere."""
    return all(
        len(m) <= 1 and all(isinstance(a, (Sym, Var)) for a in m) for m, _ in p.terms
    ) and all(
        all(len(m) <= 1 and all(isinstance(a, Sym) for a in m) for m, _ in v.extent.terms)
        for v in p.vars
    )


# --- on polynomials -------------------------------------------------------------------------------

_NONNEG: dict[Poly, bool] = {}


def forget() -> None:
    _NONNEG.clear()
    P.forget()


def nonneg(p: Poly, depth: int = 3) -> bool:
    """Is p >= 0 for all sizes and for all variables in their ranges? False is: not seen to be."""
    found = _NONNEG.get(p)
    if found is None:
        found = _nonneg(p, depth)
        if found or depth == 3:
            _NONNEG[p] = found
    return found


def _nonneg(p: Poly, depth: int) -> bool:
    n = p.value
    if n is not None:
        return n >= 0
    if all(c >= 0 for _, c in p.terms) and all(_atom_nonneg(a) for a in p.atoms()):
        return True
    if not any(c > 0 for _, c in p.terms):
        return False
    by_number = sorted({a for a in p.atoms()}, key=lambda a: -a.number)
    for v in by_number:  # a variable at the end where p is least
        if isinstance(v, Var):
            split = P.linear_in(p, v)
            if split is None:
                break
            a, b = split
            if nonneg(a, depth):
                return nonneg(b, depth)
            if nonneg(-a, depth):
                return nonneg(a * (v.extent - 1) + b, depth)
            break
    for v in by_number:
        if isinstance(v, Sym) and v.low:
            moved = _shifted(p, v)
            if (
                moved is not None
                and all(c >= 0 for _, c in moved.terms)
                and all(_atom_nonneg(a) for a in moved.atoms())
            ):
                return True
    every = p
    for v in by_number:
        if isinstance(v, Sym) and v.low:
            every = _shifted(every, v) or every
    if all(c >= 0 for _, c in every.terms) and all(_atom_nonneg(a) for a in every.atoms()):
        return True
    if depth:
        return any(nonneg(q, depth - 1) for q in _bounded(p))
    return False


def _shifted(p: Poly, s: Sym) -> Poly | None:
    """p with s replaced by s' + low, where s' >= 0 (and is written s)."""
    out = P.const(0)
    low = P.const(s.low)
    for m, c in p.terms:
        term = P.made({tuple(a for a in m if a is not s): c})
        for _ in range(m.count(s)):
            term = term * (P.of(s) + low)
        out = out + term
    return out


def _atom_nonneg(a: Atom) -> bool:
    match a:
        case Sym():
            return a.low >= 0
        case Var() | Chosen():
            return True
        case Quot():
            return nonneg(a.p)
        case Least():
            return nonneg(a.p) and nonneg(a.q)
        case _:
            return False


def _lowest(p: Poly) -> Poly | None:
    """At most p, and without its variables: each at the end where p is least."""
    for v in sorted((a for a in set(p.atoms()) if isinstance(a, Var)), key=lambda v: -v.number):
        split = P.linear_in(p, v)
        if split is None:
            return None
        a, b = split
        if nonneg(a):
            p = b
        elif nonneg(-a):
            p = a * (v.extent - 1) + b
        else:
            return None
    return p


def _without_quotient(p: Poly) -> Poly | None:
    """What is >= 0 just where p is, one quotient less: a // q <= e is a < (e + 1) q."""
    for a in sorted({a for a in p.atoms() if isinstance(a, Quot)}, key=lambda a: -a.number):
        split = P.linear_in(p, a)
        if split is None or split[0].value not in (1, -1):
            continue
        rest = split[1]
        if split[0].value == 1:
            return a.p + rest * a.q
        return (rest + 1) * a.q - 1 - a.p
    return None


def _bounded(p: Poly) -> list[Poly]:
    """Polynomials at most p: a quotient or minimum replaced by a bound of it."""
    out: list[Poly] = []
    for a in {a for a in p.atoms() if isinstance(a, (Quot, Least, Chosen))}:
        split = P.linear_in(p, a)
        if split is None:
            continue
        k, rest = split
        match a:
            case Quot():
                if k.value is not None or nonneg(k) or nonneg(-k):
                    positive = nonneg(k)
                    # q * (p // q) is between p - q + 1 and p
                    whole, left = P.divided(k, a.q)
                    if not left.terms:
                        out.append(whole * (a.p - a.q + 1 if positive else a.p) + rest)
                    elif not positive and nonneg(a.p):
                        out.append(k * a.p + rest)
                    if not positive:
                        most = _most_quotient(a)
                        if most is not None:
                            out.append(k * most + rest)
            case Least():
                if nonneg(-k):
                    out += [k * a.p + rest, k * a.q + rest]
            case Chosen():
                if nonneg(-k):
                    out.append(k * (a.bound - 1) + rest)
    return out


def _most_quotient(a: Quot) -> Poly | None:
    """A bound of p // q: p < e q is p // q < e."""
    top = a.p
    for v in sorted(a.p.vars, key=lambda v: -v.number):
        split = P.linear_in(top, v)
        if split is None or not nonneg(split[0]):
            return None
        top = split[0] * (v.extent - 1) + split[1]
    whole, rest = P.divided(top + 1, a.q)
    if nonneg(-rest):
        return whole - 1
    return whole if nonneg(a.q - rest) else None


def _by_sum(p: Poly, lows: Iterable[Poly], depth: int = 2) -> bool:
    """Is p a sum of multiples of `lows` and something that is never negative?"""
    monos = dict(p.terms)
    for low in lows:
        tried: set[int] = set()
        for m, c in low.terms:
            have = monos.get(m)
            if not m or have is None or have * c <= 0:
                continue
            for k in {max(have // c, 1), 1}:
                if k in tried:
                    continue
                tried.add(k)
                rest = p - low * k
                if nonneg(rest, 1):
                    return True
                if depth > 1 and len(rest.terms) <= len(p.terms) + 1:
                    if _by_sum(rest, lows, depth - 1):
                        return True
    return False


# --- in Z3 ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Query:
    terms: dict[Atom, z3.ArithRef] = field(default_factory=dict)
    sides: list[z3.BoolRef] = field(default_factory=list)

    def poly(self, p: Poly) -> z3.ArithRef:
        parts: list[z3.ArithRef] = []
        for m, c in p.terms:
            term: z3.ArithRef | None = None
            for a in m:
                one = self.atom(a)
                term = one if term is None else term * one
            if term is None:
                parts.append(z3.IntVal(c))
            else:
                parts.append(term if c == 1 else term * c)
        if not parts:
            return z3.IntVal(0)
        return parts[0] if len(parts) == 1 else z3.Sum(parts)

    def atom(self, a: Atom) -> z3.ArithRef:
        found = self.terms.get(a)
        if found is not None:
            return found
        x = self.terms[a] = z3.Int(f"a{a.number}")
        match a:
            case Sym():
                self.sides.append(x >= a.low)
            case Var():
                self.sides += [x >= 0, x < self.poly(a.extent)]
            case Chosen():
                self.sides += [x >= 0, x < self.poly(a.bound)]
            case Quot():
                p, q = self.poly(a.p), self.poly(a.q)
                whole = q * x
                self.sides += [whole <= p, p < whole + q]
            case Least():
                p, q = self.poly(a.p), self.poly(a.q)
                self.sides += [x <= p, x <= q, z3.Or(x == p, x == q)]
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


_SOLVER: list[z3.Solver] = []


def _solver() -> z3.Solver:
    if not _SOLVER:
        z3.set_param("memory_max_size", 2000)
        s = z3.SimpleSolver()
        s.set("auto_config", False)
        s.set("mbqi", False)
        s.set("timeout", MILLISECONDS)
        _SOLVER.append(s)
    return _SOLVER[0]


def _unsat(hypotheses: Iterable[Guard], goal: Guard) -> bool:
    s = _solver()
    s.push()
    try:
        q = _Query()
        wanted = [q.guard(h) for h in hypotheses]
        wanted.append(q.guard(negated(goal)))
        s.add(*q.sides, *wanted)
        return bool(s.check() == z3.unsat)
    finally:
        s.pop()
