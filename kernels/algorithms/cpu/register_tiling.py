"""Register tiles of a contraction on the CPU: some rows of m times some vectors of n, with
accumulators in registers. Vectors run along n; each element of a is broadcast over a vector."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from superopt.kernels.algorithms.contraction import Contraction, axis_stride, buffer_load
from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.llvm.register_tiles import register_tiles
from superopt.kernels.loops.layout import Layout, ScatteredLayout, effective_layout
from superopt.kernels.loops.loop_transforms import reduction
from superopt.kernels.processor import ZEN5, Processor
from superopt.te.expr.node import Axis, Load
from superopt.te.expr.tensor import Tensor

MAX_STRIDED_ROWS = 8  # rows of a tile at a large stride: more conflict in the L1 cache
MAX_NEAR_STRIDE = 16  # elements between rows up to which there are no such conflicts
MIN_RAGGED_VECTORS = 3  # results narrower than so many vectors use their width as vector length
# K blocks over channels, with 16 registers: terms for which a panel of two vectors stays in L1, and
# few enough channel blocks are read at a time for the hardware prefetcher. On 55 convolutions of
# 144 to 1280 channels this took 9 % less time if a comes from the last-level cache (a third less
# for 1024 channels of 40 x 40 pixels), and equal time if it comes from L2.
L1_PANEL_TERMS = range(64, 145)


@dataclass(frozen=True, slots=True)
class RegisterTiling:
    """The axes of a register tile: rows of `m` (None: one row) times vectors along `n`.

    lanes: elements of a vector, in `registers_per_vector` registers. separate_addresses: no row's
    address follows from another's. split_vectors: see `register_tiles`.
    """

    m: Axis | None
    n: Axis
    lanes: int
    registers_per_vector: int
    max_rows: int
    processor: Processor = ZEN5
    terms: int = 1
    separate_addresses: bool = False
    split_vectors: bool = False

    def register_tiles(self, short_blocks: bool = False) -> Iterator[tuple[float, int, int]]:
        """Yield register tiles; see `register_tiles`. short_blocks: blocks of L1_PANEL_TERMS."""
        height = 1 if self.m is None else self.m.size
        some = self.lanes, self.max_rows, self.registers_per_vector, self.processor, self.terms
        return register_tiles(
            height, self.n.size, *some, short_blocks, self.separate_addresses, self.split_vectors
        )


def register_tiling(
    t: Tensor,
    c: Contraction,
    layouts: Mapping[Tensor, Layout | ScatteredLayout],
    lanes: int,
    processor: Processor = ZEN5,
    split_vectors: bool = False,
) -> RegisterTiling | None:
    """Return the tile axes of a contraction whose b is, or can be packed, along vectors; None
    otherwise. split_vectors: see `register_tiles`."""
    out, given = effective_layout(layouts.get(t), t.rank), lanes
    order = [t.axes[p.axis] for p in reversed(out.parts)]  # innermost first
    inner = [x for x in order if x.extent != 1] or order
    along = [x for x in inner if x in c.b_axes]
    across = list(dict.fromkeys(x for x in order if x in c.a_axes))
    if not along or along[0] != inner[0]:
        return None
    n = along[0]
    width = n.size
    if not width:
        return None
    m = across[0] if across else None
    if m is not None and m.size < 4:
        m = max(across, key=lambda a: a.size)
    if width < lanes or (width % lanes and width < MIN_RAGGED_VECTORS * lanes):
        lanes = width  # the whole row, whose last vector is shorter
    most = (
        MAX_STRIDED_ROWS
        if m is not None and abs(_row_stride(c.a, m, layouts)) > MAX_NEAR_STRIDE
        else 14
    )
    found = reduction(t)
    terms = 1 if found is None else prod(a.size for a in found.axes)
    return RegisterTiling(
        m, n, lanes, -(-lanes // given), most, processor, terms, split_vectors=split_vectors
    )


def tile_limit(p: Problem, rows: int, vectors: int) -> str:
    """Return what bounds a register tile, as a sentence."""
    processor = p.processor
    return (
        f"register tiles of {rows} rows x {vectors} vectors: {rows * vectors} accumulators of"
        f" {processor.vector_registers} registers, at least {processor.fma_latency:g} independent"
        f" ones for the latency of FMAs"
    )


def _row_stride(a: Load, m: Axis, layouts: Mapping[Tensor, Layout | ScatteredLayout]) -> int:
    """Return the distance of neighbouring rows, in elements."""
    step = axis_stride(buffer_load(a, layouts), m)
    return MAX_NEAR_STRIDE if step is None else step
