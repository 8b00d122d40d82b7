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
from superopt.partial.correct.formulas import parse_formula
from superopt.partial.correct.restrict import static_shape
from superopt.partial.correct.sized_pairs import SizedPair, pair_at, sample_sizes
from superopt.partial.correct.symbolic_boxes import NoFormula, fit_formula
from superopt.rules.lang.rule import Rule
from superopt.rules.lang.syntax import Param
from superopt.rules.lang.term import (
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


def split_pairs(pair: Rule) -> list[Rule]:
    """Return pairs of the same program for the remainders that `pair` does not accept; none if it
    accepts all sizes."""
    divided = dict(filter(None, map(_divisibility, pair.where)))
    out = []
    for rests in product(*(range(f) for f in divided.values())):
        left = {n: r for n, r in zip(divided, rests, strict=True) if r}
        made = _split_pair(pair, left) if left else None
        if made is not None:
            out.append(made)
    return out


def _divisibility(condition: Formula) -> tuple[str, int] | None:
    """Return (h, 2) for h % 2 == 0, else None."""
    match condition:
        case Compare(Binary("%", Name(n), Lit(int() as f)), (("==", Lit(0)),)) if f > 1:
            return n, f
    return None


def _split_pair(pair: Rule, remainders: Mapping[str, int]) -> Rule | None:
    """Return the pair for sizes with these remainders."""
    (program,), (mutant,) = pair.lhs, pair.rhs
    gaps = _gaps(pair, remainders)
    if gaps is None:
        return None
    less = {n: Binary("-", Name(n), Lit(r)) for n, r in remainders.items()}
    even = {p.name: _divisible_part(p, less) for p in pair.params if isinstance(p, Param)}

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
        wide = App(OPS["Pad"], (wide,), (("pads", Seq(tuple(map(parse_formula, pads)))),))
    told = "-".join(f"{n}{r}" for n, r in remainders.items())
    where = tuple(_with_remainder(c, remainders) for c in pair.where)
    name = f"{pair.name}-{SPLIT}-{told}"
    return replace(pair, name=name, lhs=(program,), rhs=(wide,), where=where, text="")


def _divisible_part(p: Param, less: Mapping[str, Formula]) -> Term:
    """Return the divisible part of an operand."""
    axes = [(d, less[n.id]) for d, n in enumerate(p.shape or ()) if _is_split_size(n, less)]  # type: ignore[union-attr]
    if not axes:
        return Var(p.name)
    attrs: dict[str, Formula] = {
        "starts": Seq(tuple(Lit(0) for _ in axes)),
        "ends": Seq(tuple(end for _, end in axes)),
        "axes": Seq(tuple(Lit(d) for d, _ in axes)),
    }
    return App(OPS["Slice"], (Var(p.name),), tuple(sorted(attrs.items())))


def _is_split_size(d: object, less: Mapping[str, Formula]) -> bool:
    return isinstance(d, Name) and d.id in less


def _with_remainder(condition: Formula, remainders: Mapping[str, int]) -> Formula:
    found = _divisibility(condition)
    if found is None or found[0] not in remainders:
        return condition
    n, f = found
    return Compare(Binary("%", Name(n), Lit(f)), (("==", Lit(remainders[n])),))


def _gaps(pair: Rule, remainders: Mapping[str, int]) -> tuple[str, ...] | None:
    """Return how much smaller each axis of the mutant of the divisible part is, as formulas; None
    if it does not fit, or is larger."""
    other = App(OPS["Neg"], pair.lhs)  # sides that are one are no rule
    program = replace(pair, rhs=(other,), where=())
    found = list(_size_gaps(program, sample_sizes(pair), remainders))
    if len(found) < 2:
        return None
    try:
        columns = zip(*(gaps for _, gaps in found), strict=True)
        told = tuple(fit_formula([sizes for sizes, _ in found], column) for column in columns)
    except NoFormula:
        return None
    return told if all(min(gaps) >= 0 for _, gaps in found) else None


def _size_gaps(
    program: Rule, some: Sequence[SizedPair], remainders: Mapping[str, int]
) -> Iterator[tuple[dict[str, int], list[int]]]:
    for s in some:
        sizes = {n: size + remainders.get(n, 0) for n, size in s.sizes.items()}
        whole = pair_at(program, sizes)
        if whole is not None:
            shapes = static_shape(whole.program), static_shape(s.mutant)
            yield sizes, [a - b for a, b in zip(*shapes, strict=True)]
