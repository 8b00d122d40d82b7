"""Strassen's products: the identity, exactly; and products, of matrices and pictures, by parts."""

import numpy as np
import onnx
import pytest

import superopt
from superopt.kernels.algorithms.contraction import match_contraction
from superopt.kernels.algorithms.cpu.strassen import (
    LEVELS,
    Plan,
    can_split,
    coefficient_tables,
    combine_constant,
    constant_matrix,
    match_strassen_product,
    strassen_form,
)
from superopt.kernels.algorithms.cpu.strassen_gemm import fastest_strassen_plan
from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.algorithms.space import options
from superopt.kernels.loops.layout import Layout, ScatteredLayout, parse_layout, row_major
from superopt.kernels.loops.lower import lower_kernel
from superopt.kernels.loops.option import Option
from superopt.kernels.processor import ZEN5
from superopt.kernels.runtime.cpu import load_kernel
from superopt.kernels.runtime.engine import Machine
from superopt.te.expr import index
from superopt.te.expr.tensor import Tensor
from tests.support.compilation.models import F, model
from tests.support.kernels.build import product
from tests.support.kernels.options import run_option


@pytest.mark.parametrize("levels", LEVELS)
def test_the_tables_are_a_product_of_matrices(levels: int) -> None:
    """Bilinear in both: equal on all pairs of unit matrices, so equal."""
    a, b, c = coefficient_tables(levels)
    found = np.einsum("xrs,xtc,pqx->rstcpq", a, b, c)
    eye = np.eye(2**levels, dtype=a.dtype)
    np.testing.assert_array_equal(found, np.einsum("st,rp,cq->rstcpq", eye, eye, eye))


@pytest.mark.parametrize("levels", LEVELS)
def test_rounding_grows_by_no_more_than_is_said(levels: int) -> None:
    """Of numbers rounded once after each sum of parts, by those that a plain product has."""
    a, b, c = coefficient_tables(levels)
    norms = (a**2).sum((1, 2)) * (b**2).sum((1, 2))
    grown = np.sqrt(np.einsum("rcx,x->rc", c**2, norms).max() / 2**levels)
    assert grown < 2.45**levels + 0.01
    rng = np.random.default_rng(0)
    parts, n = 2**levels, 64
    x, y = (rng.standard_normal((parts, n, parts, n)).astype(np.float32) for _ in range(2))
    exact = np.einsum("risk,skcn->ricn", x.astype(float), y.astype(float))
    p = np.einsum("xrs,risk->xik", a, x.astype(float)).astype(np.float32)
    q = np.einsum("xsc,skcn->xkn", b, y.astype(float)).astype(np.float32)
    products = (p @ q).astype(float)
    got = np.einsum("rcx,xin->ricn", c, products)
    plain = x.reshape(parts * n, -1) @ y.reshape(parts * n, -1)
    ours = np.sqrt(np.mean((got - exact) ** 2))
    theirs = np.sqrt(np.mean((plain.reshape(exact.shape) - exact) ** 2))
    assert ours < 2 * grown * theirs


CASES = {
    "matrices": ("MatMul", [(64, 128), (128, 192)], None, None),
    "odd": ("MatMul", [(61, 64), (64, 128)], None, None),
    "batch": ("MatMul", [(3, 1, 21, 64), (64, 64)], None, None),
    "one of a batch": ("MatMul", [(1, 3, 7, 64), (64, 64)], None, None),
    "Gemm": ("Gemm", [(30, 128), (128, 64), (64,)], None, None),
    "picture": ("Conv", [(1, 64, 7, 9), (128, 64, 1, 1), (128,)], "i0 i1//16 i2 i3 i1%16",
                "i0 i1//16 i2+1 i3+1 i1%16"),
    "pictures": ("Conv", [(2, 64, 5, 5), (64, 64, 1, 1), (64,)], "i0 i2+2 i3+2 i1", "i0 i2 i3 i1"),
}  # fmt: skip


def problem(case: str, levels: int, separate: int) -> tuple[Problem, list[Tensor], list[Option]]:
    """A case, its operands, and its ways by parts of so many levels."""
    op, shapes, lies, out = CASES[case]
    t, [x, w, *rest] = product(op, *shapes)
    layouts: dict[Tensor, Layout | ScatteredLayout] = {}
    if lies is not None and out is not None:
        layouts = {x: parse_layout(lies), t: parse_layout(out)}
    p = Problem(t, layouts, {w}, 64)
    some = [o for o in options(p) if o.algorithm == "strassen" and o["levels"] == levels]
    some = [o for o in some if o["separate"] == separate]
    assert some, "no such option"
    return p, [x, w, *rest], some


@pytest.mark.one_in(24)
@pytest.mark.parametrize("separate", [0, 1])
@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("case", CASES)
def test_it_is_the_product(case: str, levels: int, separate: int) -> None:
    p, [x, w, *rest], some = problem(case, levels, separate)
    t = p.tensor
    rng = np.random.default_rng(3)
    given = {i: rng.standard_normal(i.shape).astype(np.float32) for i in (x, w, *rest)}
    wanted = np.zeros(tuple(n for n in t.shape if isinstance(n, int)), np.float32)
    load_kernel(lower_kernel("k", [x, w, *rest], [t]))(*given.values(), wanted)
    for option in (some[0], some[-1]):
        got = run_option(p, option, given)
        np.testing.assert_allclose(
            got.reshape(wanted.shape), wanted, atol=1e-5 * np.abs(wanted).max()
        )


@pytest.mark.one_in(12)
@pytest.mark.parametrize("separate", [0, 1])
@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("case", CASES)
def test_no_row_rounds_by_another_ones_size(case: str, levels: int, separate: int) -> None:
    """Rows of magnitudes from 1e-36 to 1e36, and one of zeros: as exact as if all were alike."""
    p, [x, w, *rest], (option, *_) = problem(case, levels, separate)
    op = CASES[case][0]
    rng = np.random.default_rng(5)
    terms = 1 if op == "Conv" else -1
    a = rng.standard_normal(x.shape).astype(np.float32)
    sizes = 10.0 ** rng.integers(-36, 37, np.take(a, [0], terms).shape)
    sizes.flat[rng.permutation(sizes.size)[:2]] = 0, 1e36
    a = (a * sizes).astype(np.float32)
    b = rng.standard_normal(w.shape).astype(np.float32)
    got = run_option(p, option, {x: a, w: b, **{i: np.zeros(i.shape, np.float32) for i in rest}})
    if op == "Conv":
        wanted = np.einsum("nchw,oc->nohw", a.astype(float), b[:, :, 0, 0])
    else:
        wanted = a.astype(float) @ b
    error = np.abs(got.reshape(wanted.shape) - wanted)
    assert np.all(error <= 2e-5 * np.abs(wanted).max(terms, keepdims=True))
    assert np.all(got.reshape(wanted.shape)[np.broadcast_to(sizes == 0, wanted.shape)] == 0)


@pytest.mark.parametrize(
    ("op", "shapes", "attrs"),
    [
        ("MatMul", [(64, 63), (63, 64)], {}),  # terms that are no whole vectors
        ("MatMul", [(64, 64), (64, 72)], {}),
        ("MatMul", [(6, 64), (64, 64)], {}),  # too few rows
        ("MatMul", [(0, 64), (64, 64)], {}),
        ("MatMul", [(2, 0, 32, 64), (64, 64)], {}),
        ("Conv", [(1, 64, 8, 8), (64, 64, 3, 3)], {"pads": (1, 1, 1, 1)}),
        ("Conv", [(1, 128, 8, 8), (64, 64, 1, 1)], {"group": 2}),
        ("MatMul", [(2, 64, 64), (2, 64, 64)], {}),  # a constant for each of a batch
    ],
)
def test_what_parts_do_not_compute(
    op: str, shapes: list[tuple[int, ...]], attrs: dict[str, object]
) -> None:
    t, [_, w] = product(op, *shapes, **attrs)
    p = Problem(t, {}, {w}, 64)
    assert all(o.algorithm != "strassen" for o in options(p))


def test_only_constants_and_only_where_it_pays() -> None:
    t, [_, w] = product("MatMul", (512, 512), (512, 512))
    assert next(options(Problem(t, {}, {w}, 64)))["levels"] == 2
    assert next(options(Problem(t, {}, {w}, 64, strassen_levels=1)))["levels"] == 1
    assert all(
        o.algorithm != "strassen" for o in options(Problem(t, {}, {w}, 64, strassen_levels=0))
    )
    assert all(o.algorithm != "strassen" for o in options(Problem(t, {}, set(), 64)))
    c = match_contraction(t, {w})
    assert c is not None
    s = match_strassen_product(t, c)
    assert s is not None
    assert can_split(s, 2, 16)
    # where the product as it is would take no time
    assert fastest_strassen_plan(s, 16, 2, 1.0) is None


def test_a_transposed_matrix() -> None:
    t, [_, w] = product("Gemm", (32, 64), (64, 64), transB=1)
    c = match_contraction(t, {w})
    assert c is not None
    s = match_strassen_product(t, c)
    assert s is not None
    b = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    panels = combine_constant(1, 16, constant_matrix(c, s), b)
    assert panels.shape == (7, 2, 32, 16)
    q = panels.transpose(0, 2, 1, 3).reshape(7, 32, 32)
    np.testing.assert_array_equal(q[1], b.T[:32, :32])
    np.testing.assert_array_equal(q[0], b.T[:32, :32] + b.T[32:, 32:])


def test_nan_stays_in_its_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Machine, "processor", property(lambda machine: ZEN5))
    rng = np.random.default_rng(0)
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    w = rng.standard_normal((1024, 1024)).astype(np.float32)
    m = model([node], {"x": (F, [3, 128, 1024])}, ["y"], {"w": w})
    exe = superopt.compile(m)
    (step,) = exe.variants[()]
    assert "strassen" in {o.algorithm for o in step.code.program.options.values()}
    x = rng.standard_normal((3, 128, 1024)).astype(np.float32)
    x[1, 5, 7] = np.nan
    y = exe(x=x)["y"]
    assert np.isnan(y[1, 5]).all()
    assert np.isfinite(y[[0, 2]]).all()


@pytest.mark.parametrize("high", [49, 53, 61, 64, 225])
@pytest.mark.parametrize("block", [4, 7, 8, 14])
@pytest.mark.parametrize("levels", [1, 2])
def test_a_row_has_one_origin_in_whatever_order_chunks_end(
    high: int, block: int, levels: int
) -> None:
    """The last that each chunk stores in a row is of the same part and row of it."""
    t, [_, w] = product("MatMul", (high, 64), (64, 64))
    c = match_contraction(t, {w})
    assert c is not None
    s = match_strassen_product(t, c)
    assert s is not None
    made = strassen_form(
        t, c, s, Plan(levels, False, block, block, 1, 0), {t: row_major(2)}, 16, 32
    )
    i, r = made.root.axes[:2]
    m, parts = i.extent, r.extent
    assert isinstance(m, int)
    assert isinstance(parts, int)
    origins: dict[str, set[tuple[int, int]]] = {}
    for begin in {min(b, max(m - block, 0)) for b in range(0, m, block)}:
        last = {}
        for x in range(begin, min(begin + block, m)):
            for part in range(parts):
                env = {i: index.as_index(x), r: index.as_index(part)}
                last[str(index.substitute(made.layout.index[0], env))] = (part, x)
        for row, origin in last.items():
            origins.setdefault(row, set()).add(origin)
    assert origins.keys() == {str(n) for n in range(high)}
    assert all(len(found) == 1 for found in origins.values()), origins
    for row, found in origins.items():  # and it is this row that was computed
        ((part, x),) = found
        assert min(part * m, high - m) + x == int(row)
