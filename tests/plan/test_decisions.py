"""Kernel decisions that are left out: the results stay, and the plan lacks them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from superopt.compilation.cpu.load_compiler import compile_model
from superopt.compilation.cuda.plan_settings import NO_VECTOR_BYTES, gpu_settings
from superopt.compilation.frontend.allowed_transforms import AllowedTransforms
from superopt.compilation.model.executable import Executable
from superopt.kernels.algorithms.gpu.vendor_gemm import VENDOR
from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.loops.option import Option
from superopt.onnx_io.read.source import read_model
from superopt.plan.decisions import CPU_DECISIONS, GPU_DECISIONS, KernelDecision, leave_out
from superopt.plan.program.plan import Settings
from superopt.plan.program.target import gpu_target
from superopt.te.expr.dtype import F32
from superopt.te.expr.tensor import TensorType, compute, placeholder, reduce_sum


def image_net() -> onnx.ModelProto:
    """Two convolutions with batch normalization between, and a softmax."""
    made = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        net (float[1, 32, 28, 28] x) => (float[1, 32, 28, 28] y)
        <float[32, 32, 3, 3] v, float[32] s, float[32] b, float[32] m, float[32] u,
         float[32, 32, 3, 3] w>
        {
          a = Conv<pads = [1, 1, 1, 1]>(x, v)
          n = BatchNormalization(a, s, b, m, u)
          c = Relu(n)
          d = Conv<pads = [1, 1, 1, 1]>(c, w)
          y = Softmax<axis = 3>(d)
        }"""
    )
    rng = np.random.default_rng(0)
    for t in made.graph.value_info:
        shape = [d.dim_value for d in t.type.tensor_type.shape.dim]
        drawn = np.abs(rng.standard_normal(shape).astype(np.float32)) / 8 + 0.1
        made.graph.initializer.append(numpy_helper.from_array(drawn, t.name))
    return made


def compiled(*left_out: KernelDecision) -> Executable:
    allowed = AllowedTransforms(left_out=frozenset(left_out))
    return compile_model(read_model(image_net()), allowed=allowed)


def kernel_texts(exe: Executable) -> list[str]:
    return [
        str(kernel) for s in exe.variant({}).kernel_steps for kernel in s.program.kernels.values()
    ]


def algorithms(exe: Executable) -> set[str]:
    steps = exe.variant({}).kernel_steps
    return {o.algorithm for s in steps for o in s.program.options.values()}


def call_count(exe: Executable) -> int:
    return sum(s.launch_count for s in exe.variant({}).kernel_steps)


@pytest.mark.parametrize("left_out", [(), *((d,) for d in CPU_DECISIONS), CPU_DECISIONS])
def test_the_results_stay(left_out: tuple[KernelDecision, ...]) -> None:
    x = {"x": np.random.default_rng(1).standard_normal((1, 32, 28, 28)).astype(np.float32)}
    wanted = compiled()(**x)["y"]
    np.testing.assert_allclose(compiled(*left_out)(**x)["y"], wanted, rtol=1e-3, atol=1e-5)


def test_the_plan_lacks_what_is_left_out() -> None:
    whole = compiled()
    assert call_count(compiled("fusion")) > call_count(whole)
    assert call_count(compiled("simplification")) >= call_count(whole)
    assert any("winograd" in a for a in algorithms(whole))
    assert not any("winograd" in a for a in algorithms(compiled("algorithms")))
    assert kernel_texts(compiled("layouts")) != kernel_texts(whole)


def test_settings_without_tuned_options_and_streams() -> None:
    target = gpu_target(assign_streams=lambda *steps: None)  # type: ignore[arg-type]
    given = Settings(64, {"problem": Option("gemm")}, target=target)
    assert leave_out(given, ()) == given
    assert leave_out(given, {"schedules"}).options == {}
    assert leave_out(given, {"streams"}).target.assign_streams is None
    assert leave_out(given, GPU_DECISIONS).fuses_operators is False


def test_a_gpu_without_vendor_libraries() -> None:
    """A large product is one of a library, unless these are left out."""
    a, b = (placeholder(n, TensorType(F32, (512, 512))) for n in "ab")
    product = compute((512, 512), lambda i, j: reduce_sum(512, lambda k: a[i, k] * b[k, j]))
    problem = Problem(product, {}, {b}, NO_VECTOR_BYTES)
    for left_out in (frozenset[KernelDecision](), frozenset[KernelDecision](["libraries"])):
        settings = gpu_settings("fp32", AllowedTransforms(left_out=left_out), {})
        options = [*settings.target.list_options(problem)]
        assert any(o.algorithm == VENDOR for o in options) == (not left_out)
        assert options
