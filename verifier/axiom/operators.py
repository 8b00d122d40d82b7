"""Properties of operators for the axiom-level prover: which keep shapes, which name axes."""

from __future__ import annotations

from superopt.ops import OPS

_ELEMENTWISE = [op for op in OPS.values() if "elementwise" in op.laws and not op.opaque]
# Operators whose result types depend on attributes.
ATTRIBUTE_TYPED = frozenset(
    ("Cast", "OneHot", "QuantizeLinear", "DequantizeLinear", "CastLike", "BitCast", "EyeLike")
)
BOOLEAN_RESULTS = frozenset(
    ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "And", "Or", "Not", "Xor")
) | {"IsNaN", "IsInf"}
INTEGER_RESULTS = frozenset(("ArgMax", "ArgMin", "Shape", "Size"))
# Operators whose result has the shape of the first operand.
KEEPS_SHAPE = (
    frozenset(op.name for op in _ELEMENTWISE if len(op.inputs) == 1 and not op.variadic)
    | frozenset(("Softmax", "LogSoftmax", "Hardmax", "CumSum", "CumProd", "LRN"))
    | frozenset(name for name in OPS if name.endswith("Normalization"))
)
# Operators whose result has the rank of the first operand.
KEEPS_RANK = (
    KEEPS_SHAPE
    | frozenset(("Transpose", "Concat", "Slice", "Pad", "Split", "Tile", "Trilu"))
    | frozenset(("Conv", "ConvTranspose", "ReverseSequence"))
    | frozenset(name for name in OPS if name.endswith("Pool"))
)
BROADCASTS = (
    frozenset(op.name for op in _ELEMENTWISE if len(op.inputs) == 2)
    - ATTRIBUTE_TYPED
    - {"PRelu", "SwiGLU"}
) | {"Max", "Min"}
REDUCTIONS = frozenset(name for name in OPS if name.startswith("Reduce"))
# Attributes that name axes of the first operand.
AXIS_ATTRIBUTES = {
    name: "axes" if name in REDUCTIONS or name in ("Slice", "Squeeze", "Unsqueeze") else "axis"
    for name, op in OPS.items()
    if "axis" in op.attrs or name in REDUCTIONS or name in ("Slice", "Squeeze", "Unsqueeze")
}
# Attributes that are tuples.
TUPLE_ATTRIBUTES = frozenset(
    ("axes", "perm", "shape", "pads", "strides", "kernel_shape", "dilations", "split", "starts")
) | {"ends", "steps", "repeats", "sizes", "output_shape", "output_padding", "scales"}
