"""Operators of ai.onnx.ml: expansions into ONNX operators, and the types of their results.

An expansion lets shape inference, evaluation, rewriting, proofs and kernels work without special
cases. The exporter writes the original node where all of its results are intact. Operators without
an expansion (strings, maps, probabilities found by iteration) become opaque nodes, whose types
`ml_result_types` gives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import onnx_ir as oir

from superopt.ir import graph as g
from superopt.ir.op import InferError
from superopt.onnx_io.ml_build import integer, integers, strings
from superopt.onnx_io.ml_dense import DENSE, Expand, Operands
from superopt.onnx_io.ml_trees import TREES
from superopt.onnx_io.symbols import FileDim
from superopt.onnx_io.types import dtype_of
from superopt.te.dtype import F32, I64, STRING, DType
from superopt.te.expr import TensorType

DOMAIN = "ai.onnx.ml"
Dims = tuple[FileDim, ...] | None
Known = tuple[DType | None, Dims]
EXPANSIONS: Mapping[str, Expand] = {**DENSE, **TREES}


def expanded(n: oir.Node, operands: Operands, version: int) -> Sequence[g.Value]:
    """Return the results of an ai.onnx.ml node as values of ONNX operators.

    n: a node of ai.onnx.ml in opset `version` of that domain. Raises InferError if it has no
    expansion.
    """
    found = EXPANSIONS.get(n.op_type)
    if found is None:
        raise InferError(f"domain {DOMAIN} (opset {version})")
    return found(n, operands, version)


def ml_types(n: oir.Node, operands: Operands) -> list[Known]:
    """Return the element type and dims of each result, as far as attributes and operands determine
    them."""
    found = _TYPES.get(n.op_type)
    first = operands[0] if operands else None
    given = TensorType(None, None) if first is None else first.type
    out = [] if found is None else found(n, given)
    return [*out, *[(None, None)] * len(n.outputs)][: len(n.outputs)]


def _dims(t: TensorType) -> Dims:
    return None if t.shape is None else tuple(d if isinstance(d, int) else None for d in t.shape)


def _rows(t: TensorType) -> FileDim:
    dims = _dims(t)
    return None if not dims else dims[0] if len(dims) > 1 else 1


def _same(n: oir.Node, t: TensorType) -> list[Known]:
    return [(t.dtype, _dims(t))]


def _floats(n: oir.Node, t: TensorType) -> list[Known]:
    return [(F32, _dims(t))]


def _columns(count: int | None) -> Callable[[oir.Node, TensorType], list[Known]]:
    return lambda n, t: [(F32, (_rows(t), count))]


def _targets(name: str) -> Callable[[oir.Node, TensorType], list[Known]]:
    def types(n: oir.Node, t: TensorType) -> list[Known]:
        return [(F32, (_rows(t), integer(n, name, 1)))]

    return types


def _ensemble(n: oir.Node, t: TensorType) -> list[Known]:
    return [(t.dtype, (_rows(t), integer(n, "n_targets", 1)))]


def _classifier(names: str, pairs: bool = False) -> Callable[[oir.Node, TensorType], list[Known]]:
    def types(n: oir.Node, t: TensorType) -> list[Known]:
        some, ints = strings(n, "classlabels_strings"), integers(n, names)
        count: int | None = len(some) or len(ints) or None
        if pairs and (count or 0) > 2 and "prob_a" not in n.attributes:
            count = None  # one for each pair, or for each class
        rows = _rows(t)
        return [(STRING if some else I64, (rows,)), (F32, (rows, count))]

    return types


def _encoder(n: oir.Node, t: TensorType) -> list[Known]:
    tensor = n.attributes.get("values_tensor")
    if tensor is not None:
        return [(dtype_of(tensor.as_tensor().dtype), _dims(t))]
    if "classes_strings" in n.attributes:  # opset 1
        return [(I64 if t.dtype is STRING else STRING, _dims(t))]
    for kind, dtype in (("int64s", I64), ("floats", F32), ("strings", STRING)):
        if any(key.endswith(f"values_{kind}") for key in n.attributes):
            return [(dtype, _dims(t))]
    return [(None, _dims(t))]


def _mapper(n: oir.Node, t: TensorType) -> list[Known]:
    return [(I64 if t.dtype is STRING else STRING, _dims(t))]


def _one_hot(n: oir.Node, t: TensorType) -> list[Known]:
    count = len(integers(n, "cats_int64s")) or len(strings(n, "cats_strings")) or None
    dims = _dims(t)
    return [(F32, None if dims is None else (*dims, count))]


def _vectorized(n: oir.Node, t: TensorType) -> list[Known]:
    sizes = integers(n, "inputdimensions")
    return [(F32, (_rows(t), int(sizes.sum()) if sizes.size else None))]


def _extracted(n: oir.Node, t: TensorType) -> list[Known]:
    dims = _dims(t)
    return [(t.dtype, None if dims is None else (*dims[:-1], None) if len(dims) > 1 else (1, None))]


def _dictionary(n: oir.Node, t: TensorType) -> list[Known]:
    count = len(integers(n, "int64_vocabulary")) or len(strings(n, "string_vocabulary")) or None
    return [(None, (1, count))]


_TYPES: Mapping[str, Callable[[oir.Node, TensorType], list[Known]]] = {
    "ArrayFeatureExtractor": _extracted,
    "Binarizer": _same,
    "CategoryMapper": _mapper,
    "DictVectorizer": _dictionary,
    "FeatureVectorizer": _vectorized,
    "Imputer": _same,
    "LabelEncoder": _encoder,
    "LinearClassifier": _classifier("classlabels_ints"),
    "LinearRegressor": _targets("targets"),
    "Normalizer": _floats,
    "OneHotEncoder": _one_hot,
    "SVMClassifier": _classifier("classlabels_ints", pairs=True),
    "SVMRegressor": _columns(1),
    "Scaler": _floats,
    "TreeEnsemble": _ensemble,
    "TreeEnsembleClassifier": _classifier("classlabels_int64s"),
    "TreeEnsembleRegressor": _targets("n_targets"),
}
