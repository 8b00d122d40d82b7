"""Sizes that are still open: equations and orders between them, as operators ask.

An attempt at an instance starts from a `State`. Where operators compare two sizes that differ as
expressions, the attempt solves for one symbol or keeps the equation as a hypothesis. Where two
sizes broadcast, they are equal, or one of them is 1. Each of these cases is another attempt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from superopt.te import index as ix
from superopt.te.dtype import BOOL, INDEX
from superopt.te.expr import Dim
from superopt.te.node import Apply, Const, Expr, Size
from superopt.verifier.products import (
    balanced,
    factorings,
    linear,
    mentions,
    multiples,
    reduced,
    whole_groups,
)


@dataclass(frozen=True, slots=True)
class State:
    """Choices so far. choices: ranks, axes and others; sizes: values of symbols; hypotheses: bools
    over sizes; derived: texts of what the right side needs beyond the left; level: the highest
    chosen rank; number_orders: a <= b (or a < b) of unknown numbers; stretched_count: broadcast
    sizes of 1; not_one: symbols that are not 1, as that case is checked elsewhere; unit_sizes:
    composite sizes that are 1; mentioned_differences: (n, 1) where the rule uses n - 1;
    substitutions: symbols and their replacements, in order."""

    choices: Mapping[str, object]
    sizes: Mapping[str, Expr]
    hypotheses: tuple[Expr, ...] = ()
    derived: tuple[str, ...] = ()
    level: int = 0
    stretched: int = 0
    orders: tuple[tuple[float, bool, float], ...] = ()
    wide: frozenset[str] = frozenset()
    units: frozenset[Expr] = frozenset()
    spoken: frozenset[tuple[str, int]] = frozenset()
    fixes: tuple[tuple[str, Expr], ...] = ()

    def chosen(self, key: str, value: object, level: int = 0) -> State:
        return replace(self, choices={**self.choices, key: value}, level=max(self.level, level))

    def said(self, e: Expr) -> Expr:
        """Express `e` in the rule's own sizes: n' that replaced n is computed from n."""
        for name, value in reversed(self.fixes):
            own = Size(f"{name}'")
            form = linear(value, own)
            if form is not None:
                times, rest = form
                one = ix.apply("floordiv", (ix.as_index(Size(name) - rest), times), INDEX)
                e = ix.substitute(e, {own: one})
        return e

    def needs(self, gap: ix.Poly, sign: str) -> str:
        """Return the text of gap == 0 (or > 0, or >= 0) in the rule's own sizes; "" if it always
        holds."""
        said = self.said(ix.from_polynomial(gap))
        low, _ = ix.bounds(said)
        if sign != "==" and low is not None and low >= (sign == ">"):
            return ""
        return balanced(ix.polynomial(said), sign)

    def below(self, a: float, strictly: bool, b: float) -> State:
        return replace(self, orders=(*self.orders, (a, strictly, b)))

    def fixed(self, name: str, value: Expr, needs: str) -> State | None:
        """Replace a symbol; None if a hypothesis then fails."""
        wide = self.wide
        if name in wide:
            if value == Const(1, INDEX):
                return None
            wide = wide - {name} | ({value.name} if isinstance(value, Size) else set())
        env: dict[Expr, Expr] = {Size(name): value}
        sizes = {n: ix.substitute(e, env) for n, e in self.sizes.items()} | {name: value}
        derived = (*self.derived, needs) if needs else self.derived
        units = frozenset(ix.substitute(u, env) for u in self.units)
        fixes = (*self.fixes, (name, value))
        out = replace(
            self, sizes=sizes, hypotheses=(), derived=derived, wide=wide, units=units, fixes=fixes
        )
        some: State | None = out
        for h in self.hypotheses:
            some = None if some is None else some.given(ix.substitute(h, env), "")
        low, _ = ix.bounds(value)
        if some is not None and (low is None or low < 1):
            some = some.given(ix.apply("le", (Const(1, INDEX), value), BOOL), needs)
        return some

    def given(self, h: Expr, needs: str) -> State | None:
        """Add a hypothesis; None if it is false."""
        h = tidy(h)
        if isinstance(h, Const):
            return self if h.value else None
        if h in self.hypotheses:
            return self
        derived = (*self.derived, needs) if needs else self.derived
        return replace(self, hypotheses=(*self.hypotheses, h), derived=derived)


def tidy(h: Expr) -> Expr:
    """Return an equation without common factors of its sides."""
    match h:
        case Apply("eq", (a, b), _):
            gap = reduced(ix.polynomial(ix.as_index(a - b)))
            left = ix.from_polynomial({m: c for m, c in gap.items() if c > 0})
            right = ix.from_polynomial({m: -c for m, c in gap.items() if c < 0})
            return ix.apply("eq", (left, right) if str(left) < str(right) else (right, left), BOOL)
        case _:
            return h


class Fork(Exception):
    """The attempt continues from each of these states."""

    def __init__(self, states: Sequence[State | None]) -> None:
        self.states = [s for s in states if s is not None]


class Misfit(Exception):
    """There is no instance with these choices."""


def equated(state: State, a: Dim, b: Dim, why: str = "") -> list[State | None]:
    """Return the states in which two sizes are equal."""
    gap = reduced(ix.polynomial(ix.as_index(ix.as_index(a) - b)))
    if not gap:
        return [state]
    low, high = ix.bounds(ix.from_polynomial(gap))
    if (low is not None and low > 0) or (high is not None and high < 0):
        return []
    needs = state.needs(gap, "==") if why else ""
    split = whole_groups(gap) or multiples(gap, state.spoken)
    if split is not None:
        name, values = split
        needs = f"{state.said(Size(name))} is a multiple" if why else ""
        return [state.fixed(name, v, needs) for v in values]
    best = _solution(gap)
    if best is not None:
        return [state.fixed(*best, needs)]
    found = _factored(state, gap, needs)
    if found is not None:
        return found
    h = ix.apply("eq", (ix.as_index(a), ix.as_index(b)), BOOL)
    if tidy(h) in state.hypotheses:
        return [state]
    for known in state.hypotheses:  # two products that equal a third are equal
        found = _compared(state, gap, known, needs)
        if found is not None:
            return found
    return [state.given(h, needs)]


def _compared(state: State, gap: ix.Poly, known: Expr, needs: str) -> list[State | None] | None:
    """Return the states that gap == 0 and another equation imply together, if simpler; else
    None."""
    match known:
        case Apply("eq", (p, q), _):
            other = reduced(ix.polynomial(ix.as_index(p - q)))
        case _:
            return None
    for one, two in ((gap, other), (other, gap)):
        for both in _rewritten(one, two):
            low, high = ix.bounds(ix.from_polynomial(both))
            if (low is not None and low > 0) or (high is not None and high < 0):
                return []
            found = _simple(state, both, needs)
            if found is not None:
                return found
    return None


def _rewritten(gap: ix.Poly, other: ix.Poly) -> Iterator[ix.Poly]:
    """Yield `gap` with one of its products replaced by means of other == 0."""
    for lead, c in other.items():
        if abs(c) != 1 or not lead:
            continue
        instead = ix.from_polynomial({n: -k * c for n, k in other.items() if n != lead})
        for m, times in gap.items():
            left = _over(m, lead)
            if left is None:
                continue
            new = ix.polynomial(ix.as_index(instead * ix.from_polynomial({left: times})))
            rest = {n: k for n, k in gap.items() if n != m}
            both = {n: rest.get(n, 0) + new.get(n, 0) for n in rest.keys() | new.keys()}
            out = reduced({n: k for n, k in both.items() if k})
            if out and len(out) <= len(gap):
                yield out


def _over(m: ix.Monomial, n: ix.Monomial) -> ix.Monomial | None:
    """Return m / n if n divides it, else None."""
    left = list(m)
    for x in n:
        if x not in left:
            return None
        left.remove(x)
    return tuple(left)


def settled(state: State) -> list[State | None] | None:
    """Return the states that the hypotheses imply together; None if nothing new."""
    lows: dict[Expr, tuple[Expr, Expr]] = {}
    for h in state.hypotheses:
        match h:
            case Apply("le", (a, b), _):
                if ix.as_index(a - b) in lows:  # and b - a, which is not above 0 either
                    return equated(state, ix.dim(a), ix.dim(b))
                lows[ix.as_index(b - a)] = a, b
            case _:
                pass
    for n, h in enumerate(state.hypotheses):
        match h:
            case Apply("eq", (p, q), _):
                gap = reduced(ix.polynomial(ix.as_index(p - q)))
            case _:
                continue
        for other in state.hypotheses[:n]:
            found = _compared(state, gap, other, "")
            if found is not None:
                return found
    return None


def _simple(state: State, gap: ix.Poly, needs: str) -> list[State | None] | None:
    """Return the states in which gap == 0, if it determines a size or is a factoring; else None."""
    if not all(isinstance(x, Size) for m in gap for x in m):
        return None
    best = _solution(gap)
    if best is not None:
        return [state.fixed(*best, needs)]
    return _factored(state, gap, needs)


def _factored(state: State, gap: ix.Poly, needs: str) -> list[State | None] | None:
    """Return the states in which a product of sizes is a number."""
    cases = factorings(gap)
    if cases is None:
        return None
    out: list[State | None] = []
    for case in cases:
        some: State | None = state
        for name, n in case.items():
            some = None if some is None else some.fixed(name, Const(n, INDEX), "")
        if some is not None and needs:
            some = replace(some, derived=(*some.derived, needs))
        out.append(some)
    return out


def _solution(gap: ix.Poly) -> tuple[str, Expr] | None:
    """Solve gap == 0 for a size, preferably with a value that is at least 1 in any case."""
    best: tuple[int, str, Expr] | None = None
    for m, c in gap.items():
        if len(m) != 1 or abs(c) != 1 or not isinstance(m[0], Size):
            continue
        rest = {n: -k * c for n, k in gap.items() if n != m}
        if any(mentions(x, m[0]) for n in rest for x in n):
            continue
        value = ix.from_polynomial(rest)
        low, _ = ix.bounds(value)
        rank = (0 if low is not None and low >= 1 else 1) * 1000 + len(rest)
        if best is None or rank < best[0]:
            best = (rank, m[0].name, value)
    return None if best is None else best[1:]


MOST_SMALL = 8


def taken(state: State, a: Dim, b: Dim) -> bool | None:
    """Return whether the state assumes a <= b; None if neither a <= b nor b < a."""
    gap = ix.as_index(ix.as_index(b) - a)
    if _at_least(gap, 0) in state.hypotheses:
        return True
    return False if _at_least(-gap, 1) in state.hypotheses else None


def _at_least(p: Expr, low: int) -> Expr:
    return ix.apply("le", (Const(low, INDEX), p), BOOL)


def ordered(state: State, a: Dim, b: Dim, why: str = "") -> list[State | None]:
    """Return the states in which a <= b, then those in which b < a."""
    for p, q in (*_extremes(a), *_extremes(b)):
        if taken(state, p, q) is None:
            return ordered(state, p, q, why)
    gap = ix.as_index(ix.as_index(b) - a)
    out: list[State | None] = []
    for p, low, sign in ((gap, 0, ">="), (ix.as_index(-gap), 1, ">")):
        needs = state.needs(ix.polynomial(p), sign) if why else ""
        found = nonnegative(state, ix.polynomial(ix.as_index(p - low)), needs)
        if found is None or not all(s is None or _plain(state, s) for s in found):
            found = [state.given(_at_least(p, low), needs)]
        out += found
    return out


def _extremes(d: Dim) -> Iterator[tuple[Dim, Dim]]:
    """Yield the operands of the innermost minima and maxima."""
    match d:
        case Apply(fn, args, _):
            inner = [pair for a in args for pair in _extremes(a)]
            if inner:
                yield from inner
            elif fn in ("min", "max"):
                yield ix.dim(args[0]), ix.dim(args[1])
        case _:
            return


def bounded(state: State, p: Expr) -> list[State | None] | None:
    """Return the states in which p >= 0, if the value of a size ensures it; else None."""
    gap = ix.polynomial(p)
    if sum(map(bool, gap)) < 2:
        return None  # n >= 2 stays a hypothesis on n, which divides better than n' + 1
    found = nonnegative(state, gap, "")
    return found if found and all(s is None or _plain(state, s) for s in found) else None


def _plain(before: State, after: State) -> bool:
    """True if the new state has no additional hypothesis."""
    return len(after.hypotheses) <= len(before.hypotheses)


def nonnegative(state: State, p: ix.Poly, needs: str) -> list[State | None] | None:
    """Return the states in which p >= 0: n - m >= 0 is n = m + n' - 1; 3 - n >= 0 is n = 1, 2 or
    3."""
    best: tuple[bool, str, Expr] | None = None
    for m, c in p.items():
        if len(m) != 1 or c != 1 or not isinstance(m[0], Size):
            continue
        rest = {n: -k for n, k in p.items() if n != m}
        if any(mentions(x, m[0]) for n in rest for x in n):
            continue
        name = m[0].name
        value = ix.as_index(ix.from_polynomial(rest) + Size(f"{name}'") - 1)
        low, _ = ix.bounds(value)
        rank = low is None or low < 1
        if best is None or rank < best[0]:
            best = rank, name, value
    if best is not None:
        return [state.fixed(*best[1:], needs)]
    symbols_ = [m for m, c in p.items() if m]
    if len(symbols_) == 1 and len(symbols_[0]) == 1 and p[symbols_[0]] == -1:
        n = symbols_[0][0]
        most = p.get((), 0)
        if isinstance(n, Size) and most <= MOST_SMALL:
            return [state.fixed(n.name, Const(k, INDEX), needs) for k in range(1, most + 1)]
    return None


def decided(state: State, d: Dim) -> list[State | None] | None:
    """Return the states that decide a minimum or maximum which depends on one symbol: min(n, 3) is
    3 where n is n' + 2, and n is 1 or 2 otherwise. None if there is no such extreme."""
    if isinstance(d, int):
        return None
    match d:
        case Apply("min" | "max", (a, b), _):
            gap = ix.polynomial(ix.as_index(b - a))
            symbols_ = [m for m in gap if m]
            if len(symbols_) == 1 and len(symbols_[0]) == 1 and abs(gap[symbols_[0]]) == 1:
                n = symbols_[0][0]
                least = -gap.get((), 0) * gap[symbols_[0]]
                if isinstance(n, Size) and 1 < least <= MOST_SMALL:
                    more = ix.as_index(Size(f"{n.name}'") + (least - 1))
                    cases = [state.fixed(n.name, Const(k, INDEX), "") for k in range(1, least)]
                    return [state.fixed(n.name, more, ""), *cases]
    match d:
        case Apply(_, args, _):
            for a in args:
                found = decided(state, a)
                if found is not None:
                    return found
    return None


def wider(state: State, a: Dim) -> State:
    """Return the state in which a symbol is not 1."""
    return replace(state, wide=state.wide | {a.name}) if isinstance(a, Size) else state


def is_wide(name: str) -> Expr:
    """Return the hypothesis that a symbol is not 1."""
    return _at_least(Size(name), 2)
