"""Between equal elements lies that element, to the bit, by each way to interpolate."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import superopt
from superopt.compilation.model import compiler as model_compiler
from superopt.ir.evaluate import evaluate
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import read_model

Array = np.ndarray
KINDS = {
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
VALUES = (0.862, 0.7, -2.3, 3e4)
LINEAR = [
    {"mode": "linear", "coordinate_transformation_mode": m}
    for m in ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric",
              "half_pixel_symmetric")
]  # fmt: skip
CUBIC = [
    {"mode": "cubic", "coordinate_transformation_mode": m, "cubic_coeff_a": a,
     "exclude_outside": exclude}
    for m, a in (("half_pixel", -0.5), ("align_corners", -0.75), ("asymmetric", -0.75))
    for exclude in (0, 1)
]  # fmt: skip
SHAPES = [(1, 1, 1, 1), (1, 2, 3, 5), (2, 7), (1, 1, 3, 4, 3)]
GRIDS = [
    {"mode": mode, "padding_mode": padding, "align_corners": align}
    for mode in ("linear", "cubic")
    for padding in ("border", "reflection")
    for align in (0, 1)
]


def resized(shape: tuple[int, ...], kind: str, attrs: dict[str, object]) -> onnx.ModelProto:
    """To sizes that are no multiples: the last axes as 38, 23 and 7 elements."""
    new = list(shape)
    first = 2 if len(shape) > 2 else 1
    new[first:] = (7, 23, 38)[first - len(shape) :]
    n = helper.make_node("Resize", ["x", "", "", "s"], ["y"], **attrs)
    return _model([n], {"x": shape}, kind, {"s": np.array(new, np.int64)})


def sampled(attrs: dict[str, object], kind: str) -> onnx.ModelProto:
    n = helper.make_node("GridSample", ["x", "grid"], ["y"], **attrs)
    return _model([n], {"x": (1, 2, 4, 5), "grid": (1, 6, 7, 2)}, kind, {})


def _model(
    nodes: list[onnx.NodeProto], inputs: dict[str, tuple[int, ...]], kind: str,
    known: dict[str, Array],
) -> onnx.ModelProto:  # fmt: skip
    element = helper.np_dtype_to_tensor_dtype(KINDS[kind])
    some = [helper.make_tensor_value_info(n, element, s) for n, s in inputs.items()]
    out = [helper.make_tensor_value_info("y", element, None)]
    held = [numpy_helper.from_array(a, n) for n, a in known.items()]
    graph = helper.make_graph(nodes, "g", some, out, held)
    m = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    return onnx.shape_inference.infer_shapes(m)


def constant(shape: tuple[int, ...], value: float, kind: str) -> Array:
    return np.full(shape, value).astype(KINDS[kind])


def places(kind: str) -> Array:
    """Of samples, some of them outside."""
    return np.random.default_rng(0).uniform(-1.4, 1.4, (1, 6, 7, 2)).astype(KINDS[kind])


def same(got: Array, x: Array) -> None:
    """Is each element the one number of x?"""
    value = x.reshape(-1)[0]
    assert got.dtype == x.dtype
    assert (got == value).all(), (value, np.unique(got.astype("d")))


@pytest.mark.one_in(8)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("attrs", LINEAR + CUBIC, ids=lambda a: "-".join(map(str, a.values())))
def test_resize(attrs: dict[str, object], kind: str) -> None:
    for shape in SHAPES:
        m = resized(shape, kind, attrs)
        graph = import_model(read_model(m)).graph
        for value in VALUES:
            x = constant(shape, value, kind)
            same(evaluate(graph, {"x": x})[0], x)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("float_class", ["E1", "E2"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("attrs", [LINEAR[0], LINEAR[2], CUBIC[0], CUBIC[3]],
                         ids=lambda a: "-".join(map(str, a.values())))  # fmt: skip
def test_resize_compiled(attrs: dict[str, object], kind: str, float_class: str) -> None:
    for shape in SHAPES[:2]:
        exe = superopt.compile(resized(shape, kind, attrs), float_class=float_class)
        assert not exe.fallback_nodes({})
        for value in VALUES:
            x = constant(shape, value, kind)
            same(exe(x=x)["y"], x)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("attrs", GRIDS, ids=lambda a: "-".join(map(str, a.values())))
def test_grid_sample(attrs: dict[str, object], kind: str) -> None:
    graph = import_model(read_model(sampled(attrs, kind))).graph
    for value in VALUES:
        x = constant((1, 2, 4, 5), value, kind)
        same(evaluate(graph, {"x": x, "grid": places(kind)})[0], x)


@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_grid_sample_compiled(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_compiler, "slow_reason", lambda n, sizes: "")
    exe = superopt.compile(sampled(GRIDS[0], kind))
    for value in VALUES:
        x = constant((1, 2, 4, 5), value, kind)
        same(exe(x=x, grid=places(kind))["y"], x)
    assert not exe.fallback_nodes({})


def test_infinities_stay() -> None:
    """Beside an infinite element all is infinite, and what is not beside it is finite."""
    x = np.array([[[[1, np.inf, np.inf, 2, 2, 2]]]], np.float32)
    m = resized(x.shape, "float32", LINEAR[0])
    got = superopt.compile(m)(x=x)["y"][0, 0, 0]
    assert (got[14:17] == np.inf).all()
    assert (got[-8:] == 2).all()
    assert not (got == -np.inf).any()
