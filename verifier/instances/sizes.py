"""Sizes that are still open: the state of an attempt, and equations between sizes.

An attempt at an instance starts from a `State`. Where operators compare two sizes that differ as
expressions, the attempt solves for one symbol or keeps the equation as a hypothesis. Where two
sizes broadcast, they are equal, or one of them is 1. Each of these cases is another attempt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from superopt.te.expr import index
from superopt.te.expr.dtype import BOOL, INDEX
from superopt.te.expr.node import Apply, Const, Expr, Size
from superopt.te.expr.tensor import Dim
from superopt.verifier.instances.size_equations import (
    drop_common_factors,
    factorings,
    has_size,
    linear_coefficients,
    show_equation,
    solve_multiple,
    solve_remainder,
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
    stretched_count: int = 0
    number_orders: tuple[tuple[float, bool, float], ...] = ()
    not_one: frozenset[str] = frozenset()
    unit_sizes: frozenset[Expr] = frozenset()
    mentioned_differences: frozenset[tuple[str, int]] = frozenset()
    substitutions: tuple[tuple[str, Expr], ...] = ()

    def with_choice(self, key: str, value: object, level: int = 0) -> State:
        return replace(self, choices={**self.choices, key: value}, level=max(self.level, level))

    def in_rule_sizes(self, e: Expr) -> Expr:
        """Express `e` in the rule's own sizes: n' that replaced n is computed from n."""
        for name, value in reversed(self.substitutions):
            own = Size(f"{name}'")
            form = linear_coefficients(value, own)
            if form is not None:
                times, rest = form
                one = index.apply("floordiv", (index.as_index(Size(name) - rest), times), INDEX)
                e = index.substitute(e, {own: one})
        return e

    def needed_condition(self, gap: index.Poly, sign: str) -> str:
        """Return the text of gap == 0 (or > 0, or >= 0) in the rule's own sizes; "" if it always
        holds."""
        shown = self.in_rule_sizes(index.from_polynomial(gap))
        low, _ = index.bounds(shown)
        if sign != "==" and low is not None and low >= (sign == ">"):
            return ""
        return show_equation(index.polynomial(shown), sign)

    def with_order(self, a: float, strict: bool, b: float) -> State:
        return replace(self, number_orders=(*self.number_orders, (a, strict, b)))

    def with_size(self, name: str, value: Expr, needs: str) -> State | None:
        """Replace a symbol; None if a hypothesis then fails."""
        wide = self.not_one
        if name in wide:
            if value == Const(1, INDEX):
                return None
            wide = wide - {name} | ({value.name} if isinstance(value, Size) else set())
        env: dict[Expr, Expr] = {Size(name): value}
        sizes = {n: index.substitute(e, env) for n, e in self.sizes.items()} | {name: value}
        derived = (*self.derived, needs) if needs else self.derived
        units = frozenset(index.substitute(u, env) for u in self.unit_sizes)
        fixes = (*self.substitutions, (name, value))
        out = replace(
            self,
            sizes=sizes,
            hypotheses=(),
            derived=derived,
            not_one=wide,
            unit_sizes=units,
            substitutions=fixes,
        )
        solved: State | None = out
        for h in self.hypotheses:
            solved = (
                None if solved is None else solved.with_hypothesis(index.substitute(h, env), "")
            )
        low, _ = index.bounds(value)
        if solved is not None and (low is None or low < 1):
            solved = solved.with_hypothesis(
                index.apply("le", (Const(1, INDEX), value), BOOL), needs
            )
        return solved

    def with_hypothesis(self, hypothesis: Expr, needs: str) -> State | None:
        """Add a hypothesis; None if it is false."""
        hypothesis = normalize_equation(hypothesis)
        if isinstance(hypothesis, Const):
            return self if hypothesis.value else None
        if hypothesis in self.hypotheses:
            return self
        derived = (*self.derived, needs) if needs else self.derived
        return replace(self, hypotheses=(*self.hypotheses, hypothesis), derived=derived)


def normalize_equation(hypothesis: Expr) -> Expr:
    """Return an equation without common factors of its sides."""
    match hypothesis:
        case Apply("eq", (a, b), _):
            gap = drop_common_factors(index.polynomial(index.as_index(a - b)))
            left = index.from_polynomial({m: c for m, c in gap.items() if c > 0})
            right = index.from_polynomial({m: -c for m, c in gap.items() if c < 0})
            return index.apply(
                "eq", (left, right) if str(left) < str(right) else (right, left), BOOL
            )
        case _:
            return hypothesis


class Fork(Exception):
    """The attempt continues from each of these states."""

    def __init__(self, states: Sequence[State | None]) -> None:
        self.states = [s for s in states if s is not None]


class RejectedChoice(Exception):
    """There is no instance with these choices."""


def equate(state: State, a: Dim, b: Dim, why: str = "") -> list[State | None]:
    """Return the states in which two sizes are equal."""
    gap = drop_common_factors(index.polynomial(index.as_index(index.as_index(a) - b)))
    if not gap:
        return [state]
    low, high = index.bounds(index.from_polynomial(gap))
    if (low is not None and low > 0) or (high is not None and high < 0):
        return []
    needs = state.needed_condition(gap, "==") if why else ""
    split = solve_multiple(gap) or solve_remainder(gap, state.mentioned_differences)
    if split is not None:
        name, values = split
        needs = f"{state.in_rule_sizes(Size(name))} is a multiple" if why else ""
        return [state.with_size(name, v, needs) for v in values]
    best = _solve_for_size(gap)
    if best is not None:
        return [state.with_size(*best, needs)]
    found = _factor_states(state, gap, needs)
    if found is not None:
        return found
    h = index.apply("eq", (index.as_index(a), index.as_index(b)), BOOL)
    if normalize_equation(h) in state.hypotheses:
        return [state]
    for known in state.hypotheses:  # two products that equal a third are equal
        found = _combine_equations(state, gap, known, needs)
        if found is not None:
            return found
    return [state.with_hypothesis(h, needs)]


def _combine_equations(
    state: State, gap: index.Poly, equation: Expr, needs: str
) -> list[State | None] | None:
    """Return the states that gap == 0 and another equation imply together, if simpler; else
    None."""
    match equation:
        case Apply("eq", (p, q), _):
            other = drop_common_factors(index.polynomial(index.as_index(p - q)))
        case _:
            return None
    for one, two in ((gap, other), (other, gap)):
        for both in _rewrite_by_equation(one, two):
            low, high = index.bounds(index.from_polynomial(both))
            if (low is not None and low > 0) or (high is not None and high < 0):
                return []
            found = _solve_or_factor(state, both, needs)
            if found is not None:
                return found
    return None


def _rewrite_by_equation(gap: index.Poly, other: index.Poly) -> Iterator[index.Poly]:
    """Yield `gap` with one of its products replaced by means of other == 0."""
    for lead, c in other.items():
        if abs(c) != 1 or not lead:
            continue
        instead = index.from_polynomial({n: -k * c for n, k in other.items() if n != lead})
        for m, times in gap.items():
            left = _divide_monomial(m, lead)
            if left is None:
                continue
            new = index.polynomial(index.as_index(instead * index.from_polynomial({left: times})))
            rest = {n: k for n, k in gap.items() if n != m}
            both = {n: rest.get(n, 0) + new.get(n, 0) for n in rest.keys() | new.keys()}
            out = drop_common_factors({n: k for n, k in both.items() if k})
            if out and len(out) <= len(gap):
                yield out


def _divide_monomial(m: index.Monomial, n: index.Monomial) -> index.Monomial | None:
    """Return m / n if n divides it, else None."""
    left = list(m)
    for x in n:
        if x not in left:
            return None
        left.remove(x)
    return tuple(left)


def implied_states(state: State) -> list[State | None] | None:
    """Return the states that the hypotheses imply together; None if nothing new."""
    lows: dict[Expr, tuple[Expr, Expr]] = {}
    for h in state.hypotheses:
        match h:
            case Apply("le", (a, b), _):
                if index.as_index(a - b) in lows:  # and b - a, which is not above 0 either
                    return equate(state, index.dim(a), index.dim(b))
                lows[index.as_index(b - a)] = a, b
            case _:
                pass
    for n, h in enumerate(state.hypotheses):
        match h:
            case Apply("eq", (p, q), _):
                gap = drop_common_factors(index.polynomial(index.as_index(p - q)))
            case _:
                continue
        for other in state.hypotheses[:n]:
            found = _combine_equations(state, gap, other, "")
            if found is not None:
                return found
    return None


def _solve_or_factor(state: State, gap: index.Poly, needs: str) -> list[State | None] | None:
    """Return the states in which gap == 0, if it determines a size or is a factoring; else None."""
    if not all(isinstance(x, Size) for m in gap for x in m):
        return None
    best = _solve_for_size(gap)
    if best is not None:
        return [state.with_size(*best, needs)]
    return _factor_states(state, gap, needs)


def _factor_states(state: State, gap: index.Poly, needs: str) -> list[State | None] | None:
    """Return the states in which a product of sizes is a number."""
    cases = factorings(gap)
    if cases is None:
        return None
    out: list[State | None] = []
    for case in cases:
        solved: State | None = state
        for name, n in case.items():
            solved = None if solved is None else solved.with_size(name, Const(n, INDEX), "")
        if solved is not None and needs:
            solved = replace(solved, derived=(*solved.derived, needs))
        out.append(solved)
    return out


def _solve_for_size(gap: index.Poly) -> tuple[str, Expr] | None:
    """Solve gap == 0 for a size, preferably with a value that is at least 1 in any case."""
    best: tuple[int, str, Expr] | None = None
    for m, c in gap.items():
        if len(m) != 1 or abs(c) != 1 or not isinstance(m[0], Size):
            continue
        rest = {n: -k * c for n, k in gap.items() if n != m}
        if any(has_size(x, m[0]) for n in rest for x in n):
            continue
        value = index.from_polynomial(rest)
        low, _ = index.bounds(value)
        rank = (0 if low is not None and low >= 1 else 1) * 1000 + len(rest)
        if best is None or rank < best[0]:
            best = (rank, m[0].name, value)
    return None if best is None else best[1:]


def with_not_one(state: State, a: Dim) -> State:
    """Return the state in which a symbol is not 1."""
    return replace(state, not_one=state.not_one | {a.name}) if isinstance(a, Size) else state
