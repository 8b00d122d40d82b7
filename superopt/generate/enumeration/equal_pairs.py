"""All equal pairs of a bank among terms of few operators."""

from __future__ import annotations

from itertools import product

import numpy as np

from superopt.generate.enumeration.find_equations import FoundEquations, is_orientable
from superopt.generate.enumeration.pattern import (
    Equation,
    Pattern,
    PatternCall,
    TermReader,
    number_in_order,
)

MAX_PAIR_OPS = 3  # operators of a term that must follow from its class's smallest one


def equal_pairs(found: FoundEquations, max_ops: int = MAX_PAIR_OPS) -> list[Equation]:
    """Return every application of at most `max_ops` operators with its class's smallest term, up to
    renaming; without pairs in which neither side has all variables: both equal a constant without a
    name."""
    reader = TermReader.for_bank(found.bank)
    others = found.bank.applications.size <= max_ops
    first = found.bank.first_application
    others[first[first >= 0]] = False
    known: dict[object, Equation] = {}
    for n in np.flatnonzero(others).tolist():
        e = reader.equation(n)
        if is_orientable(e):
            known.setdefault(_equation_key(e, found), e)
    return list(known.values())


def all_term_pairs(found: FoundEquations, max_ops: int = MAX_PAIR_OPS) -> list[Equation]:
    """Return every term of at most `max_ops` operators with its class's smallest term, up to
    renaming: brute force, with all terms as operands and not only the smallest ones.
    """
    reader = TermReader.for_bank(found.bank)
    a, bank = found.bank.applications, found.bank
    terms: dict[tuple[int, int], list[Pattern]] = {
        (c, 0): [reader.term(c)] for c in bank.leaves.values()
    }
    rows: dict[int, list[int]] = {}
    for n in range(len(a)):
        rows.setdefault(int(a.size[n]), []).append(n)
    for k in range(1, max_ops + 1):
        for n in (n for smallest in range(1, k + 1) for n in rows.get(smallest, ())):
            left, right = int(a.left[n]), int(a.right[n])
            made: list[tuple[Pattern, ...]]
            if right < 0:
                made = [(t,) for t in terms.get((left, k - 1), ())]
            else:
                made = [
                    pair
                    for i in range(k)
                    for pair in product(terms.get((left, i), ()), terms.get((right, k - 1 - i), ()))
                ]
            if made:
                use, of = int(a.use[n]), int(a.result_class[n])
                terms.setdefault((of, k), []).extend(PatternCall(use, some) for some in made)
    names = tuple(bank.family.inputs)
    known: dict[object, Equation] = {}
    for (c, _), some in terms.items():
        for t in some:
            if t != reader.term(c):
                e = number_in_order(Equation(t, reader.term(c), names))
                if is_orientable(e):
                    known.setdefault(_equation_key(e, found), e)
    return list(known.values())


def _equation_key(e: Equation, found: FoundEquations) -> object:
    return e.left, e.right, tuple(found.bank.family.inputs[i] for i in e.inputs)
