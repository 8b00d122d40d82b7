"""The operands and attributes that fit each operator: the table, and shape-independent
attributes."""

from __future__ import annotations

from collections.abc import Callable

from superopt.ir.op import REQUIRED, Attr
from superopt.rules.sample import contract, elements, moves
from superopt.rules.sample.ask import Ask, Fit
from superopt.rules.sample.draw import Misfit
from superopt.te.dtype import F32, F64, I32, I64

FLOATS = (0.5, 0.125, 2.0, 1.0, 0.25)  # exact in float32, as attributes are

FITS: dict[str, Callable[[Ask], Fit]] = {
    "ArgMax": contract.along,
    "ArgMin": contract.along,
    "AveragePool": contract.pool,
    "BatchNormalization": contract.image,
    "Clip": elements.scalars_after,
    "Concat": moves.concat,
    "Conv": contract.conv,
    "ConvTranspose": contract.conv_transpose,
    "DepthToSpace": moves.blocks,
    "Expand": moves.expand,
    "Flatten": moves.flatten,
    "Gather": moves.gather,
    "Gemm": contract.gemm,
    "GlobalAveragePool": contract.image,
    "GlobalMaxPool": contract.image,
    "GroupNormalization": contract.image,
    "InstanceNormalization": contract.image,
    "LayerNormalization": contract.trailing,
    "LogSoftmax": contract.along,
    "LpNormalization": contract.along,
    "MatMul": contract.matmul,
    "MaxPool": contract.pool,
    "PRelu": elements.slope,
    "Pad": moves.pad,
    "RMSNormalization": contract.trailing,
    "Reshape": moves.reshape,
    "Slice": moves.slice_,
    "Softmax": contract.along,
    "SpaceToDepth": moves.blocks,
    "Split": moves.split,
    "Squeeze": moves.squeeze,
    "SwiGLU": elements.same,
    "Tile": moves.tile,
    "Transpose": moves.transpose,
    "Unsqueeze": moves.unsqueeze,
    "Upsample": moves.upsample,
}


def fit(ask: Ask) -> Fit:
    """Return a shape for each operand, and a value for each attribute in `request.free`.

    Raises Misfit if the generator finds no choice that fits what is known.
    """
    name = ask.op.name
    default = contract.reduction if name.startswith("Reduce") else elements.broadcast
    try:
        shapes, attrs = FITS.get(name, default)(ask)
    except (IndexError, ValueError) as e:  # a missing axis or choice
        raise Misfit(f"{name}: {e}") from None
    for key in ask.free - attrs.keys():
        attrs[key] = _attribute(ask, key)
    return shapes, {k: v for k, v in attrs.items() if k in ask.free}


def _attribute(ask: Ask, key: str) -> Attr:
    default, draw = ask.op.attrs[key], ask.draw
    match key:
        case "alpha" | "beta" if ask.op.name != "LRN":  # a power of the scaled sum
            return draw.pick((*FLOATS, -0.5))
        case "alpha" | "beta" | "epsilon" | "bias" | "gamma":
            return draw.pick(FLOATS)
        case "to":
            return draw.pick((F32, F64, I64, I32, F64))
        case "keepdims":
            return draw.below(2)
        case "approximate":
            return draw.pick(("none", "tanh"))
        case "p" if ask.op.name == "LpNormalization":
            return draw.pick((1, 2))
        case "mode" if ask.op.name in ("DepthToSpace", "SpaceToDepth"):
            return draw.pick(("DCR", "CRD"))
        case _ if default is not REQUIRED:
            return default  # type: ignore[return-value]
        case _:
            raise Misfit(f"no proposal for {ask.op.name}'s {key}")
