"""Kernels of symbolic sizes: one text computes all sizes that the guards admit."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from superopt.kernels.loops.tile import Kernel
from superopt.kernels.triton.codegen import TritonText, triton_text
from superopt.kernels.triton.loader import load_triton_kernel
from superopt.te.expr import index
from superopt.te.expr.node import Expr
from superopt.te.expr.symbolic_int import SizeEnvironment, symbolic_sizes
from superopt.te.expr.tensor import Tensor
from tests.support.gpu.device import REAL, choose
from tests.support.gpu.symbolic_kernels import CASES, biased, lower_symbolic, row_sums

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _device(monkeypatch: pytest.MonkeyPatch) -> None:
    choose(monkeypatch)


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
        kernel = lower_symbolic(make(), schedule)
        loaded = load_triton_kernel(kernel, "cuda" if REAL else "cpu", sizes={"n": hint})
    admitted = [n for n in (*range(1, 10), 15, 16, 17, 31, 33, 65, 70) if
                holds(environment.guards, n)]  # fmt: skip
    assert {1, 2, 3, hint} - {*admitted} == set()
    for n in admitted:
        *inputs, result = run_at(kernel, loaded.text, loaded.functions, n)
        np.testing.assert_allclose(result, wanted(*inputs), rtol=1e-5, atol=1e-5, err_msg=f"{n}")


def guards_of(t: Tensor, schedule: str, hint: int) -> SizeEnvironment:
    with symbolic_sizes({"n": hint}, masks_tiles=True) as environment:
        triton_text(lower_symbolic(t, schedule))
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
from tests.support.gpu.symbolic_kernels import CASES, lower_symbolic
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

for name, (make, schedule, _) in CASES.items():
    with symbolic_sizes({"n": 70}, masks_tiles=True):
        text = triton_text(lower_symbolic(make(), schedule), dependent_launch=True)
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
