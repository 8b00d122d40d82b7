"""The loop whose products of groups of terms a processor makes at its peak rate: of bfloat16, or of
integers of 8 bits."""

from __future__ import annotations

from superopt.kernels.llvm.dot_products.products import (
    DOT_TYPES,
    LANES,
    MAX_TILE_ROWS,
    PALETTE_BYTES,
    ROW_BYTES,
    TILE_GROUPS,
    TILE_REGISTERS,
)
from superopt.kernels.llvm.dot_products.vectors import BF16_NAME, PMADDWD, VNNI, VNNI_NAME
from superopt.kernels.processor import AVX512_BF16, TILE_INSTRUCTIONS

CHAINS = {True: 4, False: 12}  # independent sums, by whether they are AMX's tiles


def step_operations(instructions: str, lanes: int = LANES) -> int:
    """Return the multiplications and additions of a step of the loop. lanes: sums of a vector."""
    is_amx = instructions in TILE_INSTRUCTIONS
    sums = MAX_TILE_ROWS * LANES * TILE_GROUPS if is_amx else lanes
    return 2 * DOT_TYPES[instructions].group * sums * CHAINS[is_amx]


def spin_text(instructions: str, lanes: int = LANES) -> str:
    """Return LLVM text of `multiply(i64 steps, ptr out)`: products of operands in registers."""
    if instructions in TILE_INSTRUCTIONS:
        return "\n".join(_tile_lines(DOT_TYPES[instructions].amx))
    return "\n".join(_vector_lines(instructions, lanes))


def _tile_lines(name: str) -> list[str]:
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
        f"declare void @llvm.x86.{name}(i8, i8, i8)",
        "define void @multiply(i64 %steps, ptr %out) {\nentry:",
        "  call void @llvm.x86.ldtilecfg(ptr @tiles)",
        *(f"  call void @llvm.x86.tilezero(i8 {n})" for n in tiles),
        "  br label %loop\nloop:\n  %n = phi i64 [0, %entry], [%more, %loop]",
        *(
            f"  call void @llvm.x86.{name}(i8 {n}, i8 {count + n // 2}, i8 {count + 2 + n % 2})"
            for n in range(count)
        ),
        *_end_lines(),
        "  call void @llvm.x86.tilerelease()\n  ret void\n}",
    ]


def _vector_lines(instructions: str, lanes: int) -> list[str]:
    kind = DOT_TYPES[instructions]
    total = f"<{lanes} x {'float' if kind.total.is_float else 'i32'}>"
    if instructions == AVX512_BF16:
        name, wide = f"{BF16_NAME}.{32 * lanes}", f"<{2 * lanes} x bfloat>"
    elif instructions in VNNI:
        name, wide = f"{VNNI_NAME}.{32 * lanes}", total
    else:
        name, wide = PMADDWD[lanes], f"<{2 * lanes} x i16>"
    chains = range(CHAINS[False])
    lines = [
        "define void @multiply(i64 %steps, ptr %out) {\nentry:",
        f"  %x = load volatile {wide}, ptr %out, align 4\n  br label %loop\nloop:",
        "  %n = phi i64 [0, %entry], [%more, %loop]",
        *(f"  %a{k} = phi {total} [zeroinitializer, %entry], [%b{k}, %loop]" for k in chains),
    ]
    if name in PMADDWD.values():  # its sums are operands, so that no product is the same for all k
        lines = [f"declare {total} @llvm.x86.{name}({wide}, {wide})", *lines]
        for k in chains:
            lines += [
                f"  %w{k} = bitcast {total} %a{k} to {wide}",
                f"  %p{k} = call {total} @llvm.x86.{name}({wide} %w{k}, {wide} %x)",
                f"  %b{k} = add {total} %a{k}, %p{k}",
            ]
    else:
        lines = [f"declare {total} @llvm.x86.{name}({total}, {wide}, {wide})", *lines]
        given = f"{wide} %x, {wide} %x"
        lines += [
            f"  %b{k} = call {total} @llvm.x86.{name}({total} %a{k}, {given})" for k in chains
        ]
    stores = (f"  store volatile {total} %b{k}, ptr %out, align 4" for k in chains)
    return [*lines, *_end_lines(), *stores, "  ret void\n}"]


def _end_lines() -> list[str]:
    return [
        "  %more = add i64 %n, 1\n  %on = icmp ult i64 %more, %steps",
        "  br i1 %on, label %loop, label %done\ndone:",
    ]
