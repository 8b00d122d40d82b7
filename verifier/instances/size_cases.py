"""Case splits on sizes: an attempt continues in the states where a comparison holds, and in those
where it does not."""

from __future__ import annotations

from dataclasses import replace

from superopt.te.expr import index
from superopt.te.expr.dtype import BOOL, INDEX
from superopt.te.expr.node import Apply, Const, Expr, Size
from superopt.te.expr.tensor import Dim
from superopt.verifier.instances.size_orders import (
    MAX_ENUMERATED_SIZE,
    assumed_order,
    bounded_states,
    nonnegative_states,
    order_states,
)
from superopt.verifier.instances.sizes import State, equate, normalize_equation, with_not_one


def known_comparison(state: State, fn: str, a: Dim, b: Dim) -> bool | None:
    """Return what the state implies of a == b ("eq"), a < b ("lt") or a <= b ("le"); None if
    nothing."""
    if fn != "eq":
        return assumed_order(state, _plus_one(a) if fn == "lt" else a, b)
    if _symbol_compared_with_one(a, b) in state.not_one or _inequality(a, b) in state.hypotheses:
        return False
    same = normalize_equation(index.apply("eq", (index.as_index(a), index.as_index(b)), BOOL))
    return True if same in state.hypotheses else None


def comparison_states(state: State, fn: str, a: Dim, b: Dim) -> list[State | None]:
    """Return the states in which the comparison holds, then those in which it does not."""
    if fn != "eq":
        return order_states(state, _plus_one(a) if fn == "lt" else a, b)
    one = _symbol_compared_with_one(a, b)
    apart = with_not_one(state, Size(one)) if one else state.with_hypothesis(_inequality(a, b), "")
    return [*equate(state, a, b), apart]


def positive_extent_states(state: State, d: Dim) -> list[State | None] | None:
    """Return the states in which an extent of the left side is at least 1, if one symbol decides
    it: n - p with n = p + n', and 4 - n with n = 1, 2 or 3. None if it always is, or no symbol
    decides."""
    if isinstance(d, (int, Size)):  # which is at least 1
        return None
    gap = index.as_index(d - 1)
    low, _ = index.bounds(gap)
    if low is not None and low >= 0:
        return None
    signs = [c < 0 for m, c in index.polynomial(gap).items() if m]
    if signs == [True]:
        return nonnegative_states(state, index.polynomial(gap), "")
    found = bounded_states(state, gap) or []
    return (
        found if found and all(s is None or _is_fresh_positive(state, s) for s in found) else None
    )


def _is_fresh_positive(before: State, after: State) -> bool:
    """True if the replacement of a symbol is at least 1 in any case. Else the same question would
    arise for another symbol, and so on."""
    new = (after.sizes[n] for n in after.sizes.keys() - before.sizes.keys())
    return all((index.bounds(e)[0] or 0) >= 1 for e in new)


def _plus_one(a: Dim) -> Dim:
    return index.dim(index.as_index(a) + 1)


def _symbol_compared_with_one(a: Dim, b: Dim) -> str:
    """Return the symbol that is compared with 1, else ""."""
    for p, q in ((a, b), (b, a)):
        if isinstance(p, Size) and q == 1:
            return p.name
    return ""


def _inequality(a: Dim, b: Dim) -> Expr:
    return index.apply("ne", (index.as_index(a), index.as_index(b)), BOOL)


def _constant_quotient(gap: index.Poly) -> list[tuple[Expr, int]] | None:
    """Return p and each of its possible values for p // k + c == 0 with numbers k and c; else
    None."""
    match [m for m in gap if m]:
        case [(Apply("floordiv", (p, Const(k)), _),) as m] if gap[m] == 1:
            first = -int(gap.get((), 0)) * int(k)
            return (
                [(p, first + r) for r in range(int(k))] if int(k) <= MAX_ENUMERATED_SIZE else None
            )
        case _:
            return None


def unit_states(state: State, a: Dim) -> list[State | None]:
    """Return the states in which a size is 1."""
    if isinstance(a, int):
        return [state] if a == 1 else []
    poly = index.polynomial(a)
    parts = _constant_quotient(index.polynomial(index.as_index(a - 1)))
    ((m, c), *rest) = poly.items()
    if parts or rest or c != 1 or not all(isinstance(x, Size) for x in m):
        found = [s for p, n in parts or [(a, 1)] for s in equate(state, index.dim(p), n)]
        return [s if s is None or s.sizes != state.sizes else _with_unit(s, a) for s in found]
    new: State | None = state
    for x in dict.fromkeys(m):
        assert isinstance(x, Size)
        new = None if new is None else new.with_size(x.name, Const(1, INDEX), "")
    return [new]


def _with_unit(state: State, a: Expr) -> State:
    """Return the state with a composite size that is 1."""
    return replace(state, unit_sizes=state.unit_sizes | {a})
