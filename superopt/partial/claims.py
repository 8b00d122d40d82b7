"""Claims about a program, its mutant and their parts, as rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from superopt.ops import OPS
from superopt.partial.symbolic import Part, Parts
from superopt.partial.terms import parsed
from superopt.rules.rule import Rule
from superopt.rules.term import App, Formula, Lit, Seq, Term


def cut(t: Term, part: Part) -> Term:
    """Return a Slice of a term."""
    axes = [(d, r) for d, r in enumerate(part) if not r.whole]
    if not axes:
        return t
    attrs = {
        "starts": Seq(tuple(parsed(r.begin) for _, r in axes)),
        "ends": Seq(tuple(parsed(r.end) for _, r in axes)),
        "axes": Seq(tuple(Lit(d) for d, _ in axes)),
        "steps": Seq(tuple(Lit(r.step) for _, r in axes)),
    }
    return App(OPS["Slice"], (t,), tuple(sorted(attrs.items())))


def conditions(parts: Parts) -> tuple[Formula, ...]:
    """Return the conditions under which the boxes exist: 0 <= begin <= end."""
    out: dict[Formula, None] = {}
    for part in (*parts.equal, *parts.different):
        for r in part:
            for small, large in ((r.begin, r.end), ("0", r.begin)):
                told = f"{small} {'<' if large == r.end else '<='} {large}"
                if not r.whole and not (small.isdigit() and large.isdigit()):
                    out[parsed(told)] = None
    return tuple(out)


def claims(pair: Rule, parts: Parts, some: Sequence[Part] | None = None) -> list[Rule]:
    """Return for each box (or each selected one) the claim that both sides are equal there."""
    (left,), (right,) = pair.lhs, pair.rhs
    where = (*pair.where, *conditions(parts))
    out = []
    for n, part in enumerate(parts.equal if some is None else some):
        lhs, rhs = (cut(left, part),), (cut(right, part),)
        name = f"{pair.name}[{n}]"
        out.append(replace(pair, name=name, lhs=lhs, rhs=rhs, where=where, float_class="E2"))
    return out
