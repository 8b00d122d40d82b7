"""Windows, slices, pads and resizes drawn at random: the expression and onnxruntime agree.

Where one of both refuses a draw it says nothing, but most draws must be compared, and the same
results must come from the node written back as ONNX in its canonical form.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as oir
import pytest
from onnx import helper, numpy_helper

from superopt.ir.evaluate import evaluate
from superopt.onnx_io.export.exporter import export_model
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import read_model

ort = pytest.importorskip("onnxruntime")
Rng = np.random.Generator
DRAWS = 60
FAR = (2**63 - 1, -(2**63) + 1, 2**31 - 1, 100, -100)


def model(
    op: str, xs: list[np.ndarray], constants: dict[int, np.ndarray] | None = None, **attrs: object
) -> onnx.ModelProto:
    """One node whose first operands are inputs x0, x1, ... and some others initializers."""
    names = [f"x{n}" for n in range(len(xs))]
    inputs = dict(enumerate(names)) | {n: f"c{n}" for n in constants or {}}
    graph = helper.make_graph(
        [
            helper.make_node(
                op,
                [inputs.get(n, "") for n in range(max(inputs) + 1)],
                ["y"],
                **{k: v for k, v in attrs.items() if v is not None},
            )
        ],
        "one",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for n, x in zip(names, xs, strict=True)
        ],
        [helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(xs[0].dtype), None)],
        [numpy_helper.from_array(v, f"c{n}") for n, v in (constants or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


def floats(rng: Rng, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def several(rng: Rng, low: int, high: int, count: int) -> list[int]:
    return [int(v) for v in rng.integers(low, high + 1, count)]


def windows(rng: Rng, rank: int, kernel: list[int]) -> dict[str, object]:
    out: dict[str, object] = {"strides": several(rng, 1, 3, rank)}
    if rng.random() < 0.5:
        out["dilations"] = several(rng, 1, 2, rank)
    if rng.random() < 0.3:
        out["auto_pad"] = str(rng.choice(["SAME_UPPER", "SAME_LOWER", "VALID"]))
    else:
        out["pads"] = [int(rng.integers(0, k)) for k in kernel * 2]
    return out


def conv(rng: Rng) -> onnx.ModelProto:
    rank, group = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    inner, outer, batch = several(rng, 1, 2, 3)
    kernel, space = several(rng, 1, 3, rank), several(rng, 4, 7, rank)
    xs = [floats(rng, batch, group * inner, *space), floats(rng, group * outer, inner, *kernel)]
    if rng.random() < 0.5:
        xs.append(floats(rng, group * outer))
    return model("Conv", xs, group=group, **windows(rng, rank, kernel))


def conv_transpose(rng: Rng) -> onnx.ModelProto:
    rank, group = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    inner, outer, batch = several(rng, 1, 2, 3)
    kernel, space = several(rng, 1, 3, rank), several(rng, 2, 5, rank)
    xs = [floats(rng, batch, group * inner, *space), floats(rng, group * inner, outer, *kernel)]
    attrs = windows(rng, rank, kernel)
    strides = attrs["strides"]
    assert isinstance(strides, list)
    if rng.random() < 0.5:
        attrs["output_padding"] = [int(rng.integers(0, s)) for s in strides]
    if rng.random() < 0.3:
        attrs.pop("pads", None)
        attrs["output_shape"] = [s * n for s, n in zip(strides, space, strict=True)]
    return model("ConvTranspose", xs, group=group, **attrs)


def pool(rng: Rng) -> onnx.ModelProto:
    rank, op = int(rng.integers(1, 4)), str(rng.choice(["AveragePool", "MaxPool", "LpPool"]))
    kernel, space = several(rng, 1, 3, rank), several(rng, 4, 8, rank)
    attrs = windows(rng, rank, kernel) | {"kernel_shape": kernel}
    attrs["ceil_mode"] = int(rng.random() < 0.5)
    if op == "AveragePool":
        attrs["count_include_pad"] = int(rng.random() < 0.5)
    if op == "LpPool":
        attrs["p"] = int(rng.integers(1, 4))
    return model(op, [floats(rng, 1, 2, *space)], **attrs)


def slices(rng: Rng) -> onnx.ModelProto:
    rank = int(rng.integers(1, 4))
    axes = rng.permutation(rank)[: rng.integers(1, rank + 1)]

    def bounds() -> np.ndarray:
        far = rng.random(len(axes)) < 0.2
        return np.where(far, rng.choice(FAR, len(axes)), rng.integers(-7, 8, len(axes)))

    constants = {
        1: bounds(),
        2: bounds(),
        3: np.where(rng.random(len(axes)) < 0.3, axes - rank, axes),
        4: rng.choice([1, 1, 2, 3, -1, -2], len(axes)),
    }
    return model("Slice", [floats(rng, *several(rng, 1, 5, rank))], constants)


def pads(rng: Rng) -> onnx.ModelProto:
    rank, mode = int(rng.integers(1, 4)), str(rng.choice(["constant", "edge", "reflect", "wrap"]))
    low = -1 if mode == "constant" else 0
    constants = {1: rng.integers(low, 2, 2 * rank)}
    if mode == "constant" and rng.random() < 0.5:
        constants[2] = np.array(2.5, np.float32)
    return model("Pad", [floats(rng, *several(rng, 2, 5, rank))], constants, mode=mode)


def resize(rng: Rng) -> onnx.ModelProto:
    attrs: dict[str, object] = {
        "mode": str(rng.choice(["nearest", "linear", "cubic"])),
        "nearest_mode": str(
            rng.choice(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
        ),
        "coordinate_transformation_mode": str(
            rng.choice(["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"])
        ),
    }
    x = floats(rng, 1, 2, *several(rng, 2, 9, 2))
    if rng.random() < 0.5:
        return model("Resize", [x], {3: np.array([1, 2, *several(rng, 1, 14, 2)])}, **attrs)
    scales = rng.choice([0.5, 0.6, 0.8, 1, 1.5, 2, 3], 2)
    return model("Resize", [x], {2: np.array([1, 1, *scales], np.float32)}, **attrs)


FAMILIES = [conv, conv_transpose, pool, slices, pads, resize]


def session(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray | None:
    """What onnxruntime computes, None where it refuses the model."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        made = ort.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return np.asarray(made.run(None, feeds)[0])
    except Exception:  # the runtime's own exception types are not exported
        return None


@pytest.mark.one_in(6)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
def test_the_expression_agrees(family: Callable[[Rng], onnx.ModelProto]) -> None:
    compared = 0
    for seed in range(DRAWS):
        rng = np.random.default_rng(seed)
        proto = family(rng)
        made = import_model(read_model(proto))
        feeds = {
            v.name: floats(rng, *(d.dim_value for d in v.type.tensor_type.shape.dim))
            for v in proto.graph.input
        }
        wanted = session(proto, feeds)
        if made.opaque_reasons or wanted is None:
            continue
        (got,) = evaluate(made.graph, feeds)
        np.testing.assert_allclose(got, wanted, 1e-3, 1e-4, err_msg=str(proto.graph.node))
        again = session(oir.to_proto(export_model(made)), feeds)
        assert again is not None, f"refused in canonical form: {proto.graph.node}"
        np.testing.assert_allclose(again, wanted, 1e-5, 1e-6, err_msg=str(proto.graph.node))
        compared += 1
    assert compared >= DRAWS // 2
