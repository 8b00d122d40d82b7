"""Build a model of one operator, for timing."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from superopt.ir import graph as ir_graph
from superopt.ir.op import Attrs, Op
from superopt.onnx_io.export.exporter import ExportError, export_graph
from superopt.onnx_io.read.packed_parts import to_model_proto
from superopt.te.expr.dtype import BOOL, STRING, to_numpy
from superopt.te.expr.tensor import TensorType

MAX_OPERAND_BYTES = 1 << 28  # bytes of operands above which nothing is drawn
MAX_DRAWN_FLOATS = 1 << 14  # floats drawn


def random_array(t: TensorType, rng: np.random.Generator) -> np.ndarray:
    """Return random values of a static type: floats are standard normal, integers and bools 0 or
    1."""
    if t.dtype is None or t.shape is None:
        raise ExportError(f"no values of {t}")
    shape = tuple(int(d) for d in t.shape)  # type: ignore[arg-type]
    if t.dtype == STRING:
        return np.full(shape, "a", object)
    if t.dtype.is_float:
        # A short piece repeated: drawing all of a weight may take longer than timing its operator.
        drawn = rng.standard_normal(min(math.prod(shape), MAX_DRAWN_FLOATS), np.float32)
        return np.resize(drawn.astype(to_numpy(t.dtype)), shape)
    if t.dtype == BOOL or t.dtype.is_int:
        return rng.integers(0, 2, shape).astype(to_numpy(t.dtype))
    raise ExportError(f"no values of {t.dtype}")


def one_node_model(
    op: Op,
    operands: Sequence[tuple[TensorType, bool] | None],
    attrs: Attrs,
    outputs: Sequence[TensorType],
    *,
    opset: int,
    ir_version: int,
    seed: int,
    copies: int = 1,
) -> bytes:
    """A model of one node; operands marked True are initializers with random values.

    With `copies` it has that many such nodes on the same inputs, each with initializers of its own.

    Raises ExportError when the opset has no such operator or the operands are too large to draw.
    """
    rng = np.random.default_rng(seed)
    total = copies * sum(_nbytes(o[0]) for o in operands if o is not None)
    if total > MAX_OPERAND_BYTES:
        raise ExportError(f"{op.name} on {total} bytes of operands")
    inputs: dict[int, ir_graph.Input] = {}
    results: list[ir_graph.Value] = []
    for copy in range(copies):
        values: list[ir_graph.Value | None] = []
        for n, operand in enumerate(operands):
            if operand is None:
                values.append(None)
                continue
            t, known = operand
            table = op.name.startswith("Gather") and n == 0  # not prepacked: no need to write it
            if known and not table:
                key = ("drawn", seed, copy, n, str(t))
                values.append(ir_graph.constant(random_array(t, rng), key=key))
            else:
                values.append(inputs.setdefault(n, ir_graph.Input(f"x{n}", t)))
        results += ir_graph.results(ir_graph.intern_node(op, tuple(values), attrs, tuple(outputs)))
    graph = ir_graph.Graph(tuple(inputs.values()), tuple(results))
    model = export_graph(graph, opset=opset, ir_version=ir_version)
    return bytes(to_model_proto(model).SerializeToString())


def _nbytes(t: TensorType) -> int:
    if t.dtype is None or t.shape is None or t.dtype == STRING:
        return 0
    count = 1
    for d in t.shape:
        count *= d if isinstance(d, int) else 1
    return count * to_numpy(t.dtype).itemsize
