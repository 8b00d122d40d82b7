"""The operands and attributes that fit each operator: the table, and shape-independent
attributes."""

from __future__ import annotations

from collections.abc import Callable

from superopt.ir.op import REQUIRED, Attr
from superopt.rules.sample import contract, elements, moves
from superopt.rules.sample.ask import Fit, FitRequest
from superopt.rules.sample.draw import Misfit
from superopt.te.dtype import F32, F64, I32, I64

ATTRIBUTE_FLOATS = (0.5, 0.125, 2.0, 1.0, 0.25)  # exact in float32, as attributes are

FITS: dict[str, Callable[[FitRequest], Fit]] = {
    "ArgMax": contract.fit_along_axis,
    "ArgMin": contract.fit_along_axis,
    "AveragePool": contract.fit_pool,
    "BatchNormalization": contract.fit_image,
    "Clip": elements.fit_scalars_after,
    "Concat": moves.fit_concat,
    "Conv": contract.fit_conv,
    "ConvTranspose": contract.fit_conv_transpose,
    "DepthToSpace": moves.fit_space_depth,
    "Expand": moves.fit_expand,
    "Flatten": moves.fit_flatten,
    "Gather": moves.fit_gather,
    "Gemm": contract.fit_gemm,
    "GlobalAveragePool": contract.fit_image,
    "GlobalMaxPool": contract.fit_image,
    "GroupNormalization": contract.fit_image,
    "InstanceNormalization": contract.fit_image,
    "LayerNormalization": contract.fit_trailing_axes,
    "LogSoftmax": contract.fit_along_axis,
    "LpNormalization": contract.fit_along_axis,
    "MatMul": contract.fit_matmul,
    "MaxPool": contract.fit_pool,
    "PRelu": elements.fit_slope,
    "Pad": moves.fit_pad,
    "RMSNormalization": contract.fit_trailing_axes,
    "Reshape": moves.fit_reshape,
    "Slice": moves.fit_slice,
    "Softmax": contract.fit_along_axis,
    "SpaceToDepth": moves.fit_space_depth,
    "Split": moves.fit_split,
    "Squeeze": moves.fit_squeeze,
    "SwiGLU": elements.fit_same_shape,
    "Tile": moves.fit_tile,
    "Transpose": moves.fit_transpose,
    "Unsqueeze": moves.fit_unsqueeze,
    "Upsample": moves.fit_upsample,
}


def fit(request: FitRequest) -> Fit:
    """Return a shape for each operand, and a value for each attribute in `request.free`.

    Raises Misfit if the generator finds no choice that fits what is known.
    """
    name = request.op.name
    default = contract.fit_reduction if name.startswith("Reduce") else elements.fit_broadcast
    try:
        shapes, attrs = FITS.get(name, default)(request)
    except (IndexError, ValueError) as e:  # a missing axis or choice
        raise Misfit(f"{name}: {e}") from None
    for key in request.free - attrs.keys():
        attrs[key] = _choose_attribute(request, key)
    return shapes, {k: v for k, v in attrs.items() if k in request.free}


def _choose_attribute(request: FitRequest, key: str) -> Attr:
    default, draw = request.op.attrs[key], request.draw
    match key:
        case "alpha" | "beta" if request.op.name != "LRN":  # a power of the scaled sum
            return draw.pick((*ATTRIBUTE_FLOATS, -0.5))
        case "alpha" | "beta" | "epsilon" | "bias" | "gamma":
            return draw.pick(ATTRIBUTE_FLOATS)
        case "to":
            return draw.pick((F32, F64, I64, I32, F64))
        case "keepdims":
            return draw.below(2)
        case "approximate":
            return draw.pick(("none", "tanh"))
        case "p" if request.op.name == "LpNormalization":
            return draw.pick((1, 2))
        case "mode" if request.op.name in ("DepthToSpace", "SpaceToDepth"):
            return draw.pick(("DCR", "CRD"))
        case _ if default is not REQUIRED:
            return default  # type: ignore[return-value]
        case _:
            raise Misfit(f"no proposal for {request.op.name}'s {key}")
