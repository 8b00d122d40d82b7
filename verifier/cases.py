"""What formulas ask of sizes, by cases: the attempt goes on from where the answer is yes, and from
where it is no."""

from __future__ import annotations

from superopt.te import index as ix
from superopt.te.dtype import BOOL
from superopt.te.expr import Dim
from superopt.te.node import Expr, Size
from superopt.verifier.sizes import State, equated, ordered, taken, tidy, wider


def told(state: State, fn: str, a: Dim, b: Dim) -> bool | None:
    """What the state says of a == b ("eq"), a < b ("lt") or a <= b ("le"); None: nothing."""
    if fn != "eq":
        return taken(state, _after(a) if fn == "lt" else a, b)
    if _is_one(a, b) in state.wide or _unequal(a, b) in state.hypotheses:
        return False
    same = tidy(ix.apply("eq", (ix.as_index(a), ix.as_index(b)), BOOL))
    return True if same in state.hypotheses else None


def either(state: State, fn: str, a: Dim, b: Dim) -> list[State | None]:
    """The states in which it is so, and those in which it is not."""
    if fn != "eq":
        return ordered(state, _after(a) if fn == "lt" else a, b)
    one = _is_one(a, b)
    apart = wider(state, Size(one)) if one else state.given(_unequal(a, b), "")
    return [*equated(state, a, b), apart]


def _after(a: Dim) -> Dim:
    return ix.dim(ix.as_index(a) + 1)


def _is_one(a: Dim, b: Dim) -> str:
    """The symbol that is compared with 1."""
    for p, q in ((a, b), (b, a)):
        if isinstance(p, Size) and q == 1:
            return p.name
    return ""


def _unequal(a: Dim, b: Dim) -> Expr:
    return ix.apply("ne", (ix.as_index(a), ix.as_index(b)), BOOL)
