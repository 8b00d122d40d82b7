"""How far ahead constants are asked for."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
from onnx import helper

from superopt.kernels.algorithms.build import build_kernels
from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.algorithms.space import best_option, build_choice
from superopt.kernels.llvm.codegen import kernel_text
from superopt.kernels.llvm.prefetch import (
    DOT_DISTANCE_BYTES,
    MAX_PANEL_BYTES,
    STREAM_DISTANCE_BYTES,
    STRIDED_DISTANCE_BYTES,
    Prefetch,
    plan_prefetches,
    prefetch_address,
)
from superopt.kernels.loops.lower import lower_kernel
from superopt.kernels.loops.schedule import parse_schedule
from superopt.kernels.processor import XEON
from superopt.kernels.runtime.target_cpu import LEVELS
from superopt.te.expr.dtype import F32
from superopt.te.expr.node import Axis, Size
from superopt.te.expr.symbolic_int import symbolic_sizes
from superopt.te.expr.tensor import Tensor, compute, reduce_sum
from tests.support.compilation.models import F, model
from tests.support.kernels.build import plan_model, product


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


# operator, inputs' shape, weights' shape; which part is read again and again, by the default option
CASES = {
    "panels of a product": (
        "MatMul",
        [128, 1024],
        (1024, 768),
        lambda s: MAX_PANEL_BYTES >= s > STREAM_DISTANCE_BYTES,
    ),
    "what is read once": ("MatMul", [4, 1024], (1024, 1024), lambda s: s == STREAM_DISTANCE_BYTES),
    "what a row reads": ("MatMul", [1, 1024], (1024, 1024), None),
    "what two rows read": ("MatMul", [2, 1024], (1024, 1024), None),
    "tiles' products": ("Conv", [1, 256, 14, 14], (256, 256, 3, 3), lambda s: s == 4 * 256 * 16),
    "what stays in the cache": ("MatMul", [128, 256], (256, 256), None),
}


@pytest.mark.one_in(12)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", CASES)
def test_the_next_part_is_prefetched(name: str, level: str) -> None:
    op, shape, weight, right = CASES[name]
    pads = {"pads": [1] * 4} if op == "Conv" else {}
    m = model([helper.make_node(op, ["x", "w"], ["y"], **pads)], {"x": (F, shape)}, ["y"],
              {"w": drawn(*weight)})  # fmt: skip
    program, width = plan_model(m, level, "znver5"), LEVELS[level].width
    found = [
        a.distance_bytes
        for k in program.kernels.values()
        for a in plan_prefetches(k, width).values()
    ]
    if right is None:
        assert not found
    elif width == 64 or op != "Conv":
        assert len(found) == 1
        assert right(found[0])


def test_the_next_k_block_is_prefetched() -> None:
    """Blocks of rows read a panel again, which is too large, and row tiles a K block of it."""
    t, [_, w] = product("MatMul", (128, 3072), (3072, 768))
    p = Problem(t, {}, {w}, 64, processor=XEON, threads=16)
    option = best_option(p)
    block = 4 * option["k_block"] * option["vectors"] * 16
    (kernel,) = build_kernels(p, build_choice(p, option))
    (found,) = plan_prefetches(kernel.kernel, 64).values()
    assert 0 < block < MAX_PANEL_BYTES < 4 * block
    assert found.distance_bytes == found.part_bytes == block
    assert found.repeat_count == 4  # row tiles in a block of rows


@pytest.mark.parametrize("times", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("vectors", [1, 2, 3])
@pytest.mark.parametrize("bytes_", [32, 64])
def test_each_line_of_the_next_part_is_prefetched(times: int, vectors: int, bytes_: int) -> None:
    """By one of the readings of the part before, each of which asks for as many."""
    steps, size = 192, 4
    step = vectors * bytes_ // size
    k, m = Axis("k", steps), Axis("m", times)
    part = steps * step * size
    how = Prefetch(part, part, ((m, 1),) if times > 1 else (), (k,))
    lines: list[set[int]] = []
    for turn in range(times):
        lines.append(set())
        for i in range(steps):
            for v in range(vectors):
                soon = prefetch_address(how, (((k,), step),), v * bytes_ // size, size)
                if soon is not None:
                    at = {k: i, m: turn}
                    place = soon[1] + sum(c * at[cast(Axis, a)] for (a,), c in soon[0])
                    lines[-1].add(place * size // 64)
    wanted = set(range(part // 64, 2 * part // 64))
    assert set().union(*lines) >= wanted
    if step % times == 0:
        assert set().union(*lines) == wanted
        assert sum(map(len, lines)) <= len(wanted) + times
    assert max(map(len, lines)) <= 1.5 * (len(wanted) / times + 1)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("stride", "wanted", "each"),
    [(1, [], 0), (2, [STRIDED_DISTANCE_BYTES], 4), (3, [STRIDED_DISTANCE_BYTES], 9)],
)
def test_strided_reads_are_prefetched(
    stride: int, wanted: list[int], each: int, level: str
) -> None:
    """each: of the nine elements of a window those that are asked for, since no other window that
    is read before has them, or behind in the same tile."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"]),
        helper.make_node("MaxPool", ["a"], ["y"], kernel_shape=[3, 3], strides=[stride] * 2),
    ]
    m = model(nodes, {"x": (F, [1, 3, 97, 97])}, ["y"], {"w": drawn(64, 3, 1, 1)})
    program, width = plan_model(m, level, "znver5"), LEVELS[level].width
    pool = program.kernels[program.calls[-1 if len(program.calls) == 2 else -2].function]
    assert [a.distance_bytes for a in plan_prefetches(pool, width).values()] == wanted
    text = kernel_text(pool, width)
    read = re.findall(r"load <\d+ x float>, ptr %v", text)  # not of registers
    assert text.count("call void @llvm.prefetch") * 9 == len(read) * each


@pytest.mark.parametrize(("gap", "wanted"), [(0, []), (16, [STRIDED_DISTANCE_BYTES])])
def test_adjacent_vectors_are_not_strided_reads(gap: int, wanted: list[int]) -> None:
    """Three vectors of a row: next to each other, or with others between them."""
    lanes = 16
    x = Tensor("x", F32, (64, 8192))
    pitch = lanes + gap
    p = compute((64, 8192 // pitch - 2, 3, lanes), lambda i, j, v, k: x[i, (j + v) * pitch + k])
    how = "unroll(i2); vectorize(i3)"
    k = lower_kernel("k", [x], [p], schedules={p: parse_schedule(how)})
    assert [a.distance_bytes for a in plan_prefetches(k, 4 * lanes).values()] == wanted


def windows() -> tuple[list[Tensor], dict[Tensor, str]]:
    """Rows read in steps of two, without a window and in one."""
    x = Tensor("x", F32, (64, 8192))
    p = compute((30, 8192), lambda i, j: x[i * 2, j], name="p")
    q = compute((30, 8192), lambda i, j: reduce_sum(3, lambda k: x[i * 2 + k, j]), name="q")
    tiles = "tile(i0, i1, 2, 8); unroll(i0.i); vectorize(i1.i)"
    rows = "tile(i0, i1, 2, 8); reorder(i0.o, i1.o, k0, i0.i, i1.i); unroll(k0); unroll(i0.i)"
    return [x], {p: tiles, q: f"{rows}; vectorize(i1.i)"}


SHAPES = ((512, 2048), (8, 512), (64, 512))


def products() -> tuple[list[Tensor], dict[Tensor, str]]:
    """A packed constant, whose panels one product reads once and another several times."""
    b, x, z = (Tensor(n, F32, s) for n, s in zip("bxz", SHAPES, strict=True))
    p = compute((8, 2048), lambda i, j: reduce_sum(512, lambda k: x[i, k] * b[k, j]), name="p")
    q = compute((64, 2048), lambda i, j: reduce_sum(512, lambda k: z[i, k] * b[k, j]), name="q")
    panel = "split(i1, 32); reorder(i1.o, k0, i0, i1.i); unroll(i0); vectorize(i1.i)"
    tiles = "tile(i0, i1, 8, 32); reorder(i1.o, i0.o, k0, i0.i, i1.i); unroll(i0.i)"
    return [b, x, z], {p: panel, q: f"{tiles}; vectorize(i1.i)"}


@pytest.mark.parametrize("make", [windows, products])
def test_a_prefetch_is_emitted_in_the_loops_that_it_is_planned_for(
    make: Callable[[], tuple[list[Tensor], dict[Tensor, str]]],
) -> None:
    inputs, how = make()
    packed = [t for t in inputs if t.name == "b"]
    counts = []
    for outputs in (list(how), list(how)[1:]):
        schedules = {t: parse_schedule(how[t]) for t in outputs}
        text = kernel_text(lower_kernel("k", inputs, outputs, schedules, packed=packed), 32)
        counts.append(text.count("call void @llvm.prefetch"))
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize(("rows", "hint", "wanted"), [(1, 1024, 1), (1, 256, 0), (6, 1024, 0)])
def test_rows_of_symbolic_number_are_prefetched_for_dot_products(
    rows: int, hint: int, wanted: int
) -> None:
    """hint: the number in the example; at 256 they stay in L2."""
    with symbolic_sizes({"n": hint}):
        q, keys = Tensor("q", F32, (rows, 64)), Tensor("keys", F32, (Size("n"), 64))
        y = compute(
            (rows, Size("n")), lambda m, n: reduce_sum(64, lambda k: q[m, k] * keys[n, k]), name="y"
        )
        how = "reorder(i1, i0); unroll(i0); vectorize(k0)" if rows > 1 else "vectorize(k0)"
        kernel = lower_kernel("k", [q, keys], [y], {y: parse_schedule(how)})
        kernel = replace(kernel, sizes=("n",))
        found = plan_prefetches(kernel, 64)
        text = kernel_text(kernel, 64)
    assert [(t.name, a.distance_bytes) for t, a in found.items()] == [
        ("keys", DOT_DISTANCE_BYTES)
    ] * wanted
    assert text.count("call void @llvm.prefetch") == 4 * wanted  # a row has four lines
