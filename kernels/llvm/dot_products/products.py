"""Products of groups of terms in a kernel's tile form: pairs of bfloat16 with sums in float32, four
products of uint8 and int8 with sums in int32, or pairs of these, widened to int16.

    total[.., m, n] sum= f32(a[.., 2 p + q]) * f32(b[.., p, n, q])    over p < 16, q < 2: AMX
                                                                      over q < 2: vectors

Groups are contiguous in both operands. AMX multiplies a tile of up to 16 rows of a, 64 bytes each,
by a tile of 16 rows of b with 16 groups each; its sums stay in tile registers until they are read.
Vector instructions broadcast a group of a and multiply it by a vector of 16 groups of b.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod

from superopt.kernels.llvm.address import Address, LoopTerms, TilePosition, address
from superopt.kernels.loops.tile import Kernel, Update, flat_statements
from superopt.kernels.processor import (
    AMX,
    AMX_INT8,
    AVX512_BF16,
    AVX512_VNNI,
    AVX_INT16,
    AVX_VNNI,
    TILE_INSTRUCTIONS,
    TILE_ROW_BYTES,
)
from superopt.te.expr.dtype import BF16, F32, I8, I16, I32, U8, DType
from superopt.te.expr.node import Apply, Axis, Load

LANES = 16  # sums of a vector and of a tile's row
SUM_BYTES = 4
MAX_TILE_ROWS, TILE_GROUPS, TILE_REGISTERS = 16, 16, 8
ROW_BYTES, TILE_BYTES = TILE_ROW_BYTES, 1024
PALETTE_BYTES = 64  # of a tile configuration
DOT_BYTES = "dot_bytes"  # the function of bytes.py


@dataclass(frozen=True, slots=True)
class DotType:
    """The types of instructions that multiply groups of terms: of a, of b in memory, and of the
    sums. group: terms of one sum that are adjacent in both operands. amx: the instruction for
    tiles."""

    a: DType
    b: DType
    total: DType
    group: int
    amx: str

    @property
    def bytes(self) -> int:
        """The bytes of an element of b, and of a for tiles."""
        return self.b.bits // 8

    @property
    def tile_terms(self) -> int:
        """The terms of a row of an AMX tile."""
        return TILE_GROUPS * self.group


BF16_DOT = DotType(BF16, BF16, F32, 2, "tdpbf16ps")
INT8_DOT = DotType(U8, I8, I32, 4, "tdpbusd")
INT16_DOT = DotType(I16, I16, I32, 2, "")  # of widened bytes
INT16_INT8_DOT = DotType(I16, I8, I32, 2, "")  # b is widened when it is read
INT16_TYPES = (INT16_DOT, INT16_INT8_DOT)
DOT_TYPES: Mapping[str, DotType] = {
    AMX: BF16_DOT, AVX512_BF16: BF16_DOT,
    AMX_INT8: INT8_DOT, AVX512_VNNI: INT8_DOT, AVX_VNNI: INT8_DOT, AVX_INT16: INT16_DOT,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class DotProduct:
    """An update that instructions for groups of terms compute: total[outer.., m, n] += a * b,
    summed over `groups` (AMX only, else None) and `term`."""

    type: DotType
    update: Update
    a: Load
    b: Load
    outer: tuple[Axis, ...]
    m: Axis
    n: Axis
    groups: Axis | None
    term: Axis

    def position(self, values: Mapping[Axis, int]) -> TilePosition:
        """Return the position with these values of axes, and 0 of all others."""
        axes = (*self.update.axes, *self.update.over)
        return TilePosition({**dict.fromkeys(axes, 0), **values})

    def address(self, load: Load, values: Mapping[Axis, int]) -> Address:
        """Return the address of an operand's element."""
        found = address(load.tensor, load.index, self.position(values))
        assert found is not None
        return found

    def stride(self, load: Load, axis: Axis) -> int:
        """Return the distance of an operand's neighbours along an axis, in elements."""
        return self.address(load, {axis: 1}).constant - self.address(load, {}).constant

    def outer_positions(self) -> Iterator[dict[Axis, int]]:
        """Yield the values of the axes outside a tile."""
        for at in product(*(range(x.size) for x in self.outer)):
            yield dict(zip(self.outer, at, strict=True))

    @property
    def tile_count(self) -> int:
        """The number of tiles of sums."""
        return prod(x.size for x in self.outer)

    def tile_registers(self, load: Load) -> dict[tuple[LoopTerms, int], int]:
        """Return AMX's register of each of an operand's tiles, by its address: after those of sums,
        a's first."""
        found: dict[tuple[LoopTerms, int], int] = {}
        first = self.tile_count
        if load is self.b:
            first += len(self.tile_registers(self.a))
        for outer in self.outer_positions():
            at = self.address(load, outer)
            found.setdefault((at.loop_terms, at.constant), first + len(found))
        return found

    def palette(self) -> list[int]:
        """Return the bytes of AMX's tile configuration: palette 1, bytes of a row from 16 on, rows
        from 48 on (Intel SDM, volume 1, chapter 18)."""
        assert self.groups is not None
        a, b = (len(self.tile_registers(x)) for x in (self.a, self.b))
        shapes = [(self.m.size, ROW_BYTES)] * self.tile_count
        shapes += [(self.m.size, self.groups.size * self.type.group * self.type.bytes)] * a
        shapes += [(self.groups.size, ROW_BYTES)] * b
        if len(shapes) > TILE_REGISTERS:
            raise NotImplementedError(f"{len(shapes)} AMX tiles in {self.update}")
        out = [0] * PALETTE_BYTES
        out[0] = 1
        for n, (rows, row_bytes) in enumerate(shapes):
            out[16 + 2 * n], out[48 + n] = row_bytes, rows
        return out


def match_dot_product(s: object) -> DotProduct | None:
    """Match an update that instructions for groups of terms compute."""
    match s:
        case Update(buffer, _, "sum", Apply("mul", (x, y)), (*outer, m, n), over) if over:
            some = [e.args[0] for e in (x, y) if isinstance(e, Apply) and e.fn == "cast"]
        case _:
            return None
    a, b = some if len(some) == 2 else (None, None)
    if not (isinstance(a, Load) and isinstance(b, Load)) or len(over) > 2:
        return None
    types = a.dtype, b.dtype, buffer.dtype
    some_types = (*DOT_TYPES.values(), INT16_INT8_DOT)
    kind = next((x for x in some_types if (x.a, x.b, x.total) == types), None)
    if kind is None:
        return None
    groups = over[0] if len(over) == 2 else None
    found = DotProduct(kind, s, a, b, tuple(outer), m, n, groups, over[-1])
    fits = n.size == LANES and found.term.size == kind.group
    fits &= groups is None or _fits_tiles(found)
    return found if fits and _has_strides(found) else None


def _fits_tiles(p: DotProduct) -> bool:
    assert p.groups is not None
    return p.groups.size <= TILE_GROUPS and p.m.size <= MAX_TILE_ROWS


def _has_strides(p: DotProduct) -> bool:
    """True if groups are contiguous, and rows of each tile have one stride."""
    inner = (p.m, p.n, *p.update.over)
    for load in (p.a, p.b):
        for outer in p.outer_positions():
            at = [outer, *({**outer, x: x.size - 1} for x in inner)]
            some = [address(load.tensor, load.index, p.position(x)) for x in at]
            if any(f is None for f in some) or len({f.loop_terms for f in some if f}) > 1:
                return False
    steps: dict[Axis, tuple[int | None, int | None]]
    steps = {p.term: (1, 1), p.n: (0, p.type.group), p.m: (None, 0)}
    if p.groups is not None:
        steps[p.groups] = (p.type.group, None)
    for axis, wanted in steps.items():
        for load, step in zip((p.a, p.b), wanted, strict=True):
            if step is not None and p.stride(load, axis) != step:
                return False
    return True


def _adds_products(s: Update) -> bool:
    return s.fn == "sum" and isinstance(s.value, Apply) and s.value.fn == "mul"


def kernel_product(kernel: Kernel) -> DotProduct | None:
    """Return the product of a kernel with such instructions; None if it has none, as kernels that
    prepare operands, or dot products of bytes (bytes.py). Raises NotImplementedError for a product
    that its instructions do not compute."""
    updates = [s for s in flat_statements(kernel.body) if isinstance(s, Update)]
    if kernel.instructions not in DOT_TYPES or not any(map(_adds_products, updates)):
        return None
    if any(isinstance(s.value, Apply) and s.value.fn == DOT_BYTES for s in updates):
        return None
    products = [x for x in map(match_dot_product, updates) if x is not None]
    if not products and kernel.tables:  # which transforms the operands of another kernel
        return None
    found = products[0] if len(products) == 1 else None
    has_tiles = kernel.instructions in TILE_INSTRUCTIONS
    kind = DOT_TYPES[kernel.instructions]
    fits = found is not None and (found.type.a, found.type.group) == (kind.a, kind.group)
    fits &= found is not None and (found.groups is not None) == has_tiles
    if not fits or (len(updates) > 1 and not kernel.tables):
        raise NotImplementedError(f"{kernel.instructions} does not compute {updates[0]}")
    return found
