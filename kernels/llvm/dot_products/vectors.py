"""Products of groups of terms by vector instructions.

AVX512-BF16  VDPBF16PS adds two products of bfloat16 to each float32 sum
AVX512-VNNI  VPDPBUSD adds four products of uint8 and int8 to each int32 sum, modulo 2^32; AVX-VNNI
             has it for vectors of 32 bytes
others       VPMADDWD adds two products of int16: operands are widened before, whose sums fit.
             (VPMADDUBSW takes bytes, and would saturate at 16 bits.)
"""

from __future__ import annotations

from superopt.kernels.llvm.address import Address, TilePosition
from superopt.kernels.llvm.builder import Value
from superopt.kernels.llvm.dot_products.products import INT16_INT8_DOT, LANES, DotProduct
from superopt.kernels.llvm.values import emit_pointer
from superopt.kernels.llvm.writer import Writer, register_slot
from superopt.kernels.processor import AVX512_BF16, AVX512_VNNI, AVX_VNNI
from superopt.te.expr.dtype import BF16, F32, I8, I16, I32

PMADDWD = {4: "sse2.pmadd.wd", 8: "avx2.pmadd.wd", 16: "avx512.pmaddw.d.512"}  # by lanes
VNNI = (AVX512_VNNI, AVX_VNNI)
VNNI_NAME, BF16_NAME = "avx512.vpdpbusd", "avx512bf16.dpbf16ps"


def emit_dot_products(w: Writer, p: DotProduct) -> None:
    """Emit the update: each vector of sums adds a group of a times its groups of b. Vectors have
    the lanes of the kernel's other vectors."""
    s = p.update
    lanes = min(LANES, max(w.width * 8 // w.widest_bits, 1))
    vectors: dict[tuple[Address, int], str] = {}
    groups: dict[Address, str] = {}
    total = Value("", p.type.total, lanes).type
    for outer in p.outer_positions():
        for row in range(p.m.size):
            at = {**outer, p.m: row}
            b, a = p.address(p.b, outer), p.address(p.a, at)
            if a not in groups:
                pointer = emit_pointer(w, p.a.tensor, a.loop_terms, a.constant)
                groups[a] = _operand(w, _broadcast(w, pointer, lanes), lanes)
            for begin in range(0, LANES, lanes):
                if (b, begin) not in vectors:
                    place = b.constant + begin * p.type.group
                    pointer = emit_pointer(w, p.b.tensor, b.loop_terms, place)
                    vectors[b, begin] = _load_columns(w, p, pointer, lanes)
                values = {**p.position(at).axis_values, p.n: begin}
                slot, _ = register_slot(w, s.buffer, s.index, TilePosition(values, p.n, lanes))
                new = _emit(w, f"load {total}, ptr {slot}")
                new = _emit_product(w, new, groups[a], vectors[b, begin], lanes)
                w.t.line(f"store {total} {new}, ptr {slot}")


def _operand(w: Writer, groups: str, lanes: int) -> str:
    """Return the vector that instructions take of a vector of groups."""
    if w.instructions in VNNI:
        return groups
    if w.instructions == AVX512_BF16:
        return _emit(w, f"bitcast {_ints(lanes)} {groups} to {_pairs(lanes)}")
    return _emit(w, f"bitcast {_ints(lanes)} {groups} to {_shorts(lanes)}")


def _load_columns(w: Writer, p: DotProduct, pointer: str, lanes: int) -> str:
    """Emit a vector of groups of b, widened if it is of bytes."""
    if p.type == INT16_INT8_DOT:
        narrow = Value("", I8, 2 * lanes).type
        found = _emit(w, f"load {narrow}, ptr {pointer}, align 2")
        return _emit(w, f"sext {narrow} {found} to {_shorts(lanes)}")
    return _operand(w, _emit(w, f"load {_ints(lanes)}, ptr {pointer}, align 4"), lanes)


def _emit_product(w: Writer, total: str, a: str, b: str, lanes: int) -> str:
    """Emit the sum of `total` and the products of groups."""
    ints = _ints(lanes)
    if w.instructions == AVX512_BF16:
        sums, pairs = Value("", F32, lanes).type, _pairs(lanes)
        name = f"{BF16_NAME}.{32 * lanes}"
        return _call(w, name, sums, [(sums, total), (pairs, a), (pairs, b)])
    if w.instructions in VNNI:
        name = f"{VNNI_NAME}.{32 * lanes}"
        return _call(w, name, ints, [(ints, total), (ints, a), (ints, b)])
    shorts = _shorts(lanes)
    if lanes in PMADDWD:
        found = _call(w, PMADDWD[lanes], ints, [(shorts, a), (shorts, b)])
    else:  # beside elements of 64 bits
        four = Value("", I16, 8).type
        both = [(four, _resize(w, x, shorts, 8)) for x in (a, b)]
        found = _resize(w, _call(w, PMADDWD[4], _ints(4), both), _ints(4), lanes)
    return _emit(w, f"add {ints} {total}, {found}")


def _resize(w: Writer, x: str, kind: str, count: int) -> str:
    """Emit the first elements of a vector, or a vector that begins with its elements."""
    size = int(kind[1 : kind.index(" ")])
    mask = ", ".join(f"i32 {k}" if k < size else "i32 poison" for k in range(count))
    return _emit(w, f"shufflevector {kind} {x}, {kind} poison, <{count} x i32> <{mask}>")


def _ints(lanes: int) -> str:
    return Value("", I32, lanes).type


def _shorts(lanes: int) -> str:
    return Value("", I16, 2 * lanes).type


def _pairs(lanes: int) -> str:
    return Value("", BF16, 2 * lanes).type


def _call(w: Writer, name: str, kind: str, args: list[tuple[str, str]]) -> str:
    kinds = ", ".join(k for k, _ in args)
    w.t.declared.add(f"declare {kind} @llvm.x86.{name}({kinds})")
    return _emit(w, f"call {kind} @llvm.x86.{name}({', '.join(f'{k} {x}' for k, x in args)})")


def _broadcast(w: Writer, pointer: str, lanes: int) -> str:
    """Emit a group, broadcast to a vector."""
    ints = _ints(lanes)
    one = _emit(w, f"load i32, ptr {pointer}, align 4")
    first = _emit(w, f"insertelement {ints} poison, i32 {one}, i64 0")
    zeros = f"<{lanes} x i32> zeroinitializer"
    return _emit(w, f"shufflevector {ints} {first}, {ints} poison, {zeros}")


def _emit(w: Writer, text: str) -> str:
    out = f"%{w.t.fresh()}"
    w.t.line(f"{out} = {text}")
    return out
