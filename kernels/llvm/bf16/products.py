"""Products of bfloat16 numbers in a kernel's tile form, for AVX512-BF16 and AMX.

    total[.., m, n] sum= f32(a[.., 2 p + q]) * f32(b[.., p, n, q])    over p < 16, q < 2: AMX
                                                                      over q < 2: AVX512-BF16

Pairs q are contiguous in both operands. AMX multiplies a tile of up to 16 rows of a, 64 bytes each,
by a tile of 16 rows of b with 16 pairs each; its sums stay in tile registers until they are read.
AVX512-BF16 broadcasts a pair of a and multiplies it by a vector of 16 pairs of b.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod

from superopt.kernels.llvm.address import Address, LoopTerms, TilePosition, address
from superopt.kernels.loops.tile import Kernel, Update, flat_statements
from superopt.kernels.processor import AMX
from superopt.te.expr.dtype import BF16, F32
from superopt.te.expr.node import Apply, Axis, Load

LANES, PAIR = 16, 2  # float32 elements of a vector and of a tile's row, terms of a pair
MAX_TILE_ROWS, TILE_PAIRS, TILE_REGISTERS = 16, 16, 8
ROW_BYTES, TILE_BYTES = 64, 1024
PALETTE_BYTES = 64  # of a tile configuration
BF16_BYTES = 2


@dataclass(frozen=True, slots=True)
class Bf16Product:
    """An update that instructions for bfloat16 compute: total[outer.., m, n] += a * b, summed over
    `pairs` (None with AVX512-BF16) and `pair`."""

    update: Update
    a: Load
    b: Load
    outer: tuple[Axis, ...]
    m: Axis
    n: Axis
    pairs: Axis | None
    pair: Axis

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
        a, b = (len(self.tile_registers(x)) for x in (self.a, self.b))
        rows = [self.m.size] * (self.tile_count + a) + [TILE_PAIRS] * b
        if len(rows) > TILE_REGISTERS:
            raise NotImplementedError(f"{len(rows)} AMX tiles in {self.update}")
        out = [0] * PALETTE_BYTES
        out[0] = 1
        for n, r in enumerate(rows):
            out[16 + 2 * n], out[48 + n] = ROW_BYTES, r
        return out


def match_bf16_product(s: object) -> Bf16Product | None:
    """Match an update that instructions for bfloat16 compute."""
    match s:
        case Update(buffer, _, "sum", Apply("mul", (x, y)), (*outer, m, n), over) if over:
            some = [e.args[0] for e in (x, y) if isinstance(e, Apply) and e.fn == "cast"]
        case _:
            return None
    a, b = some if len(some) == 2 else (None, None)
    if not (isinstance(a, Load) and isinstance(b, Load)) or len(over) > 2:
        return None
    is_bf16 = a.dtype == b.dtype == BF16 and buffer.dtype == F32
    pairs = over[0] if len(over) == 2 else None
    found = Bf16Product(s, a, b, tuple(outer), m, n, pairs, over[-1])
    fits = n.size == LANES and found.pair.size == PAIR and (pairs is None or _fits_tiles(found))
    return found if is_bf16 and fits and _has_strides(found) else None


def _fits_tiles(p: Bf16Product) -> bool:
    assert p.pairs is not None
    return p.pairs.size == TILE_PAIRS and p.m.size <= MAX_TILE_ROWS


def _has_strides(p: Bf16Product) -> bool:
    """True if pairs are contiguous, and rows of each tile have one stride."""
    inner = (p.m, p.n, *p.update.over)
    for load in (p.a, p.b):
        for outer in p.outer_positions():
            at = [outer, *({**outer, x: x.size - 1} for x in inner)]
            some = [address(load.tensor, load.index, p.position(x)) for x in at]
            if any(f is None for f in some) or len({f.loop_terms for f in some if f}) > 1:
                return False
    steps: dict[Axis, tuple[int | None, int | None]]
    steps = {p.pair: (1, 1), p.n: (0, PAIR), p.m: (None, 0)}
    if p.pairs is not None:
        steps[p.pairs] = (PAIR, None)
    for axis, wanted in steps.items():
        for load, step in zip((p.a, p.b), wanted, strict=True):
            if step is not None and p.stride(load, axis) != step:
                return False
    return True


def kernel_product(kernel: Kernel) -> Bf16Product | None:
    """Return the product of a kernel for AMX or AVX512-BF16; None if it has none, as kernels that
    round operands. Raises NotImplementedError for a product that its instructions do not compute.
    """
    updates = [s for s in flat_statements(kernel.body) if isinstance(s, Update)]
    if not kernel.instructions or not updates:
        return None
    found = match_bf16_product(updates[0])
    is_amx = found is not None and found.pairs is not None
    if len(updates) > 1 or found is None or is_amx != (kernel.instructions == AMX):
        raise NotImplementedError(f"{kernel.instructions} does not compute {updates[0]}")
    return found
