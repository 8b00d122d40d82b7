"""Models on several streams of a GPU: whatever streams kernels are put on, and in whichever order
they end then, nothing is read before it is written, or written over."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from superopt.compilation.cuda import load_compiler, plan_settings
from superopt.kernels.cuda.launch import launch_on_streams
from superopt.kernels.runtime.gpu_device import to_array
from superopt.onnx_io.read.source import read_model
from superopt.plan.program import streams
from tests.support.compilation.models import F, model, reference
from tests.support.gpu.compilation import feeds, near
from tests.support.gpu.device import REAL
from tests.support.gpu.models import MODELS, branches, drawn, node
from tests.support.gpu.streams import Cuda, Stream, any_order

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("interpreted")]


def written_over() -> onnx.ModelProto:
    """Of a product the first part, and beside it another: in place of the rest of it."""
    nodes = [node("MatMul", "x", "w", "b"), node("Slice", "b", "start", "end", "axis", "c"),
             node("MatMul", "z", "v", "d"), node("Concat", "c", "d", "e", axis=1),
             node("Relu", "e", "y")]  # fmt: skip
    known = {"w": drawn(64, 32, scale=0.1), "v": drawn(64, 12, scale=0.1),
             "start": np.array([0]), "end": np.array([20]), "axis": np.array([1])}  # fmt: skip
    return model(nodes, {name: (F, [8, 64]) for name in "xz"}, ["y"], known)


def phases() -> onnx.ModelProto:
    """A transposed convolution's, and a branch beside it."""
    known = {"w": drawn(4, 3, 4, 4, scale=0.2), "v": drawn(3, 4, 1, 1, scale=0.5),
             "r": np.array([1, 1, 2, 2], np.float32)}  # fmt: skip
    how = {"strides": [2, 2], "pads": [1] * 4}
    nodes = [node("ConvTranspose", "x", "w", "a", **how), node("Conv", "x", "v", "b"),
             node("Resize", "b", "", "r", "c"), node("Concat", "a", "c", "y", axis=1)]  # fmt: skip
    return model(nodes, {"x": (F, [1, 4, 3, 3])}, ["y"], known)


MADE = {"branches": branches, "written over": written_over, "phases": phases}


@pytest.mark.round_robin(3)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", [*MADE, "heads", "a block"])
def test_on_several_streams(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever streams kernels are put on, and in whichever order they end then: the same."""
    rng = np.random.default_rng(seed)

    def lanes(reads: Any, writes: Any, how: Any, max_streams: int) -> streams.StreamOrder:
        some = [int(x) for x in rng.permutation(len(writes)) % max_streams]
        return streams.minimal_waits(some, streams.dependencies(reads, writes))

    m = (MADE | MODELS)[name]()
    alone = load_compiler.compile_model(read_model(m), "fp16").variant({})
    monkeypatch.setattr(plan_settings, "on_gpu_streams", lanes)
    exe = load_compiler.compile_model(read_model(m), "fp16", streams=3)
    made = exe.variant({})
    order, r = made.program.stream_order, made.only_step.gpu_program
    assert order is not None
    assert len(set(order.streams)) > 1
    assert made.program.options == alone.program.options
    if not REAL:
        of = [*zip(r.call_numbers, r.launches, strict=True)]
        r.launches = [x for n in any_order(order, rng) for k, x in of if k == n]
        r.call_numbers = ()
    near(exe.run(feeds(m)), reference(m, feeds(m)), "fp16")


def test_streams_are_used_where_it_should_pay() -> None:
    """Small branches; not where each fills the GPU, and not where one is asked for."""
    made = (
        load_compiler.compile_model(read_model(branches()), "fp16", streams=4).variant({}).program
    )
    assert made.stream_order is not None
    assert len(set(made.stream_order.streams)) > 1
    assert (
        load_compiler.compile_model(read_model(branches()), "fp16", streams=1)
        .variant({})
        .program.stream_order
        is None
    )
    chain = (
        load_compiler.compile_model(read_model(MODELS["pointwise"]()), "fp16", streams=4)
        .variant({})
        .program
    )
    assert chain.stream_order is not None
    assert set(chain.stream_order.streams) == {0}


def over_a_memory() -> onnx.ModelProto:
    """Attention over keys and values that another model gives, and a branch beside it."""
    nodes = [node("Softmax", "k", "k1"), node("Transpose", "k1", "kt", perm=[1, 0]),
             node("Softmax", "v", "v1"), node("Relu", "v1", "v2"),
             node("MatMul", "x", "w", "q0"), node("Softmax", "q0", "q"),
             node("MatMul", "x", "u", "b0"), node("Softmax", "b0", "b1"),
             node("MatMul", "b1", "t", "b2"), node("Softmax", "b2", "b"),
             node("MatMul", "q", "kt", "s"), node("Tanh", "s", "p"), node("MatMul", "p", "v2", "o"),
             node("Add", "o", "b", "a"), node("Softmax", "a", "y")]  # fmt: skip
    known = {n: drawn(64, 64, scale=0.1, of=n) for n in "wut"}
    inputs: dict[str, Any] = {"k": (F, ["P", 64]), "v": (F, ["P", 64]), "x": (F, [8, 64])}
    return model(nodes, inputs, ["y"], known)


@pytest.mark.parametrize("size", [5, 0])
def test_calls_that_launch_nothing(size: int) -> None:
    """Of what is empty: others wait through them."""
    m = over_a_memory()
    given = {n: drawn(size, 64, of=n) for n in "kv"} | {"x": drawn(8, 64, of="x")}
    exe = load_compiler.compile_model(read_model(m), "fp16", streams=4)
    near(exe.run(given), reference(m, given), "fp16")
    made = exe.variant({"P": size})
    order, r = made.program.stream_order, made.only_step.gpu_program
    assert order is not None
    assert len(set(order.streams)) > 1
    assert any(order.waits)
    assert (len({*r.call_numbers}) < len(r.calls)) == (size == 0)
    if not REAL:  # all streams are one there
        r.memory[made.program.border_bytes :].fill_(255)
        r.side_streams = [Stream(n) for n in range(1, max(order.streams) + 1)]
        launch_on_streams(r, Cuda(Stream(0, True)))
        got = {"y": to_array(r.outputs[0])}
        near(got, reference(m, given), "fp16")
