"""Operators of ai.onnx.ml: compiled, and as onnxruntime computes them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import superopt

ort = pytest.importorskip("onnxruntime")

ML = "ai.onnx.ml"
RNG = np.random.default_rng(0)
ROWS = RNG.standard_normal((7, 4)).astype(np.float32)
HOLES = np.where(RNG.random((7, 4)) < 0.3, np.nan, ROWS).astype(np.float32)
WHOLE = RNG.integers(-3, 4, (7, 4))
SIGNS = np.array([[0, 0, 0, 0], [-1, -2, -3, -4], [0, -1, 0, -2], [3, 0, 4, 0]], np.float32)


def some(*shape: int) -> list[float]:
    return [float(v) for v in RNG.standard_normal(shape).astype(np.float32).reshape(-1)]


def model(
    op: str, xs: list[np.ndarray], outputs: int, version: int = 3, **attributes: object
) -> onnx.ModelProto:
    names = [f"x{k}" for k in range(len(xs))]
    results = ["y", "z"][:outputs]
    node = helper.make_node(op, names, results, domain=ML)
    for key, value in attributes.items():
        kind = onnx.AttributeProto.FLOATS if value == [] else None
        node.attribute.append(helper.make_attribute(key, value, attr_type=kind))
    graph = helper.make_graph(
        [node],
        "one",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(x.dtype), ["n", *x.shape[1:]]
                if x.ndim > 1 else x.shape,
            )
            for name, x in zip(names, xs, strict=True)
        ],
        [onnx.ValueInfoProto(name=name) for name in results],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(ML, version)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    del made.graph.output[:]
    for value, x in zip(results, session.run(None, dict(zip(names, xs, strict=True))), strict=True):
        kind = helper.np_dtype_to_tensor_dtype(np.asarray(x).dtype)
        made.graph.output.append(helper.make_tensor_value_info(value, kind, [None] * x.ndim))
    return made


def compared(made: onnx.ModelProto, xs: list[np.ndarray], ours: bool = True) -> None:
    """The compiled model gives what onnxruntime gives; ours: by kernels only."""
    feeds = {f"x{k}": x for k, x in enumerate(xs)}
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    exe = superopt.compile(made, threads=1)
    got = exe.run(feeds)
    for value, want in zip(made.graph.output, session.run(None, feeds), strict=True):
        found = got[value.name]
        assert found.dtype == want.dtype
        assert found.shape == want.shape
        if want.dtype.kind == "f":
            np.testing.assert_allclose(found, want, rtol=2e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(found, want)
    sizes = {"n": len(xs[0])} if xs[0].ndim > 1 else {}
    assert (
        [n.op.name for n, _ in exe.fallback_nodes(sizes)] == []
        if ours
        else exe.fallback_nodes(sizes)
    )


def linear(rows: int, **more: object) -> dict[str, object]:
    return {"coefficients": some(rows, 4), "intercepts": some(rows), **more}


def classes(count: int, **more: object) -> dict[str, object]:
    return linear(count, classlabels_ints=[5 * k - 3 for k in range(max(count, 2))], **more)


def svm(kind: str, vectors: int = 5, **more: object) -> dict[str, object]:
    return {
        "kernel_type": kind, "kernel_params": [0.3, 0.5, 3.0], "n_supports": vectors,
        "support_vectors": some(vectors, 4), "coefficients": some(vectors), "rho": some(1), **more,
    }  # fmt: skip


def svc(kind: str, **more: object) -> dict[str, object]:
    return {
        "kernel_type": kind, "kernel_params": [0.3, 0.5, 2.0], "vectors_per_class": [2, 3, 2],
        "support_vectors": some(7, 4), "coefficients": some(2, 7), "rho": some(3),
        "classlabels_ints": [4, 9, 2], **more,
    }  # fmt: skip


POST = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO")
KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")
CASES: list[tuple[str, list[np.ndarray], int, dict[str, object]]] = [
    ("Scaler", [ROWS], 1, {"offset": some(4), "scale": some(4)}),
    ("Scaler", [ROWS], 1, {"offset": [0.5], "scale": [2.0]}),
    ("Scaler", [ROWS[0]], 1, {"offset": some(4), "scale": some(4)}),
    ("Scaler", [ROWS.astype(np.float64)], 1, {"offset": some(4), "scale": some(4)}),
    ("Scaler", [WHOLE], 1, {"offset": some(4), "scale": some(4)}),
    ("Scaler", [WHOLE.astype(np.int32)], 1, {"offset": [0.5], "scale": [3.0]}),
    *[("Normalizer", [x], 1, {"norm": norm}) for norm in ("MAX", "L1", "L2")
      for x in (ROWS, SIGNS, WHOLE, ROWS[0])],
    ("Imputer", [HOLES], 1, {"imputed_value_floats": [9.0], "replaced_value_float": np.nan}),
    ("Imputer", [HOLES], 1, {"imputed_value_floats": some(4), "replaced_value_float": np.nan}),
    ("Imputer", [SIGNS], 1, {"imputed_value_floats": some(4), "replaced_value_float": 0.0}),
    ("Imputer", [WHOLE], 1, {"imputed_value_int64s": [7], "replaced_value_int64": -1}),
    ("Imputer", [WHOLE], 1, {"imputed_value_int64s": [7, 8, 9, 6], "replaced_value_int64": 2}),
    ("Binarizer", [ROWS], 1, {"threshold": 0.25}),
    ("Binarizer", [SIGNS], 1, {"threshold": 0.0}),
    ("ArrayFeatureExtractor", [ROWS, np.array([2, 0, 2])], 1, {}),
    ("ArrayFeatureExtractor", [WHOLE, np.array([3])], 1, {}),
    ("ArrayFeatureExtractor", [ROWS[0], np.array([1, 3])], 1, {}),
    ("LinearRegressor", [ROWS], 1, linear(1)),
    ("LinearRegressor", [ROWS], 1, linear(3, targets=3)),
    ("LinearRegressor", [ROWS], 1, {"coefficients": some(1, 4)}),
    *[("LinearClassifier", [ROWS], 2, classes(3, post_transform=p)) for p in POST],
    ("LinearClassifier", [WHOLE], 2, classes(3)),
    ("LinearClassifier", [SIGNS], 2, classes(2, post_transform="SOFTMAX")),
    *[("LinearClassifier", [ROWS], 2, classes(1, post_transform=p)) for p in POST],
    *[("LinearRegressor", [ROWS], 1, linear(k, targets=k, post_transform=p))
      for k in (1, 3) for p in POST],
    *[("LinearRegressor", [ROWS / 50], 1, {"coefficients": [0.5] * 4 * k, "targets": k,
       "intercepts": [0.4] * k, "post_transform": "PROBIT"}) for k in (1, 3)],
    *[("SVMRegressor", [ROWS], 1, svm(k)) for k in KERNELS],
    ("SVMRegressor", [ROWS], 1, svm("RBF", one_class=1)),
    ("SVMRegressor", [ROWS], 1, svm("LINEAR", 0, coefficients=some(4), support_vectors=[])),
    *[("SVMClassifier", [ROWS], 2, svc(k)) for k in KERNELS],
    *[("SVMClassifier", [ROWS], 2, svc("RBF", post_transform=p)) for p in POST],
    ("SVMClassifier", [ROWS], 2, {"coefficients": some(3, 4), "rho": some(1),
     "classlabels_ints": [4, 9, 2], "kernel_params": [], "post_transform": "SOFTMAX"}),
    ("OneHotEncoder", [WHOLE], 1, {"cats_int64s": [2, -1, 0]}),
    ("OneHotEncoder", [ROWS * 3], 1, {"cats_int64s": [2, -1, 0]}),
    ("FeatureVectorizer", [ROWS, ROWS[:, :2]], 1, {"inputdimensions": [4, 2]}),
]  # fmt: skip
ENCODERS: list[tuple[int, np.ndarray, dict[str, object]]] = [
    (2, WHOLE, {"keys_int64s": [0, 1, -2], "values_int64s": [9, 8, 7], "default_int64": -5}),
    (2, WHOLE, {"keys_int64s": [0, 1, 2], "values_floats": some(3), "default_float": 0.5}),
    (2, SIGNS, {"keys_floats": [0.0, -1.0, 3.0], "values_floats": some(3)}),
    *[(v, HOLES, {"keys_floats": [float("nan"), float(ROWS[0, 0])], "values_int64s": [1, 2]})
      for v in (2, 4)],
    (2, WHOLE, {"keys_int64s": [0, 1, 0], "values_int64s": [9, 8, 7]}),
    (4, WHOLE, {"keys_int64s": [0, 1], "values_int64s": [1, 0]}),
    (4, SIGNS.astype(np.float64), {
        "keys_tensor": helper.make_tensor("k", TensorProto.DOUBLE, [2], [0.0, -1.0]),
        "values_tensor": helper.make_tensor("v", TensorProto.DOUBLE, [2], [4.0, 5.0]),
        "default_tensor": helper.make_tensor("d", TensorProto.DOUBLE, [1], [6.0])}),
]  # fmt: skip


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("op", "xs", "outputs", "attributes"),
    [pytest.param(*c, id=f"{c[0]}-{k}") for k, c in enumerate(CASES)],
)
def test_dense_operators_run_as_kernels(
    op: str, xs: list[np.ndarray], outputs: int, attributes: dict[str, object]
) -> None:
    compared(model(op, xs, outputs, **attributes), xs)


@pytest.mark.parametrize(("version", "x", "attributes"), ENCODERS)
def test_encoders_of_numbers_run_as_kernels(
    version: int, x: np.ndarray, attributes: dict[str, object]
) -> None:
    compared(model("LabelEncoder", [x], 1, version, **attributes), [x])
