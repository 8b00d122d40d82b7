"""Winograd's tiles: the identity, exactly; and convolutions of odd sizes."""

from fractions import Fraction

import numpy as np
import pytest

from superopt.ir.op import canonical_attrs, expression
from superopt.kernels.contraction import contraction
from superopt.kernels.cook_toom import KERNEL, POINTS, matrices, transformed_kernel
from superopt.kernels.cpu import loaded
from superopt.kernels.layout import Scatter, parsed
from superopt.kernels.lower import lowered
from superopt.kernels.pack import laid, packed, read
from superopt.kernels.walk import loads
from superopt.kernels.winograd import picture, plans, tiled
from superopt.ops import OPS
from superopt.te.dtype import F32
from superopt.te.expr import TensorType


@pytest.mark.parametrize("m", POINTS)
def test_the_matrices_are_a_convolution(m: int) -> None:
    """A ((G g) * (B d)) is bilinear in g and d: equal on all pairs of unit vectors, so equal."""
    a, g, b = matrices(m)
    size = m + KERNEL - 1
    for i in range(KERNEL):
        for j in range(size):
            products = [g[x][i] * b[x][j] for x in range(size)]
            got = [sum(a[y][x] * products[x] for x in range(size)) for y in range(m)]
            assert got == [Fraction(int(j == y + i)) for y in range(m)]


@pytest.mark.parametrize("m", POINTS)
@pytest.mark.parametrize(
    ("pads", "apart"),
    [
        ((1, 1, 1, 1), (1, 1)),
        ((0, 0, 0, 0), (1, 1)),
        ((0, 2, 1, 0), (1, 1)),
        ((6, 6, 5, 5), (3, 2)),
    ],
)
@pytest.mark.parametrize(
    ("n", "channels", "out", "height", "width"),
    [(1, 16, 16, 6, 6), (2, 16, 32, 7, 9), (1, 48, 16, 11, 6), (1, 17, 24, 8, 13),
     (1, 384, 384, 6, 6)],
)  # fmt: skip
def test_it_is_the_convolution(
    n: int,
    channels: int,
    out: int,
    height: int,
    width: int,
    pads: tuple[int, ...],
    m: int,
    apart: tuple[int, int],
) -> None:
    shape = (n, channels, height, width)
    types = (
        TensorType(F32, shape),
        TensorType(F32, (out, channels, 3, 3)),
        TensorType(F32, (out,)),
    )
    attrs = canonical_attrs(OPS["Conv"], types, {"pads": pads, "dilations": apart})
    (t,) = expression(OPS["Conv"], types, attrs)
    assert t.body is not None
    read_ = {x.tensor.name: x.tensor for x in loads(t.body)}
    x, w, c = (read_[name] for name in ("a0", "a1", "a2"))
    if apart != (1, 1):
        height, width = (n for n in t.shape[2:] if isinstance(n, int))
        if min(height // apart[0], width // apart[1]) < m:
            pytest.skip("smaller than a tile")
    found = contraction(t, {w})
    assert found is not None
    p = picture(t, found)
    assert p is not None
    border = max(pads)
    layout = parsed(f"i0 i2+{border} i3+{border} i1" if border else "i0 i2 i3 i1")
    made = tiled(t, found, p, plans(p, m, 16)[0], parsed("i0 i2+1 i3+1 i1"), 16)
    rng = np.random.default_rng(3)
    a = rng.standard_normal(shape).astype(np.float32)
    b = rng.standard_normal((out, channels, 3, 3)).astype(np.float32)
    bias = rng.standard_normal(out).astype(np.float32)
    wanted = np.zeros(tuple(int(d) for d in t.shape if isinstance(d, int)), np.float32)
    loaded(lowered("k", [x, w, c], [t]))(a, b, bias, wanted)
    lies: dict = {x: layout, made.root: made.lies}
    given, arrays = [x], [laid(layout, a)]
    if made.first is not None:
        before, buffer = made.first
        kernel = lowered("k", [x], [before], made.schedules, lies, made.tables)
        arrays = [np.zeros(before.shape, np.float32)]
        loaded(kernel)(laid(layout, a), arrays[0])
        given = [buffer]
    kernel = lowered(
        "k", [*given, made.kernel, c], [made.root], made.schedules, lies, made.tables, [made.kernel]
    )
    (pack,) = kernel.packs
    assert isinstance(made.lies, Scatter)
    got = laid(made.lies.layout, np.zeros_like(wanted))
    loaded(kernel)(*arrays, packed(pack, transformed_kernel(m, b)), bias, got)
    got = read(made.lies.layout, got, wanted.shape)
    np.testing.assert_allclose(got, wanted, atol=2e-5 * np.abs(wanted).max())
