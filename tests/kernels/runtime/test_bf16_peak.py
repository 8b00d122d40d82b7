"""The peak rate of products in bfloat16."""

import llvmlite.binding as llvm
import pytest

from superopt.kernels.processor import AMX, AVX512_BF16
from superopt.kernels.runtime.bf16_peak import bf16_spin_text, step_operations
from superopt.kernels.runtime.cpu import create_target_machine, host, optimized_text
from superopt.kernels.runtime.cpu_peak import measure_cpu_peak
from tests.support.kernels.bf16 import machine_with, require


@pytest.mark.parametrize(
    ("instructions", "name", "count", "operations"),
    [(AMX, "tdpbf16ps", 4, 4 * 16 * 16 * 32 * 2), (AVX512_BF16, "vdpbf16ps", 12, 12 * 16 * 2 * 2)],
)
def test_the_loop_is_products(instructions: str, name: str, count: int, operations: int) -> None:
    on = machine_with(instructions)
    module = llvm.parse_assembly(optimized_text(bf16_spin_text(instructions), on))
    assert create_target_machine(on).emit_assembly(module).count(name) == count
    assert step_operations(instructions) == operations


def test_amx_is_faster_than_float32() -> None:
    require(AMX)
    found = measure_cpu_peak(host(), 1, AMX)
    assert 3 * found.flops < found.bf16_flops < 40 * found.flops
