"""Nodes of older schema versions that have the meaning of a newer operator in another form: an
operand was an attribute, or was implied.

Other old meanings (a Softmax flattened from an axis on) stay opaque.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from superopt.ir.op import Attr, InferError, Op
from superopt.te.expr import TensorType


@dataclass(frozen=True, slots=True)
class Older:
    """An older form of an operator. since: first schema version of this form. attribute_operands:
    operand name by the name of the attribute that it was. defaults: values of these attributes if
    absent. implied_attrs: attributes that the old form implies. same_results: number of results
    with the same meaning. flattens_from_axis: the node acts on all dimensions from its axis on."""

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
    """Return the form in which schema version `since` expresses `op`, or None."""
    if since >= op.since:
        return SAME
    found = OLDER.get(op.name) if op.domain == "" else None
    return found if found is not None and since >= found.since else None


def checked(how: Older, op: Op, of: TensorType | None, attrs: Mapping[str, Attr]) -> None:
    """Raise InferError if the old node means something else. first_type: type of the first operand;
    attrs: in canonical form."""
    axis = attrs.get("axis")
    if how.whole and isinstance(axis, int):
        behind = None if of is None or of.shape is None else of.shape[axis + 1 :]
        if behind is None or any(n != 1 for n in behind):
            raise InferError(f"in its opset over all dimensions from {axis} on, of {of}")
