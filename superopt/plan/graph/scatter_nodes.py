"""ScatterND and ScatterElements nodes as kernels of their own (kernels/algorithms/scatter.py).

As tensor expressions they compare each element with all updates. That suits few elements, and data
that is computed ahead of time; other scatters are copies with sequential updates.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from superopt.ir import graph
from superopt.ir.constant_values import is_constant
from superopt.ir.evaluate import evaluate
from superopt.ir.node_attributes import node_attributes
from superopt.ir.op import Op, Payload
from superopt.kernels.algorithms.scatter import ScatterProblem, block_elements, scatter_kernel
from superopt.kernels.llvm.calls import Call, Ref
from superopt.kernels.llvm.codegen import chunk_count
from superopt.plan.lowering.graph_tensors import is_exact_constant
from superopt.plan.program.program import Program
from superopt.te.expr.dtype import F32, F64, I32, I64
from superopt.te.expr.tensor import TensorType

SCATTER_OP = Op("Scatter", None, domain=None)
SCATTER_NAMES = ("ScatterElements", "ScatterND")
REDUCTIONS = ("none", "add", "mul", "max", "min")
# Elements times updates, up to which a scatter is an expression. As a kernel, sums of 5,000 edges
# of 64 features at 1,000 nodes take 171 us (onnxruntime 251, OpenVINO 418; one thread).
MAX_COMPARISONS = 1 << 10
MAX_FOLDED_COMPARISONS = 1 << 27  # comparisons that are done ahead of time: about a second
MAX_FILL_BYTES = 1 << 28  # of constant data that is tested for a uniform value, at most


def is_scatter(n: graph.Node) -> bool:
    """True for an ONNX scatter, with or without a tensor expression."""
    return n.op.name in SCATTER_NAMES and n.op.domain == ""


def match_scatter(n: graph.Node) -> ScatterProblem | None:
    """Return the scatter that a kernel of its own computes; None if its sizes are unknown or
    unsupported."""
    if len(n.inputs) != 3 or any(v is None or _static_shape(v.type) is None for v in n.inputs):
        return None
    data, indices, updates = (v for v in n.inputs if v is not None)
    attributes = node_attributes(n)
    reduction = str(attributes.get("reduction", "none"))
    dtype, kind = data.type.dtype, indices.type.dtype
    x, at, new = (_static_shape(v.type) or () for v in (data, indices, updates))
    if reduction not in REDUCTIONS or kind not in (I32, I64) or updates.type.dtype != dtype:
        return None
    if dtype not in (F32, F64, I32, I64) or not prod(x) or not prod(new):
        return None
    if _row_indices(n) is not None and block_elements(prod(x[1:])):
        return ScatterProblem(dtype, kind, 1, x[0], prod(x[1:]), at[0], x[:1], reduction)
    if n.op.name == "ScatterND":
        made = _match_scatter_nd(x, at, new)
    else:
        made = _match_scatter_elements(x, at, new, attributes)
    if made is None or not block_elements(made[2]):
        return None
    outer, rows, row, count, named = made
    return ScatterProblem(dtype, kind, outer, rows, row, count, named, reduction)


def _row_indices(n: graph.Node) -> graph.Value | None:
    """Return the one-index-per-row tensor of a ScatterElements on the first axis whose indices were
    expanded along the row, as exporters of graph networks do; else None."""
    if n.op.name != "ScatterElements" or int(node_attributes(n).get("axis", 0)) != 0:
        return None
    data, at, updates = (None if v is None else _static_shape(v.type) for v in n.inputs)
    expanded = None if n.inputs[1] is None else graph.producer(n.inputs[1])
    if not data or not at or expanded is None or expanded.op.name != "Expand":
        return None
    given = expanded.inputs[0]
    shape = None if given is None else _static_shape(given.type)
    if data[1:] != at[1:] or at != updates or shape != (at[0], *(1 for _ in at[1:])):
        return None
    return given


ScatterSizes = tuple[int, int, int, int, tuple[int, ...]]


def _match_scatter_nd(
    x: tuple[int, ...], indices: tuple[int, ...], new: tuple[int, ...]
) -> ScatterSizes | None:
    """Return the sizes of a ScatterND: outer, rows, row, count and named of `Scatter`."""
    depth = indices[-1] if indices else 0
    if not 0 < depth <= len(x) or new != (*indices[:-1], *x[depth:]):
        return None
    return 1, prod(x[:depth]), prod(x[depth:]), prod(indices[:-1]), x[:depth]


def _match_scatter_elements(
    x: tuple[int, ...], indices: tuple[int, ...], new: tuple[int, ...], attributes: dict[str, Any]
) -> ScatterSizes | None:
    """Return the sizes of a ScatterElements whose updates are as large as the data on all other
    axes."""
    if indices != new or len(x) != len(indices):
        return None
    axis = int(attributes.get("axis", 0)) % len(x)
    if any(k != axis and n != own for k, (n, own) in enumerate(zip(indices, x, strict=True))):
        return None
    return prod(x[:axis]), x[axis], prod(x[axis + 1 :]), indices[axis], ()


def has_scatter_kernel(n: graph.Node) -> bool:
    """True if a scatter has a kernel of its own instead of an expression."""
    s = match_scatter(n) if is_scatter(n) else None
    if s is None:
        return False
    comparisons = s.outer * s.rows * s.row * s.count if not s.indexed_sizes else s.rows * s.count
    ahead = not n.op.opaque and comparisons <= MAX_FOLDED_COMPARISONS and is_constant(n, {})
    return n.op.opaque or (comparisons > MAX_COMPARISONS and not ahead)


def scatter_node(n: graph.Node) -> list[graph.Value]:
    """Return the result of such a node as a scatter node, which is planned as its kernel."""
    s = match_scatter(n)
    assert s is not None
    data, indices, updates = (v for v in n.inputs if v is not None)
    rest = [_row_indices(n) or indices, updates]
    (wanted,) = n.types
    s = replace(s, fill=_fill_value(data))
    operands = rest if s.fill is not None else [data, *rest]
    return [
        graph.opaque_node(
            SCATTER_OP, operands, Payload(s, n.op.name), [TensorType(s.dtype, wanted.shape)]
        )
    ]


def scatter_program(n: graph.Node) -> Program:
    """Return a program of one call; its arguments are the node's operands and its result."""
    payload = n.attr("payload")
    assert isinstance(payload, Payload)
    assert isinstance(payload.content, ScatterProblem)
    kernel = scatter_kernel(payload.content)
    given = tuple(Ref("argument", k) for k in range(len(kernel.params)))
    call = Call(kernel.name, given, chunk_count(kernel))
    named = {kernel.name: kernel}
    return Program(named, (call,), (), 0, 0, 0, 0, {}, {}, ("",), (kernel.params[-1],))


def _fill_value(data: graph.Value) -> int | float | None:
    """Return the value of uniform data if it is known and exactly representable; else None."""
    size = prod(_static_shape(data.type) or ()) * 8
    if size > MAX_FILL_BYTES or not is_constant(data, {}):
        return None
    array = evaluate(graph.Graph((), (data,)), {})[0]
    first = array.reshape(-1)[0].item()
    return first if is_exact_constant(first) and bool(np.all(array == first)) else None


def _static_shape(t: TensorType) -> tuple[int, ...] | None:
    shape = tuple(d for d in t.shape or () if isinstance(d, int))
    return shape if t.shape is not None and len(shape) == len(t.shape) else None
