"""Unroll sums and maxima over small ranges: a kernel of 3 x 3 becomes nine products."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

from superopt.verifier import normal as N
from superopt.verifier import substitute as S
from superopt.verifier.facts import Facts
from superopt.verifier.maxima import greatest_of
from superopt.verifier.normal import NF, Piece, Term
from superopt.verifier.poly import Poly, Var, const
from superopt.verifier.simplify import opened_piece, simplified, times

FEW = 9  # extent of one variable
MOST = 27  # terms or pieces from one
MOST_TERMS = 256


def unrolled(d: NF, facts: Facts) -> NF:
    """Return the form with sums over small ranges unrolled, and maxima outside other functions. The
    same object if there are none, or if the result has too many terms."""
    out: list[Term] = []
    changed = False
    for t in d.terms:
        some = _term(t, facts)
        changed = changed or some is not None
        out += [t] if some is None else some
        if len(out) > MOST_TERMS:
            return d
    return N.form(out) if changed else d


def _term(closed: Term, facts: Facts) -> list[Term] | None:
    t = S.opened(closed)
    few = _few(t.bound)
    tops = [] if t.bound else [f for f, e in t.powers if e == 1 and _unrolls(f)]
    if not few and not tops:
        return None
    if tops:
        rest = tuple((f, e) for f, e in t.powers if f not in tops)
        one = N.form((S.close(Term(t.coefficient, (), t.guards, rest)),))
        for f in tops:
            assert isinstance(f, N.Top)
            pieces = [q for p in f.pieces for q in _pieces(opened_piece(p))]
            one = times(one, greatest_of(pieces, facts), facts)
        return list(one.terms)
    out: list[Term] = []
    kept = tuple(v for v in t.bound if v not in few)
    for env in _places(few):
        guards = frozenset(S.guard_at(g, env) for g in t.guards)
        made = Term(t.coefficient, kept, guards, S.powers_at(t.powers, env))
        out += simplified(made, facts)
    return out


def _unrolls(f: N.Factor) -> bool:
    return isinstance(f, N.Top) and any(_few(opened_piece(p).bound) for p in f.pieces)


def _pieces(p: Piece) -> Iterator[Piece]:
    few = _few(p.bound)
    kept = tuple(v for v in p.bound if v not in few)
    for env in _places(few):
        guards = frozenset(S.guard_at(g, env) for g in p.guards)
        yield Piece(kept, guards, S.form_at(p.value, env))


def _few(bound: tuple[Var, ...]) -> tuple[Var, ...]:
    """Return variables of small extent on which no other extent depends, limited in total."""
    out: list[Var] = []
    for v in bound:
        n = v.extent.value
        if n is None or not 0 < n <= FEW or any(v in w.extent.vars for w in bound):
            continue
        if math.prod(int(w.extent.value or 1) for w in out) * n <= MOST:
            out.append(v)
    return tuple(out)


def _places(few: tuple[Var, ...]) -> Iterator[dict[Var, Poly]]:
    ranges = [range(int(v.extent.value or 0)) for v in few]
    for values in product(*ranges):
        yield {v: const(k) for v, k in zip(few, values, strict=True)}
