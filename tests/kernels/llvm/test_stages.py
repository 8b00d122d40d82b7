"""A kernel after each pass, and what a target refuses."""

from collections.abc import Callable

import pytest

from superopt.kernels.llvm.codegen import kernel_text
from superopt.kernels.loops.lower import lower_kernel
from superopt.kernels.loops.schedule import parse_schedule
from superopt.kernels.loops.tile import LOOP_KINDS, For, Kernel, Store
from superopt.kernels.runtime.cpu import host
from superopt.kernels.runtime.dump import pass_texts
from superopt.te.expr.dtype import F32, I32
from superopt.te.expr.node import Axis
from superopt.te.expr.tensor import Tensor, compute, reduce_sum
from tests.support.kernels.build import NAMES


def test_every_pass_is_text(golden: Callable[[str, str], None]) -> None:
    a, b = Tensor("a", F32, (8, 12)), Tensor("b", F32, (12, 32))
    p = compute((8, 12), lambda i, j: a[i, j] * 2, name="p")
    q = compute((8, 12), lambda i, j: p[i, j] + 1, name="q")
    y = compute((8, 32), lambda i, j: reduce_sum(12, lambda k: q[i, k] * b[k, j]), name="y")
    how = {
        p: "inline()",
        q: "compute_at(y, i0.o)",
        y: "tile(i0, i1, 2, 16); reorder(i0.o, i1.o, k0, i0.i, i1.i); unroll(i0.i); "
        "vectorize(i1.i); cache_read(b, i1.o)",
    }
    k = lower_kernel("k", [a, b], [y], {t: parse_schedule(s) for t, s in how.items()})
    machine = host()
    made = pass_texts(k, kernel_text(k, machine.width), machine)
    assert [name for name, _ in made] == NAMES
    golden("passes.txt", "\n".join(f"# {name}\n{text}\n" for name, text in made[:5]))
    last = dict(made)
    assert last["ll"] == kernel_text(k, machine.width)
    assert "alloca <" in last["ll"]
    assert "alloca <" not in last["optimized.ll"]  # tiles are in registers


def stored(kind: str) -> Kernel:
    a, y, i = Tensor("a", I32, (4,)), Tensor("y", I32, (4,)), Axis("i", 4)
    return Kernel("k", (a, y), (For(i, (Store(y, (i,), a[i]),), kind),))


@pytest.mark.parametrize("kind", LOOP_KINDS)
def test_a_processor_does_all_loops(kind: str) -> None:
    assert "store i32" in kernel_text(stored(kind), 64)


def test_a_loop_of_another_target_is_refused() -> None:
    with pytest.raises(
        NotImplementedError, match="the CPU target does not support cluster loops: i"
    ):
        kernel_text(stored("cluster"), 64)
