"""Code for other processors than this one: those that this one can stand for are run, too."""

from __future__ import annotations

import platform

import numpy as np
import onnx
import pytest
from onnx import helper

from superopt.compilation.cpu.load_compiler import compile_model as compiled
from superopt.compilation.cpu.native_segment import NativeSegment
from superopt.kernels.llvm.codegen import kernel_text
from superopt.kernels.runtime.cpu import Machine, _optimized_module, host
from superopt.onnx_io.read.source import read_model
from tests.support.compilation.models import F, model, near, net, picture, reference

# name, LLVM's processor, bytes of a vector, registers that its code must not name
TARGETS = {
    "AVX2": ("haswell", 32, "%zmm"),
    "SSE": ("x86-64", 16, "%ymm"),
}

pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="this is no x86 processor"
)


def functions() -> onnx.ModelProto:
    """What polynomials compute, rows, tiles that are turned, and a convolution in Winograd's."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((64, 64, 3, 3)).astype(np.float32) / 24
    node = helper.make_node
    return model(
        [
            node("Conv", ["x", "w"], ["a"], pads=[1] * 4),
            node("Sigmoid", ["a"], ["b"]),
            node("Mul", ["a", "b"], ["c"]),
            node("Transpose", ["c"], ["d"], perm=[0, 2, 3, 1]),
            node("Softmax", ["d"], ["y"], axis=-1),
            node("Tanh", ["a"], ["e"]),
            node("Erf", ["e"], ["f"]),
            node("ReduceMax", ["f"], ["z"], axes=[2, 3]),
        ],
        {"x": (F, [1, 64, 16, 16])},
        ["y", "z"],
        {"w": w},
    )


def machine(name: str) -> Machine:
    cpu, width, _ = TARGETS[name]
    if name == "AVX2" and host().width < 32:
        pytest.skip("this processor has no AVX2")
    return Machine(cpu, "", width)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("threads", [1, 2])
def test_its_code_computes_the_model(name: str, threads: int) -> None:
    m, x = net(9), picture(1, 9)
    near(
        compiled(read_model(m), threads=threads, machine=machine(name))(x=x), reference(m, {"x": x})
    )
    m = functions()
    x = np.random.default_rng(1).standard_normal((1, 64, 16, 16)).astype(np.float32)
    near(
        compiled(read_model(m), threads=threads, machine=machine(name))(x=x), reference(m, {"x": x})
    )


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", TARGETS)
def test_its_code_is_for_it(name: str) -> None:
    here = machine(name)
    (step,) = compiled(read_model(functions()), machine=here).variants[()]
    assert isinstance(step, NativeSegment)
    for kernel in step.code.program.kernels.values():
        module, target = _optimized_module(kernel_text(kernel, here.width), here)
        assert TARGETS[name][2] not in target.emit_assembly(module)
