"""A field in which a maximum is a function of its terms, whatever their order.

What is equal here is equal for any numbers: the same terms have the same maximum. The other way
round it is not so (a maximum over a larger window is often that over a smaller one, and of maxima
is one of all terms), which only numbers of many orders tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from superopt.te.dtype import DType
from superopt.te.field import PrimeField
from superopt.te.fn import function, unit
from superopt.te.keyed import key, mix
from superopt.te.node import Apply, Expr
from superopt.te.residues import P, Q
from superopt.te.walk import parts

EXTREMES = ("max", "min")


class Multisets(PrimeField):
    """Maxima and minima are keyed functions of the multiset of their terms, without those that
    change none: a sum of hashes (Wegman and Carter, 1981), which is their component 1. A term that
    is a maximum itself is known by that, and stands for its own terms. There must be nothing that
    asks for component 1 (`by_terms`)."""

    __slots__ = ()

    def apply(
        self, fn: str, args: Sequence[np.ndarray], kinds: Sequence[DType], dtype: DType
    ) -> np.ndarray:
        if fn not in EXTREMES or not dtype.is_float:
            return PrimeField.apply(self, fn, args, kinds, dtype)
        one, other = (self.term(fn, x, dtype) for x in args)
        return self.of_terms(fn, np.asarray(one + other), dtype)

    def reduce(self, fn: str, x: np.ndarray, axes: tuple[int, ...], dtype: DType) -> np.ndarray:
        if fn not in EXTREMES or not dtype.is_float:
            return PrimeField.reduce(self, fn, x, axes, dtype)
        return self.of_terms(fn, self.term(fn, x, dtype).sum(axis=axes, keepdims=True), dtype)

    def term(self, fn: str, x: np.ndarray, dtype: DType) -> np.ndarray:
        """A number modulo Q for a term; 0 for one that changes no maximum."""
        nothing = self.const(unit(fn, dtype), dtype)[0]
        hashed = self.hashed(fn, x[0], Q)
        made = x[0] == self.hashed(f"of {fn}", x[1], P)
        return np.where(x[0] == nothing, 0, np.where(made, x[1], hashed))

    def of_terms(self, fn: str, total: np.ndarray, dtype: DType) -> np.ndarray:
        """The maximum of such terms."""
        total = total % Q
        nothing = self.const(unit(fn, dtype), dtype).reshape(2, *(1,) * total.ndim)
        return np.where(total == 0, nothing, np.stack([self.hashed(f"of {fn}", total, P), total]))

    def hashed(self, what: str, x: np.ndarray, modulus: int) -> np.ndarray:
        state = mix(np.atleast_1d(x).astype(np.uint64) ^ np.uint64(key(self.seed, what)))
        return (state % np.uint64(modulus)).astype(np.int64).reshape(x.shape)


def by_terms(bodies: Iterable[Expr]) -> bool:
    """Is nothing else asked of the order of elements, and no exponential taken?"""
    return all(
        e.fn in EXTREMES or function(e.fn).field not in ("order", "hom")
        for body in bodies
        for e in parts(body)
        if isinstance(e, Apply) and e.args[0].dtype.is_float and e.fn not in ("select", "cast")
    )
