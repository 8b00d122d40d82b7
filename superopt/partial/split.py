"""Extend mutants that need divisible sizes: split off the remainder.

Rows as a batch need an even number of rows. For an odd number the mutant takes all but the last
row, and its result is padded with zeros. These are wrong, like other wrong boxes, and come from the
program: a remainder is one more box.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

from superopt.ops import OPS
from superopt.partial.restrict import shape_of
from superopt.partial.sizes import Sized, at, some
from superopt.partial.symbolic import NoFormula, formula
from superopt.partial.terms import parsed
from superopt.rules.rule import Rule
from superopt.rules.syntax import Param
from superopt.rules.term import (
    App,
    Binary,
    Compare,
    Formula,
    Lit,
    Name,
    Part,
    Seq,
    Term,
    Var,
    rebuild,
)

SPLIT = "split"


def split(pair: Rule) -> list[Rule]:
    """Return pairs of the same program for the remainders that `pair` does not accept; none if it
    accepts all sizes."""
    divided = dict(filter(None, map(_divided, pair.where)))
    out = []
    for rests in product(*(range(f) for f in divided.values())):
        left = {n: r for n, r in zip(divided, rests, strict=True) if r}
        made = _split(pair, left) if left else None
        if made is not None:
            out.append(made)
    return out


def _divided(condition: Formula) -> tuple[str, int] | None:
    """Return (h, 2) for h % 2 == 0, else None."""
    match condition:
        case Compare(Binary("%", Name(n), Lit(int() as f)), (("==", Lit(0)),)) if f > 1:
            return n, f
    return None


def _split(pair: Rule, rests: Mapping[str, int]) -> Rule | None:
    """Return the pair for sizes with these remainders."""
    (program,), (mutant,) = pair.lhs, pair.rhs
    gaps = _gaps(pair, rests)
    if gaps is None:
        return None
    less = {n: Binary("-", Name(n), Lit(r)) for n, r in rests.items()}
    even = {p.name: _even(p, less) for p in pair.params if isinstance(p, Param)}

    def change(p: Part) -> Part | None:
        match p:
            case Var(n):
                return even.get(n)
            case Name(n):
                return less.get(n)
        return None

    wide = rebuild(mutant, change)
    if any(gap != "0" for gap in gaps):
        pads = (*("0" for _ in gaps), *gaps)
        wide = App(OPS["Pad"], (wide,), (("pads", Seq(tuple(map(parsed, pads)))),))
    told = "-".join(f"{n}{r}" for n, r in rests.items())
    where = tuple(_leaving(c, rests) for c in pair.where)
    name = f"{pair.name}-{SPLIT}-{told}"
    return replace(pair, name=name, lhs=(program,), rhs=(wide,), where=where, text="")


def _even(p: Param, less: Mapping[str, Formula]) -> Term:
    """Return the divisible part of an operand."""
    axes = [(d, less[n.id]) for d, n in enumerate(p.shape or ()) if _named(n, less)]  # type: ignore[union-attr]
    if not axes:
        return Var(p.name)
    attrs: dict[str, Formula] = {
        "starts": Seq(tuple(Lit(0) for _ in axes)),
        "ends": Seq(tuple(end for _, end in axes)),
        "axes": Seq(tuple(Lit(d) for d, _ in axes)),
    }
    return App(OPS["Slice"], (Var(p.name),), tuple(sorted(attrs.items())))


def _named(d: object, less: Mapping[str, Formula]) -> bool:
    return isinstance(d, Name) and d.id in less


def _leaving(condition: Formula, rests: Mapping[str, int]) -> Formula:
    found = _divided(condition)
    if found is None or found[0] not in rests:
        return condition
    n, f = found
    return Compare(Binary("%", Name(n), Lit(f)), (("==", Lit(rests[n])),))


def _gaps(pair: Rule, rests: Mapping[str, int]) -> tuple[str, ...] | None:
    """Return how much smaller each axis of the mutant of the divisible part is, as formulas; None
    if it does not fit, or is larger."""
    other = App(OPS["Neg"], pair.lhs)  # sides that are one are no rule
    program = replace(pair, rhs=(other,), where=())
    found = list(_both(program, some(pair), rests))
    if len(found) < 2:
        return None
    try:
        columns = zip(*(gaps for _, gaps in found), strict=True)
        told = tuple(formula([sizes for sizes, _ in found], column) for column in columns)
    except NoFormula:
        return None
    return told if all(min(gaps) >= 0 for _, gaps in found) else None


def _both(
    program: Rule, some: Sequence[Sized], rests: Mapping[str, int]
) -> Iterator[tuple[dict[str, int], list[int]]]:
    for s in some:
        sizes = {n: size + rests.get(n, 0) for n, size in s.sizes.items()}
        whole = at(program, sizes)
        if whole is not None:
            shapes = shape_of(whole.left), shape_of(s.right)
            yield sizes, [a - b for a, b in zip(*shapes, strict=True)]
