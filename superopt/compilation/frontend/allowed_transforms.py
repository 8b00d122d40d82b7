"""Which transforms of a model are allowed when it is compiled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # models from the cache load no planner
    from superopt.plan.decisions import KernelDecision

MIN_WINOGRAD_FLOAT_CLASS = (
    "E2"  # float class of Winograd convolutions: products are distributed over sums
)


@dataclass(frozen=True, slots=True)
class AllowedTransforms:
    """float_class: the largest allowed change of floats. partial_rules: allow programs that are
    equal in parts, together with their corrections. In kernels this is a dilated convolution as
    dense ones of every d-th element (rules/library/partial, dilated-as-a-batch and similar), whose
    ends are ragged: each is computed by Winograd tiles. left_out: kinds of kernel decisions that
    are not made, to measure what they gain (superopt/plan/decisions.py)."""

    float_class: str = "E2"
    partial_rules: bool = True
    left_out: frozenset[KernelDecision] = frozenset()

    @property
    def winograd(self) -> bool:
        return self.float_class >= MIN_WINOGRAD_FLOAT_CLASS


ALL_TRANSFORMS = AllowedTransforms()
