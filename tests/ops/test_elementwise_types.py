"""Every elementwise operator in every element type that ONNX gives it, against ONNX's evaluator.

Operands hold what goes wrong: NaN, infinities, zeros, halves, the ends of the integer ranges.
"""

import warnings
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from superopt.ir.evaluate import evaluate
from superopt.ir.op import Op
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import read_model
from superopt.ops import OPS
from superopt.ops.pointwise import activation, arithmetic, comparison

FLOATS = [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 1.0, -1.0, 0.1, 3.75, -7.0, np.nan, np.inf, -np.inf]
TOLERANCE = {
    np.dtype(np.float64): 1e-12,
    np.dtype(np.float32): 2e-6,
    np.dtype(np.float16): 2e-3,
    np.dtype(ml_dtypes.bfloat16): 1.6e-2,
}
KINDS = [
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "FLOAT16",
    "BFLOAT16",
    "FLOAT",
    "DOUBLE",
    "BOOL",
]
TYPES = {f"tensor({name.lower()})": TensorProto.DataType.Value(name) for name in KINDS}
# What onnx's evaluator computes with constants of float32, or an erf of about its precision.
COARSE = frozenset({"Erf", "Gelu", "HardSwish"})
ATTRIBUTES = {"BitShift": {"direction": "RIGHT"}, "Mod": {"fmod": 1}}
NEWEST = onnx.defs.onnx_opset_version()
NAMES = sorted(
    o.name
    for module in (activation, comparison, arithmetic)
    for o in vars(module).values()
    if isinstance(o, Op) and onnx.defs.has(o.name)  # not in an older onnx
)


def values(kind: int) -> np.ndarray:
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    if dtype == np.bool_:
        return np.array([False, True, True])
    if dtype.kind in "iu":
        ends = np.iinfo(dtype)
        low = [] if dtype.kind == "u" else [ends.min, -7, -2, -1]
        return np.array([*low, 0, 1, 2, 3, 5, 40, ends.max], dtype)
    return np.array(FLOATS).astype(dtype)


def operands(name: str, kind: int) -> list[np.ndarray]:
    """Operands that broadcast to every combination of the values."""
    x = values(kind)
    column = x[:, None]
    integers = x.dtype.kind in "iu"
    match name:
        case "Where":
            return [np.array([True, False])[:, None, None], column, x]
        case "Clip":
            return [x, x[2].reshape(()), x[5].reshape(())]
        case "SwiGLU":
            return [np.repeat(x, x.size), np.tile(x, x.size)]
        case "Div" | "Mod" if integers:  # division by zero is undefined, and so is min / -1
            return [column, x[(x != 0) & (x != -1 if x.dtype.kind == "i" else True)]]
        case "Pow" if integers:  # numpy refuses negative exponents
            return [column, np.array([0, 1, 2, 3], x.dtype)]
        case "Max" | "Min" | "Sum" | "Mean":  # onnx's Mean wants the first to be the greatest
            return [np.tile(column, (1, x.size)), x, x[None, ::-1]]
        case "PRelu":  # onnx multiplies every element, 0 * inf too
            return [np.tile(column, (1, x.size)), x if integers else x[np.isfinite(x)][:1]]
        case "Shrink" if integers:  # onnx goes through float64
            return [x[x < 1 << 50]]
    return [column, x] if OPS[name].required == 2 else [x]


def one_node(name: str, feeds: dict[str, np.ndarray]) -> onnx.ModelProto:
    node = helper.make_node(name, list(feeds), ["y"], **ATTRIBUTES.get(name, {}))
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in feeds.items()
    ]
    output = onnx.ValueInfoProto(name="y")
    graph = helper.make_graph([node], "g", inputs, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", NEWEST)])


def allowed(name: str) -> Iterator[int]:
    """The element types of the operator's results that vary with its operands."""
    schema = onnx.defs.get_schema(name, NEWEST)
    variable = schema.inputs[-1].type_str
    for t in schema.type_constraints:
        if t.type_param_str == variable:
            yield from (kind for text, kind in TYPES.items() if text in t.allowed_type_strs)


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param(name, kind, id=f"{name}-{TensorProto.DataType.Name(kind).lower()}")
        for name in NAMES
        if name not in ("Dropout",)
        for kind in allowed(name)
    ],
)
def test_agrees_with_onnx(name: str, kind: int) -> None:
    feeds = {f"x{n}": a for n, a in enumerate(operands(name, kind))}
    proto = one_node(name, feeds)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (wanted,) = ReferenceEvaluator(proto).run(None, feeds)
    model = import_model(read_model(proto))
    assert not model.opaque_reasons
    (got,) = evaluate(model.graph, feeds)
    assert got.dtype == wanted.dtype
    assert got.shape == wanted.shape
    tolerance = TOLERANCE.get(got.dtype)
    if tolerance is None:
        np.testing.assert_array_equal(got, wanted)
    else:
        if name in COARSE:
            tolerance = max(tolerance, 1e-6)
        wide = np.float64
        np.testing.assert_allclose(got.astype(wide), wanted.astype(wide), tolerance, tolerance)
