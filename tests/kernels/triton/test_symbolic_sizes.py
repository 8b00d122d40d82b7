"""Kernels of symbolic sizes: one text computes all sizes that the guards admit."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from superopt.kernels.loops.lower import lower_kernel
from superopt.kernels.loops.schedule import parse_schedule
from superopt.kernels.loops.tile import Kernel
from superopt.kernels.triton.codegen import TritonText, triton_text
from superopt.kernels.triton.loader import load_triton_kernel
from superopt.te.analysis.walk import loads
from superopt.te.expr import index
from superopt.te.expr.dtype import F32
from superopt.te.expr.node import Axis, Expr, Reduce, Size
from superopt.te.expr.symbolic_int import SizeEnvironment, symbolic_sizes
from superopt.te.expr.tensor import Tensor
from tests.support.gpu.device import REAL, choose

N, ROOT = Size("n"), Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _device(monkeypatch: pytest.MonkeyPatch) -> None:
    choose(monkeypatch)


def product() -> Tensor:
    x, w = Tensor("x", F32, (N, 40)), Tensor("w", F32, (40, 48))
    i, j, k = Axis("i0", N), Axis("i1", 48), Axis("k0", 40)
    return Tensor("y", F32, (N, 48), (i, j), Reduce("sum", (k,), x[i, k] * w[k, j], F32))


def symbolic_product() -> Tensor:
    """All three extents of x[n, n] * w[n, n]."""
    x, w = Tensor("x", F32, (N, N)), Tensor("w", F32, (N, N))
    i, j, k = (Axis(name, N) for name in ("i0", "i1", "k0"))
    return Tensor("y", F32, (N, N), (i, j), Reduce("sum", (k,), x[i, k] * w[k, j], F32))


def biased() -> Tensor:
    x, b = Tensor("x", F32, (N, 48)), Tensor("b", F32, (48,))
    i, j = Axis("i0", N), Axis("i1", 48)
    return Tensor("y", F32, (N, 48), (i, j), x[i, j] + b[j])


def row_sums() -> Tensor:
    x = Tensor("x", F32, (12, N))
    i, k = Axis("i0", 12), Axis("k0", N)
    return Tensor("y", F32, (12,), (i,), Reduce("sum", (k,), x[i, k], F32))


def column_maxima() -> Tensor:
    x = Tensor("x", F32, (N, 20))
    j, k = Axis("i0", 20), Axis("k0", N)
    return Tensor("y", F32, (20,), (j,), Reduce("max", (k,), x[k, j], F32))


TILED = (
    "split(i0, 64); split(i1, 16); split(k0, 16); "
    "reorder(i0.o, i1.o, k0.o, k0.i, i0.i, i1.i); parallel(i0.o); parallel(i1.o); unroll(k0.i); "
    "unroll(i0.i); vectorize(i1.i)"
)
GROUPED = (
    "split(i0, 16); split(i1, 16); cover(k0, 16); split(i0.o, 4); "
    "reorder(i0.o.o, i1.o, i0.o.i, k0.o, k0.i, i0.i, i1.i); parallel(i0.o.o); parallel(i1.o); "
    "parallel(i0.o.i); unroll(k0.i); unroll(i0.i); vectorize(i1.i)"
)
CASES: Mapping[str, tuple[Callable[[], Tensor], str, Callable[..., np.ndarray]]] = {
    "rows of a product": (product, GROUPED.replace("cover", "split").replace("k0, 16", "k0, 8"),
                          lambda x, w: x @ w),
    "blocks in groups": (symbolic_product, GROUPED, lambda x, w: x @ w),
    "all extents": (symbolic_product, TILED, lambda x, w: x @ w),
    "fused axes": (biased, "fuse(i0, i1); split(i0_i1, 64); parallel(i0_i1.o); vectorize(i0_i1.i)",
                   lambda x, b: x + b),
    "whole rows": (row_sums, "parallel(i0); vectorize(k0)", lambda x: x.sum(1)),
    "parts of rows": (row_sums, "split(i0, 4); cover(k0, 16); reorder(i0.o, k0.o, k0.i, i0.i); "
                      "parallel(i0.o); unroll(k0.i); vectorize(i0.i)", lambda x: x.sum(1)),
    "columns": (column_maxima, "split(i0, 16); cover(k0, 8); reorder(i0.o, k0.o, k0.i, i0.i); "
                "parallel(i0.o); unroll(k0.i); vectorize(i0.i)", lambda x: x.max(0)),
}  # fmt: skip


def lower(t: Tensor, schedule: str) -> Kernel:
    assert t.body is not None
    inputs = [*dict.fromkeys(x.tensor for x in loads(t.body))]
    kernel = lower_kernel("kernel", inputs, [t], {t: parse_schedule(schedule)})
    return Kernel(kernel.name, kernel.params, kernel.body, kernel.scratch, sizes=("n",))


def shape_at(t: Tensor, n: int) -> list[int]:
    return [index.evaluate(d, {"n": n}) for d in t.shape]


def run_at(kernel: Kernel, text: TritonText, functions: Mapping[str, Any], n: int) -> list[Any]:
    """Run a kernel at a size on drawn inputs; return all arrays, in memory whose neighbours show
    whether they were written."""
    import torch

    device = "cuda" if REAL else "cpu"
    rng = np.random.default_rng(n)
    given, held = {}, []
    for p in kernel.params:
        shape = shape_at(p, n)
        count = int(np.prod(shape))
        around = torch.full((count + 4096,), 7.0, device=device)
        inner = around[2048 : 2048 + count]
        inner.copy_(torch.from_numpy(rng.standard_normal(count).astype(np.float32)))
        given[p] = inner
        held.append((around, shape))
    for launch in text.launches:
        programs = index.evaluate(index.as_index(launch.programs), {"n": n})
        arguments = [*(given[t] for t in launch.buffers), *([n] * len(launch.sizes))]
        functions[launch.name][(programs,)](*arguments)
    out = []
    for around, shape in held:
        whole = around.cpu().numpy()
        assert (whole[:2048] == 7).all()
        assert (whole[-2048:] == 7).all()
        out.append(whole[2048:-2048].reshape(shape))
    return out


def holds(guards: Mapping[Expr, bool], n: int) -> bool:
    """Return whether the decisions are right at a size."""
    for guard, expected in guards.items():
        a, b = (index.evaluate(e, {"n": n}) for e in guard.args)  # type: ignore[attr-defined]
        if {"lt": a < b, "le": a <= b, "eq": a == b}[guard.fn] != expected:  # type: ignore[attr-defined]
            return False
    return True


@pytest.mark.parametrize("hint", [5, 70])
@pytest.mark.parametrize("name", CASES)
def test_all_sizes_that_guards_admit(name: str, hint: int) -> None:
    make, schedule, wanted = CASES[name]
    with symbolic_sizes({"n": hint}, masks_tiles=True) as environment:
        kernel = lower(make(), schedule)
        loaded = load_triton_kernel(kernel, "cuda" if REAL else "cpu", sizes={"n": hint})
    admitted = [n for n in (*range(1, 10), 15, 16, 17, 31, 33, 65, 70) if
                holds(environment.guards, n)]  # fmt: skip
    assert {1, 2, 3, hint} - {*admitted} == set()
    for n in admitted:
        *inputs, result = run_at(kernel, loaded.text, loaded.functions, n)
        np.testing.assert_allclose(result, wanted(*inputs), rtol=1e-5, atol=1e-5, err_msg=f"{n}")


def guards_of(t: Tensor, schedule: str, hint: int) -> SizeEnvironment:
    with symbolic_sizes({"n": hint}, masks_tiles=True) as environment:
        triton_text(lower(t, schedule))
    return environment


def test_a_block_of_whole_rows_has_a_limit() -> None:
    _, schedule, _ = CASES["whole rows"]
    small, large = (guards_of(row_sums(), schedule, n).guards for n in (5, 70))
    assert [n for n in (1, 32, 33, 128, 129) if holds(small, n)] == [1, 32]
    assert [n for n in (1, 32, 33, 128, 129) if holds(large, n)] == [1, 32, 33, 128]


def test_indices_have_32_bits() -> None:
    _, schedule, _ = CASES["fused axes"]
    guards = guards_of(biased(), schedule, 5000).guards
    assert holds(guards, 2**30 // 48)
    assert not holds(guards, 2**30 // 48 + 1)


COMPILE = """
import sys
from superopt.kernels.triton.module import define_functions
from superopt.te.expr.symbolic_int import symbolic_sizes
from superopt.kernels.triton.codegen import triton_text
from tests.kernels.triton.test_symbolic_sizes import CASES, lower
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

for name, (make, schedule, _) in CASES.items():
    with symbolic_sizes({"n": 70}, masks_tiles=True):
        text = triton_text(lower(make(), schedule), dependent_launch=True)
    for x in text.launches:
        f = define_functions(text.source, [x.name])[x.name]
        kinds = ["*fp32"] * len(x.buffers) + ["i32"] * len(x.sizes)
        known = {(n,): [["tt.divisibility", 16]] for n in range(len(x.buffers))}
        source = ASTSource(f, dict(zip(f.arg_names, kinds, strict=True)), {}, known)
        assert compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"], name
        print(name)
"""


@pytest.mark.slow
def test_triton_compiles_them_without_a_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", COMPILE], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [*CASES]
