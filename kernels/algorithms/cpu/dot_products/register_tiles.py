"""Register tiles of products by vector instructions (gemm.py): some rows of a times some vectors of
16 columns of b, with their costs."""

from __future__ import annotations

from collections.abc import Iterator

from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.llvm.dot_products.products import (
    INT16_DOT,
    INT16_TYPES,
    LANES,
    SUM_BYTES,
    DotType,
)

REGISTER_TILES = (
    (6, 4), (8, 3), (12, 2), (4, 4), (4, 2), (6, 1), (4, 1), (2, 1), (1, 4), (1, 2), (1, 1),
)  # fmt: skip
# Of pairs of int16: rows that divide those of images well.
INT16_REGISTER_TILES = tuple((rows, n) for n in (4, 2, 1) for rows in (7, 4, 6, 5, 8, 3, 2, 1))
# Relative times for each load of a vector of b, and of a group of a, with one register for a vector
# of sums and with more; and where vectors of b are no registers. Fitted to 3 x 3 and 1 x 1
# convolutions of 128 to 2,048 channels with vectors of 64 and 32 bytes on a Xeon (family 6, model
# 207): 28 x 28 x 128 takes 1.99, 1.63 and 1.55 ms with 2, 4 and 6 rows of vectors of 32 bytes, if
# their last rows are not counted.
INT16_LOAD_COSTS = ((0.125, 0.125), (1.1, 0.1))
INT16_MEMORY_OPERAND_COST = 1.15


def register_tiles(kind: DotType, p: Problem) -> Iterator[tuple[int, int]]:
    """Yield the tiles, (rows, vectors), whose sums are in registers."""
    registers, available = _registers_per_vector(p), p.processor.vector_registers
    if kind in INT16_TYPES:
        for rows, vectors in INT16_REGISTER_TILES:
            # VPMADDWD reads int16 from memory where no registers are left. Bytes are widened
            # before, while groups of a wait for the next vector.
            of_a = rows if vectors > 1 else 1
            others = 2 if kind == INT16_DOT else registers + of_a + 1
            if rows * vectors * registers + others <= available or rows * vectors == 1:
                yield rows, vectors
        return
    for rows, vectors in REGISTER_TILES:
        is_held = (rows * vectors + vectors + 1) * registers <= available
        if is_held or rows * vectors == 1:
            yield rows, vectors


def tile_cost(kind: DotType, p: Problem, rows: int, vectors: int) -> float:
    """Return the estimated time of a vector of products of a tile, in vector FMAs of float32."""
    if kind not in INT16_TYPES:
        return p.processor.bf16_dot_time * (1 + (1 / rows + 1 / vectors) / 2)
    registers = _registers_per_vector(p)
    of_rows, of_vectors = INT16_LOAD_COSTS[registers > 1]
    cost = 2 * registers * (1 + of_rows / rows + of_vectors / vectors)  # multiplied and added
    held = (rows * vectors + vectors) * registers + 2 <= p.processor.vector_registers
    if kind != INT16_DOT:
        return cost + registers / rows
    return cost if held else cost * INT16_MEMORY_OPERAND_COST


def _registers_per_vector(p: Problem) -> int:
    """Return the registers of a vector of sums."""
    return LANES * SUM_BYTES // p.width
