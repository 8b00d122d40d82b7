"""Products of 8-bit integers: exact results on full ranges, and which instructions the code has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import llvmlite.binding as llvm
import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import superopt
from superopt.ir.evaluate import evaluate
from superopt.ir.graph import Graph
from superopt.kernels.algorithms.build import build_kernels, input_buffers
from superopt.kernels.algorithms.cpu.dot_products.gemm import recognise_int8
from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.algorithms.space import best_option, build_choice, options
from superopt.kernels.llvm.codegen import kernel_text
from superopt.kernels.loops.option import Option
from superopt.kernels.processor import AMX_INT8, AVX2, AVX512_VNNI, AVX_INT16, AVX_VNNI, XEON, ZEN5
from superopt.kernels.runtime.amx import (
    INTEGER_FEATURES,
    integer_instructions,
)
from superopt.kernels.runtime.cpu import create_target_machine, optimized_text
from superopt.kernels.runtime.engine import Machine, host, psabi_machine
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import read_model
from superopt.plan.graph.simplify import simplify_graph
from superopt.plan.passes import plan_program
from superopt.plan.program.plan import Settings
from superopt.te.expr.dtype import to_numpy
from superopt.te.expr.tensor import Tensor
from tests.support.kernels.integer_operands import LEVELS, drawn, lacks
from tests.support.kernels.options import run_option

# Instructions, and the bytes of a vector.
TARGETS = (
    (AMX_INT8, 64),
    (AVX512_VNNI, 64),
    (AVX_VNNI, 32),
    (AVX_INT16, 64),
    (AVX_INT16, 32),
    (AVX_INT16, 16),
)
# Graphs in ONNX's text syntax; inputs whose names begin with "w" are constants, drawn from their
# type's whole range.
GRAPHS = {
    "one tile": """(uint8[16, 64] x, int8[64, 32] w) => (int32[16, 32] y)
        { y = MatMulInteger(x, w) }""",
    "zero points": """(uint8[21, 96] x, uint8 z, int8[96, 48] w, int8[48] wz)
        => (int32[21, 48] y) { y = MatMulInteger(x, w, z, wz) }""",
    "int8 data": """(int8[9, 40] x, int8 z, int8[40, 64] w) => (int32[9, 64] y)
        { y = MatMulInteger(x, w, z) }""",
    "uint8 weights": """(uint8[12, 72] x, uint8 z, uint8[72, 32] w, uint8 wz)
        => (int32[12, 32] y) { y = MatMulInteger(x, w, z, wz) }""",
    "uint8 weights of columns": """(int8[5, 30] x, int8 z, uint8[30, 16] w, uint8[16] wz)
        => (int32[5, 16] y) { y = MatMulInteger(x, w, z, wz) }""",
    "ragged": """(uint8[33, 101] x, uint8 z, int8[101, 37] w) => (int32[33, 37] y)
        { y = MatMulInteger(x, w, z) }""",
    "one row": """(uint8[1, 300] x, uint8 z, int8[300, 32] w) => (int32[1, 32] y)
        { y = MatMulInteger(x, w, z) }""",
    "batches": """(uint8[2, 3, 20, 64] x, uint8 z, int8[64, 32] w) => (int32[2, 3, 20, 32] y)
        { y = MatMulInteger(x, w, z) }""",
    "wide epilogue": """(uint8[24, 64] x, int8[64, 32] w, int64[32] wb) => (int64[24, 32] y)
        { a = MatMulInteger(x, w) b = Cast<to = 7>(a) y = Add(b, wb) }""",
    "epilogue": """(uint8[24, 64] x, int8[64, 32] w, float[32] wb) => (float[24, 32] y)
        { a = MatMulInteger(x, w) b = Cast<to = 1>(a) c = Add(b, wb) y = Relu(c) }""",
    "3 x 3": """(uint8[1, 64, 9, 9] x, uint8 z, int8[32, 64, 3, 3] w)
        => (int32[1, 32, 9, 9] y) { y = ConvInteger<pads = [1, 1, 1, 1]>(x, w, z) }""",
    "stride": """(int8[2, 24, 13, 13] x, int8 z, int8[48, 24, 3, 3] w)
        => (int32[2, 48, 7, 7] y)
        { y = ConvInteger<pads = [1, 1, 1, 1], strides = [2, 2]>(x, w, z) }""",
    "few channels": """(uint8[1, 3, 16, 16] x, uint8 z, int8[16, 3, 5, 5] w)
        => (int32[1, 16, 12, 12] y) { y = ConvInteger(x, w, z) }""",
    "dilation": """(uint8[1, 16, 11, 11] x, uint8 z, uint8[16, 16, 3, 3] w, uint8[16] wz)
        => (int32[1, 16, 7, 7] y) { y = ConvInteger<dilations = [2, 2]>(x, w, z, wz) }""",
    "along one axis": """(uint8[1, 32, 40] x, uint8 z, int8[24, 32, 5] w)
        => (int32[1, 24, 40] y) { y = ConvInteger<pads = [2, 2]>(x, w, z) }""",
    "constant beyond L2": """(uint8[9, 704] x, uint8 z, int8[704, 768] w) => (int32[9, 768] y)
        { y = MatMulInteger(x, w, z) }""",
    "rows of few channels": """(uint8[1, 3, 17, 19] x, uint8 z, int8[16, 3, 7, 7] w)
        => (int32[1, 16, 9, 10] y)
        { y = ConvInteger<pads = [3, 3, 3, 3], strides = [2, 2]>(x, w, z) }""",
    "in place": """(int32[1, 64, 9, 9] x, int8[64, 64, 3, 3] w) => (int32[1, 64, 9, 9] y)
        { q = Cast<to = 2>(x) y = ConvInteger<pads = [1, 1, 1, 1]>(q, w) }""",
    "blocks of 48": """(int32[2, 96, 5, 37] x, int8[48, 96, 1, 1] w) => (int32[2, 48, 5, 37] y)
        { q = Cast<to = 2>(x) y = ConvInteger(q, w) }""",
    "blocks of 24": """(int32[1, 24, 6, 6] x, int8[64, 24, 1, 1] w) => (int32[1, 64, 3, 3] y)
        { q = Cast<to = 2>(x) y = ConvInteger<strides = [2, 2]>(q, w) }""",
    "rows of 24 channels": """(int32[1, 24, 6, 6] x, int8[64, 24, 3, 3] w)
        => (int32[1, 64, 3, 3] y)
        { q = Cast<to = 2>(x) y = ConvInteger<pads = [1, 1, 1, 1], strides = [2, 2]>(q, w) }""",
    "no blocks in place": """(int32[1, 116, 4, 4] x, int8[128, 116, 1, 1] w)
        => (int32[1, 128, 4, 4] y) { q = Cast<to = 2>(x) y = ConvInteger(q, w) }""",
    "quantized": """(uint8[1, 16, 8, 8] x, float ws, uint8 wz, int8[32, 16, 3, 3] w, float[32] wt,
        int8[32] wv, float wr, uint8 wu, int32[32] wb) => (uint8[1, 32, 8, 8] y)
        { y = QLinearConv<pads = [1, 1, 1, 1]>(x, ws, wz, w, wt, wv, wr, wu, wb) }""",
}  # fmt: skip
INT8_CODE = re.compile(r"\b(tdpbusd|vpdpbusd|v?pmaddwd|v?pmaddubsw)\b")


def model_of(name: str) -> onnx.ModelProto:
    m = onnx.ModelProto(ir_version=10)
    m.opset_import.add(domain="", version=13)
    m.graph.CopyFrom(parser.parse_graph("g " + GRAPHS[name]))
    for v in [*m.graph.input]:
        if v.name.startswith("w"):
            kind = v.type.tensor_type
            shape = [d.dim_value for d in kind.shape.dim]
            array = np.asarray(drawn(kind.elem_type, shape, name + v.name))
            m.graph.initializer.append(numpy_helper.from_array(array, v.name))
            m.graph.input.remove(v)
    return m


@cache
def graph_of(name: str) -> Graph:
    return simplify_graph(import_model(read_model(model_of(name))).graph)


@cache
def plan_problems(name: str, instructions: str, width: int) -> list[Problem]:
    processor = {64: XEON if instructions == AMX_INT8 else ZEN5}.get(width, AVX2)
    settings = Settings(width, processor=processor, integer_instructions=instructions)
    return [*plan_program(graph_of(name), {}, settings).problems.values()]


def integer_options(p: Problem) -> list[Option]:
    found = [o for o in options(p) if o.algorithm in ("amx_int8_gemm", "int8_gemm")]
    assert found
    return found


@pytest.mark.parametrize(("instructions", "width"), TARGETS)
@pytest.mark.parametrize("name", GRAPHS)
def test_results_are_exact(
    name: str, instructions: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of each option equal those of a loop over int32, on operands of the whole range."""
    if width < host().width and instructions != AVX_VNNI:
        monkeypatch.setenv("SUPEROPT_TARGET_CPU", LEVELS[width])
    if why := lacks(instructions, width):
        pytest.skip(why)
    if instructions == AVX_VNNI:  # no level of the psABI has it
        on = machine(instructions, width)
        monkeypatch.setattr("superopt.kernels.runtime.engine.native_machine", lambda: on)
    rng = np.random.default_rng(5)
    found = [p for p in plan_problems(name, instructions, width) if recognise_int8(p)]
    assert len(found) == 1, name
    (p,) = found
    given: dict[Tensor, np.ndarray] = {}
    for t in input_buffers(p.tensor):
        kind = onnx.helper.np_dtype_to_tensor_dtype(to_numpy(t.dtype))
        given[t] = drawn(kind, [n for n in t.shape if isinstance(n, int)], rng.integers(1 << 30))
    plain = replace(p, integer_instructions="")
    wanted = run_option(plain, best_option(plain), given)
    assert best_option(plain).algorithm not in ("amx_int8_gemm", "int8_gemm")
    for o in integer_options(p):
        np.testing.assert_array_equal(run_option(p, o, given), wanted, err_msg=str(o))


@pytest.mark.parametrize("name", GRAPHS)
def test_plans_compute_what_the_operators_define(name: str) -> None:
    """The generic plan of a graph, in which sums are split, against the operators' expressions."""
    m = model_of(name)
    exe = superopt.compile(m)
    rng = np.random.default_rng(8)
    feeds = {
        v.name: drawn(
            v.type.tensor_type.elem_type,
            [d.dim_value for d in v.type.tensor_type.shape.dim],
            rng.integers(1 << 30),
        )
        for v in m.graph.input
    }
    (wanted,) = evaluate(import_model(read_model(m)).graph, feeds)
    assert not exe.fallback_nodes({})
    np.testing.assert_array_equal(exe.run(feeds)["y"], wanted)


# --- code; on any processor ---


def machine(instructions: str, width: int) -> Machine:
    base = psabi_machine(LEVELS[width])
    more = [f"+{f}" for f in INTEGER_FEATURES[instructions]]
    return replace(base, features=",".join(dict.fromkeys([*base.features.split(","), *more])))


def assembly(p: Problem, on: Machine) -> Iterator[str]:
    for option in integer_options(p):
        for built in build_kernels(p, build_choice(p, option)):
            module = llvm.parse_assembly(optimized_text(kernel_text(built.kernel, on.width), on))
            yield create_target_machine(on).emit_assembly(module)


@pytest.mark.parametrize(("instructions", "width"), TARGETS)
def test_code_has_the_instructions_and_none_that_saturates(instructions: str, width: int) -> None:
    on = machine(instructions, width)
    wanted = {
        AMX_INT8: "tdpbusd",
        AVX512_VNNI: "vpdpbusd",
        AVX_VNNI: "vpdpbusd",
        AVX_INT16: "pmaddwd",
    }[instructions]
    (p,) = (p for p in plan_problems("zero points", instructions, width) if recognise_int8(p))
    code = {x for text in assembly(p, on) for x in INT8_CODE.findall(text)}
    assert {x.removeprefix("v") if wanted == "pmaddwd" else x for x in code} == {wanted}


@pytest.mark.parametrize(("name", "bits"), [("zero points", 16), ("constant beyond L2", 8)])
def test_large_constants_stay_bytes(name: str, bits: int) -> None:
    """They are widened when they are read, so that half as much comes from memory."""
    (p,) = (p for p in plan_problems(name, AVX_INT16, 32) if recognise_int8(p))
    found = recognise_int8(p)
    assert found is not None
    assert (found.operands.type.a.bits, found.operands.type.b.bits) == (16, bits)
    code = "".join(assembly(p, machine(AVX_INT16, 32)))
    assert ("pmovsxbw" in code) == (bits == 8)


def test_instructions_of_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    for level in ("x86-64", "x86-64-v3", "x86-64-v4"):
        assert integer_instructions(psabi_machine(level)) == AVX_INT16
    assert integer_instructions(machine(AVX512_VNNI, 64)) == AVX512_VNNI
    monkeypatch.setattr("superopt.kernels.runtime.amx.request_amx", lambda: False)
    both = replace(
        machine(AMX_INT8, 64),
        features=machine(AMX_INT8, 64).features + ",+avx512vnni",
    )
    assert integer_instructions(both) == AVX512_VNNI  # the system does not permit AMX
    assert integer_instructions(Machine("generic", "+neon,+v8a", 16)) == ""


@pytest.mark.parametrize(
    ("name", "terms"), [("in place", 64), ("blocks of 48", 48), ("blocks of 24", 24)]
)
def test_images_are_read_in_place(name: str, terms: int) -> None:
    """Without a copy, where blocks of a pixel's channels are contiguous."""
    (p,) = (p for p in plan_problems(name, AMX_INT8, 64) if recognise_int8(p))
    found = recognise_int8(p)
    assert found is not None
    assert found.operands.in_place is not None
    assert found.operands.block_terms == terms
    assert not build_choice(p, integer_options(p)[0]).producers


@pytest.mark.parametrize("name", ["no blocks in place", "int8 data", "3 x 3"])
def test_other_images_are_copied(name: str) -> None:
    """Those with other blocks, of int8, and with a border that is not zero."""
    (p,) = (p for p in plan_problems(name, AMX_INT8, 64) if recognise_int8(p))
    assert build_choice(p, integer_options(p)[0]).producers
