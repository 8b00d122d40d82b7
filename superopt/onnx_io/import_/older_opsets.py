"""Nodes of older schema versions that have the meaning of a newer operator in another form: an
operand was an attribute, or was implied.

Other old meanings (a Softmax flattened from an axis on) stay opaque.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from superopt.ir.op import Attr, InferError, Op
from superopt.te.expr.tensor import TensorType


@dataclass(frozen=True, slots=True)
class OlderForm:
    """An older form of an operator. since: first schema version of this form. attribute_operands:
    operand name by the name of the attribute that it was. defaults: values of these attributes if
    absent. implied_attrs: attributes that the old form implies. same_results: number of results
    with the same meaning. flattens_from_axis: the node acts on all dimensions from its axis on."""

    since: int
    attribute_operands: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, float] = field(default_factory=dict)
    implied_attrs: Mapping[str, Attr] = field(default_factory=dict)
    same_results: int | None = None
    flattens_from_axis: bool = False


OLDER_FORMS = {
    "Clip": OlderForm(6, {"min": "min", "max": "max"}),
    "Dropout": OlderForm(7, same_results=1),
    "Hardmax": OlderForm(1, flattens_from_axis=True),
    "LogSoftmax": OlderForm(1, flattens_from_axis=True),
    "Pad": OlderForm(2, {"value": "constant_value"}, {"value": 0.0}),
    "Resize": OlderForm(
        10, implied_attrs={"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    ),
    "Softmax": OlderForm(1, flattens_from_axis=True),
}
SAME_FORM = OlderForm(0)


def older_form(op: Op, since: int) -> OlderForm | None:
    """Return the form in which schema version `since` expresses `op`, or None."""
    if since >= op.since:
        return SAME_FORM
    found = OLDER_FORMS.get(op.name) if op.domain == "" else None
    return found if found is not None and since >= found.since else None


def check_older_form(
    old_form: OlderForm, op: Op, first_type: TensorType | None, attrs: Mapping[str, Attr]
) -> None:
    """Raise InferError if the old node means something else. first_type: type of the first operand;
    attrs: in canonical form."""
    axis = attrs.get("axis")
    if old_form.flattens_from_axis and isinstance(axis, int):
        behind = (
            None if first_type is None or first_type.shape is None else first_type.shape[axis + 1 :]
        )
        if behind is None or any(n != 1 for n in behind):
            raise InferError(f"in its opset over all dimensions from {axis} on, of {first_type}")
