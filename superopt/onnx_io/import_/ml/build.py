"""Helpers of the ai.onnx.ml expansions: attributes as arrays, node construction, post-
transforms."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as oir

from superopt.ir import graph
from superopt.ir.op import Attr, InferError
from superopt.onnx_io.read.packed_parts import list_attribute
from superopt.ops import OPS
from superopt.te.expr.dtype import F32, F64, I32, I64, DType, to_numpy

NUMERIC_TYPES = (F32, F64, I32, I64)  # the element types of ai.onnx.ml's inputs
POST_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


def float_list(n: oir.Node, name: str) -> np.ndarray:
    """Return a list of floats, or the tensor `<name>_as_tensor`: f32 or f64 of rank 1, perhaps
    empty."""
    tensor = n.attributes.get(f"{name}_as_tensor")
    if tensor is not None:
        return np.asarray(tensor.as_tensor().numpy()).reshape(-1)
    found = list_attribute(n, name)
    return np.array([] if found is None else found.floats, np.float32)


def integer_list(n: oir.Node, name: str) -> np.ndarray:
    """Return a list of integers as i64 of rank 1, perhaps empty."""
    found = list_attribute(n, name)
    return np.array([] if found is None else found.ints, np.int64)


def string_list(n: oir.Node, name: str) -> list[bytes]:
    """Return a list of strings, perhaps empty."""
    found = list_attribute(n, name)
    return [] if found is None else list(found.strings)


def integer_attribute(n: oir.Node, name: str, default: int) -> int:
    """Return an integer attribute, or `default`."""
    found = n.attributes.get(name)
    return default if found is None else found.as_int()


def float_attribute(n: oir.Node, name: str, default: float) -> float:
    """Return a float attribute, or `default`."""
    found = n.attributes.get(name)
    return default if found is None else found.as_float()


def string_attribute(n: oir.Node, name: str, default: str, choices: Sequence[str]) -> str:
    """Return a string attribute, or `default`. Raises InferError if it is not one of `choices`."""
    found = n.attributes.get(name)
    value = default if found is None else found.as_string()
    if value not in choices:
        raise InferError(f"{name} {value!r} is not one of {', '.join(choices)}")
    return value


def apply(name: str, *inputs: graph.Value | None, **attrs: Attr) -> graph.Value:
    """Apply an operator and return its first result."""
    return graph.result(graph.node(OPS[name], inputs, **attrs), 0)


def constant(values: object, dtype: DType) -> graph.Constant:
    """Return an array as a constant."""
    return graph.constant(np.asarray(values).astype(to_numpy(dtype)))


def cast(x: graph.Value, dtype: DType) -> graph.Value:
    """Cast `x` to another element type."""
    return x if x.type.dtype is dtype else apply("Cast", x, to=dtype)


def require_numeric(
    x: graph.Value | None, *, types: Sequence[DType] = NUMERIC_TYPES, ranks: Sequence[int] = (1, 2)
) -> graph.Value:
    """Return the operand. Raises InferError unless it has one of these element types and ranks."""
    if x is None or x.type.dtype not in types or x.type.shape is None:
        raise InferError(f"an operand of type {None if x is None else x.type}")
    if len(x.type.shape) not in ranks:
        raise InferError(
            f"an operand of {len(x.type.shape)} axes, not {' or '.join(map(str, ranks))}"
        )
    return x


def as_matrix(x: graph.Value, dtype: DType = F32) -> graph.Value:
    """Return rows of features; a vector becomes one row."""
    shape = x.type.shape
    assert shape is not None
    x = cast(x, dtype)
    return x if len(shape) == 2 else apply("Unsqueeze", x, axes=(0,))


def feature_count(x: graph.Value) -> int:
    """Return the number of features of a row. Raises InferError if it is not static."""
    size = x.type.shape[-1] if x.type.shape else None
    if not isinstance(size, int):
        raise InferError(f"rows of {size} features, of which the number is not known")
    return size


def scalar_like(value: float, x: graph.Value) -> graph.Constant:
    """Return a scalar of the element type of `x`."""
    assert x.type.dtype is not None
    return constant(value, x.type.dtype)


def apply_post_transform(
    scores: graph.Value, kind: str, single_target: bool = False
) -> graph.Value:
    """Apply `post_transform` to rows of scores, as ONNX Runtime does. single_target: a regressor of
    one target, for which only PROBIT has an effect."""
    match kind:
        case _ if single_target and kind != "PROBIT":
            return scores
        case "LOGISTIC":
            return apply("Sigmoid", scores)
        case "SOFTMAX":
            return apply("Softmax", scores, axis=1)
        case "SOFTMAX_ZERO":
            return _softmax_zero(scores)
        case "PROBIT":
            return _probit(scores)
    return scores


def _softmax_zero(x: graph.Value) -> graph.Value:
    """Softmax over the elements that are not 0 (within 1e-7); elements that are 0 stay 0 and do not
    contribute to the sum."""
    largest = apply("ReduceMax", x, axes=(1,), keepdims=1)
    counts = apply("Less", scalar_like(1e-7, x), apply("Abs", x))
    power = apply("Exp", apply("Sub", x, largest))
    rest = apply("Mul", x, apply("Exp", apply("Neg", largest)))
    summed = apply(
        "ReduceSum", apply("Where", counts, power, scalar_like(0, x)), axes=(1,), keepdims=1
    )
    return apply("Div", apply("Where", counts, power, rest), summed)


def _probit(x: graph.Value) -> graph.Value:
    """sqrt(2) erfinv(2 x - 1), with Winitzki's approximation of erfinv (a = 0.147)."""
    x = apply("Sub", apply("Mul", x, scalar_like(2, x)), scalar_like(1, x))
    one = scalar_like(1, x)
    log = apply("Log", apply("Mul", apply("Sub", one, x), apply("Add", one, x)))
    v = apply("Add", apply("Mul", log, scalar_like(0.5, x)), scalar_like(2 / (3.14159 * 0.147), x))
    inner = apply("Sub", apply("Mul", v, v), apply("Mul", log, scalar_like(1 / 0.147, x)))
    root = apply("Sqrt", apply("Sub", apply("Sqrt", inner), v))
    sign = apply("Where", apply("Less", x, scalar_like(0, x)), scalar_like(-1, x), one)
    return apply("Mul", apply("Mul", sign, root), scalar_like(math.sqrt(2), x))


def first_argmax(scores: graph.Value) -> graph.Value:
    """Return the position of the first maximum of each row; NaN is never the maximum."""
    lowest = scalar_like(-math.inf, scores)
    known = apply("Where", apply("IsNaN", scores), lowest, scores)
    return apply("ArgMax", known, axis=1, keepdims=0)


def class_labels(n: oir.Node, integers_name: str) -> np.ndarray:
    """Return the integer labels. Raises InferError for string labels, which have no kernels."""
    if some := string_list(n, "classlabels_strings"):
        if n.outputs[0].uses() or n.outputs[0].is_graph_output():
            raise InferError("its labels are strings")
        return np.arange(len(some))
    found = integer_list(n, integers_name)
    if not found.size:
        raise InferError("it has no labels")
    return found


def threshold_labels(score: graph.Value, threshold: float, label_values: np.ndarray) -> graph.Value:
    """Return the second label where the score (one column) is above the threshold, else the
    first."""
    hit = apply("Squeeze", apply("Less", scalar_like(threshold, score), score), axes=(1,))
    return apply("Where", hit, constant(label_values[1], I64), constant(label_values[0], I64))


def binary_scores(score: graph.Value, post_transform: str) -> graph.Value:
    """Return the scores of two classes from the second one's (one column), as ONNX Runtime does."""
    if post_transform == "LOGISTIC":
        first, second = apply("Sigmoid", apply("Neg", score)), apply("Sigmoid", score)
    else:
        first, second = apply("Sub", scalar_like(1, score), score), score
    return apply("Concat", first, second, axis=1)
