"""Winograd's tiles: the identity, exactly; and convolutions of odd sizes."""

from fractions import Fraction

import numpy as np
import pytest

from superopt.ir.op import canonical_attrs, expression
from superopt.kernels.algorithms.contraction import match_contraction
from superopt.kernels.algorithms.cpu.cook_toom import (
    distinct_rows,
    error_amplification,
    has_points,
    transform_kernel,
    transform_matrices,
    transform_operations,
)
from superopt.kernels.algorithms.cpu.tiled_convolution import (
    MAX_ERROR_AMPLIFICATION,
    TILE_SIDES,
    match_tiled_convolution,
    stack_tile_counts,
)
from superopt.kernels.algorithms.cpu.winograd import winograd_form
from superopt.kernels.algorithms.cpu.winograd_plans import candidate_plans
from superopt.kernels.loops.layout import ScatteredLayout, parse_layout
from superopt.kernels.loops.lower import lower_kernel
from superopt.kernels.loops.pack import from_layout, pack_constant, to_layout
from superopt.kernels.runtime.cpu import load_kernel
from superopt.ops import OPS
from superopt.te.analysis.walk import loads
from superopt.te.expr.dtype import F32
from superopt.te.expr.tensor import Tensor, TensorType

FORMS = [
    (m, r, s) for m in TILE_SIDES for r in (2, 3, 4, 5, 7) for s in (1, 2, 3) if has_points(m, r, s)
]


@pytest.mark.parametrize(("m", "r", "s"), [*FORMS, (1, 1, 1), (3, 1, 1), (1, 3, 1)])
def test_the_matrices_are_a_convolution(m: int, r: int, s: int) -> None:
    """A ((G g) * (B d)) is bilinear in g and d: equal on all pairs of unit vectors, so equal."""
    a, g, b = transform_matrices(m, r, s)
    size = s * m + r - s
    assert {len(row) for row in b} == {len(b)} == {len(row) for row in a} == {len(g)} == {size}
    for i in range(r):
        for j in range(size):
            products = [g[x][i] * b[x][j] for x in range(size)]
            got = [sum(a[y][x] * products[x] for x in range(size)) for y in range(m)]
            assert got == [Fraction(int(j == s * y + i)) for y in range(m)]


@pytest.mark.parametrize(("m", "r", "s"), FORMS)
def test_what_is_alike_and_what_is_to_be_done(m: int, r: int, s: int) -> None:
    a, g, b = transform_matrices(m, r, s)
    n = distinct_rows(m, r, s)
    assert set(g[n - 1 :]) == {g[-1]}
    assert n == 1 or g[n - 2] != g[-1]
    there, back = transform_operations(m, r, s)
    numbers = [[sum(x not in (0, 1) for x in row) for row in matrix] for matrix in (b, a)]
    assert sum(numbers[0]) <= there
    assert sum(numbers[1]) <= back


@pytest.mark.parametrize(
    ("m", "r", "s"), [x for x in FORMS if error_amplification(*x) <= MAX_ERROR_AMPLIFICATION]
)
def test_rounding_grows_by_no_more_than_is_said(m: int, r: int, s: int) -> None:
    """Of one channel, against float64: the error of the largest output by the norms of operands."""
    a, g, b = (np.array(x, float) for x in transform_matrices(m, r, s))
    rng = np.random.default_rng(0)
    w, d = rng.standard_normal((r, 4000)), rng.standard_normal((s * m + r - s, 4000))
    exact = np.stack([sum(w[k] * d[s * i + k] for k in range(r)) for i in range(m)])
    products = (g @ w).astype(np.float32) * (b @ d).astype(np.float32)
    found = a @ products.astype(np.float64)
    error = np.sqrt(np.mean((found - exact) ** 2, axis=1)).max()
    assert error < 2 * error_amplification(m, r, s) * 2.0**-24


def convolution(
    shape: tuple[int, ...], out: int, kernel: tuple[int, ...], pads: tuple[int, ...],
    apart: tuple[int, ...], strides: tuple[int, ...] | None = None,
) -> Tensor:  # fmt: skip
    types = (
        TensorType(F32, shape),
        TensorType(F32, (out, shape[1], *kernel)),
        TensorType(F32, (out,)),
    )
    said = {"pads": pads, "dilations": apart} | ({} if strides is None else {"strides": strides})
    attrs = canonical_attrs(OPS["Conv"], types, said)
    (t,) = expression(OPS["Conv"], types, attrs)
    return t


KERNELS = {  # kernel, and the sides of tiles that do not round too badly
    (3, 3): [2, 4], (1, 3): [2, 4], (3, 1): [2, 4], (5, 5): [2], (1, 5): [2, 4], (5, 1): [2, 4],
    (1, 7): [2], (7, 1): [2], (7, 7): [], (3, 5): [2], (3, 7): [2], (1, 1): None, (2, 2): [2, 4],
    (1, 4): [2], (4, 4): [2],
}  # fmt: skip


@pytest.mark.parametrize("kernel", KERNELS)
def test_which_convolutions_are_computed_in_tiles(kernel: tuple[int, int]) -> None:
    t = convolution((1, 16, 30, 30), 16, kernel, (0, 0, 0, 0), (1, 1))
    assert t.body is not None
    (w,) = (x.tensor for x in loads(t.body) if x.tensor.name == "a1")
    found = match_contraction(t, {w})
    assert found is not None
    p = match_tiled_convolution(t, found)
    assert (None if p is None else p.tile_options()) == KERNELS[kernel]


SHAPES = [
    (1, 16, 16, 6, 6), (2, 16, 32, 7, 9), (1, 48, 16, 11, 6), (1, 17, 24, 8, 13),
    (1, 384, 384, 6, 6),
]  # fmt: skip
CASES = [
    *(
        (m, (3, 3), pads, apart, shape)
        for m in (2, 4)
        for pads, apart in [
            ((1, 1, 1, 1), (1, 1)),
            ((0, 0, 0, 0), (1, 1)),
            ((0, 2, 1, 0), (1, 1)),
            ((6, 6, 5, 5), (3, 2)),
        ]
        for shape in SHAPES
    ),
    *(
        (m, kernel, tuple(r // 2 for r in kernel * 2), (1, 1), shape)
        for kernel, some in KERNELS.items()
        for m in some or ()
        for shape in SHAPES[1:4]
    ),
    (2, (1, 7), (0, 6, 0, 6), (1, 2), (1, 16, 16, 5, 11)),
    (4, (3, 1), (3, 0, 3, 0), (3, 1), (1, 16, 16, 13, 5)),
]


@pytest.mark.one_in(25)
@pytest.mark.parametrize(("m", "kernel", "pads", "apart", "sizes"), CASES)
def test_it_is_the_convolution(
    m: int,
    kernel: tuple[int, ...],
    pads: tuple[int, ...],
    apart: tuple[int, ...],
    sizes: tuple[int, ...],
) -> None:
    n, channels, out, height, width = sizes
    it_is_the_convolution(m, (n, channels, height, width), out, kernel, pads, apart, None)


STRIDED = [
    (m, kernel, strides, pads, shape)
    for m in (2, 4)
    for kernel, strides in (
        ((3, 3), (2, 2)), ((5, 5), (2, 2)), ((3, 3), (1, 2)), ((2, 3), (2, 1)), ((3, 1), (2, 2)),
        ((1, 3), (3, 2)), ((4, 4), (2, 2)), ((5, 3), (3, 3)), ((2, 2), (2, 2)),
    )
    for pads in ((0, 0, 0, 0), (1, 1, 1, 1), (0, 2, 1, 0))
    for shape in ((1, 16, 16, 16, 19), (2, 24, 32, 21, 17))
]  # fmt: skip


@pytest.mark.one_in(21)
@pytest.mark.parametrize("before", [False, True], ids=["by rows", "transformed before"])
@pytest.mark.parametrize(
    ("m", "kernel", "strides", "pads", "sizes"),
    [pytest.param(*c, marks=pytest.mark.slow if n % 3 else ()) for n, c in enumerate(STRIDED)],
)
def test_strided_windows(
    m: int, kernel: tuple[int, ...], strides: tuple[int, ...], pads: tuple[int, ...],
    sizes: tuple[int, ...], before: bool,
) -> None:  # fmt: skip
    n, channels, out, height, width = sizes
    shape = n, channels, height, width
    it_is_the_convolution(m, shape, out, kernel, pads, (1, 1), strides, before)


def test_strided_dilated_windows_are_not_tiled() -> None:
    t = convolution((1, 16, 30, 30), 16, (3, 3), (1, 1, 1, 1), (2, 2), (2, 2))
    assert t.body is not None
    (w,) = (x.tensor for x in loads(t.body) if x.tensor.name == "a1")
    found = match_contraction(t, {w})
    assert found is not None
    assert match_tiled_convolution(t, found) is None


LINES = [
    (m, (r,), pads, (d,), (n, c, size))
    for m, r in ((2, 3), (4, 3), (2, 5), (4, 5), (2, 7))
    for pads, d in (((0, 0), 1), ((1, 2), 1), ((4, 0), 2))
    for n, c, size in ((1, 16, 31), (2, 24, 18))
]
BODIES = [
    (m, kernel, pads, (apart, 1, 1), (stride, 1, 1), (n, 16, deep, 7, 9))
    for m in (2, 4)
    for kernel, pads in (
        ((3, 3, 3), (1,) * 6),
        ((2, 3, 3), (1, 0, 0, 0, 2, 1)),
        ((1, 3, 3), (0,) * 6),
    )
    for stride, apart, n, deep in ((1, 1, 1, 4), (2, 1, 1, 5), (1, 2, 2, 5), (2, 1, 2, 6))
]


@pytest.mark.one_in(7)
@pytest.mark.parametrize(("m", "kernel", "pads", "apart", "shape"), LINES)
def test_along_one_dimension(
    m: int, kernel: tuple[int, ...], pads: tuple[int, ...], apart: tuple[int, ...],
    shape: tuple[int, ...],
) -> None:  # fmt: skip
    it_is_the_convolution(m, shape, 32, kernel, pads, apart, None)


@pytest.mark.one_in(16)
@pytest.mark.parametrize("before", [False, True], ids=["at once", "transformed before"])
@pytest.mark.parametrize(("m", "kernel", "pads", "apart", "strides", "shape"), BODIES)
def test_in_three_dimensions(
    m: int, kernel: tuple[int, ...], pads: tuple[int, ...], apart: tuple[int, ...],
    strides: tuple[int, ...], shape: tuple[int, ...], before: bool,
) -> None:  # fmt: skip
    it_is_the_convolution(m, shape, 32, kernel, pads, apart, strides, before)


STACKED = {
    "small images": (4, (5, 16, 7, 7), (3, 3), (1, 1, 1, 1), (1, 1), (1, 1)),
    "tiles that overlap": (2, (3, 17, 7, 9), (3, 3), (0, 2, 1, 0), (1, 1), (1, 1)),
    "strided": (2, (4, 24, 12, 12), (4, 4), (1, 1, 1, 1), (1, 1), (2, 2)),
    "dilated": (2, (3, 16, 11, 9), (3, 3), (2, 2, 2, 2), (2, 2), (1, 1)),
    "lines": (4, (3, 16, 31), (3,), (1, 1), (1,), (1,)),
    "bodies": (2, (2, 16, 4, 7, 9), (1, 3, 3), (0, 1, 1, 0, 1, 1), (1, 1, 1), (1, 1, 1)),
}


@pytest.mark.parametrize("before", [False, True], ids=["by rows", "transformed before"])
@pytest.mark.parametrize("name", STACKED)
def test_stacked_images(name: str, before: bool) -> None:
    """A block of rows of tiles has tiles of several images, also of parts of one."""
    m, shape, kernel, pads, apart, strides = STACKED[name]
    it_is_the_convolution(m, shape, 32, kernel, pads, apart, strides, before, stacked=True)


def test_images_that_are_summed_or_alone_are_not_stacked() -> None:
    for shape, kernel, strides, is_stacked in (
        ((1, 16, 9, 9), (3, 3), (1, 1), False),
        ((2, 16, 9, 9), (3, 3), (1, 1), True),
        ((2, 16, 6, 9, 9), (3, 3, 3), (1, 1, 1), False),
        ((1, 16, 6, 9, 9), (1, 3, 3), (1, 1, 1), True),
        ((1, 16, 6, 9, 9), (1, 3, 3), (2, 1, 1), False),
    ):
        t = convolution(shape, 32, kernel, (0,) * 2 * len(kernel), (1,) * len(kernel), strides)
        assert t.body is not None
        found = match_contraction(t, {x.tensor for x in loads(t.body) if x.tensor.name == "a1"})
        assert found is not None
        p = match_tiled_convolution(t, found)
        assert p is not None
        assert p.stack_images().is_stacked == is_stacked


def it_is_the_convolution(
    m: int, shape: tuple[int, ...], out: int, kernel: tuple[int, ...], pads: tuple[int, ...],
    apart: tuple[int, ...], strides: tuple[int, ...] | None, before: bool | None = None,
    stacked: bool = False,
) -> None:  # fmt: skip
    t = convolution(shape, out, kernel, pads, apart, strides)
    channels = shape[1]
    assert t.body is not None
    read_ = {x.tensor.name: x.tensor for x in loads(t.body)}
    x, w, c = (read_[name] for name in ("a0", "a1", "a2"))
    found = match_contraction(t, {w})
    assert found is not None
    p = match_tiled_convolution(t, found)
    assert p is not None
    if m not in p.tile_options():
        pytest.skip("smaller than a tile")
    if stacked:
        p = p.stack_images()
        assert p.is_stacked
    border = max(pads)
    space = range(2, len(shape))
    layout = parse_layout(
        " ".join(["i0", *(f"i{d}+{border}" if border else f"i{d}" for d in space), "i1"])
    )
    lies_ = parse_layout(" ".join(["i0", *(f"i{d}+1" for d in space), "i1"]))
    # on several threads, transforms before the blocks are candidates, too
    plans = [x for _, x in candidate_plans(p, m, 16, threads=2 if stacked else 1)]
    plan = next(x for x in plans if before is None or x.separate == before)
    if stacked:  # blocks that end within an image
        high = stack_tile_counts(p, m)[0]
        plan = next(x for x in plans if x.separate == before and 1 < x.block < high)
    made = winograd_form(t, found, p, plan, lies_, 16)
    rng = np.random.default_rng(3)
    a = rng.standard_normal(shape).astype(np.float32)
    b = rng.standard_normal((out, channels, *kernel)).astype(np.float32)
    bias = rng.standard_normal(out).astype(np.float32)
    wanted = np.zeros(tuple(int(d) for d in t.shape if isinstance(d, int)), np.float32)
    load_kernel(lower_kernel("k", [x, w, c], [t]))(a, b, bias, wanted)
    lies: dict = {x: layout, made.root: made.layout}
    given, arrays = [x], [to_layout(layout, a)]
    for before, buffer in made.producers:
        code = lower_kernel("k", [x], [before], made.schedules, lies, made.tables)
        arrays = [np.zeros(before.shape, np.float32)]
        load_kernel(code)(to_layout(layout, a), arrays[0])
        given = [buffer]
    code = lower_kernel(
        "k",
        [*given, made.transformed_constant, c],
        [made.root],
        made.schedules,
        lies,
        made.tables,
        [made.transformed_constant],
    )
    (pack,) = code.packs
    assert isinstance(made.layout, ScatteredLayout)
    got = to_layout(made.layout.layout, np.zeros_like(wanted))
    load_kernel(code)(*arrays, pack_constant(pack, transform_kernel(p.forms(m), b)), bias, got)
    got = from_layout(made.layout.layout, got, wanted.shape)
    np.testing.assert_allclose(got, wanted, atol=2e-5 * np.abs(wanted).max())
