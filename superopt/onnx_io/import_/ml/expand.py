"""Operators of ai.onnx.ml: expansions into ONNX operators, and the types of their results.

An expansion lets shape inference, evaluation, rewriting, proofs and kernels work without special
cases. The exporter writes the original node where all of its results are intact. Operators without
an expansion (strings, maps, probabilities found by iteration) become opaque nodes, whose types
`ml_result_types` gives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import onnx_ir as oir

from superopt.ir import graph
from superopt.ir.op import InferError
from superopt.onnx_io.import_.dtypes import dtype_of
from superopt.onnx_io.import_.ml.build import integer_attribute, integer_list, string_list
from superopt.onnx_io.import_.ml.dense import DENSE, ExpandNode, Operands
from superopt.onnx_io.import_.ml.trees import TREES
from superopt.onnx_io.import_.symbols import FileDim
from superopt.te.expr.dtype import F32, I64, STRING, DType
from superopt.te.expr.tensor import TensorType

ML_DOMAIN = "ai.onnx.ml"
Dims = tuple[FileDim, ...] | None
ResultType = tuple[DType | None, Dims]
EXPANSIONS: Mapping[str, ExpandNode] = {**DENSE, **TREES}


def expand_node(n: oir.Node, operands: Operands, version: int) -> Sequence[graph.Value]:
    """Return the results of an ai.onnx.ml node as values of ONNX operators.

    n: a node of ai.onnx.ml in opset `version` of that domain. Raises InferError if it has no
    expansion.
    """
    found = EXPANSIONS.get(n.op_type)
    if found is None:
        raise InferError(f"domain {ML_DOMAIN} (opset {version})")
    return found(n, operands, version)


def ml_result_types(n: oir.Node, operands: Operands) -> list[ResultType]:
    """Return the element type and dims of each result, as far as attributes and operands determine
    them."""
    found = _RESULT_TYPES.get(n.op_type)
    first = operands[0] if operands else None
    given = TensorType(None, None) if first is None else first.type
    out = [] if found is None else found(n, given)
    return [*out, *[(None, None)] * len(n.outputs)][: len(n.outputs)]


def _dims(t: TensorType) -> Dims:
    return None if t.shape is None else tuple(d if isinstance(d, int) else None for d in t.shape)


def _row_count(t: TensorType) -> FileDim:
    dims = _dims(t)
    return None if not dims else dims[0] if len(dims) > 1 else 1


def _same_types(n: oir.Node, t: TensorType) -> list[ResultType]:
    return [(t.dtype, _dims(t))]


def _float_types(n: oir.Node, t: TensorType) -> list[ResultType]:
    return [(F32, _dims(t))]


def _column_types(count: int | None) -> Callable[[oir.Node, TensorType], list[ResultType]]:
    return lambda n, t: [(F32, (_row_count(t), count))]


def _target_types(name: str) -> Callable[[oir.Node, TensorType], list[ResultType]]:
    def types(n: oir.Node, t: TensorType) -> list[ResultType]:
        return [(F32, (_row_count(t), integer_attribute(n, name, 1)))]

    return types


def _ensemble_types(n: oir.Node, t: TensorType) -> list[ResultType]:
    return [(t.dtype, (_row_count(t), integer_attribute(n, "n_targets", 1)))]


def _classifier_types(
    names: str, pairs: bool = False
) -> Callable[[oir.Node, TensorType], list[ResultType]]:
    def types(n: oir.Node, t: TensorType) -> list[ResultType]:
        some, ints = string_list(n, "classlabels_strings"), integer_list(n, names)
        count: int | None = len(some) or len(ints) or None
        if pairs and (count or 0) > 2 and "prob_a" not in n.attributes:
            count = None  # one for each pair, or for each class
        rows = _row_count(t)
        return [(STRING if some else I64, (rows,)), (F32, (rows, count))]

    return types


def _encoder_types(n: oir.Node, t: TensorType) -> list[ResultType]:
    tensor = n.attributes.get("values_tensor")
    if tensor is not None:
        return [(dtype_of(tensor.as_tensor().dtype), _dims(t))]
    if "classes_strings" in n.attributes:  # opset 1
        return [(I64 if t.dtype is STRING else STRING, _dims(t))]
    for kind, dtype in (("int64s", I64), ("floats", F32), ("strings", STRING)):
        if any(key.endswith(f"values_{kind}") for key in n.attributes):
            return [(dtype, _dims(t))]
    return [(None, _dims(t))]


def _mapper_types(n: oir.Node, t: TensorType) -> list[ResultType]:
    return [(I64 if t.dtype is STRING else STRING, _dims(t))]


def _one_hot_types(n: oir.Node, t: TensorType) -> list[ResultType]:
    count = len(integer_list(n, "cats_int64s")) or len(string_list(n, "cats_strings")) or None
    dims = _dims(t)
    return [(F32, None if dims is None else (*dims, count))]


def _vectorizer_types(n: oir.Node, t: TensorType) -> list[ResultType]:
    sizes = integer_list(n, "inputdimensions")
    return [(F32, (_row_count(t), int(sizes.sum()) if sizes.size else None))]


def _extractor_types(n: oir.Node, t: TensorType) -> list[ResultType]:
    dims = _dims(t)
    return [(t.dtype, None if dims is None else (*dims[:-1], None) if len(dims) > 1 else (1, None))]


def _dictionary_types(n: oir.Node, t: TensorType) -> list[ResultType]:
    count = (
        len(integer_list(n, "int64_vocabulary")) or len(string_list(n, "string_vocabulary")) or None
    )
    return [(None, (1, count))]


_RESULT_TYPES: Mapping[str, Callable[[oir.Node, TensorType], list[ResultType]]] = {
    "ArrayFeatureExtractor": _extractor_types,
    "Binarizer": _same_types,
    "CategoryMapper": _mapper_types,
    "DictVectorizer": _dictionary_types,
    "FeatureVectorizer": _vectorizer_types,
    "Imputer": _same_types,
    "LabelEncoder": _encoder_types,
    "LinearClassifier": _classifier_types("classlabels_ints"),
    "LinearRegressor": _target_types("targets"),
    "Normalizer": _float_types,
    "OneHotEncoder": _one_hot_types,
    "SVMClassifier": _classifier_types("classlabels_ints", pairs=True),
    "SVMRegressor": _column_types(1),
    "Scaler": _float_types,
    "TreeEnsemble": _ensemble_types,
    "TreeEnsembleClassifier": _classifier_types("classlabels_int64s"),
    "TreeEnsembleRegressor": _target_types("n_targets"),
}
