"""Expansions of the dense ai.onnx.ml operators, as ONNX Runtime computes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as oir

from superopt.ir import graph
from superopt.ir.op import InferError
from superopt.onnx_io.import_.ml.build import (
    POST_TRANSFORMS,
    apply,
    apply_post_transform,
    as_matrix,
    binary_scores,
    cast,
    class_labels,
    constant,
    feature_count,
    first_argmax,
    float_attribute,
    float_list,
    integer_attribute,
    integer_list,
    require_numeric,
    scalar_like,
    string_attribute,
    string_list,
    threshold_labels,
)
from superopt.te.expr.dtype import BOOL, F32, F64, I32, I64

Operands = Sequence[graph.Value | None]
ExpandNode = Callable[
    [oir.Node, Operands, int], Sequence[graph.Value]
]  # the last: ai.onnx.ml's opset
SVM_KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")


def _check_per_feature(values: np.ndarray, x: graph.Value, name: str) -> np.ndarray:
    """Return the values. Raises InferError unless there is one, or one for each feature."""
    if values.size != 1 and values.size != feature_count(x):
        raise InferError(f"{values.size} values of {name} for {feature_count(x)} features")
    return values


def scaler(n: oir.Node, operands: Operands, version: int) -> Sequence[graph.Value]:
    """(x - offset) * scale; float64 is rounded at the end."""
    x = require_numeric(operands[0])
    offset, scale = (_check_per_feature(float_list(n, k), x, k) for k in ("offset", "scale"))
    if offset.size != scale.size:
        raise InferError(f"{offset.size} offsets and {scale.size} scales")
    kind = F64 if x.type.dtype is F64 else F32
    y = apply("Mul", apply("Sub", cast(x, kind), constant(offset, kind)), constant(scale, kind))
    return (cast(y, F32),)


def normalizer(n: oir.Node, operands: Operands, version: int) -> Sequence[graph.Value]:
    """Divide rows by their norm; rows of norm 0 are unchanged. MAX is the greatest element, of any
    sign. L2 is computed from squares, so the signs are restored."""
    x = cast(require_numeric(operands[0]), F32)
    assert x.type.shape is not None
    axes, zero = (len(x.type.shape) - 1,), scalar_like(0, x)
    how = string_attribute(n, "norm", "MAX", ("MAX", "L1", "L2"))
    if how == "L2":
        squares = apply("Mul", x, x)
        norm = apply("ReduceSum", squares, axes=axes, keepdims=1)
        root = apply("Sqrt", apply("Div", squares, norm))
        y = apply("Where", apply("Less", x, zero), apply("Neg", root), root)
    elif how == "L1":
        norm = apply("ReduceSum", apply("Abs", x), axes=axes, keepdims=1)
        y = apply("Div", x, norm)
    else:
        norm = apply("ReduceMax", x, axes=axes, keepdims=1)
        y = apply("Div", x, norm)
    return (apply("Where", apply("Equal", norm, zero), x, y),)


def imputer(n: oir.Node, operands: Operands, version: int) -> Sequence[graph.Value]:
    """Replace each element equal to `replaced`, which may be NaN, by `imputed`."""
    x = require_numeric(operands[0])
    kind = x.type.dtype
    assert kind is not None
    if kind.is_float:
        values, replaced = (
            float_list(n, "imputed_value_floats"),
            float_attribute(n, "replaced_value_float", 0),
        )
    else:
        values = integer_list(n, "imputed_value_int64s")
        replaced = integer_attribute(n, "replaced_value_int64", 0)
    values = _check_per_feature(values, x, "imputed values")
    hit = apply("IsNaN", x) if replaced != replaced else apply("Equal", x, scalar_like(replaced, x))
    return (apply("Where", hit, constant(values, kind), x),)


def binarizer(n: oir.Node, operands: Operands, version: int) -> Sequence[graph.Value]:
    """1 above the threshold, else 0."""
    x = require_numeric(operands[0], ranks=range(1, 9))
    kind = x.type.dtype
    assert kind is not None
    return (cast(apply("Less", scalar_like(float_attribute(n, "threshold", 0.0), x), x), kind),)


def array_feature_extractor(n: oir.Node, operands: Operands, version: int) -> Sequence[graph.Value]:
    """Gather elements of the last axis; a vector counts as a matrix of one row."""
    x, at = require_numeric(operands[0], ranks=range(1, 9)), operands[1]
    if at is None or at.type.shape is None or at.type.dtype is not I64:
        raise InferError("indices of no known type")
    rank = len(x.type.shape or ())
    at = at if len(at.type.shape) == 1 else apply("Reshape", at, shape=(-1,))
    y = apply("Gather", x, at, axis=rank - 1)
    return (y if rank > 1 else apply("Unsqueeze", y, axes=(0,)),)


def linear_regressor(n: oir.Node, operands: Operands, version: int) -> Sequence[graph.Value]:
    """x coefficients^T + intercepts."""
    x, targets = as_matrix(require_numeric(operands[0])), integer_attribute(n, "targets", 1)
    y = _linear_scores(n, x, targets)
    how = string_attribute(n, "post_transform", "NONE", POST_TRANSFORMS)
    return (apply_post_transform(y, how, single_target=targets == 1),)


def _linear_scores(n: oir.Node, x: graph.Value, rows: int) -> graph.Value:
    coefficients, intercepts = float_list(n, "coefficients"), float_list(n, "intercepts")
    if rows < 1 or coefficients.size != rows * feature_count(x):
        raise InferError(f"{coefficients.size} coefficients for {rows} x {feature_count(x)}")
    if intercepts.size not in (0, rows):
        raise InferError(f"{intercepts.size} intercepts for {rows} results")
    c = constant(coefficients.reshape(rows, -1), F32)
    bias = (constant(intercepts, F32),) if intercepts.size else ()
    return apply("Gemm", x, c, *bias, transB=1)


def linear_classifier(n: oir.Node, operands: Operands, version: int) -> Sequence[graph.Value]:
    """Return the labels of the greatest scores, and the scores; one score for two labels is the
    second's."""
    x, names = as_matrix(require_numeric(operands[0])), class_labels(n, "classlabels_ints")
    how = string_attribute(n, "post_transform", "NONE", POST_TRANSFORMS)
    count = float_list(n, "intercepts").size
    scores = _linear_scores(n, x, count)
    if count > 1:
        if names.size < count:
            raise InferError(f"{names.size} labels for {count} scores")
        chosen = apply("Gather", constant(names, I64), first_argmax(scores), axis=0)
        return chosen, apply_post_transform(scores, how)
    if names.size != 2 or how == "PROBIT":
        raise InferError(
            f"post_transform {how} is not supported with 1 score for {names.size} labels"
        )
    return threshold_labels(scores, 0.0, names), binary_scores(scores, how)


def _svm_kernel(n: oir.Node, x: graph.Value, vectors: np.ndarray, kernel_type: str) -> graph.Value:
    """Return the kernel of each row with each support vector."""
    parameters = float_list(n, "kernel_params")
    gamma, coef0, degree = (float(v) for v in (parameters if parameters.size else (0, 0, 0)))
    if kernel_type == "RBF":
        apart = apply("Sub", apply("Unsqueeze", x, axes=(1,)), constant(vectors, F32))
        squares = apply("ReduceSum", apply("Mul", apart, apart), axes=(2,), keepdims=0)
        return apply("Exp", apply("Mul", squares, scalar_like(-gamma, x)))
    product = apply("Gemm", x, constant(vectors, F32), transB=1)
    if kernel_type == "LINEAR":
        return product
    y = apply("Add", apply("Mul", product, scalar_like(gamma, x)), scalar_like(coef0, x))
    return apply("Tanh", y) if kernel_type == "SIGMOID" else apply("Pow", y, scalar_like(degree, x))


def svm_regressor(n: oir.Node, operands: Operands, version: int) -> Sequence[graph.Value]:
    """Weighted sum of kernels with support vectors, or of features if there are none."""
    x = as_matrix(require_numeric(operands[0], types=(F32,)))
    coefficients, rho = float_list(n, "coefficients"), float_list(n, "rho")[:1]
    count = integer_attribute(n, "n_supports", 0)
    if rho.size != 1 or not coefficients.size:
        raise InferError("it has no rho, or no coefficients")
    if count > 0:
        vectors = _support_vectors(n, x, count)
        x = _svm_kernel(n, x, vectors, string_attribute(n, "kernel_type", "LINEAR", SVM_KERNELS))
    if coefficients.size != feature_count(x):
        raise InferError(f"{coefficients.size} coefficients for {feature_count(x)}")
    y = apply("Gemm", x, constant(coefficients[None], F32), constant(rho, F32), transB=1)
    if integer_attribute(n, "one_class", 0):
        y = apply(
            "Where", apply("Less", scalar_like(0, y), y), scalar_like(1, y), scalar_like(-1, y)
        )
    return (y,)


def _support_vectors(n: oir.Node, x: graph.Value, count: int) -> np.ndarray:
    found = float_list(n, "support_vectors")
    if found.size != count * feature_count(x):
        raise InferError(f"{found.size} numbers in {count} support vectors of {feature_count(x)}")
    return found.reshape(count, -1)


def svm_classifier(n: oir.Node, operands: Operands, version: int) -> Sequence[graph.Value]:
    """SVM classifier. Without support vectors there is a score for each class; with them there is
    one for each pair of classes, which votes for one of the two."""
    if float_list(n, "prob_a").size:
        raise InferError("probabilities that are found by iteration")
    x, names = as_matrix(require_numeric(operands[0])), class_labels(n, "classlabels_ints")
    how = string_attribute(n, "post_transform", "NONE", POST_TRANSFORMS)
    coefficients, rho = float_list(n, "coefficients"), float_list(n, "rho")
    each = integer_list(n, "vectors_per_class")
    classes, count = names.size, int(each.sum())
    if classes < 3:
        raise InferError("two classes, of which the label depends on the signs of coefficients")
    if not count:
        if coefficients.size != classes * feature_count(x) or not rho.size:
            raise InferError(f"{coefficients.size} coefficients for {classes} x {feature_count(x)}")
        c = constant(coefficients.reshape(classes, -1), F32)
        scores = apply("Gemm", x, c, constant(rho[:1], F32), transB=1)
        return apply(
            "Gather", constant(names, I64), first_argmax(scores), axis=0
        ), apply_post_transform(scores, how)
    pairs = [(i, j) for i in range(classes) for j in range(i + 1, classes)]
    if each.size != classes or coefficients.size != (classes - 1) * count or rho.size < len(pairs):
        raise InferError(f"{coefficients.size} coefficients, {rho.size} rho for {classes} classes")
    kernels = _svm_kernel(
        n,
        x,
        _support_vectors(n, x, count),
        string_attribute(n, "kernel_type", "LINEAR", SVM_KERNELS),
    )
    table, begin = np.zeros((count, len(pairs)), np.float32), np.cumsum([0, *each])
    rows = coefficients.reshape(classes - 1, count)
    wins, loses = (np.zeros((len(pairs), classes), np.float32) for _ in range(2))
    for k, (i, j) in enumerate(pairs):
        own, other = (slice(begin[c], begin[c + 1]) for c in (i, j))
        table[own, k], table[other, k] = rows[j - 1, own], rows[i, other]
        wins[k, i] = loses[k, j] = 1
    offsets = constant(rho[: len(pairs)], F32)
    scores = apply("Gemm", kernels, constant(table, F32), offsets)
    won = cast(apply("Less", scalar_like(0, scores), scores), F32)
    votes = apply("Gemm", won, constant(wins - loses, F32), constant(loses.sum(0), F32))
    chosen = apply("ArgMax", votes, axis=1, keepdims=0)
    return apply("Gather", constant(names, I64), chosen, axis=0), apply_post_transform(scores, how)


def label_encoder(n: oir.Node, operands: Operands, version: int) -> Sequence[graph.Value]:
    """Look up numbers in a table of numbers; a missing key gives the default. A NaN key matches NaN
    from opset 4 on, and nothing before."""
    keys, values, default = _encoder_table(n)
    if keys.dtype == object or values.dtype == object:
        raise InferError("a table of strings")
    x = require_numeric(operands[0], ranks=range(9))
    if keys.size != values.size or not keys.size:
        raise InferError(f"{keys.size} keys and {values.size} values")
    if keys.size > MAX_ENCODER_KEYS:
        raise InferError(f"{keys.size} keys, each of which would be compared")
    kind = x.type.dtype
    assert kind is not None
    column = apply("Unsqueeze", x, axes=(len(x.type.shape or ()),))
    order: dict[object, int] = {}  # the first of equal keys
    for i, k in enumerate(keys.tolist()):
        order.setdefault("NaN" if k != k else k, i)
    kept = list(order.values())
    some = keys[kept]
    held = constant(some, kind)
    hit = apply("Equal", column, held)
    if version >= 4 and kind.is_float and np.isnan(some.astype(np.float64)).any():
        both = apply("And", apply("IsNaN", column), constant(np.isnan(some), BOOL))
        hit = apply("Or", hit, both)
    places = constant(np.arange(1, len(kept) + 1), I32)
    found = apply("Where", hit, places, constant(0, I32))
    place = apply("ReduceMax", found, axes=(len(x.type.shape or ()),), keepdims=0)
    table = np.concatenate([np.asarray([default], values.dtype), values[kept]])
    return (apply("Gather", graph.constant(table), place, axis=0),)


MAX_ENCODER_KEYS = 64


def _encoder_table(n: oir.Node) -> tuple[np.ndarray, np.ndarray, object]:
    """Return keys, values and the default; string tables are arrays of objects."""
    sides = []
    for side in ("keys", "values"):
        tensor = n.attributes.get(f"{side}_tensor")
        if tensor is not None:
            sides.append(np.asarray(tensor.as_tensor().numpy()).reshape(-1))
        elif (whole := integer_list(n, f"{side}_int64s")).size:
            sides.append(whole)
        elif (some := float_list(n, f"{side}_floats")).size:
            sides.append(some)
        else:
            sides.append(np.array(string_list(n, f"{side}_strings"), object))
    keys, values = sides
    tensor = n.attributes.get("default_tensor")
    default: object
    if tensor is not None:
        default = np.asarray(tensor.as_tensor().numpy()).reshape(-1)[0]
    elif values.dtype.kind == "f":
        default = float_attribute(
            n, "default_float", 0.0 if n.attributes.get("values_tensor") else -0.0
        )
    else:
        default = integer_attribute(n, "default_int64", -1)
    return keys, values, default


def one_hot_encoder(n: oir.Node, operands: Operands, version: int) -> Sequence[graph.Value]:
    """One-hot encoding of each element after truncation to an integer; all zeros for an unknown
    category, if those are allowed."""
    x, known = require_numeric(operands[0], ranks=(1, 2)), integer_list(n, "cats_int64s")
    if not known.size or integer_attribute(n, "zeros", 1) == 0:
        raise InferError("categories that are strings, or an error for those that it does not know")
    last = {int(k): i for i, k in enumerate(known)}  # of equal ones
    shown = np.array([int(k) if last[int(k)] == i else None for i, k in enumerate(known)], object)
    if any(k is None for k in shown):
        raise InferError("a category is named twice")
    column = apply("Unsqueeze", cast(x, I64), axes=(len(x.type.shape or ()),))
    return (cast(apply("Equal", column, constant(known, I64)), F32),)


def feature_vectorizer(n: oir.Node, operands: Operands, version: int) -> Sequence[graph.Value]:
    """Concatenate the operands' features."""
    sizes = integer_list(n, "inputdimensions")
    some = [as_matrix(require_numeric(x)) for x in operands]
    if len(some) != sizes.size or any(
        feature_count(x) != k for x, k in zip(some, sizes, strict=True)
    ):
        raise InferError(f"inputdimensions {sizes.tolist()} are others than the operands have")
    return (apply("Concat", *some, axis=1) if len(some) > 1 else some[0],)


DENSE: Mapping[str, ExpandNode] = {
    "ArrayFeatureExtractor": array_feature_extractor,
    "Binarizer": binarizer,
    "FeatureVectorizer": feature_vectorizer,
    "Imputer": imputer,
    "LabelEncoder": label_encoder,
    "LinearClassifier": linear_classifier,
    "LinearRegressor": linear_regressor,
    "Normalizer": normalizer,
    "OneHotEncoder": one_hot_encoder,
    "Scaler": scaler,
    "SVMClassifier": svm_classifier,
    "SVMRegressor": svm_regressor,
}
