"""Inner loops of products with symbolic sizes: addresses advance by additions, and nothing is
spilled."""

import re
from dataclasses import replace

import pytest

from superopt.kernels.llvm.codegen import kernel_text
from superopt.kernels.loops.lower import lower_kernel
from superopt.kernels.loops.schedule import parse_schedule
from superopt.kernels.runtime.cpu import optimized_text
from superopt.kernels.runtime.engine import create_target_machine, llvm, psabi_machine
from superopt.kernels.runtime.target_cpu import LEVELS
from superopt.te.expr.dtype import F32
from superopt.te.expr.node import Size
from superopt.te.expr.symbolic_int import symbolic_sizes
from superopt.te.expr.tensor import Tensor, compute, reduce_sum

N = Size("n")
WIDE = [name for name, level in LEVELS.items() if level.width >= 32]


def inner_loop(assembly: str) -> list[str]:
    """Return the instructions of the loop with the most FMAs."""
    blocks = re.split(r"^\.L\w+:.*\n", assembly, flags=re.MULTILINE)
    found = max(blocks, key=lambda block: block.count("vfmadd"))
    lines = [line.strip() for line in found.splitlines() if not re.match(r"\s*[.#]", line)]
    return lines[: next(n for n, line in enumerate(lines) if re.match(r"j[a-z]+\s", line))]


def product_assembly(heads: int, level: str) -> str:
    """Return the code of n rows times a packed matrix. heads: blocks of columns of the rows."""
    machine = psabi_machine(level)
    lanes, width = machine.width // 4, 768 // heads
    rows = 8 if lanes == 16 else 4
    a, b = Tensor("a", F32, (heads, N, width)), Tensor("b", F32, (768, 768))
    how = (
        f"split(i1, {lanes}); split(i1.o, {3 if lanes == 16 else 2}); split(i0, {rows}); "
        "split(k0, 4); reorder(i1.o.o, i0.o, k0.o, k0.i, i0.i, i1.o.i, i1.i); unroll(k0.i); "
        "unroll(i0.i); unroll(i1.o.i); vectorize(i1.i); parallel(i1.o.o); parallel(i0.o)"
    )
    with symbolic_sizes({"n": 128}):
        y = compute(
            (N, 768),
            lambda i, j: reduce_sum(768, lambda k: a[k // width, i, k % width] * b[k, j]),
            name="y",
        )
        made = lower_kernel("k", [a, b], [y], {y: parse_schedule(how)}, packed=[b])
        text = kernel_text(replace(made, sizes=("n",)), machine.width)
    module = llvm.parse_assembly(optimized_text(text, machine))
    return str(create_target_machine(machine).emit_assembly(module))


@pytest.mark.parametrize("level", WIDE)
def test_addresses_advance_by_additions(level: str) -> None:
    """LLVM computed them by products from counters that are quotients by a size."""
    found = inner_loop(product_assembly(1, level))
    assert sum("prefetch" in line for line in found) >= 1
    assert not [line for line in found if re.match(r"(imul|shl|lea)", line)]


@pytest.mark.parametrize("level", WIDE)
def test_unrolled_terms_share_an_address(level: str) -> None:
    """Rows in heads, whose distance is a size: with an address for each term of an unrolled loop
    LLVM loaded all elements first, and kept them and the accumulators on the stack."""
    found = inner_loop(product_assembly(12, level))
    register = "zmm" if LEVELS[level].width == 64 else "ymm"
    assert not [line for line in found if "rsp" in line and register in line]
    assert sum(line.startswith("imul") for line in found) <= 1  # by the size, for the head
