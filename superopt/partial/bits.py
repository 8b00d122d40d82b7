"""Bit-set form of small term sets: each term is a bit.

Nested windows have sets of hundreds of terms, most of which neighbours share. A union of bit sets
is far faster than sorting.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from superopt.partial.extremes import BITS, NUMBER, Sets
from superopt.te.fn import unit
from superopt.te.node import Apply, Const, Expr, Load, Reduce
from superopt.te.walk import parts

WORDS = 16  # of 64 bits


class NoBits(Exception):
    """There are too many terms, or constants among them."""


def bare(e: Expr) -> bool:
    """True for maxima of computed maxima of loads, without constants."""
    return isinstance(e, Reduce) and _deep(e.body) and _bare(e, e.fn)


def _bare(e: Expr, fn: str) -> bool:
    match e:
        case Reduce(of, _, body):
            return of == fn and _bare(body, fn)
        case Load(t):
            return t.body is None or _bare(t.body, fn)
        case Apply("select", (_, yes, no)):
            return _bare(yes, fn) and _bare(no, fn)
        case Const(value, dtype):
            return value == unit(fn, dtype)
    return False


def _deep(e: Expr) -> bool:
    return any(isinstance(x, Load) and x.tensor.body is not None for x in parts(e))


@dataclass(frozen=True, slots=True)
class Bits(Sets):
    """Term sets as arrays (..., words). found: the bit of each term."""

    found: dict[int, int] = field(default_factory=dict)

    def term(self, x: np.ndarray, e: Expr) -> np.ndarray:
        """Return singleton sets. Raises TooManyTerms."""
        some, which = np.unique(super(Bits, self).term(x, e)[..., 0], return_inverse=True)
        out = np.zeros((len(some), WORDS), np.uint64)
        for n, term in enumerate(some.tolist()):
            if term:
                bit = self.found.setdefault(term, len(self.found))
                if bit >= 64 * WORDS or term - 1 >> BITS == NUMBER:
                    raise NoBits
                out[n, bit // 64] = 1 << bit % 64
        return np.asarray(out.view(np.int64)[which.reshape(x.shape[1:])])

    def united(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(np.bitwise_or.reduce(x.reshape(*x.shape[:-1], -1, WORDS), axis=-2))

    def value(self, x: np.ndarray, e: Expr) -> np.ndarray:
        terms = np.fromiter(self.found, np.int64, len(self.found))
        bits = np.unpackbits(np.ascontiguousarray(x).view(np.uint8), axis=-1, bitorder="little")
        bits = bits[..., : len(terms)]
        only = (terms - 1)[bits.argmax(-1)] if len(terms) else np.zeros(x.shape[:-1], np.int64)
        return self.valued(bits.sum(-1), only, bits @ self.state(terms), e)
