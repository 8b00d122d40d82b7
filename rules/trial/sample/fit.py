"""The operands and attributes that fit each operator: the table, and shape-independent
attributes."""

from __future__ import annotations

from collections.abc import Callable

from superopt.ir.op import REQUIRED, Attr
from superopt.rules.trial.sample import fit_contractions, fit_elementwise, fit_movement
from superopt.rules.trial.sample.draw import RejectedChoice
from superopt.rules.trial.sample.request import Fit, FitRequest
from superopt.te.expr.dtype import F32, F64, I32, I64

ATTRIBUTE_FLOATS = (0.5, 0.125, 2.0, 1.0, 0.25)  # exact in float32, as attributes are

FITS: dict[str, Callable[[FitRequest], Fit]] = {
    "ArgMax": fit_contractions.fit_along_axis,
    "ArgMin": fit_contractions.fit_along_axis,
    "AveragePool": fit_contractions.fit_pool,
    "BatchNormalization": fit_contractions.fit_image,
    "Clip": fit_elementwise.fit_scalars_after,
    "Concat": fit_movement.fit_concat,
    "Conv": fit_contractions.fit_conv,
    "ConvTranspose": fit_contractions.fit_conv_transpose,
    "DepthToSpace": fit_movement.fit_space_depth,
    "Expand": fit_movement.fit_expand,
    "Flatten": fit_movement.fit_flatten,
    "Gather": fit_movement.fit_gather,
    "Gemm": fit_contractions.fit_gemm,
    "GlobalAveragePool": fit_contractions.fit_image,
    "GlobalMaxPool": fit_contractions.fit_image,
    "GroupNormalization": fit_contractions.fit_image,
    "InstanceNormalization": fit_contractions.fit_image,
    "LayerNormalization": fit_contractions.fit_trailing_axes,
    "LogSoftmax": fit_contractions.fit_along_axis,
    "LpNormalization": fit_contractions.fit_along_axis,
    "MatMul": fit_contractions.fit_matmul,
    "MaxPool": fit_contractions.fit_pool,
    "PRelu": fit_elementwise.fit_slope,
    "Pad": fit_movement.fit_pad,
    "RMSNormalization": fit_contractions.fit_trailing_axes,
    "Reshape": fit_movement.fit_reshape,
    "Slice": fit_movement.fit_slice,
    "Softmax": fit_contractions.fit_along_axis,
    "STFT": fit_contractions.fit_frames,
    "SpaceToDepth": fit_movement.fit_space_depth,
    "Split": fit_movement.fit_split,
    "Squeeze": fit_movement.fit_squeeze,
    "SwiGLU": fit_elementwise.fit_same_shape,
    "Tile": fit_movement.fit_tile,
    "Transpose": fit_movement.fit_transpose,
    "Unsqueeze": fit_movement.fit_unsqueeze,
    "Upsample": fit_movement.fit_upsample,
}


def fit(request: FitRequest) -> Fit:
    """Return a shape for each operand, and a value for each attribute in `request.free`.

    Raises RejectedChoice if the generator finds no choice that fits what is known.
    """
    name = request.op.name
    default = (
        fit_contractions.fit_reduction
        if name.startswith("Reduce")
        else fit_elementwise.fit_broadcast
    )
    try:
        shapes, attrs = FITS.get(name, default)(request)
    except (IndexError, ValueError) as e:  # a missing axis or choice
        raise RejectedChoice(f"{name}: {e}") from None
    for key in sorted(request.free - attrs.keys()):
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
            return draw.integer_below(2)
        case "approximate":
            return draw.pick(("none", "tanh"))
        case "p" if request.op.name == "LpNormalization":
            return draw.pick((1, 2))
        case "mode" if request.op.name in ("DepthToSpace", "SpaceToDepth"):
            return draw.pick(("DCR", "CRD"))
        case _ if default is not REQUIRED:
            return default  # type: ignore[return-value]
        case _:
            raise RejectedChoice(f"no proposal for {request.op.name}'s {key}")
