"""The loop whose products of bfloat16 a processor makes at its peak rate."""

from __future__ import annotations

from superopt.kernels.llvm.dot_products.products import (
    BF16_DOT,
    LANES,
    MAX_TILE_ROWS,
    PALETTE_BYTES,
    ROW_BYTES,
    TILE_GROUPS,
    TILE_REGISTERS,
)
from superopt.kernels.processor import AMX

CHAINS = {True: 4, False: 12}  # independent sums, by whether they are AMX's tiles


def step_operations(instructions: str) -> int:
    """Return the floating-point operations of a step of the loop."""
    is_amx = instructions == AMX
    sums = MAX_TILE_ROWS * LANES * TILE_GROUPS if is_amx else LANES
    return 2 * BF16_DOT.group * sums * CHAINS[is_amx]


def bf16_spin_text(instructions: str) -> str:
    """Return LLVM text of `bf16(i64 steps, ptr out)`: products of operands in registers."""
    return "\n".join(_amx_lines() if instructions == AMX else _dot_lines())


def _amx_lines() -> list[str]:
    palette = [0] * PALETTE_BYTES
    palette[0] = 1
    for n in range(TILE_REGISTERS):
        palette[16 + 2 * n], palette[48 + n] = ROW_BYTES, MAX_TILE_ROWS
    shown = ", ".join(f"i8 {x}" for x in palette)
    count = CHAINS[True]
    tiles = range(TILE_REGISTERS)
    return [
        f"@tiles = private constant [{PALETTE_BYTES} x i8] [{shown}], align 64",
        "declare void @llvm.x86.ldtilecfg(ptr)",
        "declare void @llvm.x86.tilerelease()",
        "declare void @llvm.x86.tilezero(i8)",
        "declare void @llvm.x86.tdpbf16ps(i8, i8, i8)",
        "define void @bf16(i64 %steps, ptr %out) {\nentry:",
        "  call void @llvm.x86.ldtilecfg(ptr @tiles)",
        *(f"  call void @llvm.x86.tilezero(i8 {n})" for n in tiles),
        "  br label %loop\nloop:\n  %n = phi i64 [0, %entry], [%more, %loop]",
        *(
            f"  call void @llvm.x86.tdpbf16ps(i8 {n}, i8 {count + n // 2}, i8 {count + 2 + n % 2})"
            for n in range(count)
        ),
        *_end_lines(),
        "  call void @llvm.x86.tilerelease()\n  ret void\n}",
    ]


def _dot_lines() -> list[str]:
    total, wide = f"<{LANES} x float>", f"<{LANES * BF16_DOT.group} x bfloat>"
    name = "@llvm.x86.avx512bf16.dpbf16ps.512"
    chains = range(CHAINS[False])
    stores = (f"  store volatile {total} %b{k}, ptr %out" for k in chains)
    return [
        f"declare {total} {name}({total}, {wide}, {wide})",
        "define void @bf16(i64 %steps, ptr %out) {\nentry:",
        f"  %x = load volatile {wide}, ptr %out, align 4\n  br label %loop\nloop:",
        "  %n = phi i64 [0, %entry], [%more, %loop]",
        *(f"  %a{k} = phi {total} [zeroinitializer, %entry], [%b{k}, %loop]" for k in chains),
        *(f"  %b{k} = call {total} {name}({total} %a{k}, {wide} %x, {wide} %x)" for k in chains),
        *_end_lines(),
        *(line.replace(", ptr %out", ", ptr %out, align 4") for line in stores),
        "  ret void\n}",
    ]


def _end_lines() -> list[str]:
    return [
        "  %more = add i64 %n, 1\n  %on = icmp ult i64 %more, %steps",
        "  br i1 %on, label %loop, label %done\ndone:",
    ]
