"""Nodes from before the schema version whose meaning an expression has, that mean the same in other
words: what is an operand since then was an attribute, or had no word at all.

Other old meanings (a Softmax over all dimensions from an axis on) stay opaque.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from superopt.ir.op import Attr, InferError, Op
from superopt.te.expr import TensorType


@dataclass(frozen=True, slots=True)
class Older:
    """since: the least schema version of these words. operands: names of ours by those of the
    attributes that they were, and without: what these are where there is none; attrs: what is
    meant, though nothing says it. results: how many are the same. whole: does a node mean all
    dimensions from its axis on?"""

    since: int
    operands: Mapping[str, str] = field(default_factory=dict)
    without: Mapping[str, float] = field(default_factory=dict)
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    results: int | None = None
    whole: bool = False


OLDER = {
    "Clip": Older(6, {"min": "min", "max": "max"}),
    "Dropout": Older(7, results=1),
    "Hardmax": Older(1, whole=True),
    "LogSoftmax": Older(1, whole=True),
    "Pad": Older(2, {"value": "constant_value"}, {"value": 0.0}),
    "Resize": Older(
        10, attrs={"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    ),
    "Softmax": Older(1, whole=True),
}
SAME = Older(0)


def older(op: Op, since: int) -> Older | None:
    """How a node of schema version `since` says what `op` means; None where it does not."""
    if since >= op.since:
        return SAME
    found = OLDER.get(op.name) if op.domain == "" else None
    return found if found is not None and since >= found.since else None


def checked(how: Older, op: Op, of: TensorType | None, attrs: Mapping[str, Attr]) -> None:
    """Raises InferError where the old node means something else. of: its first operand's type;
    attrs: in the operator's one form."""
    axis = attrs.get("axis")
    if how.whole and isinstance(axis, int):
        behind = None if of is None or of.shape is None else of.shape[axis + 1 :]
        if behind is None or any(n != 1 for n in behind):
            raise InferError(f"in its opset over all dimensions from {axis} on, of {of}")
