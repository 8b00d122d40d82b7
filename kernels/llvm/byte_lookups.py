"""Emit lookups of bytes in tables of 256, by permutations of vectors of 64 bytes.

A vector of indices permutes each quarter of the table by its lowest six bits, and its two highest
bits select among the four results (VPERMB of AVX512-VBMI).
"""

from __future__ import annotations

from superopt.kernels.llvm.builder import Value, number
from superopt.kernels.llvm.lanes import first_lanes, pad_lanes
from superopt.kernels.llvm.writer import Writer
from superopt.te.analysis.walk import subexpressions
from superopt.te.expr.dtype import BOOL, I8, U8
from superopt.te.expr.node import Apply, Const, Expr, Index, Load

TABLE_SIZE = 256
VECTOR_BYTES = 64
BYTES = (I8, U8)


def match_byte_lookup(e: Expr) -> Expr | None:
    """Return the byte by which an element of a table of 256 bytes is selected, if `e` loads that;
    None for another expression."""
    match e:
        case Load(table, (Index(Apply("cast", (byte,)), Const(value=size)),)) if (
            size == TABLE_SIZE and table.dtype in BYTES and byte.dtype in BYTES
        ):
            return byte
    return None


def has_byte_lookups(e: Expr | None) -> bool:
    """True if an expression has such a load."""
    return e is not None and any(match_byte_lookup(x) is not None for x in subexpressions(e))


def emit_byte_lookup(w: Writer, table: Load, x: Value) -> Value:
    """Emit the elements of a table that a vector of bytes selects."""
    t, lanes = w.t, x.lanes
    x = pad_lanes(t, Value(x.text, U8, lanes), 0, VECTOR_BYTES)
    low = t.make(f"and {x}, {number(VECTOR_BYTES - 1, U8, VECTOR_BYTES).text}", U8, VECTOR_BYTES)
    found = [_emit_permutation(w, table, k, low) for k in range(TABLE_SIZE // VECTOR_BYTES)]
    for bit in (64, 128):
        has = t.make(f"and {x}, {number(bit, U8, VECTOR_BYTES).text}", U8, VECTOR_BYTES)
        zeros = number(0, U8, VECTOR_BYTES).text
        is_set = t.make(f"icmp ne {has}, {zeros}", BOOL, VECTOR_BYTES)
        pairs = zip(found[::2], found[1::2], strict=True)
        found = [t.make(f"select {is_set}, {b}, {a}", table.dtype, VECTOR_BYTES) for a, b in pairs]
    return first_lanes(t, found[0], lanes)


def _emit_permutation(w: Writer, table: Load, quarter: int, x: Value) -> Value:
    """Emit the elements of a quarter of a table at the positions x."""
    t, kind = w.t, table.dtype
    key = (table.tensor, "quarter", quarter)
    if key not in w.known_values:
        at = f"%{t.fresh()}"
        t.line(
            f"{at} = getelementptr i8, ptr {w.pointers[table.tensor]}, i64 {VECTOR_BYTES * quarter}"
        )
        shape = Value("", kind, VECTOR_BYTES).type
        w.known_values[key] = t.make(f"load {shape}, ptr {at}, align 1", kind, VECTOR_BYTES)
    shape = x.type
    name = "llvm.x86.avx512.permvar.qi.512"
    t.declared.add(f"declare {shape} @{name}({shape}, {shape})")
    return t.make(f"call {shape} @{name}({w.known_values[key]}, {x})", kind, VECTOR_BYTES)
