"""A field with uninterpreted functions, in which maxima and conditions are uninterpreted, too.

Programs that are equal there are the same sums, products and quotients of the same functions of the
same arguments, hence equal for any functions. The chance of error is 2 in 2^31. Programs that
differ there may be equal by laws of a function.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from superopt.partial.regions.points import Points
from superopt.te.eval import residues
from superopt.te.eval.keyed_hash import keyed_hash, mix
from superopt.te.eval.prime_field import PrimeField
from superopt.te.expr.dtype import INDEX, DType
from superopt.te.expr.functions import scalar_function
from superopt.te.expr.tensor import Tensor


@dataclass(frozen=True, slots=True)
class _UninterpretedField(PrimeField):
    """Floats are pairs of residues. Bools and integers are one residue, except conditions on
    indices, which are bools."""

    def apply(
        self, fn: str, args: Sequence[np.ndarray], kinds: Sequence[DType], dtype: DType
    ) -> np.ndarray:
        if fn == "cast" and (kinds[0] == INDEX or (kinds[0].is_float and dtype.is_float)):
            return super(_UninterpretedField, self).apply(fn, args, kinds, dtype)
        special = fn in ("select", "cast", "bitcast")
        if (
            dtype.is_float
            and not special
            and scalar_function(fn).field_semantics in ("ring", "quotient")
        ):
            return super(_UninterpretedField, self).apply(fn, args, kinds, dtype)
        own = [a[0] if k.is_float else a for a, k in zip(args, kinds, strict=True)]
        if fn in ("cast", "bitcast"):
            fn = f"{fn} of {kinds[0]} to {dtype}"
        state = np.full((1,), keyed_hash(self.seed, fn), np.uint64)
        if fn in ("max", "min"):
            state = state + sum(mix(a.astype(np.uint64)) for a in own)  # in any order
        else:
            for a in own:
                state = mix(state ^ mix(a.astype(np.int64).astype(np.uint64)))
        return self.residues_of(state, dtype)

    def reduce(self, fn: str, x: np.ndarray, axes: tuple[int, ...], dtype: DType) -> np.ndarray:
        if dtype.is_float and fn in ("sum", "prod"):
            return super(_UninterpretedField, self).reduce(fn, x, axes, dtype)
        own = (x[0] if dtype.is_float else x).astype(np.int64).astype(np.uint64)
        state = np.add.reduce(
            mix(own ^ np.uint64(keyed_hash(self.seed, fn))), axis=axes, keepdims=True
        )
        return self.residues_of(state, dtype)

    def residues_of(self, state: np.ndarray, dtype: DType) -> np.ndarray:
        state = mix(state)
        moduli = (residues.P, residues.Q) if dtype.is_float else (residues.P,)
        parts = [(mix(state + np.uint64(n)) % np.uint64(m)) for n, m in enumerate(moduli)]
        return np.stack(parts).astype(np.int64) if dtype.is_float else parts[0].astype(np.int64)


@dataclass(slots=True)
class UninterpretedPoints(Points):
    """Inputs are residues, whatever their type."""

    def __post_init__(self) -> None:
        self.domain = _UninterpretedField(self.seed)

    def draw_elements(self, t: Tensor, where: np.ndarray) -> np.ndarray:
        if t.dtype.is_float:
            return super(UninterpretedPoints, self).draw_elements(t, where)
        state = mix(where.astype(np.uint64) ^ np.uint64(keyed_hash(self.seed, t.name)))
        return (state % np.uint64(residues.P)).astype(np.int64)
