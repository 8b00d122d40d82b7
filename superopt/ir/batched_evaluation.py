"""Evaluate an operator for many operands at once.

A field element is a pair of residues on a leading axis; here a second leading axis enumerates
candidates. Tensor expressions index elements by trailing axes, so that both pass through.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from superopt.ir.op import Attrs, Op, expression
from superopt.te.eval.interpret import evaluate_all
from superopt.te.eval.prime_field import PrimeField
from superopt.te.expr.dtype import DType
from superopt.te.expr.node import Number
from superopt.te.expr.tensor import TensorType


@dataclass(frozen=True, slots=True)
class BatchedField(PrimeField):
    """The prime field for `count` candidates: float arrays are (2, count, samples, *shape)."""

    count: int = 1
    samples: int = 1

    def component_shape(self, dtype: DType) -> tuple[int, ...]:
        return (2, self.count, self.samples) if dtype.is_float else ()

    def const(self, value: Number, dtype: DType) -> np.ndarray:
        c = PrimeField.const(self, value, dtype)
        return c[:, None, None] if dtype.is_float else c


def evaluate_batch(
    op: Op,
    types: Sequence[TensorType | None],
    attrs: Attrs,
    operands: Sequence[np.ndarray | None],
    seed: int,
) -> list[np.ndarray]:
    """Return the results of `op`, each (2, count, samples, *shape), for operands of the same
    form."""
    count, samples = next(a.shape[1:3] for a in operands if a is not None)
    tensors = expression(op, tuple(types), attrs)
    inputs = {f"a{n}": a for n, a in enumerate(operands) if a is not None}
    return evaluate_all(tensors, inputs, BatchedField(seed, count, samples))
