"""Bind the attributes and operands of ONNX nodes to those of our operators by name, and back.

An attribute of ours is an attribute or a shape-like operand in ONNX, depending on the opset (`axes`
of ReduceSum moved in 13). ONNX's schemas decide, so no operator needs code here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import onnx
import onnx_ir as oir

from superopt.ir.op import Attr, Op
from superopt.onnx_io.import_.contrib_schemas import CONTRIB_SCHEMAS
from superopt.onnx_io.import_.dtypes import dtype_of, onnx_dtype
from superopt.onnx_io.import_.older_opsets import OlderForm, older_form
from superopt.ops import OPS
from superopt.te.expr.dtype import DType, to_numpy
from superopt.te.expr.node import Expr

# Attributes that repeat what the operands' shapes say, or that only guided old runtimes.
REDUNDANT_ATTRIBUTES = frozenset(
    {"kernel_shape:Conv", "kernel_shape:ConvTranspose", "consumed_inputs:*"}
)
# Values of attributes of old schemas that mean what needs no word now.
NEUTRAL_VALUES: Mapping[str, Attr] = {"spatial:BatchNormalization": 1}
# Attributes written even as defaults: onnx's inference takes STFT's for 0 where it is not there.
ALWAYS_WRITTEN = frozenset({"onesided:STFT"})
_DTYPE_ATTRS = frozenset(
    [
        "to",
        "dtype",
        "output_dtype",
        "output_datatype",
        "precision",
        "stash_type",
        "softmax_precision",
    ]
)
_KIND = oir.AttributeType


@dataclass(frozen=True, slots=True)
class FormalOperand:
    """A formal operand: its name in lower case, whether it is optional or variadic, and its
    types."""

    name: str
    optional: bool
    variadic: bool
    types: frozenset[str]


@dataclass(frozen=True, slots=True)
class SchemaAttribute:
    """An attribute of a schema; `default` is None if it has none."""

    kind: oir.AttributeType
    default: Attr


@dataclass(frozen=True, slots=True)
class Schema:
    """The schema of an operator in an opset. `optional`: which results may be omitted."""

    since: int
    operands: tuple[FormalOperand, ...]
    attributes: Mapping[str, SchemaAttribute]
    optional: tuple[bool, ...]
    min_outputs: int


class NotExpressible(TypeError):
    """An attribute that ONNX, or this opset, cannot express."""


@lru_cache(maxsize=4096)
def schema(op_type: str, opset: int, domain: str = "") -> Schema | None:
    """Return the schema of `op_type` in `opset`, or None if that opset has no such operator."""
    try:
        s = CONTRIB_SCHEMAS.get((domain, op_type)) or onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return None
    if s.deprecated:
        return None
    kinds = onnx.defs.OpSchema.FormalParameterOption
    operands = tuple(
        FormalOperand(
            i.name.lower(),
            i.option == kinds.Optional,
            i.option == kinds.Variadic,
            frozenset(i.types),
        )
        for i in s.inputs
    )
    attributes: dict[str, SchemaAttribute] = {}
    for k, a in s.attributes.items():
        default: Attr = None
        if a.default_value.name:
            default = attribute_value(k, oir.serde.deserialize_attribute(a.default_value))
        attributes[k] = SchemaAttribute(oir.AttributeType[str(a.type).rpartition(".")[2]], default)
    optional = tuple(o.option == kinds.Optional for o in s.outputs)
    return Schema(s.since_version, operands, attributes, optional, s.min_output)


def find_operator(op_type: str, domain: str, opset: int) -> tuple[Op, Schema, OlderForm] | None:
    """Return our operator with the meaning of `op_type` in `opset`, its schema and its form there;
    None if there is none."""
    found, s = OPS.get(op_type), schema(op_type, opset, domain)
    if found is None or found.domain != domain or s is None:
        return None
    how = older_form(found, s.since)
    return None if how is None else (found, s, how)


def is_redundant(key: str, op_type: str) -> bool:
    """True if attribute `key` of `op_type` only repeats what the operands determine."""
    return f"{key}:{op_type}" in REDUNDANT_ATTRIBUTES or f"{key}:*" in REDUNDANT_ATTRIBUTES


def has_neutral_value(key: str, op_type: str, value: oir.Attr) -> bool:
    """True if the attribute has its neutral value."""
    usual = NEUTRAL_VALUES.get(f"{key}:{op_type}")
    return usual is not None and attribute_value(key, value) == usual


def attribute_value(key: str, attr: oir.Attr) -> Attr:
    """Convert the value of a node's attribute. Raises TypeError if it has no form here."""
    match attr.type:
        case _KIND.INT:
            return dtype_of(attr.as_int()) if key in _DTYPE_ATTRS else attr.as_int()
        case _KIND.FLOAT:
            return attr.as_float()
        case _KIND.STRING:
            return attr.as_string()
        case _KIND.INTS:
            return tuple(attr.as_ints())
        case _KIND.FLOATS:
            return tuple(attr.as_floats())
        case _KIND.STRINGS:
            return tuple(attr.as_strings())
        case _KIND.TENSOR:
            array = attr.as_tensor().numpy()
            if array.size != 1:
                raise TypeError(f"attribute {key} is a tensor of {array.size} elements")
            value = array.reshape(-1)[0].item()
            return value if isinstance(value, (int, float, bool, str)) else float(value)
        case _:
            raise TypeError(f"attribute {key} is {attr.type}")


def to_onnx_attribute(
    key: str, value: Attr, kind: oir.AttributeType, element_dtype: DType | None
) -> oir.Attr:
    """Convert an attribute to ONNX's type `kind`; a tensor has one element of type `element_dtype`.

    Raises NotExpressible for a symbolic size, or a value that is not a `kind`.
    """
    match kind, value:
        case _KIND.INT, DType():
            return oir.AttrInt64(key, int(onnx_dtype(value)))
        case _KIND.INT, int():
            return oir.AttrInt64(key, int(value))
        case _KIND.FLOAT, int() | float():
            return oir.AttrFloat32(key, float(value))
        case _KIND.STRING, str():
            return oir.AttrString(key, value)
        case _KIND.INTS, tuple() if all(isinstance(v, int) for v in value):
            return oir.AttrInt64s(key, [int(v) for v in value])  # type: ignore[arg-type]
        case _KIND.FLOATS, tuple() if all(isinstance(v, (int, float)) for v in value):
            return oir.AttrFloat32s(key, [float(v) for v in value])  # type: ignore[arg-type]
        case _KIND.STRINGS, tuple() if all(isinstance(v, str) for v in value):
            return oir.AttrStrings(key, [str(v) for v in value])
        case _KIND.TENSOR, int() | float() if element_dtype is not None:
            array = np.array([value]).astype(to_numpy(element_dtype))
            return oir.AttrTensor(key, oir.Tensor(array, dtype=onnx_dtype(element_dtype)))
    shown = "has symbolic sizes" if _is_symbolic(value) else f"is no {kind.name}"
    raise NotExpressible(f"attribute {key} = {value} {shown}")


def _is_symbolic(value: Attr) -> bool:
    return any(map(_is_symbolic, value)) if isinstance(value, tuple) else isinstance(value, Expr)


def is_default(key: str, op_type: str, value: Attr, declared: SchemaAttribute) -> bool:
    """True if `value` is what ONNX assumes when the attribute is absent."""
    default = declared.default
    if f"{key}:{op_type}" in ALWAYS_WRITTEN or declared.kind == _KIND.TENSOR:
        return False
    return default is not None and type(default) is type(value) and default == value
