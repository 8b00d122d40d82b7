"""Constant vectors that hold one or two runs of consecutive integers, for all lengths and starts.

`contiguous(items(i))` makes i[j] = first + j; with `contiguous(items(i)[:m])` and
`contiguous(items(i)[m:])` i[j] is first + j where j < m, and second + j - m elsewhere.
"""

from __future__ import annotations

from superopt.rules.rule import Rule
from superopt.rules.syntax import Param
from superopt.rules.term import (
    At,
    Binary,
    Call,
    Compare,
    Cut,
    Formula,
    Lit,
    Name,
    Part,
    Seq,
    rebuild,
    walk,
)
from superopt.te import index as ix
from superopt.te.dtype import DType
from superopt.te.expr import Dim, Tensor, cast, compute, select
from superopt.te.node import Expr
from superopt.verifier.attributes import Unsupported

FIRST, SECOND, LENGTH = "first of ", "second of ", "length of "  # prefixes of a parameter's name


def runs(rule: Rule) -> dict[str, str]:
    """Return the vectors that conditions declare contiguous: by name, the name of the split, or ""
    for a single run."""
    found: dict[str, str] = {}
    for f in rule.where:
        match f:
            case Call("contiguous", (Call("items", (Name(n),)),)):
                found[n] = ""
            case Call("contiguous", (Cut(Call("items", (Name(n),)), Name(m), None, None),)):
                if _first_too(rule, n, m):
                    found[n] = m
            case _:
                pass
    return found


def _first_too(rule: Rule, n: str, m: str) -> bool:
    """True if the items before index m are a run, too, and neither run is empty."""
    length = next(p.shape for p in rule.params if isinstance(p, Param) and p.name == n)
    wanted = (
        Call("contiguous", (Cut(Call("items", (Name(n),)), None, Name(m), None),)),
        Compare(Name(m), ((">", Lit(0)),)),
        Compare(Name(m), (("<", (length or (Lit(0),))[0]),)),
    )
    return all(f in rule.where for f in wanted)


def vector(kind: DType, n: Dim, first: Dim, second: Dim | None, place: Dim, name: str) -> Tensor:
    """Return the vector of n integers. second: the first item of the run at `split`."""

    def element(j: Expr) -> Expr:
        one = cast(ix.as_index(j + first), kind)
        if second is None:
            return one
        return select(j < place, one, cast(ix.as_index(j - place + second), kind))

    return compute((n,), element, name=name)


def spoken(f: Formula, of: dict[str, str]) -> Formula:
    """Return `f` without the items of contiguous vectors."""

    def change(p: Part) -> Part | None:
        match p:
            case Call("contiguous", (x,)) if _items(x, of):
                return Lit(True)
            case Call("min", (Call("items", (Name(n),)),)) if of.get(n):
                return Call("min", (Name(FIRST + n), Name(SECOND + n)))
            case At(Call("items", (Name(n),)), Lit(0)) if n in of:
                return Name(FIRST + n)
            case At(Call("items", (Name(n),)), Name(m)) if of.get(n) == m:
                return Name(SECOND + n)
            case At(Call("items", (Name(n),)), Binary("-", Name(m), Lit(1))) if of.get(n) == m:
                return _last(Name(FIRST + n), Name(m))
            case At(Call("items", (Name(n),)), k) if n in of and k == LAST and of[n]:
                return _last(Name(SECOND + n), Binary("-", Name(LENGTH + n), Name(of[n])))
            case At(Call("items", (Name(n),)), k) if n in of and k == LAST:
                return _last(Name(FIRST + n), Name(LENGTH + n))
            case Cut(Call("items", (Name(n),)), None, Lit(1), None) if n in of:
                return Seq((Name(FIRST + n),))
            case Call("items", (Name(n),)):
                raise Unsupported(f"the numbers of {n}")
            case _:
                return None

    return rebuild(f, change)


LAST = Lit(-1)


def _items(f: Formula, of: dict[str, str]) -> bool:
    """True if the formula consists of items of such vectors."""
    return any(isinstance(p, Call) and p.fn == "items" for p in walk(f)) and all(
        p.args[0].id in of
        for p in walk(f)
        if isinstance(p, Call) and p.fn == "items" and isinstance(p.args[0], Name)
    )


def _last(first: Formula, length: Formula) -> Formula:
    return Binary("-", Binary("+", first, length), Lit(1))
