"""Convolutions by the vendor's library: in Triton's interpreter torch computes the same on the
processor; on the GPU itself, by cuDNN, where the environment has SUPEROPT_TEST_GPU=1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
import pytest

from superopt.kernels import gpu_space
from superopt.kernels.gpu_convolution import parsed
from superopt.kernels.option import Option
from superopt.kernels.problem import Problem
from superopt.onnx_io.source import read
from superopt.pipeline import cuda
from superopt.pipeline.cuda import PRECISIONS
from tests.plan.gpu_models import drawn, node
from tests.plan.test_compile import F, model, reference
from tests.plan.test_cuda import conv, feeds, interpreted, near

__all__ = ["interpreted"]
pytestmark = pytest.mark.gpu


def taken(monkeypatch: pytest.MonkeyPatch, tried: bool = False) -> None:
    """Have the library compute what it is offered."""
    choice = gpu_space.choice

    def choose(p: Problem, wanted: Option | None, vendor: bool) -> Any:
        some = [o for o in gpu_space.options(p, vendor) if o.algorithm == "library"]
        return gpu_space.chosen(p, some[tried]) if len(some) > tried else choice(p, wanted, vendor)

    monkeypatch.setattr(gpu_space, "choice", choose)


def libraries(exe: Any) -> list[str]:
    """What the library computes, of all steps."""
    (part,) = exe.variant({}).parts
    return [c.kernel.library for c in part.running.calls if c.kernel.library]


def of_rank(*extents: int, window: int = 3, **how: Any) -> onnx.ModelProto:
    w = drawn(24, 16, *[window] * len(extents), scale=(16 * window ** len(extents)) ** -0.5)
    nodes = [node("Conv", "x", "w", "y", pads=[1] * 2 * len(extents), **how)]
    return model(nodes, {"x": (F, [2, 16, *extents])}, ["y"], {"w": w})


def behind(*ops: str, residual: bool = False) -> onnx.ModelProto:
    """A convolution with a bias, and what comes after it; another one reads that."""
    steps = (["Add"] if residual else []) + list(ops)
    nodes = [node("Conv", "x", "w", "b", "t0", pads=[1] * 4)]
    for n, op in enumerate(steps):
        more = ["x"] if op == "Add" else ["low", "high"] if op == "Clip" else []
        nodes.append(node(op, f"t{n}", *more, f"t{n + 1}"))
    nodes.append(node("Conv", f"t{len(steps)}", "v", "y"))
    known = {
        "w": drawn(16, 16, 3, 3, scale=0.1), "b": drawn(16), "v": drawn(16, 16, 2, 2, scale=0.1),
        "low": drawn(1)[0] * 0, "high": drawn(1)[0] * 0 + 6,
    }  # fmt: skip
    used = {i for n in nodes for i in n.input}
    return model(
        nodes, {"x": (F, [2, 16, 7, 9])}, ["y"], {k: v for k, v in known.items() if k in used}
    )


def alone() -> onnx.ModelProto:
    """Nothing is made of the first one's sums, so that they are written where they belong."""
    nodes = [node("Conv", "x", "w", "a", pads=[1] * 4), node("Conv", "a", "v", "y", pads=[1] * 4)]
    known = {"w": drawn(24, 16, 3, 3, scale=0.1), "v": drawn(16, 24, 3, 3, scale=0.1)}
    return model(nodes, {"x": (F, [1, 16, 8, 8])}, ["y"], known)


# What is asked for, by what of Convolution; and how many steps the library computes.
OFFERED: dict[str, tuple[Callable[[], onnx.ModelProto], dict[str, Any], int]] = {
    "plain": (lambda: conv(16, 24, 9, 3, pads=[1] * 4), {"pad": (1, 1)}, 1),
    "unpadded": (lambda: conv(16, 24, 9, 3), {"pad": (0, 0), "made": (24, 7, 7)}, 1),
    "a step of two": (
        lambda: conv(16, 24, 9, 3, pads=[1] * 4, strides=[2, 2]), {"step": (2, 2)}, 1
    ),
    "steps and pads by sides": (
        lambda: conv(16, 24, 12, 3, pads=[1, 0, 1, 0], strides=[2, 3]),
        {"step": (2, 3), "pad": (1, 0)}, 1,
    ),
    "zeros at the end that nobody reads": (
        lambda: conv(16, 24, 12, 3, pads=[1, 1, 0, 0], strides=[2, 2]), {"pad": (1, 1)}, 1
    ),
    "dilated": (
        lambda: conv(32, 16, 12, 3, pads=[2] * 4, dilations=[2, 2]), {"dilation": (2, 2)}, 1
    ),
    "an even window": (lambda: conv(16, 24, 9, 2), {"window": (2, 2)}, 1),
    "in groups": (lambda: conv(24, 36, 8, 3, group=3), {"groups": 3}, 1),
    "in many groups": (lambda: conv(24, 48, 8, 3, group=12, pads=[1] * 4), {"groups": 12}, 1),
    "depthwise": (lambda: conv(24, 24, 9, 3, group=24, pads=[1] * 4), {"groups": 24}, 1),
    "depthwise, of two each": (lambda: conv(12, 24, 9, 3, group=12), {"groups": 12}, 1),
    "of few channels": (  # whose copy has the zeros
        lambda: conv(3, 20, 13, 5, strides=[2, 2], pads=[2] * 4),
        {"pad": (0, 0), "given": (1, 3, 17, 17)}, 1,
    ),
    "pointwise by steps": (lambda: conv(16, 24, 9, 1, strides=[2, 2]), {"window": (1, 1)}, 1),
    "of rows": (lambda: of_rank(50), {"window": (3,), "given": (2, 16, 50)}, 1),
    "of volumes": (lambda: of_rank(5, 6, 7), {"window": (3, 3, 3)}, 1),
    "relu": (lambda: behind("Relu"), {}, 2),
    "a residual": (lambda: behind("Relu", residual=True), {}, 2),
    "clipped": (lambda: behind("Clip"), {}, 2),
    "a sigmoid": (lambda: behind("Sigmoid"), {}, 2),
    "alone": (alone, {}, 2),
}  # fmt: skip


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", OFFERED)
def test_the_library_computes_the_same(
    name: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, asked, count = OFFERED[name]
    m = make()
    taken(monkeypatch)
    exe = cuda.compile(read(m), precision)
    near(exe.run(feeds(m)), reference(m, feeds(m)), precision)
    found = list(map(parsed, libraries(exe)))
    assert len(found) == count
    assert {k: getattr(found[0], k) for k in asked} == asked


REFUSED: dict[str, Callable[[], onnx.ModelProto]] = {
    "more zeros at the end": lambda: conv(16, 24, 12, 3, pads=[0, 0, 1, 1], strides=[2, 2]),
    "more zeros at the beginning": lambda: conv(16, 24, 9, 3, pads=[2, 2, 1, 1]),
    "weights that are no constant": lambda: model(
        [node("Conv", "x", "w", "y")], {"x": (F, [1, 16, 9, 9]), "w": (F, [24, 16, 3, 3])}, ["y"],
        {},
    ),
    "pooled": lambda: model(
        [node("AveragePool", "x", "y", kernel_shape=[2, 2])], {"x": (F, [1, 16, 9, 9])}, ["y"], {}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_library_has_not(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    m = REFUSED[name]()
    taken(monkeypatch)
    exe = cuda.compile(read(m), "fp16")
    near(exe.run(feeds(m)), reference(m, feeds(m)), "fp16")
    assert not libraries(exe)
