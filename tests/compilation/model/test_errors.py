"""What the compiler and the executable do where a step of theirs fails."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import superopt
from superopt.compilation.cpu.code_generator import CpuCodeGenerator
from superopt.compilation.cpu.device import CpuDevice
from superopt.compilation.fallback.whole_model import Fallback
from superopt.compilation.model.compiler import Compiler, out_of_memory_error
from superopt.compilation.runtime.background_worker import Job, Worker
from superopt.errors import ModelError, OutOfMemory
from tests.support.compilation.models import F, model, net, picture

# The If is decided by a size, so that the model has rewrites for static sizes.
DECIDED = """<ir_version: 8, opset_import: ["": 17]> g (float[n,4] x) => (float[?,?] y)
    <int64 zero = {0}, int64 two = {2}> {
        sizes = Shape (x)
        rows = Gather (sizes, zero)
        many = Greater (rows, two)
        y = If (many) <
            then_branch = t () => (float[?,?] a) { a = Exp (x) },
            else_branch = e () => (float[?,?] a) { a = Neg (x) }>
    }"""


def test_too_little_memory_is_not_taken_for_a_model_that_onnxruntime_rejects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []

    def compile_segment(self: CpuCodeGenerator, c: Compiler, *more: Any) -> Any:
        calls.append(c.is_sized)
        raise out_of_memory_error("m", "no more")

    monkeypatch.setattr(CpuCodeGenerator, "compile_segment", compile_segment)
    exe = superopt.compile(onnx.parser.parse_model(DECIDED))
    with pytest.raises(OutOfMemory, match="m: out of memory"):
        exe.variant({"n": 3})
    assert calls == [True]
    assert exe.compiler_for({"n": 3}) is not exe.compiler


def test_memory_of_other_sizes_is_freed_for_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    exe = superopt.compile(net("s"), specialize="eager")
    exe(x=picture(1, 9))
    compiled, failures = Compiler.compile_variant, [True]

    def compile_variant(self: Compiler, *given: Any, **how: Any) -> Any:
        if failures:
            failures.clear()
            raise out_of_memory_error("m", "no more")
        return compiled(self, *given, **how)

    monkeypatch.setattr(Compiler, "compile_variant", compile_variant)
    assert exe(x=picture(1, 7))["y"].shape[0] == 1
    assert [dict(key)["s"] for key in exe.variants] == [7]


@pytest.mark.usefixtures("one_by_one")
def test_inputs_that_onnxruntime_rejects_are_not_compiled_for_never(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def call(self: Fallback, arrays: Any) -> Any:
        raise ModelError("onnxruntime", "it rejects these", "pass others")

    monkeypatch.setattr(Fallback, "call", call)
    exe = superopt.compile(net("s"), specialize="never")
    with pytest.raises(ModelError, match="it rejects these"):
        exe(x=picture(1, 9))
    assert not exe.variants


def test_a_part_that_onnxruntime_cannot_plan_ends_the_compilation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was tried again without end."""

    def ort_segment(self: Compiler, *given: Any) -> Any:
        raise NotImplementedError("no")

    monkeypatch.setattr(Compiler, "ort_segment", ort_segment)
    m = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[64,64] x) => (int64[?,?] y) { a = Exp (x) y = NonZero (a) }""")
    with pytest.raises(NotImplementedError):
        superopt.compile(m)


def test_a_job_that_raises_does_not_end_the_worker() -> None:
    worker, done = Worker(), []

    def fail() -> None:
        raise RuntimeError("no")

    assert worker.submit(Job(1, fail))
    assert worker.submit(Job(1, lambda: done.append(1)))
    assert worker.wait(1, 10)
    assert done == [1]


def test_inputs_of_parts_in_onnxruntime_stay_where_they_are() -> None:
    """Kernels after such a part read the device's own array, not the copy on the host."""
    rng = np.random.default_rng(0)
    w, v = (rng.standard_normal((64, 64)).astype(np.float32) / 8 for _ in range(2))
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("NonZero", ["a"], ["y"]),
        helper.make_node("Cast", ["y"], ["c"], to=1),
        helper.make_node("ReduceMax", ["c"], ["s"], keepdims=0),
        helper.make_node("Mul", ["a", "s"], ["t"]),
        helper.make_node("MatMul", ["t", "v"], ["z"]),
    ]
    m = model(nodes, {"x": (F, [500, 64])}, ["z"], {"w": w, "v": v})
    variant = superopt.compile(m).variant({})
    assert len(variant.kernel_steps) == 2

    class OtherCopies(CpuDevice):
        def to_host(self, x: Any) -> Any:
            return np.array(x) + 1

    x = rng.standard_normal((500, 64)).astype(np.float32)
    (z,) = variant.run(OtherCopies(1), [x])
    np.testing.assert_allclose(z, (x @ w * 499) @ v + 1, rtol=1e-3, atol=1e-2)
