"""Products of bfloat16 by AVX512-BF16."""

from __future__ import annotations

from superopt.kernels.llvm.address import Address, TilePosition
from superopt.kernels.llvm.bf16.products import LANES, PAIR, Bf16Product
from superopt.kernels.llvm.builder import Value
from superopt.kernels.llvm.values import emit_pointer
from superopt.kernels.llvm.writer import Writer, register_slot
from superopt.te.expr.dtype import BF16, F32


def emit_dot_products(w: Writer, p: Bf16Product) -> None:
    """Emit the update by VDPBF16PS: each vector of sums adds a pair of a times 16 pairs of b."""
    t, s = w.t, p.update
    wide, total = Value("", BF16, LANES * PAIR).type, Value("", F32, LANES).type
    name = "llvm.x86.avx512bf16.dpbf16ps.512"
    t.declared.add(f"declare {total} @{name}({total}, {wide}, {wide})")
    vectors: dict[Address, str] = {}
    scalars: dict[Address, str] = {}
    for outer in p.outer_positions():
        for row in range(p.m.size):
            at = {**outer, p.m: row}
            b, a = p.address(p.b, outer), p.address(p.a, at)
            if b not in vectors:
                pointer = emit_pointer(w, p.b.tensor, b.loop_terms, b.constant)
                vectors[b] = _emit(w, f"load {wide}, ptr {pointer}, align 4")
            if a not in scalars:
                pointer = emit_pointer(w, p.a.tensor, a.loop_terms, a.constant)
                scalars[a] = _emit_pair(w, pointer, wide)
            here = TilePosition({**p.position(at).axis_values}, p.n, LANES)
            slot, _ = register_slot(w, s.buffer, s.index, here)
            old = _emit(w, f"load {total}, ptr {slot}")
            args = f"{total} {old}, {wide} {scalars[a]}, {wide} {vectors[b]}"
            t.line(f"store {total} {_emit(w, f'call {total} @{name}({args})')}, ptr {slot}")


def _emit_pair(w: Writer, pointer: str, wide: str) -> str:
    """Emit a pair, broadcast to a vector."""
    one = _emit(w, f"load i32, ptr {pointer}, align 4")
    ints = f"<{LANES} x i32>"
    first = _emit(w, f"insertelement {ints} poison, i32 {one}, i64 0")
    every = _emit(w, f"shufflevector {ints} {first}, {ints} poison, {ints} zeroinitializer")
    return _emit(w, f"bitcast {ints} {every} to {wide}")


def _emit(w: Writer, text: str) -> str:
    out = f"%{w.t.fresh()}"
    w.t.line(f"{out} = {text}")
    return out
