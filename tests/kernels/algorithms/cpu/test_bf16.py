"""Products of bfloat16: results against float32 kernels of operands rounded before, and which
instructions the code has."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import llvmlite.binding as llvm
import numpy as np
import pytest
from onnx import numpy_helper

from superopt.errors import UsageError
from superopt.kernels.algorithms.build import build_kernels, input_buffers
from superopt.kernels.algorithms.contraction import match_contraction
from superopt.kernels.algorithms.cpu.dot_products.gemm import recognise_bf16
from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.algorithms.space import best_option, build_choice, options
from superopt.kernels.llvm.codegen import kernel_text
from superopt.kernels.llvm.dot_products.products import match_dot_product
from superopt.kernels.loops.option import Option
from superopt.kernels.loops.tile import Update, flat_statements
from superopt.kernels.processor import AMX, AVX512_BF16, XEON, ZEN5
from superopt.kernels.runtime.amx import bf16_instructions, request_amx
from superopt.kernels.runtime.cpu import (
    create_target_machine,
    link_objects,
    object_code,
    optimized_text,
)
from superopt.kernels.runtime.engine import Machine, native_machine, psabi_machine
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import read_model
from superopt.plan.graph.simplify import simplify_graph
from superopt.plan.passes import plan_program
from superopt.plan.program.plan import Settings
from superopt.te.expr.dtype import BF16, to_numpy
from superopt.te.expr.tensor import Tensor
from tests.support.kernels.bf16 import GRAPHS, machine_with, require
from tests.support.kernels.graphs import graph_model
from tests.support.kernels.options import run_option

INSTRUCTIONS = (AMX, AVX512_BF16)
BF16_CODE = re.compile(r"\b(tdpbf16ps|tileload\w*|ldtilecfg|vdpbf16ps|vcvtne\w*bf16)\b")
MAX_ERROR = 2e-6  # of sums in float32 in another order, relative to the largest result


@cache
def plan_problems(name: str, instructions: str) -> list[Problem]:
    m = graph_model(GRAPHS[name])
    if "ws" in GRAPHS[name]:
        shape = np.array([1, 20, 128])
        m.graph.initializer.append(numpy_helper.from_array(shape, "ws"))
    graph = simplify_graph(import_model(read_model(m)).graph)
    processor = ZEN5 if instructions == AVX512_BF16 else XEON
    settings = Settings(64, processor=processor, bf16_instructions=instructions)
    return [*plan_program(graph, {}, settings).problems.values()]


def products(name: str, instructions: str) -> list[Problem]:
    found = [p for p in plan_problems(name, instructions) if recognise_bf16(p)]
    assert len(found) == (2 if name == "parts of a result" else 1), name
    return found


def bf16_options(p: Problem) -> list[Option]:
    found = [o for o in options(p) if o.algorithm in ("amx_gemm", "bf16_gemm")]
    assert found
    return found


def rounded(x: np.ndarray) -> np.ndarray:
    return x.astype(to_numpy(BF16)).astype(np.float32)


def operands(p: Problem, rng: np.random.Generator) -> tuple[dict[Tensor, np.ndarray], ...]:
    """Arrays, half of whose elements are halfway between numbers of bfloat16; and the same with the
    operands of the product rounded."""
    c = match_contraction(p.tensor, p.constants, p.lanes)
    assert c is not None
    given, exact = {}, {}
    for t in input_buffers(p.tensor):
        shape = [n for n in t.shape if isinstance(n, int)]
        x = rng.standard_normal(shape).astype(np.float32)
        ties = (1 + rng.integers(0, 256, shape) / 256).astype(np.float32) * np.sign(x)
        given[t] = np.where(rng.random(shape) < 0.5, x, ties)
        exact[t] = given[t]
        if t in (c.a.tensor, c.b.tensor):
            exact[t] = rounded(given[t])
    return given, exact


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("name", [n for n in GRAPHS if n != "parts of a result"])
def test_results_are_those_of_rounded_operands(name: str, instructions: str) -> None:
    require(instructions)
    rng = np.random.default_rng(3)
    for p in products(name, instructions):
        given, exact = operands(p, rng)
        plain = replace(p, bf16_instructions="", allow_winograd=False, strassen_levels=0)
        wanted = run_option(plain, best_option(plain), exact)
        most = MAX_ERROR * np.abs(wanted).max()
        # without rounding the result is another one
        assert np.abs(run_option(plain, best_option(plain), given) - wanted).max() > 10 * most
        for o in bf16_options(p):
            np.testing.assert_allclose(
                run_option(p, o, given), wanted, rtol=0, atol=most, err_msg=str(o)
            )


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_special_values(instructions: str) -> None:
    """NaN and infinities reach the rows that read them, and no others."""
    require(instructions)
    (p,) = products("few rows", instructions)
    given, _ = operands(p, np.random.default_rng(0))
    x = next(t for t in given if t.shape == (5, 96))
    given[x][1, 7], given[x][3, 90] = np.nan, np.inf
    got = run_option(p, bf16_options(p)[0], given)
    assert np.isnan(got[1]).all()
    assert not np.isfinite(got[3]).any()
    assert np.isfinite(got[[0, 2, 4]]).all()


TILES = """
declare void @llvm.x86.ldtilecfg(ptr)
declare void @llvm.x86.sttilecfg(ptr)
define void @configure(ptr %palette) {
  call void @llvm.x86.ldtilecfg(ptr %palette)
  ret void
}
define void @configured(ptr %palette) {
  call void @llvm.x86.sttilecfg(ptr %palette)
  ret void
}
"""


def test_a_kernel_leaves_tiles_as_they_were() -> None:
    """Another library in the thread may have configured them; without one they are released."""
    require(AMX)
    engine = link_objects([object_code(TILES, native_machine())], native_machine())
    configure, configured = (
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(engine.get_function_address(name))
        for name in ("configure", "configured")
    )
    (p,) = products("one row tile", AMX)
    given, _ = operands(p, np.random.default_rng(0))
    theirs, found = np.zeros(64, np.uint8), np.ones(64, np.uint8)
    for rows in (0, 9):
        theirs[[0, 16, 48]] = (1, 64, rows) if rows else (0, 0, 0)
        configure(theirs.ctypes.data)
        run_option(p, bf16_options(p)[0], given)
        configured(found.ctypes.data)
        np.testing.assert_array_equal(found, theirs)
    configure(np.zeros(64, np.uint8).ctypes.data)


# --- code; on any processor ---


def assembly(problems: list[Problem], on: Machine) -> Iterator[str]:
    for p in problems:
        option = bf16_options(p)[0] if recognise_bf16(p) else best_option(p)
        for built in build_kernels(p, build_choice(p, option)):
            text = kernel_text(built.kernel, 64)
            module = llvm.parse_assembly(optimized_text(text, on))
            yield create_target_machine(on).emit_assembly(module)


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("name", GRAPHS)
def test_code_has_the_instructions_only_on_request(name: str, instructions: str) -> None:
    on = machine_with(instructions)
    wanted = {AMX: "tdpbf16ps", AVX512_BF16: "vdpbf16ps"}[instructions]
    found = [*BF16_CODE.findall("".join(assembly(plan_problems(name, instructions), on)))]
    assert wanted in found
    # the same plan in float32, for the same processor
    assert BF16_CODE.findall("".join(assembly(plan_problems(name, ""), on))) == []


def test_plans_of_float32_have_no_such_options() -> None:
    for name in GRAPHS:
        for p in plan_problems(name, ""):
            assert {o.algorithm for o in options(p)}.isdisjoint({"amx_gemm", "bf16_gemm"})
            for built in build_kernels(p, build_choice(p, best_option(p))):
                assert built.kernel.instructions == ""


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_products_are_recognised_in_kernels(instructions: str) -> None:
    (p,) = products("3 x 3", instructions)
    kernel = build_kernels(p, build_choice(p, bf16_options(p)[0]))[-1].kernel
    updates = [s for s in flat_statements(kernel.body) if isinstance(s, Update)]
    found = match_dot_product(updates[0])
    assert found is not None
    assert (found.groups is not None) == (instructions == AMX)
    other = replace(kernel, instructions=next(x for x in INSTRUCTIONS if x != instructions))
    with pytest.raises(NotImplementedError, match="does not compute"):
        kernel_text(other, 64)


def test_the_processor_decides() -> None:
    features = {name: machine_with(name) for name in INSTRUCTIONS}
    assert bf16_instructions(features[AVX512_BF16]) == AVX512_BF16
    assert bf16_instructions(features[AMX]) == (AMX if request_amx() else AVX512_BF16)
    with pytest.raises(UsageError, match="lacks avx512bf16 and AMX"):
        bf16_instructions(psabi_machine("x86-64-v4"))
    with pytest.raises(UsageError, match="lacks avx512bf16, avx512f and AMX"):
        bf16_instructions(psabi_machine("x86-64-v3"))


def test_amx_is_not_used_without_the_system_s_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("superopt.kernels.runtime.amx.request_amx", lambda: False)
    assert bf16_instructions(machine_with(AMX)) == AVX512_BF16
