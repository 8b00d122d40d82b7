"""Unroll sums and maxima over small ranges: a kernel of 3 x 3 becomes nine products."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

from superopt.verifier.elements import normal, substitute
from superopt.verifier.elements.maxima import max_of_pieces
from superopt.verifier.elements.normal import NF, Piece, Term
from superopt.verifier.elements.simplify import multiply, open_piece, simplify_term
from superopt.verifier.poly.facts import Facts
from superopt.verifier.poly.polynomial import Poly, Var, const

MAX_EXTENT = 9  # extent of one variable
MAX_COPIES = 27  # terms or pieces from one
MAX_TERMS = 256


def unroll(d: NF, facts: Facts) -> NF:
    """Return the form with sums over small ranges unrolled, and maxima outside other functions. The
    same object if there are none, or if the result has too many terms."""
    out: list[Term] = []
    changed = False
    for t in d.terms:
        unrolled = _unroll_term(t, facts)
        changed = changed or unrolled is not None
        out += [t] if unrolled is None else unrolled
        if len(out) > MAX_TERMS:
            return d
    return normal.from_terms(facts.context, out) if changed else d


def _unroll_term(closed: Term, facts: Facts) -> list[Term] | None:
    t = substitute.open_term(closed)
    small = _small_vars(t.bound)
    tops = [] if t.bound else [f for f, e in t.powers if e == 1 and _is_unrollable(f)]
    if not small and not tops:
        return None
    if tops:
        rest = tuple((f, e) for f, e in t.powers if f not in tops)
        one = normal.from_terms(
            facts.context, (substitute.close(Term(t.coefficient, (), t.guards, rest)),)
        )
        for f in tops:
            assert isinstance(f, normal.Max)
            pieces = [q for p in f.pieces for q in _unroll_piece(open_piece(p))]
            one = multiply(one, max_of_pieces(pieces, facts), facts)
        return list(one.terms)
    out: list[Term] = []
    kept = tuple(v for v in t.bound if v not in small)
    for env in _assignments(small):
        guards = frozenset(substitute.guard_at(g, env) for g in t.guards)
        summand = Term(t.coefficient, kept, guards, substitute.powers_at(t.powers, env))
        out += simplify_term(summand, facts)
    return out


def _is_unrollable(f: normal.Factor) -> bool:
    return isinstance(f, normal.Max) and any(_small_vars(open_piece(p).bound) for p in f.pieces)


def _unroll_piece(p: Piece) -> Iterator[Piece]:
    small = _small_vars(p.bound)
    kept = tuple(v for v in p.bound if v not in small)
    for env in _assignments(small):
        guards = frozenset(substitute.guard_at(g, env) for g in p.guards)
        yield Piece(kept, guards, substitute.form_at(p.value, env))


def _small_vars(bound: tuple[Var, ...]) -> tuple[Var, ...]:
    """Return variables of small extent on which no other extent depends, limited in total."""
    out: list[Var] = []
    for v in bound:
        n = v.extent.value
        if n is None or not 0 < n <= MAX_EXTENT or any(v in w.extent.vars for w in bound):
            continue
        if math.prod(int(w.extent.value or 1) for w in out) * n <= MAX_COPIES:
            out.append(v)
    return tuple(out)


def _assignments(small: tuple[Var, ...]) -> Iterator[dict[Var, Poly]]:
    ranges = [range(int(v.extent.value or 0)) for v in small]
    for values in product(*ranges):
        yield {v: const(v.extent.context, k) for v, k in zip(small, values, strict=True)}
