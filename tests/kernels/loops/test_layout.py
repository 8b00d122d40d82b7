"""Layouts: text, places, and kernels that read and write them."""

import numpy as np
import pytest

from superopt.ir.op import canonical_attrs, expression
from superopt.kernels.loops.layout import ScatteredLayout, parse_layout, row_major
from superopt.kernels.loops.lower import lower_kernel
from superopt.kernels.loops.pack import from_layout, pack_constant, to_layout
from superopt.kernels.loops.schedule import parse_schedule as schedule
from superopt.kernels.runtime.cpu import load_kernel
from superopt.ops import OPS
from superopt.te.analysis.walk import loads
from superopt.te.expr import index
from superopt.te.expr.dtype import F32
from superopt.te.expr.tensor import Tensor, TensorType, compute

TEXTS = [
    "i0 i1 i2 i3",
    "i0 i1//16 i2+1 i3+1 i1%16",
    "i0 i2+2 i3+2 i1",
    "i1//4 i0 i2 i3 i1%4",
    "i3 i2 i1 i0",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_layout_is_text_and_keeps_what_lies_in_it(text: str) -> None:
    layout = parse_layout(text)
    assert str(layout) == text
    x = np.random.default_rng(0).standard_normal((2, 19, 3, 5)).astype(np.float32)
    held = to_layout(layout, x)
    np.testing.assert_array_equal(from_layout(layout, held, x.shape), x)
    assert np.count_nonzero(held) == x.size  # all else are zeros


@pytest.mark.parametrize(
    ("text", "why"),
    [("i0 i0", "axis 0 is i0 i0"), ("i0 i1//4", "axis 1 is i1//4"), ("i1", "axis 0 is nothing"),
     ("i0 i1//4 i1%8", "axis 1"), ("x", "x is not a layout part")],
)  # fmt: skip
def test_what_is_no_layout_says_why(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_layout(text)


def conv(
    channels: int, out: int, kernel: int, pad: int, stride: int
) -> tuple[Tensor, list[Tensor]]:
    types = (TensorType(F32, (1, channels, 9, 8)), TensorType(F32, (out, channels, kernel, kernel)))
    attrs = canonical_attrs(OPS["Conv"], types, {"pads": (pad,) * 4, "strides": (stride,) * 2})
    (t,) = expression(OPS["Conv"], types, attrs)
    assert t.body is not None
    found = {x.tensor.name: x.tensor for x in loads(t.body)}
    return t, [found["a0"], found["a1"]]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("into", TEXTS)
@pytest.mark.parametrize("of", TEXTS)
def test_a_convolution_reads_and_writes_any_layout(of: str, into: str) -> None:
    """Its padding is the border, where that is large enough."""
    t, (x, w) = conv(16, 32, 3, 1, 1)
    rng = np.random.default_rng(1)
    a = rng.integers(-3, 4, (1, 16, 9, 8)).astype(np.float32)
    b = rng.integers(-3, 4, (32, 16, 3, 3)).astype(np.float32)
    plain = np.zeros((1, 32, 9, 8), np.float32)
    load_kernel(lower_kernel("k", [x, w], [t]))(a, b, plain)
    layouts = {x: parse_layout(of), t: parse_layout(into)}
    kernel = lower_kernel("k", [x, w], [t], layouts=layouts)
    assert ("select" in str(kernel)) == (layouts[x].border(2) == 0)
    got = to_layout(layouts[t], np.zeros_like(plain))
    load_kernel(kernel)(to_layout(layouts[x], a), b, got)
    np.testing.assert_array_equal(from_layout(layouts[t], got, plain.shape), plain)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7])
def test_a_constant_lies_in_the_order_of_its_loops(rows: int) -> None:
    """Also where the last tile begins before its place, and gives some elements once more."""
    t, (x, w) = conv(3, 20, 3, 0, 2)
    rng = np.random.default_rng(2)
    a = rng.integers(-3, 4, (1, 3, 9, 8)).astype(np.float32)
    b = rng.integers(-3, 4, (20, 3, 3, 3)).astype(np.float32)
    plain = np.zeros((1, 20, 4, 3), np.float32)
    load_kernel(lower_kernel("k", [x, w], [t]))(a, b, plain)
    how = schedule(
        f"split(i1, 8); split(i2, {rows}); reorder(i0, i1.o, i2.o, i3, k1, k2, k0, i2.i, i1.i); "
        "unroll(i2.i); vectorize(i1.i); parallel(i0); parallel(i1.o)"
    )
    kernel = lower_kernel("k", [x, w], [t], {t: how}, packed=[w])
    (pack,) = kernel.packs
    assert [a.name for a in pack.axes] == ["i1.o", "k1", "k2", "k0", "i1.i"]
    got = np.zeros_like(plain)
    load_kernel(kernel)(a, pack_constant(pack, b), got)
    np.testing.assert_array_equal(got, plain)


def test_a_tensor_may_lie_as_a_part_of_another() -> None:
    x = Tensor("x", F32, (3, 4))
    t = compute((3, 4), lambda i, j: x[i, j])
    lies = ScatteredLayout(
        (3, 10), row_major(2), t.axes, (t.axes[0], index.as_index(t.axes[1] + 5))
    )
    a = np.arange(12, dtype=np.float32).reshape(3, 4)
    whole = np.full((3, 10), -1, np.float32)
    load_kernel(lower_kernel("k", [x], [t], layouts={t: lies}))(a, whole)
    np.testing.assert_array_equal(whole[:, 5:9], a)
    assert (whole[:, :5] == -1).all()
    assert (whole[:, 9] == -1).all()
