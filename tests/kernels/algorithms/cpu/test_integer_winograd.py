"""Winograd's convolution of integers: the identity, its bounds, and kernels on whole ranges."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper, parser

import superopt
from superopt.kernels.algorithms.build import input_buffers
from superopt.kernels.algorithms.cpu.cook_toom import (
    distinct_rows,
    has_integer_points,
    integer_matrices,
    to_array,
)
from superopt.kernels.algorithms.cpu.dot_products.winograd import (
    TILE_SIDES,
    recognise_integer_winograd,
    winograd_options,
)
from superopt.kernels.algorithms.cpu.winograd_integers import (
    MAX_INPUT,
    Integers,
    divisor,
    int16_element,
    is_exact,
    transform_filter,
)
from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.algorithms.space import best_option
from superopt.kernels.loops.option import Option
from superopt.kernels.processor import AVX2, AVX512_VNNI, AVX_INT16, XEON
from superopt.kernels.runtime.engine import host
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import read_model
from superopt.plan.graph.simplify import simplify_graph
from superopt.plan.passes import plan_program
from superopt.plan.program.plan import Settings
from superopt.te.eval.interpret import evaluate
from superopt.te.expr.dtype import I8, I32, U8, to_numpy
from superopt.te.expr.node import Expr
from superopt.te.expr.tensor import Tensor, cast, compute, const, select
from tests.support.kernels.integer_operands import LEVELS, drawn, lacks
from tests.support.kernels.options import run_option

FORMS = [
    (m, r, s) for m in TILE_SIDES for r in (2, 3, 5) for s in (1, 2) if has_integer_points(m, r, s)
]
EXACT_FORMS = [f for f in FORMS if is_exact((f, f), 0)]
VECTOR_BYTES = (64, 32, 16)


# --- the identity and its bounds ---


@pytest.mark.parametrize(("m", "r", "s"), [*FORMS, (1, 1, 1), (1, 3, 1), (3, 1, 1)])
def test_the_matrices_are_a_multiple_of_a_convolution(m: int, r: int, s: int) -> None:
    """Integers, and bilinear in both operands: equal on all pairs of unit vectors, so equal."""
    a, g, b, n = integer_matrices(m, r, s)
    assert all(x.denominator == 1 for matrix in (a, g, b) for row in matrix for x in row)
    size = s * m + r - s
    for i in range(r):
        for j in range(size):
            products = [g[x][i] * b[x][j] for x in range(size)]
            got = [sum(a[y][x] * products[x] for x in range(size)) for y in range(m)]
            assert got == [n * int(j == s * y + i) for y in range(m)]


def test_which_tiles_fit_into_int16() -> None:
    """Those whose filters of one phase have up to three taps: five grow by 31 along each side."""
    assert {*FORMS} - {*EXACT_FORMS} == {(2, 5, 1)}


@pytest.mark.parametrize("form", EXACT_FORMS)
def test_extreme_tiles_and_filters_fit_into_int16(form: tuple[int, int, int]) -> None:
    """The data and the filter that make each element the largest and the least."""
    _, g, b, _ = integer_matrices(*form)
    ends = np.iinfo(np.int16)
    for matrix, low, high in ((b, 0, 255), (g, -128, 127)):
        both = np.kron(to_array(matrix), to_array(matrix))
        largest = np.where(both > 0, high * both, low * both).sum(1).max()
        least = np.where(both > 0, low * both, high * both).sum(1).min()
        assert ends.min <= least
        assert largest <= ends.max


def wrapped_convolution(
    m: int, data: np.ndarray, filters: np.ndarray, shape: tuple[int, int, int]
) -> np.ndarray:
    """One tile of F(m x m, 3 x 3) as kernels compute it: int16 tiles of data[c, i, j] and
    filters[k, c, i, j], int32 sums modulo 2^32."""
    form = (m, 3, 1)
    a, _, b, _ = integer_matrices(*form)
    k, c, vectors = shape
    u = transform_filter((form, form), (3, 3), vectors, filters)
    assert u.dtype == np.int16
    u = u.transpose(0, 1, 2, 4, 5, 3, 6).reshape(m + 2, m + 2, k, c).astype(np.int32)
    b_table, a_table = to_array(b).astype(np.int16), to_array(a).astype(np.int32)
    v = np.einsum("xi,zj,cij->cxz", b_table, b_table, data.astype(np.int16), dtype=np.int16)
    sums = np.einsum("xzkc,cxz->kxz", u, v.astype(np.int32), dtype=np.int32)
    multiple = np.einsum("ix,jz,kxz->kij", a_table, a_table, sums, dtype=np.int32)
    given = Tensor("m", I32, multiple.shape)
    t = compute(
        multiple.shape,
        lambda *at: Integers(shape, divisor((form, form))).divide(given[at]),
    )
    return evaluate(t, {"m": multiple})


def direct_convolution(m: int, data: np.ndarray, filters: np.ndarray) -> np.ndarray:
    windows = np.lib.stride_tricks.sliding_window_view(data.astype(np.int64), (3, 3), (1, 2))
    return np.einsum("cijrs,kcrs->kij", windows[:, :m, :m], filters.astype(np.int64))


@given(
    st.sampled_from(TILE_SIDES),
    st.sampled_from((16, 48)),
    st.sampled_from((0.0, 0.5, 1.0)),
    st.integers(0, 1 << 30),
)
def test_sums_modulo_2_32_give_the_convolution(
    m: int, channels: int, extremes: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, (channels, m + 2, m + 2)).astype(np.uint8)
    data = np.where(rng.random(data.shape) < extremes, rng.choice([0, 255], data.shape), data)
    filters = rng.integers(-128, 128, (16, channels, 3, 3)).astype(np.int8)
    ends = rng.choice([-128, 127], filters.shape)
    filters = np.where(rng.random(filters.shape) < extremes, ends, filters).astype(np.int8)
    got = wrapped_convolution(m, data, filters, (16, channels, 1))
    np.testing.assert_array_equal(got, direct_convolution(m, data, filters))


def test_a_sum_beyond_the_limit_is_wrong() -> None:
    """The largest sums of F(4 x 4, 3 x 3): 2^25 is one too large, as `is_exact` says."""
    forms = ((4, 3, 1), (4, 3, 1))
    assert is_exact(forms, (1 << 25) - 1)
    assert not is_exact(forms, 1 << 25)
    channels = 128
    data = np.full((channels, 6, 6), 255, np.uint8)
    filters = np.full((16, channels, 3, 3), 127, np.int8)
    exact = direct_convolution(4, data, filters)
    assert exact.max() >= 1 << 25
    got = wrapped_convolution(4, data, filters, (16, channels, 1))
    assert (got != exact).all()
    smaller = wrapped_convolution(3, data[:, :5, :5], filters, (16, channels, 1))
    np.testing.assert_array_equal(smaller, exact[:, :3, :3])


def test_elements_of_int16() -> None:
    x, y, n = Tensor("x", U8, ()), Tensor("y", I8, ()), Tensor("n", I32, ())
    guard = n[()] < 3

    def zero(x: int) -> Expr:
        return const(x, I32)

    both = cast(y[()], I32) + 128
    for e in (cast(x[()], I32), both, select(guard, both, cast(x[()], I32)), zero(255)):
        assert int16_element(e) is not None
    for e in (cast(y[()], I32), n[()], both + 1, cast(x[()], I32) - 1, zero(-1), zero(256)):
        assert int16_element(e) is None
        assert int16_element(select(guard, e, zero(0))) is None


def test_filters_of_one_tap_are_stored_once() -> None:
    w = np.arange(-72, 72, dtype=np.int8).reshape(16, 1, 3, 3).repeat(2, 1)
    form = (4, 3, 2)
    assert distinct_rows(*form, True) == 6
    assert transform_filter((form, form), (3, 3), 1, w).shape == (6, 6, 1, 1, 1, 16, 2)


# --- kernels ---

# Graphs in ONNX's text syntax; inputs whose names begin with "w" are constants, drawn from their
# type's whole range.
GRAPHS = {
    "in place": """(int32[1, 64, 9, 9] x, int8[64, 64, 3, 3] w) => (int32[1, 64, 9, 9] y)
        { q = Cast<to = 2>(x) y = ConvInteger<pads = [1, 1, 1, 1]>(q, w) }""",
    "zero point": """(uint8[2, 16, 7, 10] x, uint8 z, int8[48, 16, 3, 3] w)
        => (int32[2, 48, 7, 10] y) { y = ConvInteger<pads = [1, 1, 1, 1]>(x, w, z) }""",
    "int8 data": """(int8[1, 32, 6, 5] x, int8 z, int8[16, 32, 3, 3] w) => (int32[1, 16, 6, 5] y)
        { y = ConvInteger<pads = [1, 1, 1, 1]>(x, w, z) }""",
    "stride": """(uint8[1, 32, 15, 14] x, int8[32, 32, 3, 3] w) => (int32[1, 32, 8, 7] y)
        { y = ConvInteger<pads = [1, 1, 1, 1], strides = [2, 2]>(x, w) }""",
    "one row": """(uint8[1, 16, 6, 30] x, int8[16, 16, 1, 3] w) => (int32[1, 16, 6, 28] y)
        { y = ConvInteger(x, w) }""",
    "quantized": """(uint8[1, 16, 8, 8] x, float ws, uint8 wz, int8[32, 16, 3, 3] w, float[32] wt,
        int8[32] wv, float wr, uint8 wu, int32[32] wb) => (uint8[1, 32, 8, 8] y)
        { y = QLinearConv<pads = [1, 1, 1, 1]>(x, ws, wz, w, wt, wv, wr, wu, wb) }""",
}  # fmt: skip


def model_of(name: str, filters: np.ndarray | None = None) -> onnx.ModelProto:
    """The model of a graph. filters: its w, if not drawn."""
    m = onnx.ModelProto(ir_version=10)
    m.opset_import.add(domain="", version=13)
    m.graph.CopyFrom(parser.parse_graph("g " + GRAPHS.get(name, name)))
    for v in [*m.graph.input]:
        if v.name.startswith("w"):
            kind = v.type.tensor_type
            array = np.asarray(
                drawn(kind.elem_type, [d.dim_value for d in kind.shape.dim], name + v.name)
            )
            given = array if filters is None or v.name != "w" else filters
            m.graph.initializer.append(numpy_helper.from_array(given, v.name))
            m.graph.input.remove(v)
    return m


def problem_of(
    m: onnx.ModelProto, width: int, instructions: str = AVX_INT16, threads: int = 1
) -> Problem:
    """The problem of a model's convolution."""
    settings = Settings(
        width,
        processor=XEON if width == 64 else AVX2,
        integer_instructions=instructions,
        threads=threads,
    )
    graph = simplify_graph(import_model(read_model(m)).graph)
    some = [*plan_program(graph, {}, settings).problems.values()]
    (p,) = (p for p in some if any(t.dtype == I8 for t in p.constants))
    return p


def options_of(p: Problem) -> list[Option]:
    found = recognise_integer_winograd(p)
    return [] if found is None else [*winograd_options(p, found)]


def sample_options(some: list[Option]) -> Iterator[Option]:
    """An option of each side of tiles, transformed by the kernel and by one before."""
    kinds: dict[tuple[int, int], Option] = {}
    for o in some:
        kinds.setdefault((o["m"], o["separate"]), o)
    yield from kinds.values()


@cache
def graph_problem(name: str, width: int, threads: int) -> Problem:
    return problem_of(model_of(name), width, threads=threads)


@pytest.mark.parametrize(
    ("name", "width", "threads"),
    [*((name, width, 1) for name in GRAPHS for width in VECTOR_BYTES), ("zero point", 64, 4)],
)
def test_results_are_exact(
    name: str, width: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of each kind of tiles equal those of a loop over int32."""
    if width < host().width:
        monkeypatch.setenv("SUPEROPT_TARGET_CPU", LEVELS[width])
    if why := lacks(AVX_INT16, width):
        pytest.skip(why)
    p = graph_problem(name, width, threads)
    given: dict[Tensor, np.ndarray] = {}
    for t in input_buffers(p.tensor):
        kind = onnx.helper.np_dtype_to_tensor_dtype(to_numpy(t.dtype))
        given[t] = drawn(kind, [n for n in t.shape if isinstance(n, int)], name)
    plain = replace(p, integer_instructions="")
    wanted = run_option(plain, best_option(plain), given)
    some = options_of(p)
    assert {o["m"] for o in some} == {2, 3, 4}
    for o in sample_options(some):
        np.testing.assert_array_equal(run_option(p, o, given), wanted, err_msg=str(o))


LONG = """(uint8[1, 128, 8, 8] x, int8[16, 128, 3, 3] w) => (int32[1, 16, 8, 8] y)
    { y = ConvInteger<pads = [1, 1, 1, 1]>(x, w) }"""


@pytest.mark.parametrize(("weight", "sides"), [(127, {2, 3}), (-127, {2, 3}), (60, {2, 3, 4})])
def test_weights_decide_how_large_tiles_may_be(weight: int, sides: set[int]) -> None:
    """With 128 channels sums of 127 times 255 exceed 2^25."""
    p = problem_of(model_of(LONG, np.full((16, 128, 3, 3), weight, np.int8)), 64)
    assert p.sum_limit == MAX_INPUT * abs(weight) * 128 * 9
    assert {o["m"] for o in options_of(p)} == sides


def test_sums_of_both_signs_count_apart() -> None:
    w = np.full((16, 128, 3, 3), 127, np.int8)
    w[:, ::2] = -127
    assert problem_of(model_of(LONG, w), 64).sum_limit == MAX_INPUT * 127 * 64 * 9


def test_processors_with_vnni_have_none() -> None:
    p = problem_of(model_of("in place"), 64, AVX512_VNNI)
    assert p.sum_limit == 0
    assert not options_of(p)


def test_the_faster_one_is_chosen() -> None:
    """Winograd for large images of many channels; the direct product for few pixels."""
    graph = """(int32[1, 64, {0}, {0}] x, int8[64, 64, 3, 3] w) => (int32[1, 64, {0}, {0}] y)
        {{ q = Cast<to = 2>(x) y = ConvInteger<pads = [1, 1, 1, 1]>(q, w) }}"""
    for width in VECTOR_BYTES:
        names = [
            best_option(problem_of(model_of(graph.format(n)), width)).algorithm for n in (28, 3)
        ]
        assert names == ["int8_winograd", "int8_gemm"]


def test_the_largest_sums_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a compiled model whose data and weights are all as large as possible."""
    monkeypatch.setenv("SUPEROPT_TARGET_CPU", LEVELS[32])
    if why := lacks(AVX_INT16, 32):
        pytest.skip(why)
    x = np.full((1, 128, 8, 8), 255, np.uint8)
    exe = superopt.compile(model_of(LONG, np.full((16, 128, 3, 3), -128, np.int8)))
    got = exe.run({"x": x})["y"]
    assert got[0, 0, 3, 3] == -255 * 128 * 128 * 9
    assert got[0, 0, 0, 0] == -255 * 128 * 128 * 4
