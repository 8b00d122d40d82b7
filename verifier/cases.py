"""Case splits on sizes: an attempt continues in the states where a comparison holds, and in those
where it does not."""

from __future__ import annotations

from dataclasses import replace

from superopt.te import index as ix
from superopt.te.dtype import BOOL, INDEX
from superopt.te.expr import Dim
from superopt.te.node import Apply, Const, Expr, Size
from superopt.verifier.sizes import (
    MOST_SMALL,
    State,
    bounded,
    equated,
    nonnegative,
    ordered,
    taken,
    tidy,
    wider,
)


def told(state: State, fn: str, a: Dim, b: Dim) -> bool | None:
    """Return what the state implies of a == b ("eq"), a < b ("lt") or a <= b ("le"); None if
    nothing."""
    if fn != "eq":
        return taken(state, _after(a) if fn == "lt" else a, b)
    if _is_one(a, b) in state.wide or _unequal(a, b) in state.hypotheses:
        return False
    same = tidy(ix.apply("eq", (ix.as_index(a), ix.as_index(b)), BOOL))
    return True if same in state.hypotheses else None


def either(state: State, fn: str, a: Dim, b: Dim) -> list[State | None]:
    """Return the states in which the comparison holds, then those in which it does not."""
    if fn != "eq":
        return ordered(state, _after(a) if fn == "lt" else a, b)
    one = _is_one(a, b)
    apart = wider(state, Size(one)) if one else state.given(_unequal(a, b), "")
    return [*equated(state, a, b), apart]


def there(state: State, d: Dim) -> list[State | None] | None:
    """Return the states in which an extent of the left side is at least 1, if one symbol decides
    it: n - p with n = p + n', and 4 - n with n = 1, 2 or 3. None if it always is, or no symbol
    decides."""
    if isinstance(d, (int, Size)):  # which is at least 1
        return None
    gap = ix.as_index(d - 1)
    low, _ = ix.bounds(gap)
    if low is not None and low >= 0:
        return None
    signs = [c < 0 for m, c in ix.polynomial(gap).items() if m]
    if signs == [True]:
        return nonnegative(state, ix.polynomial(gap), "")
    found = bounded(state, gap) or []
    return found if found and all(s is None or _freely(state, s) for s in found) else None


def _freely(before: State, after: State) -> bool:
    """True if the replacement of a symbol is at least 1 in any case. Else the same question would
    arise for another symbol, and so on."""
    new = (after.sizes[n] for n in after.sizes.keys() - before.sizes.keys())
    return all((ix.bounds(e)[0] or 0) >= 1 for e in new)


def _after(a: Dim) -> Dim:
    return ix.dim(ix.as_index(a) + 1)


def _is_one(a: Dim, b: Dim) -> str:
    """Return the symbol that is compared with 1, else ""."""
    for p, q in ((a, b), (b, a)):
        if isinstance(p, Size) and q == 1:
            return p.name
    return ""


def _unequal(a: Dim, b: Dim) -> Expr:
    return ix.apply("ne", (ix.as_index(a), ix.as_index(b)), BOOL)


def _quotient_of_one(gap: ix.Poly) -> list[tuple[Expr, int]] | None:
    """Return p and each of its possible values for p // k + c == 0 with numbers k and c; else
    None."""
    match [m for m in gap if m]:
        case [(Apply("floordiv", (p, Const(k)), _),) as m] if gap[m] == 1:
            first = -int(gap.get((), 0)) * int(k)
            return [(p, first + r) for r in range(int(k))] if int(k) <= MOST_SMALL else None
        case _:
            return None


def ones(state: State, a: Dim) -> list[State | None]:
    """Return the states in which a size is 1."""
    if isinstance(a, int):
        return [state] if a == 1 else []
    poly = ix.polynomial(a)
    parts = _quotient_of_one(ix.polynomial(ix.as_index(a - 1)))
    ((m, c), *rest) = poly.items()
    if parts or rest or c != 1 or not all(isinstance(x, Size) for x in m):
        found = [s for p, n in parts or [(a, 1)] for s in equated(state, ix.dim(p), n)]
        return [s if s is None or s.sizes != state.sizes else _unit(s, a) for s in found]
    some: State | None = state
    for x in dict.fromkeys(m):
        assert isinstance(x, Size)
        some = None if some is None else some.fixed(x.name, Const(1, INDEX), "")
    return [some]


def _unit(state: State, a: Expr) -> State:
    """Return the state with a composite size that is 1."""
    return replace(state, units=state.units | {a})
