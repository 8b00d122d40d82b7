"""Constant vectors that hold one or two runs of consecutive integers, for all lengths and starts.

`contiguous(items(i))` makes i[j] = first + j; with `contiguous(items(i)[:m])` and
`contiguous(items(i)[m:])` i[j] is first + j where j < m, and second + j - m elsewhere.
"""

from __future__ import annotations

from superopt.rules.lang.rule import Rule
from superopt.rules.lang.syntax import Param
from superopt.rules.lang.term import (
    Binary,
    Call,
    Compare,
    Formula,
    Lit,
    Name,
    Part,
    Seq,
    Slice,
    Subscript,
    rebuild,
    walk,
)
from superopt.te.expr import index
from superopt.te.expr.dtype import DType
from superopt.te.expr.node import Expr
from superopt.te.expr.tensor import Dim, Tensor, cast, compute, select
from superopt.verifier.instances.attributes import Unsupported

FIRST_PREFIX, SECOND_PREFIX, LENGTH_PREFIX = (
    "first of ",
    "second of ",
    "length of ",
)  # prefixes of a parameter's name


def contiguous_vectors(rule: Rule) -> dict[str, str]:
    """Return the vectors that conditions declare contiguous: by name, the name of the split, or ""
    for a single run."""
    found: dict[str, str] = {}
    for f in rule.where:
        match f:
            case Call("contiguous", (Call("items", (Name(n),)),)):
                found[n] = ""
            case Call("contiguous", (Slice(Call("items", (Name(n),)), Name(m), None, None),)):
                if _is_first_run_contiguous(rule, n, m):
                    found[n] = m
            case _:
                pass
    return found


def _is_first_run_contiguous(rule: Rule, n: str, m: str) -> bool:
    """True if the items before index m are a run, too, and neither run is empty."""
    length = next(p.shape for p in rule.params if isinstance(p, Param) and p.name == n)
    wanted = (
        Call("contiguous", (Slice(Call("items", (Name(n),)), None, Name(m), None),)),
        Compare(Name(m), ((">", Lit(0)),)),
        Compare(Name(m), (("<", (length or (Lit(0),))[0]),)),
    )
    return all(f in rule.where for f in wanted)


def contiguous_vector(
    kind: DType, n: Dim, start: Dim, second: Dim | None, split: Dim, name: str
) -> Tensor:
    """Return the vector of n integers. second: the first item of the run at `split`."""

    def element(j: Expr) -> Expr:
        one = cast(index.as_index(j + start), kind)
        if second is None:
            return one
        return select(j < split, one, cast(index.as_index(j - split + second), kind))

    return compute((n,), element, name=name)


def replace_items(f: Formula, vectors: dict[str, str]) -> Formula:
    """Return `f` without the items of contiguous vectors."""

    def change(p: Part) -> Part | None:
        match p:
            case Call("contiguous", (x,)) if _is_items_of(x, vectors):
                return Lit(True)
            case Call("min", (Call("items", (Name(n),)),)) if vectors.get(n):
                return Call("min", (Name(FIRST_PREFIX + n), Name(SECOND_PREFIX + n)))
            case Subscript(Call("items", (Name(n),)), Lit(0)) if n in vectors:
                return Name(FIRST_PREFIX + n)
            case Subscript(Call("items", (Name(n),)), Name(m)) if vectors.get(n) == m:
                return Name(SECOND_PREFIX + n)
            case Subscript(Call("items", (Name(n),)), Binary("-", Name(m), Lit(1))) if (
                vectors.get(n) == m
            ):
                return _last_item(Name(FIRST_PREFIX + n), Name(m))
            case Subscript(Call("items", (Name(n),)), k) if (
                n in vectors and k == LAST_INDEX and vectors[n]
            ):
                return _last_item(
                    Name(SECOND_PREFIX + n), Binary("-", Name(LENGTH_PREFIX + n), Name(vectors[n]))
                )
            case Subscript(Call("items", (Name(n),)), k) if n in vectors and k == LAST_INDEX:
                return _last_item(Name(FIRST_PREFIX + n), Name(LENGTH_PREFIX + n))
            case Slice(Call("items", (Name(n),)), None, Lit(1), None) if n in vectors:
                return Seq((Name(FIRST_PREFIX + n),))
            case Call("items", (Name(n),)):
                raise Unsupported(f"the numbers of {n}")
            case _:
                return None

    return rebuild(f, change)


LAST_INDEX = Lit(-1)


def _is_items_of(f: Formula, vectors: dict[str, str]) -> bool:
    """True if the formula consists of items of such vectors."""
    return any(isinstance(p, Call) and p.fn == "items" for p in walk(f)) and all(
        p.args[0].id in vectors
        for p in walk(f)
        if isinstance(p, Call) and p.fn == "items" and isinstance(p.args[0], Name)
    )


def _last_item(first: Formula, length: Formula) -> Formula:
    return Binary("-", Binary("+", first, length), Lit(1))
