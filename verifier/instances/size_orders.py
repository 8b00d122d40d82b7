"""Orders of sizes: states in which one size is at most another, and extremes of sizes."""

from __future__ import annotations

from collections.abc import Iterator

from superopt.te.expr import index
from superopt.te.expr.dtype import BOOL, INDEX
from superopt.te.expr.node import Apply, Const, Expr, Size
from superopt.te.expr.tensor import Dim
from superopt.verifier.instances.size_equations import has_size
from superopt.verifier.instances.sizes import State

MAX_ENUMERATED_SIZE = 8


def assumed_order(state: State, a: Dim, b: Dim) -> bool | None:
    """Return whether the state assumes a <= b; None if neither a <= b nor b < a."""
    gap = index.as_index(index.as_index(b) - a)
    if _at_least(gap, 0) in state.hypotheses:
        return True
    return False if _at_least(-gap, 1) in state.hypotheses else None


def _at_least(p: Expr, low: int) -> Expr:
    return index.apply("le", (Const(low, INDEX), p), BOOL)


def order_states(state: State, a: Dim, b: Dim, why: str = "") -> list[State | None]:
    """Return the states in which a <= b, then those in which b < a."""
    for p, q in (*_extreme_operands(a), *_extreme_operands(b)):
        if assumed_order(state, p, q) is None:
            return order_states(state, p, q, why)
    gap = index.as_index(index.as_index(b) - a)
    out: list[State | None] = []
    for p, low, sign in ((gap, 0, ">="), (index.as_index(-gap), 1, ">")):
        needs = state.needed_condition(index.polynomial(p), sign) if why else ""
        found = nonnegative_states(state, index.polynomial(index.as_index(p - low)), needs)
        if found is None or not all(s is None or _adds_no_hypothesis(state, s) for s in found):
            found = [state.with_hypothesis(_at_least(p, low), needs)]
        out += found
    return out


def _extreme_operands(d: Dim) -> Iterator[tuple[Dim, Dim]]:
    """Yield the operands of the innermost minima and maxima."""
    match d:
        case Apply(fn, args, _):
            inner = [pair for a in args for pair in _extreme_operands(a)]
            if inner:
                yield from inner
            elif fn in ("min", "max"):
                yield index.dim(args[0]), index.dim(args[1])
        case _:
            return


def bounded_states(state: State, p: Expr) -> list[State | None] | None:
    """Return the states in which p >= 0, if the value of a size ensures it; else None."""
    gap = index.polynomial(p)
    if sum(map(bool, gap)) < 2:
        return None  # n >= 2 stays a hypothesis on n, which divides better than n' + 1
    found = nonnegative_states(state, gap, "")
    return (
        found if found and all(s is None or _adds_no_hypothesis(state, s) for s in found) else None
    )


def _adds_no_hypothesis(before: State, after: State) -> bool:
    """True if the new state has no additional hypothesis."""
    return len(after.hypotheses) <= len(before.hypotheses)


def nonnegative_states(state: State, p: index.Poly, needs: str) -> list[State | None] | None:
    """Return the states in which p >= 0: n - m >= 0 is n = m + n' - 1; 3 - n >= 0 is n = 1, 2 or
    3."""
    best: tuple[bool, str, Expr] | None = None
    for m, c in p.items():
        if len(m) != 1 or c != 1 or not isinstance(m[0], Size):
            continue
        rest = {n: -k for n, k in p.items() if n != m}
        if any(has_size(x, m[0]) for n in rest for x in n):
            continue
        name = m[0].name
        value = index.as_index(index.from_polynomial(rest) + Size(f"{name}'") - 1)
        low, _ = index.bounds(value)
        rank = low is None or low < 1
        if best is None or rank < best[0]:
            best = rank, name, value
    if best is not None:
        return [state.with_size(*best[1:], needs)]
    symbols_ = [m for m, c in p.items() if m]
    if len(symbols_) == 1 and len(symbols_[0]) == 1 and p[symbols_[0]] == -1:
        n = symbols_[0][0]
        most = p.get((), 0)
        if isinstance(n, Size) and most <= MAX_ENUMERATED_SIZE:
            return [state.with_size(n.name, Const(k, INDEX), needs) for k in range(1, most + 1)]
    return None


def extreme_states(state: State, d: Dim) -> list[State | None] | None:
    """Return the states that decide a minimum or maximum which depends on one symbol: min(n, 3) is
    3 where n is n' + 2, and n is 1 or 2 otherwise. None if there is no such extreme."""
    if isinstance(d, int):
        return None
    match d:
        case Apply("min" | "max", (a, b), _):
            gap = index.polynomial(index.as_index(b - a))
            symbols_ = [m for m in gap if m]
            if len(symbols_) == 1 and len(symbols_[0]) == 1 and abs(gap[symbols_[0]]) == 1:
                n = symbols_[0][0]
                least = -gap.get((), 0) * gap[symbols_[0]]
                if isinstance(n, Size) and 1 < least <= MAX_ENUMERATED_SIZE:
                    more = index.as_index(Size(f"{n.name}'") + (least - 1))
                    cases = [state.with_size(n.name, Const(k, INDEX), "") for k in range(1, least)]
                    return [state.with_size(n.name, more, ""), *cases]
    match d:
        case Apply(_, args, _):
            for a in args:
                found = extreme_states(state, a)
                if found is not None:
                    return found
    return None


def not_one_hypothesis(name: str) -> Expr:
    """Return the hypothesis that a symbol is not 1."""
    return _at_least(Size(name), 2)
