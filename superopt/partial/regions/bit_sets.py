"""Bit-set form of small term sets: each term is a bit.

Nested windows have sets of hundreds of terms, most of which neighbours share. A union of bit sets
is far faster than sorting.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from superopt.partial.regions.term_sets import CAP_BITS, NUMBER_TERM, TermSets
from superopt.te.analysis.walk import subexpressions
from superopt.te.expr.functions import identity_element
from superopt.te.expr.node import Apply, Const, Expr, Load, Reduce

MAX_WORDS = 16  # of 64 bits


class TooManyTerms(Exception):
    """There are too many terms, or constants among them."""


def is_pure_extremum(e: Expr) -> bool:
    """True for maxima of computed maxima of loads, without constants."""
    return isinstance(e, Reduce) and _reads_computed(e.body) and _is_pure(e, e.fn)


def _is_pure(e: Expr, fn: str) -> bool:
    match e:
        case Reduce(of, _, body):
            return of == fn and _is_pure(body, fn)
        case Load(t):
            return t.body is None or _is_pure(t.body, fn)
        case Apply("select", (_, yes, no)):
            return _is_pure(yes, fn) and _is_pure(no, fn)
        case Const(value, dtype):
            return value == identity_element(fn, dtype)
    return False


def _reads_computed(e: Expr) -> bool:
    return any(isinstance(x, Load) and x.tensor.body is not None for x in subexpressions(e))


@dataclass(frozen=True, slots=True)
class BitSets(TermSets):
    """Term sets as arrays (..., words). found: the bit of each term."""

    bit_of_term: dict[int, int] = field(default_factory=dict)

    def singletons(self, x: np.ndarray, e: Expr) -> np.ndarray:
        """Return singleton sets. Raises TooManyTerms."""
        some, which = np.unique(super(BitSets, self).singletons(x, e)[..., 0], return_inverse=True)
        out = np.zeros((len(some), MAX_WORDS), np.uint64)
        for n, term in enumerate(some.tolist()):
            if term:
                bit = self.bit_of_term.setdefault(term, len(self.bit_of_term))
                if bit >= 64 * MAX_WORDS or term - 1 >> CAP_BITS == NUMBER_TERM:
                    raise TooManyTerms
                out[n, bit // 64] = 1 << bit % 64
        return np.asarray(out.view(np.int64)[which.reshape(x.shape[1:])])

    def deduplicate(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(np.bitwise_or.reduce(x.reshape(*x.shape[:-1], -1, MAX_WORDS), axis=-2))

    def set_values(self, x: np.ndarray, e: Expr) -> np.ndarray:
        terms = np.fromiter(self.bit_of_term, np.int64, len(self.bit_of_term))
        bits = np.unpackbits(np.ascontiguousarray(x).view(np.uint8), axis=-1, bitorder="little")
        bits = bits[..., : len(terms)]
        only = (terms - 1)[bits.argmax(-1)] if len(terms) else np.zeros(x.shape[:-1], np.int64)
        return self.values_from_hashes(bits.sum(-1), only, bits @ self.term_hashes(terms), e)
