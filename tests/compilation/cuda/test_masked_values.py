"""Numbers that a precision has not, or loses: masks of attention that is not one kernel, and means
of one number."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import superopt
from superopt.compilation.cuda.device import DOT_PRECISIONS
from tests.support.compilation.models import F, model, reference
from tests.support.gpu.compilation import near
from tests.support.gpu.models import drawn, node

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("interpreted")]

LEAST = float(np.finfo(np.float32).min)
N, HEADS, D = 7, 2, 4  # the first rows see nothing: padding on the left
OTHER = ["fp32", "tf32", "fp16", "bf16"]


def masked(value: float) -> np.ndarray:
    """Causal, and of the first three keys nobody sees any, added as exporters do."""
    hidden = np.triu(np.ones((N, N)), 1) + (np.arange(N) < 3)
    return np.where(hidden > 0, np.float32(value), np.float32(0)).astype(np.float32)


def layers(value: float, constant: bool) -> onnx.ModelProto:
    """Two of attention, whose probabilities are outputs, so that scores lie in memory."""
    nodes, outputs, x = [], [], "x"
    for n in range(2):
        nodes += [
            node("Transpose", x, f"k{n}", perm=[0, 1, 3, 2]), node("MatMul", x, f"k{n}", f"a{n}"),
            node("Mul", f"a{n}", "scale", f"b{n}"), node("Add", f"b{n}", "m", f"c{n}"),
            node("Softmax", f"c{n}", f"p{n}"), node("MatMul", f"p{n}", x, f"y{n}"),
        ]  # fmt: skip
        outputs += [f"p{n}", f"y{n}"]
        x = f"y{n}"
    inputs, known = {"x": (F, [1, HEADS, N, D])}, {"scale": np.float32(D**-0.5)}
    if constant:
        known["m"] = masked(value)
    else:
        inputs["m"] = (F, [N, N])
    return model(nodes, inputs, outputs, known)


@pytest.mark.round_robin(4)
@pytest.mark.parametrize("precision", OTHER)
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("value", [LEAST, -1e9, -1e4])
def test_fully_masked_rows(value: float, constant: bool, precision: str) -> None:
    m = layers(value, constant)
    given = {"x": drawn(1, HEADS, N, D)} | ({} if constant else {"m": masked(value)})
    exe = superopt.compile(m, target="cuda", precision=precision)
    near(exe.run(given), reference(m, given), precision)


@pytest.mark.parametrize("precision", DOT_PRECISIONS)
def test_a_product_and_a_mask(precision: str) -> None:
    """The sum is not rounded, though it lies in memory; a bias that is small is."""
    nodes = [node("MatMul", "x", "w", "a"), node("Add", "a", "m", "b"), node("Softmax", "b", "y")]
    known = {"w": drawn(64, 64, scale=0.1)}
    for mask in (np.full((5, 64), LEAST, np.float32), drawn(64)):
        m = model(nodes, {"x": (F, [5, 64])}, ["y"], {**known, "m": mask})
        given = {"x": drawn(5, 64)}
        exe = superopt.compile(m, target="cuda", precision=precision)
        near(exe.run(given), reference(m, given), precision)
        kinds = {p.tensor.dtype.name for p in exe.variant({}).program.problems.values()}
        wide = precision in ("fp32", "tf32") or mask.ndim == 2
        assert wide == (kinds == {"f32"})


def test_windows_are_not_row_kernels() -> None:
    """What a pooling takes the largest of is rounded, though tensors were added."""
    nodes = [node("Add", "x", "z", "a"), node("Conv", "a", "w", "c"), node("Add", "c", "z", "d"),
             node("MaxPool", "d", "y", kernel_shape=[2, 2], strides=[2, 2]),
             node("Conv", "d", "w", "e")]  # fmt: skip
    inputs = {name: (F, [1, 16, 8, 8]) for name in ("x", "z")}
    m = model(nodes, inputs, ["y", "e"], {"w": drawn(16, 16, 1, 1, scale=0.25)})
    given = {name: drawn(1, 16, 8, 8, of=name) for name in inputs}
    exe = superopt.compile(m, target="cuda", precision="fp16")
    near(exe.run(given), reference(m, given), "fp16")
    made = [p.tensor for p in exe.variant({}).program.problems.values()]
    added = [t for t in made if "copy" not in t.name and t.shape == (1, 16, 8, 8)]
    assert {t.dtype.name for t in added} == {"f16"}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("precision", OTHER)
@pytest.mark.parametrize("shape", [(1, 32, 1), (3, 8, 1), (2, 4, 1, 1)])
def test_norms_of_one_element(shape: tuple[int, ...], precision: str) -> None:
    """Its mean is the number itself: what is left is the bias."""
    c = shape[1]
    nodes = [node("InstanceNormalization", "x", "s", "b", "y")]
    b = drawn(c)
    m = model(nodes, {"x": (F, [*shape])}, ["y"], {"s": np.ones(c, np.float32), "b": b})
    exe = superopt.compile(m, target="cuda", precision=precision)
    wanted = np.broadcast_to(b.reshape(c, *[1] * (len(shape) - 2)), shape)
    near(exe.run({"x": drawn(*shape, of="x")}), {"y": wanted}, precision)
