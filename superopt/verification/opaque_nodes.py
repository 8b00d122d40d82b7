"""Float64 values of opaque nodes, so that a whole model has a float64 reference.

A node is opaque in a graph with symbolic sizes. With known operands it may have a tensor expression
(a Reshape to a computed shape), and ONNX Runtime may run it in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from superopt import ort
from superopt.check.opaque_regions import opaque_nodes
from superopt.errors import ModelError
from superopt.ir import graph
from superopt.ir.evaluate import evaluate
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.node_model import node_model
from superopt.onnx_io.read.source import Source, read_model
from superopt.te.eval.domain import Reals
from superopt.te.expr.dtype import F64, DType, to_numpy
from superopt.te.expr.tensor import TensorType

NODE_TIMEOUT_S = 60.0  # limit for one node in ONNX Runtime
FLOAT64 = Reals(F64)


class UnknownResults(ValueError):
    """Neither a tensor expression nor onnxruntime gives the results of an opaque node."""


@dataclass(frozen=True, slots=True)
class OpaqueNodeEvaluator:
    """Evaluates the opaque nodes that were read from `source`; for `evaluate` in `Reals(F64)`."""

    source: Source

    def __call__(self, n: graph.Node, operands: list[np.ndarray | None]) -> list[np.ndarray]:
        """Return the results of `n` as arrays of `Reals(F64)`.

        Tries in this order: the tensor expression that the node has for operands of these sizes;
        ONNX Runtime in float64; ONNX Runtime in the file's own element types. The last one rounds
        the operands and the results of this one node.

        Raises UnknownResults if none of these succeeds, or for non-tensors.
        """
        types = [None if v is None else v.type.dtype for v in n.inputs]
        if any(t.dtype is None for t in n.types) or any(
            a is not None and t is None for a, t in zip(operands, types, strict=True)
        ):
            raise UnknownResults(f"{n.op.title} has operands or results that are not tensors")
        rounded = [_cast_float(a, t) for a, t in zip(operands, types, strict=True)]
        found = self._evaluate_expression(n, rounded, operands)
        if found is None and any(t is not None and t.is_float and t != F64 for t in types):
            found = self._run_in_onnxruntime(n, operands)
        if found is None:
            found = self._run_in_onnxruntime(n, rounded)
        if found is None:
            raise UnknownResults(f"onnxruntime does not run {n.op.title} by itself")
        return found

    def _evaluate_expression(
        self, n: graph.Node, rounded: list[np.ndarray | None], operands: list[np.ndarray | None]
    ) -> list[np.ndarray] | None:
        try:
            data, feeds = node_model(self.source, n, rounded)
            model = import_model(read_model(data))
            if opaque_nodes(model.graph):
                return None
            exact = {name: operands[int(name[1:])] for name in feeds}
            given = {name: a for name, a in exact.items() if a is not None}
            names = [v.name or "" for v in model.source.model.graph.outputs]
            found = evaluate(model.graph, given, FLOAT64)
        except (ModelError, ValueError, TypeError, LookupError, ArithmeticError):
            return None
        return _ordered_results(n, dict(zip(names, found, strict=True)))

    def _run_in_onnxruntime(
        self, n: graph.Node, operands: list[np.ndarray | None]
    ) -> list[np.ndarray] | None:
        if ort.installed_version() is None:
            return None
        try:
            data, feeds = node_model(self.source, n, operands)
            found = ort.shared_worker().run(data, feeds, limit=NODE_TIMEOUT_S, exact_integers=True)
        except (ValueError, TypeError, LookupError):
            return None
        if isinstance(found, ort.Failure):
            return None
        arrays = {name: a for name, a in found.items() if isinstance(a, np.ndarray)}
        return _ordered_results(n, arrays) if len(arrays) == len(found) else None


def _cast_float(array: np.ndarray | None, dtype: DType | None) -> np.ndarray | None:
    """Return `array` in the element type that the operand has in the file."""
    if array is None or dtype is None or not dtype.is_float:
        return array
    return array.astype(to_numpy(dtype))


def _ordered_results(n: graph.Node, arrays: dict[str, np.ndarray]) -> list[np.ndarray] | None:
    """Return one array of `Reals(F64)` for each result of `n`, empty for a result without a name;
    None if an element type is not that of the node."""
    found: list[np.ndarray] = []
    for k, t in enumerate(n.types):
        assert t.dtype is not None
        array = arrays.get(f"y{k}")
        if array is None:
            array = np.zeros((0,) * len(t.shape or ()), FLOAT64.storage_dtype(t.dtype))
        try:
            found.append(FLOAT64.load(array, TensorType(t.dtype, array.shape)))
        except TypeError:
            return None
    return found
