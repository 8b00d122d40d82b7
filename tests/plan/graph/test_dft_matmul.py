"""Fourier transforms as products with a constant, where these are as fast as onnxruntime's."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import superopt
from superopt.ir import graph
from superopt.ir.evaluate import evaluate
from superopt.ops import OPS
from superopt.plan.graph.dft_matmul import lower_dft_to_matmul
from superopt.te.expr.dtype import F32
from superopt.te.expr.tensor import TensorType
from tests.support.compilation.models import F, model, near
from tests.support.ops.build import value

RNG = np.random.default_rng(0)


def transforms(shape: list[int], opset: int = 17, **how: int) -> onnx.ModelProto:
    m = model([helper.make_node("DFT", ["x"], ["y"], **how)], {"x": (F, shape)}, ["y"])
    m.opset_import[0].version = opset
    return m


CASES = {
    "real": ([4, 60, 1], {"axis": 1}, lambda x: np.fft.fft(x[..., 0], axis=1)),
    "one side": ([4, 64, 1], {"axis": 1, "onesided": 1}, lambda x: np.fft.rfft(x[..., 0], axis=1)),
    "complex": ([4, 60, 2], {"axis": 1}, lambda x: np.fft.fft(x[..., 0] + 1j * x[..., 1], axis=1)),
    "the first of two axes": (
        [2, 40, 6, 2], {"axis": 1}, lambda x: np.fft.fft(x[..., 0] + 1j * x[..., 1], axis=1)
    ),
    "inverse": (
        [4, 33, 2], {"axis": 1, "inverse": 1},
        lambda x: np.fft.ifft(x[..., 0] + 1j * x[..., 1], axis=1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_transforms(name: str) -> None:
    shape, how, wanted = CASES[name]
    m = transforms(shape, **how)
    exe = superopt.compile(m)
    x = RNG.standard_normal(shape).astype(np.float32)
    out = wanted(x)
    both = np.stack((out.real, out.imag), -1).astype(np.float32)
    near(exe(x=x), {"y": both})
    assert not exe.fallback_nodes({})
    (step,) = exe.variants[()]
    sines = [t for t in step.code.program.call_results if t.name in ("sin", "cos")]
    assert not sines


def test_lengths_that_cut_or_fill() -> None:
    x = RNG.standard_normal((3, 30, 1)).astype(np.float32)
    for length in (20, 48):
        m = model(
            [helper.make_node("DFT", ["x", "n"], ["y"], axis=1)],
            {"x": (F, [3, 30, 1])}, ["y"], {"n": np.array(length)},
        )  # fmt: skip
        out = np.fft.fft(x[..., 0], length, axis=1)
        near(superopt.compile(m)(x=x), {"y": np.stack((out.real, out.imag), -1).astype(np.float32)})


def test_the_inverse_of_one_side() -> None:
    """What ONNX's operator says, which onnxruntime computes from opset 20 on only."""
    x = graph.Input("x", TensorType(F32, (3, 17, 2)))
    n = graph.node(OPS["DFT"], [x], axis=1, inverse=1, onesided=1)
    changed = lower_dft_to_matmul(graph.Graph((x,), (n,)))
    assert "DFT" not in {v.op.name for v in graph.nodes(changed)}
    given = RNG.standard_normal((3, 17, 2)).astype(np.float32)
    wanted = value("DFT", given, axis=1, inverse=1, onesided=1)
    (got,) = evaluate(changed, {"x": given})
    np.testing.assert_allclose(got, wanted, atol=1e-5)


def frames(
    shape: list[int], length: int, step: int, nodes: list[onnx.NodeProto] | None = None
) -> onnx.ModelProto:
    known = {
        "window": np.hanning(length).astype(np.float32), "length": np.array(length),
        "step": np.array(step), "pads": np.array([0, length // 2] * 2),
    }  # fmt: skip
    given = "x" if nodes is None else "p"
    last = helper.make_node("STFT", [given, "step", "window", "length"], ["y"])
    return model([*(nodes or []), last], {"x": (F, shape)}, ["y"], known)


def spectra(x: np.ndarray, length: int, step: int) -> np.ndarray:
    some = np.lib.stride_tricks.sliding_window_view(x, length, axis=1)[:, ::step]
    out = np.fft.rfft(some * np.hanning(length).astype(np.float32))
    return np.stack((out.real, out.imag), -1).astype(np.float32)


@pytest.mark.parametrize("rank", [2, 3])  # torch's exporter writes a signal of two dimensions
def test_frames_of_a_signal(rank: int) -> None:
    """Sines were computed anew for each term: 0.02 to 0.15 of onnxruntime's speed."""
    x = RNG.standard_normal((2, 900)).astype(np.float32)
    m = frames([2, 900, 1][:rank], 100, 30)
    exe = superopt.compile(m)
    near(exe(x=x.reshape([2, 900, 1][:rank])), {"y": spectra(x, 100, 30)})
    assert not exe.fallback_nodes({})


def test_mirrored_edges_are_not_read_anew_by_each_bin() -> None:
    """A move that ends in a convolution by way of another was computed within that (a model of
    sound at 0.87 of onnxruntime's speed)."""
    x = RNG.standard_normal((1, 900)).astype(np.float32)
    pad = helper.make_node("Pad", ["x", "pads"], ["p"], mode="reflect")
    exe = superopt.compile(frames([1, 900], 64, 32, [pad]))
    near(exe(x=x), {"y": spectra(np.pad(x, ((0, 0), (32, 32)), mode="reflect"), 64, 32)})
    (step,) = exe.variants[()]
    assert 964 in {int(np.prod(t.shape)) for t in step.code.program.call_results}


def test_long_powers_of_two_run_in_onnxruntime() -> None:
    pytest.importorskip("onnxruntime")
    exe = superopt.compile(frames([1, 9000, 1], 2048, 512))
    assert [n.op.name for n, _ in exe.fallback_nodes({})] == ["STFT"]
    assert not superopt.compile(frames([1, 9000, 1], 400, 160)).fallback_nodes({})


def test_doubles_have_no_product() -> None:
    m = transforms([4, 60, 1], axis=1)
    m.graph.input[0].type.tensor_type.elem_type = TensorProto.DOUBLE
    m.graph.output[0].type.tensor_type.elem_type = TensorProto.DOUBLE
    x = RNG.standard_normal((4, 60, 1))
    out = np.fft.fft(x[..., 0], axis=1)
    got = superopt.compile(m)(x=x)["y"]
    np.testing.assert_allclose(got, np.stack((out.real, out.imag), -1), atol=1e-9)
