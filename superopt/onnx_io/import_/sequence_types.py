"""Types of the results of recurrent layers and Scan, as formulas of the sizes of their operands.

ONNX's shape inference has no formulas: for a length such as (w - 1) // 4 + 1 it gives a new size.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as oir

from superopt.ir import graph
from superopt.ops.quantized.nbits import CONTRIB_DOMAIN
from superopt.te.expr.tensor import Dim, TensorType

RECURRENT_LAYERS = frozenset(("LSTM", "GRU", "RNN"))
SCAN_SINCE = 9  # the opset version from which on Scan has no batch axis
UNKNOWN_TYPE = TensorType(None, None)


def sequence_result_types(
    n: oir.Node, version: int, operands: Sequence[graph.Value | None], types: Sequence[TensorType]
) -> list[TensorType]:
    """Return the types of a node's results. types: what is known without formulas."""
    given = [UNKNOWN_TYPE if v is None else v.type for v in operands[: len(n.inputs)]]
    if n.domain != "":
        quantized = (n.domain, n.op_type) == (CONTRIB_DOMAIN, "DynamicQuantizeLSTM")
        found = _recurrent_types(n, given) if quantized else None
    elif n.op_type in RECURRENT_LAYERS:
        found = _recurrent_types(n, given)
    elif n.op_type == "Scan" and version >= SCAN_SINCE:
        found = _scan_types(n, given, types)
    else:
        found = None
    if found is None:
        return list(types)
    return [
        k if v.name and not _has_static_shape(t) else t
        for v, t, k in zip(n.outputs, types, found, strict=False)
    ]


def _has_static_shape(t: TensorType) -> bool:
    return t.shape is not None and all(isinstance(d, int) for d in t.shape)


def _recurrent_types(n: oir.Node, given: Sequence[TensorType]) -> list[TensorType] | None:
    """Return the types of Y, Y_h and Y_c."""
    if len(given) < 3:
        return None
    x, r = given[0].shape, given[2].shape
    if x is None or r is None or len(x) != 3 or len(r) != 3:
        return None
    is_batch_first = n.attributes.get_int("layout", 0) == 1
    steps, batch = (x[1], x[0]) if is_batch_first else (x[0], x[1])
    directions, hidden = r[0], r[1 if n.domain else 2]  # of DynamicQuantizeLSTM it is transposed
    y: tuple[Dim, ...] = (steps, directions, batch, hidden)
    state: tuple[Dim, ...] = (directions, batch, hidden)
    if is_batch_first:
        y, state = (batch, steps, directions, hidden), (batch, directions, hidden)
    dtype = given[0].dtype
    return [TensorType(dtype, y), TensorType(dtype, state), TensorType(dtype, state)]


def _scan_types(
    n: oir.Node, given: Sequence[TensorType], types: Sequence[TensorType]
) -> list[TensorType] | None:
    """Return the types of the final states, which are those of the initial ones, and of the
    results made of slices, whose length is that of the scanned operands."""
    states = len(given) - n.attributes.get_int("num_scan_inputs", 0)
    scanned = given[states].shape if 0 <= states < len(given) else None
    axis = (_axes(n, "scan_input_axes") or [0])[0]
    if scanned is None or not -len(scanned) <= axis < len(scanned):
        return None
    out_axes = _axes(n, "scan_output_axes") or [0] * (len(types) - states)
    out = list(given[:states])
    for t, a in zip(types[states:], out_axes, strict=False):
        if t.shape is None or not -len(t.shape) <= a < len(t.shape):
            return None
        shape = list(t.shape)
        shape[a] = scanned[axis]
        out.append(TensorType(t.dtype, tuple(shape)))
    return out if len(out) == len(types) else None


def _axes(n: oir.Node, name: str) -> list[int]:
    return list(n.attributes.get_ints(name, ()))
