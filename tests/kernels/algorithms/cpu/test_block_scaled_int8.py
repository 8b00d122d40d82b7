"""Products with weights of few bits by dot products of bytes: which code they have."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from superopt.kernels.algorithms.build import build_kernels
from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.algorithms.space import best_option, build_choice, options
from superopt.kernels.llvm.codegen import chunk_count, kernel_text
from superopt.kernels.loops.interpret import run_kernel
from superopt.kernels.loops.option import Option
from superopt.kernels.loops.pack import pack_constant
from superopt.kernels.processor import (
    AMX_INT8,
    AVX512_VNNI,
    AVX_INT16,
    AVX_VNNI,
)
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import read_model
from superopt.plan.graph.simplify import simplify_graph
from superopt.plan.passes import plan_program
from superopt.plan.program.plan import Settings
from superopt.te.analysis.walk import loads
from superopt.te.expr.dtype import F32, U32, to_numpy
from superopt.te.expr.tensor import Tensor
from tests.support.compilation.nbits import NBitsProduct


def problem(product: NBitsProduct, rows: int, settings: Settings) -> Problem:
    graph = simplify_graph(import_model(read_model(product.model([rows]))).graph, is_cpu=True)
    (found,) = plan_program(graph, {}, settings).problems.values()
    return found


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(("name", "width"), [(AVX512_VNNI, 64), (AMX_INT8, 64), (AVX_VNNI, 32)])
def test_weights_are_bytes_of_words(bits: int, name: str, width: int) -> None:
    """Of a row's vector, as many instructions as words have planes of four bytes."""
    product = NBitsProduct(256, 192, 32, bits=bits, level=4)
    p = problem(product, 20, Settings(width, integer_instructions=name))
    option = best_option(p)
    assert option.algorithm == "block_int8"
    kernels = [x.kernel for x in build_kernels(p, build_choice(p, option))]
    texts = [kernel_text(x, width) for x in kernels]
    count = option["rows"] * 4 * 32 // 4
    call = f"call <{width // 4} x i32> @llvm.x86.avx512.vpdpbusd.{8 * width}("
    assert [x.count(call) for x in texts] == [0, 0, 0, count]


@pytest.mark.parametrize("name", [AVX_INT16, ""])
def test_float32_is_used_without_such_instructions(name: str) -> None:
    p = problem(NBitsProduct(256, 192, 32, level=4), 20, Settings(64, integer_instructions=name))
    assert best_option(p).algorithm == "block_gemm"


@pytest.mark.parametrize("name", [AVX512_VNNI, ""])
@pytest.mark.parametrize(("rows", "columns"), [(64, 512), (128, 768)])
def test_threads_have_parts_of_rows_where_panels_are_few(
    name: str, rows: int, columns: int
) -> None:
    p = problem(
        NBitsProduct(512, columns, 32, level=4), rows,
        Settings(64, integer_instructions=name),
    )  # fmt: skip
    for threads, least in ((1, 1), (16, 24)):
        p = replace(p, threads=threads)
        last = build_kernels(p, build_choice(p, best_option(p)))[-1].kernel
        assert chunk_count(last) >= least
        assert threads > 1 or chunk_count(last) == columns // 64


def interpret(p: Problem, option: Option, given: dict[Tensor, np.ndarray]) -> np.ndarray:
    """The problem's tensor, by the interpreted kernels of an option."""
    held = dict(given)
    for x in build_kernels(p, build_choice(p, option)):
        packs = {k.source: k for k in x.kernel.packs}
        arrays = [pack_constant(packs[t], held[t]) if t in packs else held[t] for t in x.reads]
        held[x.writes] = np.zeros(x.kernel.params[-1].sizes, to_numpy(x.writes.dtype))
        run_kernel(x.kernel, [*arrays, held[x.writes]])
    return held[p.tensor]


@pytest.mark.parametrize("zero", ["", "packed"])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_rounded_rows_are_within_half_a_step(bits: int, zero: str) -> None:
    """Beside the algorithm for float32, with the same words, scales and zero points."""
    product = NBitsProduct(64, 32, 32, bits=bits, zero=zero, level=4)
    p = problem(product, 5, Settings(64, integer_instructions=AVX512_VNNI))
    rng, given = np.random.default_rng(3), {}
    for x in loads(p.tensor.body):
        shape, kind = x.tensor.sizes, to_numpy(x.dtype)
        drawn = rng.standard_normal(shape) if x.dtype == F32 else rng.bytes(4 * np.prod(shape))
        if isinstance(drawn, bytes):
            whole = np.frombuffer(drawn, np.uint32).reshape(shape)
            given[x.tensor] = whole if x.dtype == U32 else (whole % (1 << bits)).astype(kind)
        else:
            given[x.tensor] = drawn.astype(kind)
    some = {o.algorithm: o for o in options(p)}
    ours, floats = (interpret(p, some[name], given) for name in ("block_int8", "block_gemm"))
    a = next(x for t, x in given.items() if t not in p.constants)
    s = next(x for t, x in given.items() if t in p.constants and t.dtype == F32)
    steps = np.abs(a.reshape(5, 2, 32)).max(-1) / 127
    bound = (steps @ np.abs(s)) * 32 * ((1 << bits) - 1) / 2 * 1.001
    error = np.abs(ours - floats)
    assert (error <= bound).all()
    assert error.any()
