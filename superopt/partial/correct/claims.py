"""Claims about a program, its mutant and their parts, as rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from superopt.ops import OPS
from superopt.partial.correct.formulas import parse_formula
from superopt.partial.correct.symbolic_boxes import SymbolicBox, SymbolicRegions
from superopt.rules.lang.rule import Rule
from superopt.rules.lang.term import App, Formula, Lit, Seq, Term


def slice_term(t: Term, part: SymbolicBox) -> Term:
    """Return a Slice of a term."""
    axes = [(d, r) for d, r in enumerate(part) if not r.is_full]
    if not axes:
        return t
    attrs = {
        "starts": Seq(tuple(parse_formula(r.begin) for _, r in axes)),
        "ends": Seq(tuple(parse_formula(r.end) for _, r in axes)),
        "axes": Seq(tuple(Lit(d) for d, _ in axes)),
        "steps": Seq(tuple(Lit(r.step) for _, r in axes)),
    }
    return App(OPS["Slice"], (t,), tuple(sorted(attrs.items())))


def box_conditions(parts: SymbolicRegions) -> tuple[Formula, ...]:
    """Return the conditions under which the boxes exist: 0 <= begin <= end."""
    out: dict[Formula, None] = {}
    for part in (*parts.equal, *parts.different):
        for r in part:
            for small, large in ((r.begin, r.end), ("0", r.begin)):
                told = f"{small} {'<' if large == r.end else '<='} {large}"
                if not r.is_full and not (small.isdigit() and large.isdigit()):
                    out[parse_formula(told)] = None
    return tuple(out)


def equality_claims(
    pair: Rule, parts: SymbolicRegions, selected: Sequence[SymbolicBox] | None = None
) -> list[Rule]:
    """Return for each box (or each selected one) the claim that both sides are equal there."""
    (left,), (right,) = pair.lhs, pair.rhs
    where = (*pair.where, *box_conditions(parts))
    out = []
    for n, part in enumerate(parts.equal if selected is None else selected):
        lhs, rhs = (slice_term(left, part),), (slice_term(right, part),)
        name = f"{pair.name}[{n}]"
        out.append(replace(pair, name=name, lhs=lhs, rhs=rhs, where=where, float_class="E2"))
    return out
