"""The peak rates of products of groups of terms."""

import llvmlite.binding as llvm
import pytest

from superopt.kernels.processor import (
    AMX,
    AMX_INT8,
    AVX512_BF16,
    AVX512_VNNI,
    AVX_INT16,
    AVX_VNNI,
)
from superopt.kernels.runtime.amx import integer_instructions
from superopt.kernels.runtime.cpu import create_target_machine, host, optimized_text
from superopt.kernels.runtime.cpu_peak import measure_cpu_peak
from superopt.kernels.runtime.dot_product_peak import spin_text, step_operations
from tests.support.kernels.bf16 import machine_with, require


@pytest.mark.parametrize(
    ("instructions", "lanes", "name", "count", "operations"),
    [
        (AMX, 16, "tdpbf16ps", 4, 4 * 16 * 16 * 32 * 2),
        (AMX_INT8, 16, "tdpbusd", 4, 4 * 16 * 16 * 64 * 2),
        (AVX512_BF16, 16, "vdpbf16ps", 12, 12 * 16 * 2 * 2),
        (AVX512_VNNI, 16, "vpdpbusd", 12, 12 * 16 * 4 * 2),
        (AVX_VNNI, 8, "vpdpbusd", 12, 12 * 8 * 4 * 2),
        (AVX_INT16, 16, "vpmaddwd", 12, 12 * 16 * 2 * 2),
        (AVX_INT16, 8, "vpmaddwd", 12, 12 * 8 * 2 * 2),
        (AVX_INT16, 4, "pmaddwd", 12, 12 * 4 * 2 * 2),
    ],
)
def test_the_loop_is_products(
    instructions: str, lanes: int, name: str, count: int, operations: int
) -> None:
    on = machine_with(instructions)
    module = llvm.parse_assembly(optimized_text(spin_text(instructions, lanes), on))
    assert create_target_machine(on).emit_assembly(module).count(name) == count
    assert step_operations(instructions, lanes) == operations


def test_amx_is_faster_than_float32() -> None:
    require(AMX)
    found = measure_cpu_peak(host(), 1, AMX)
    assert 3 * found.flops < found.bf16_flops < 40 * found.flops


def test_products_of_integers_are_faster_than_float32() -> None:
    found = measure_cpu_peak(host(), 1, integer_instructions=integer_instructions(host()))
    assert found.int8_flops > 1.2 * found.flops
    assert not found.bf16_flops
