"""Threads run each chunk of a program's kernels once, and kernels one after another."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from superopt.kernels.llvm.program import Call, Ref, program_text
from superopt.kernels.runtime.cpu import host, link_objects, object_code
from superopt.kernels.runtime.thread_pool import start_pool

POINTER = ctypes.c_void_p
RUNS = 300
# add_one: a[chunk] += 1. add_mirrored: b[chunk] += a[last - chunk], which other threads wrote.
KERNELS = """
define void @add_one(ptr %a, ptr %workspace, i64 %chunk) {
  %at = getelementptr i64, ptr %a, i64 %chunk
  %old = load i64, ptr %at
  %new = add i64 %old, 1
  store i64 %new, ptr %at
  ret void
}
define void @add_mirrored(ptr %a, ptr %b, ptr %last, ptr %workspace, i64 %chunk) {
  %end = load i64, ptr %last
  %other = sub i64 %end, %chunk
  %from = getelementptr i64, ptr %a, i64 %other
  %more = load i64, ptr %from
  %at = getelementptr i64, ptr %b, i64 %chunk
  %old = load i64, ptr %at
  %new = add i64 %old, %more
  store i64 %new, ptr %at
  ret void
}
"""


@pytest.mark.parametrize("chunks", [2, 5, 16, 67, 1000])
@pytest.mark.parametrize("threads", [2, 3, 7])
def test_each_chunk_runs_once_and_after_the_kernel_before(threads: int, chunks: int) -> None:
    a, b, last = (Ref("argument", n) for n in range(3))
    calls = [Call("add_one", (a,), chunks), Call("add_mirrored", (a, b, last), chunks)] * 2
    machine = host()
    text = program_text(calls, threads, machine.system)
    engine = link_objects([object_code(x, machine) for x in (KERNELS, text)], machine)
    run = ctypes.CFUNCTYPE(None, *[POINTER] * 5)(engine.get_function_address("run"))
    work = ctypes.CFUNCTYPE(None, POINTER, POINTER)(engine.get_function_address("work"))
    spaces = [np.zeros(64, np.uint8) for _ in range(threads)]
    pool = start_pool(work, [s.ctypes.data for s in spaces[1:]], (engine, spaces, work))
    counts, sums = np.zeros(chunks, np.int64), np.zeros(chunks, np.int64)
    arrays = counts, sums, np.array([chunks - 1])
    table = np.array([x.ctypes.data for x in arrays])
    for _ in range(RUNS):
        run(table.ctypes.data, None, None, spaces[0].ctypes.data, pool.state.ctypes.data)
    assert (counts == 2 * RUNS).all()
    assert (sums == sum(range(2 * RUNS + 1))).all()
