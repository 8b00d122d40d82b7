"""Schemas of ONNX Runtime's contrib operators that have a tensor expression.

Contrib operators that are other operators in disguise are decomposed instead
(transform/contrib_ops.py).
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx.defs import OpSchema

from superopt.ops.quantized.nbits import CONTRIB_DOMAIN

_PARAMETER = OpSchema.FormalParameter
_KIND = OpSchema.AttrType


def _optional(name: str, kind: str) -> OpSchema.FormalParameter:
    return _PARAMETER(name, kind, param_option=OpSchema.FormalParameterOption.Optional)


def _default(name: str, value: int) -> OpSchema.Attribute:
    return OpSchema.Attribute(name, onnx.helper.make_attribute(name, value))


_FLOATS = ["tensor(float)", "tensor(float16)", "tensor(bfloat16)"]
_MATMUL_NBITS = OpSchema(
    "MatMulNBits",
    CONTRIB_DOMAIN,
    1,
    inputs=[
        _PARAMETER("A", "T1"), _PARAMETER("B", "T2"), _PARAMETER("scales", "T1"),
        _optional("zero_points", "T3"), _optional("g_idx", "T4"), _optional("bias", "T1"),
    ],
    outputs=[_PARAMETER("Y", "T1")],
    type_constraints=[
        ("T1", _FLOATS, "floats"), ("T2", ["tensor(uint8)"], "packed weights"),
        ("T3", ["tensor(uint8)", *_FLOATS], "zero points"), ("T4", ["tensor(int32)"], "indices"),
    ],
    attributes=[
        OpSchema.Attribute("K", _KIND.INT), OpSchema.Attribute("N", _KIND.INT),
        _default("bits", 4), OpSchema.Attribute("block_size", _KIND.INT),
        _default("accuracy_level", 0),
    ],
)  # fmt: skip
CONTRIB_SCHEMAS: Mapping[tuple[str, str], OpSchema] = {
    (CONTRIB_DOMAIN, _MATMUL_NBITS.name): _MATMUL_NBITS
}
