"""Binding by name: an ONNX node's attributes and operands to an operator's, and back.

An attribute of ours is an attribute or a shape-like operand of ONNX, depending on the opset
(`axes` of ReduceSum moved in 13); ONNX's own schemas say which, so no operator needs code here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import onnx
import onnx_ir as oir

from superopt.ir.op import Attr, Op
from superopt.onnx_io.types import dtype_of, onnx_dtype
from superopt.ops import OPS
from superopt.te.dtype import DType

# Attributes that repeat what the operands' shapes say, or that only guided old runtimes.
REDUNDANT = frozenset({"kernel_shape:Conv", "kernel_shape:ConvTranspose", "consumed_inputs:*"})
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


@dataclass(frozen=True, slots=True)
class Formal:
    """A formal operand: its name in lower case, is it optional, does it repeat."""

    name: str
    optional: bool
    variadic: bool


@dataclass(frozen=True, slots=True)
class Schema:
    """What ONNX says of an operator in an opset."""

    since: int
    operands: tuple[Formal, ...]
    attributes: Mapping[str, object]  # name to default, None where there is none
    outputs: int
    min_outputs: int


@lru_cache(maxsize=4096)
def schema(op_type: str, opset: int, domain: str = "") -> Schema | None:
    """The schema of `op_type` in `opset`, None where that opset has no such operator."""
    try:
        s = onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return None
    if s.deprecated:
        return None
    kinds = onnx.defs.OpSchema.FormalParameterOption
    operands = tuple(
        Formal(i.name.lower(), i.option == kinds.Optional, i.option == kinds.Variadic)
        for i in s.inputs
    )
    attributes: dict[str, object] = {}
    for k, a in s.attributes.items():
        default = None
        if a.default_value.name:
            default = oir.serde.deserialize_attribute(a.default_value).value
        if isinstance(default, int) and k in _DTYPE_ATTRS:
            default = dtype_of(default)
        attributes[k] = default
    return Schema(s.since_version, operands, attributes, len(s.outputs), s.min_output)


def operator(op_type: str, domain: str, opset: int) -> Op | None:
    """Our operator with the meaning that `op_type` has in `opset`, None where there is none."""
    found = OPS.get(op_type)
    if found is None or found.domain != domain:
        return None
    s = schema(op_type, opset, domain)
    return found if s is not None and s.since >= found.since else None


def is_redundant(key: str, op_type: str) -> bool:
    """Does attribute `key` of `op_type` say nothing that the operands do not?"""
    return f"{key}:{op_type}" in REDUNDANT or f"{key}:*" in REDUNDANT


def attribute_value(key: str, attr: oir.Attr) -> Attr:
    """The value of a node's attribute as ours; TypeError where we have no form for it."""
    kind = oir.AttributeType
    match attr.type:
        case kind.INT:
            if key in _DTYPE_ATTRS:
                return dtype_of(attr.as_int())
            return attr.as_int()
        case kind.FLOAT:
            return attr.as_float()
        case kind.STRING:
            return attr.as_string()
        case kind.INTS:
            return tuple(attr.as_ints())
        case kind.FLOATS:
            return tuple(attr.as_floats())
        case kind.STRINGS:
            return tuple(attr.as_strings())
        case kind.TENSOR:
            array = attr.as_tensor().numpy()
            if array.size != 1:
                raise TypeError(f"attribute {key} is a tensor of {array.size} elements")
            value = array.reshape(-1)[0].item()
            return value if isinstance(value, (int, float, bool, str)) else float(value)
        case _:
            raise TypeError(f"attribute {key} is {attr.type}")


def attribute(key: str, value: Attr) -> oir.Attr | None:
    """Our attribute as ONNX's, None for an absent one."""
    match value:
        case None:
            return None
        case bool():
            return oir.AttrInt64(key, int(value))
        case int():
            return oir.AttrInt64(key, value)
        case float():
            return oir.AttrFloat32(key, value)
        case str():
            return oir.AttrString(key, value)
        case DType():
            return oir.AttrInt64(key, int(onnx_dtype(value)))
        case tuple():
            if all(isinstance(v, int) for v in value):
                return oir.AttrInt64s(key, [int(v) for v in value])  # type: ignore[arg-type]
            if all(isinstance(v, (int, float)) for v in value):
                return oir.AttrFloat32s(key, [float(v) for v in value])  # type: ignore[arg-type]
            if all(isinstance(v, str) for v in value):
                return oir.AttrStrings(key, [str(v) for v in value])
            raise TypeError(f"attribute {key} = {value} has symbolic sizes")
        case _:
            raise TypeError(f"attribute {key} = {value}")


def is_default(key: str, value: Attr, s: Schema) -> bool:
    """Is `value` what ONNX assumes when attribute `key` is not written?"""
    if isinstance(value, DType):
        return False
    default = s.attributes[key]
    if isinstance(default, (list, tuple)):
        default = tuple(default)
    return default is not None and type(default) is type(value) and default == value
