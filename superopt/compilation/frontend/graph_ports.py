"""Array types and shapes of graph values at given sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from superopt.compilation.frontend.input_arrays import InputPort, ValueLimit
from superopt.errors import ModelError, UsageError
from superopt.ir import graph as ir_graph
from superopt.ir.evaluate import infer_sizes
from superopt.onnx_io.import_.model import Model
from superopt.te.eval.domain import Reals
from superopt.te.expr import index
from superopt.te.expr.dtype import to_numpy
from superopt.te.expr.tensor import TensorType


def input_port(
    i: ir_graph.Input, has_default: bool, limits: tuple[ValueLimit, ...] = ()
) -> InputPort:
    """Return an input as users see it. has_default: the model has a value for it. limits: those of
    its values."""
    t = i.type
    dtype = None if t.dtype is None else numpy_dtype(t)
    shape = None if t.shape is None else tuple(d if isinstance(d, int) else str(d) for d in t.shape)
    return InputPort(i.name, dtype, shape, str(t), has_default, limits)


def static_shape(t: TensorType, sizes: Mapping[str, int]) -> tuple[int, ...]:
    assert t.shape is not None
    return tuple(index.evaluate(d, dict(sizes)) for d in t.shape)


def check_window_sizes(
    model: Model, nodes: Iterable[ir_graph.Node], sizes: Mapping[str, int]
) -> None:
    """Raise ModelError if a value of these nodes would have a negative dimension."""
    for v in (v for n in nodes for v in ir_graph.results(n) if v.type.shape is not None):
        if min(shape := static_shape(v.type, sizes), default=0) < 0:
            raise ModelError(
                f"{model.source.label}: {model.names.get(v, 'a value')} has shape {list(shape)}",
                "a window is larger than its input", "pass larger inputs",
            )  # fmt: skip


def numpy_dtype(t: TensorType) -> np.dtype:
    assert t.dtype is not None
    return np.dtype(to_numpy(t.dtype))


def infer_input_sizes(graph: ir_graph.Graph, arrays: Sequence[np.ndarray]) -> dict[str, int]:
    """Return the symbolic sizes of these inputs. Raises UsageError if shapes do not fit."""
    given = dict(zip(graph.inputs, arrays, strict=True))
    if all(i.type.shape == a.shape for i, a in given.items() if i.type.dtype is not None):
        return {}
    try:
        return infer_sizes(given, Reals())
    except ValueError as e:
        raise UsageError("the inputs do not fit", str(e), "pass other shapes") from None
