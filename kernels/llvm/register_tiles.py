"""Register tiles of a matrix product on a CPU: rows of one operand times vectors of the other, with
their estimated cycles."""

from __future__ import annotations

import math
from collections.abc import Iterator

VECTOR_REGISTERS = 32
OPERAND_REGISTERS = 4  # vector registers that hold no accumulators
FMA_LATENCY = {32: 4, 16: 8}  # FMAs until an accumulator can be used again, by number of registers
# Fitted to 115 kernels (scripts/bench_tuning.py), in vector FMAs:
L1_BROADCAST_COST = {
    32: 0.5,
    16: 1.0,
}  # a broadcast from L1; with 16 registers FMAs have no memory operand
L2_VECTOR_COST = 1.5  # a vector from L2
# FMA_LATENCY, L1_BROADCAST_COST and L2_VECTOR_COST on processors that execute a vector in two
# halves: meanwhile twice as much is read. And the relative cost of each further vector of a tile
# whose results go to another address. Fitted to 60 kernels of five models.
SPLIT_VECTOR_COSTS, EXTRA_VECTOR_COST = (8, 0.0, 0.5), 0.005
SMALL_REGISTER_FILE = (
    16  # registers of processors with smaller caches; an L2 vector's cost by panel bytes
)
SMALL_CACHE_VECTOR_COSTS = ((16_500, 1.0), (50_000, 2.0), (math.inf, 4.0))
NON_BOTTLENECK_SHARE = 0.2  # share of the time of what is not the bottleneck that is not hidden
L1_VECTOR_COST = 0.5  # a vector of b from L1, in short blocks
ROW_ADDRESS_LATENCY = (
    0.5  # added FMA latency if each row has its own address, fitted to 19 of these
)
MAX_B_REGISTERS = 2  # registers of b at a time, at most


def _b_vector_cost(registers: int, panel: int) -> float:
    """Return the cost of a vector of b, for a panel of so many bytes."""
    if registers != SMALL_REGISTER_FILE:
        return L2_VECTOR_COST
    return next(far for most, far in SMALL_CACHE_VECTOR_COSTS if panel <= most)


def register_tiles(
    m: int,
    n: int,
    lanes: int,
    max_rows: int = 14,
    registers_per_vector: int = 1,
    registers: int = VECTOR_REGISTERS,
    terms: int = 1,
    short_blocks: bool = False,
    separate_addresses: bool = False,
    split_vectors: bool = False,
) -> Iterator[tuple[float, int, int]]:
    """Yield register tiles: (estimated cycles of all tiles, rows, vectors).

    registers_per_vector: registers that hold a vector, out of `registers`. terms: of a sum. Vectors
    of b come from L2, elements of a from L1. short_blocks: the sum is in blocks whose panel of b
    stays in L1 (contraction.L1_PANEL_TERMS).
    separate_addresses: each row has its own address. split_vectors: the processor executes a vector
    in two halves.
    """
    for vectors in range(1, 9):
        wide = vectors * registers_per_vector
        near, far = (
            L1_BROADCAST_COST[registers],
            _b_vector_cost(registers, terms * lanes * vectors * 4),
        )
        least, more = float(FMA_LATENCY[registers]), 0.0
        if short_blocks:
            far, least = L1_VECTOR_COST, least + ROW_ADDRESS_LATENCY * separate_addresses
        elif split_vectors:
            (least, near, far), more = SPLIT_VECTOR_COSTS, EXTRA_VECTOR_COST * (vectors - 1)
        if lanes * vectors > max(n, lanes):
            break
        if short_blocks and wide > MAX_B_REGISTERS and vectors > 1:
            continue
        for rows in range(1, max(min(m, max_rows), 1) + 1):
            if rows * wide > registers - OPERAND_REGISTERS or rows * wide + wide + 1 > registers:
                break
            busy, loads = rows * wide, near * rows + far * wide
            step = (max(busy, loads, least) + NON_BOTTLENECK_SHARE * min(busy, loads)) * (1 + more)
            count = -(-m // rows) * -(-n // (lanes * vectors))
            yield count * step, rows, vectors
