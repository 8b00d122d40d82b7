"""Write the attributes of a node that ONNX also has as attributes."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as oir

from superopt.ir import graph as ir_graph
from superopt.ir.op import Attr, canonical_attrs
from superopt.onnx_io.import_.older_opsets import OlderForm
from superopt.onnx_io.import_.schema import NotExpressible, Schema, is_default, to_onnx_attribute
from superopt.te.expr.dtype import DType


def node_attributes(
    n: ir_graph.Node, s: Schema, old_form: OlderForm, values: Mapping[str, Attr], opset: int
) -> list[oir.Attr]:
    """Return the attributes that differ from ONNX's defaults.

    Raises NotExpressible for one that this opset does not have, unless it is implied.
    """
    kind = values.get("dtype")
    like = kind if isinstance(kind, DType) else None
    out = [
        to_onnx_attribute(key, value, s.attributes[key].kind, like)
        for key, value in values.items()
        if key in s.attributes
        and value is not None
        and not is_default(key, n.op.name, value, s.attributes[key])
    ]
    for key, name in old_form.attribute_operands.items():
        v = dict(zip(n.op.inputs, n.inputs, strict=False)).get(name)
        if isinstance(v, ir_graph.Constant) and (number := v.load()).size == 1:
            out.append(to_onnx_attribute(key, float(number.item()), s.attributes[key].kind, None))
        elif v is not None:
            raise NotExpressible(f"{key} is computed, and a number in opset {opset}")
    operands = {formal.name for formal in s.operands}
    unsaid = [k for k in values if k not in s.attributes and k not in operands]
    unsaid = [
        k
        for k in unsaid
        if k not in old_form.implied_attrs or old_form.implied_attrs[k] != values[k]
    ]
    if n.op.name in ("Range", "ConstantOfShape"):
        unsaid = [k for k in unsaid if k != "dtype"]  # the operands or `value` say it
    if unsaid:
        types = tuple(None if v is None else v.type for v in n.inputs)
        said = {k: v for k, v in n.attrs if k not in unsaid}
        if canonical_attrs(n.op, types, said) != n.attrs:
            shown = ", ".join(f"{k}={dict(n.attrs)[k]}" for k in unsaid)
            raise NotExpressible(f"{shown} has no form in opset {opset}")
    return out
