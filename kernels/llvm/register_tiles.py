"""Register tiles of a matrix product on a CPU: rows of one operand times vectors of the other, with
their estimated cycles."""

from __future__ import annotations

from collections.abc import Iterator

from superopt.kernels.processor import ZEN5, Processor

OPERAND_REGISTERS = 4  # vector registers that hold no accumulators
# The latency of an FMA, and the costs of a broadcast and of a vector of b, on processors that
# execute a vector in two halves: meanwhile twice as much is read.
SPLIT_VECTOR_COSTS = (8, 0.0, 0.5)
NON_BOTTLENECK_SHARE = 0.2  # share of the time of what is not the bottleneck that is not hidden
L1_VECTOR_COST = 0.5  # a vector of b from L1, in short blocks
ROW_ADDRESS_LATENCY = (
    0.5  # added FMA latency if each row has its own address, fitted to 19 of these
)
MAX_B_REGISTERS = 2  # registers of b at a time, at most


def _b_vector_cost(processor: Processor, panel: int) -> float:
    """Return the cost of a vector of b, for a panel of so many bytes."""
    return next(cost for most, cost in processor.panel_vector_costs if panel <= most)


def register_tiles(
    m: int,
    n: int,
    lanes: int,
    max_rows: int = 14,
    registers_per_vector: int = 1,
    processor: Processor = ZEN5,
    terms: int = 1,
    short_blocks: bool = False,
    separate_addresses: bool = False,
    split_vectors: bool = False,
) -> Iterator[tuple[float, int, int]]:
    """Yield register tiles: (estimated cycles of all tiles, rows, vectors).

    registers_per_vector: registers that hold a vector. terms: of a sum. Vectors of b come from L2,
    elements of a from L1. short_blocks: the sum is in blocks whose panel of b
    stays in L1 (contraction.L1_PANEL_TERMS).
    separate_addresses: each row has its own address. split_vectors: the processor executes a vector
    in two halves. Where steps of the sum are unrolled, LLVM loads the vectors of the next term
    early: 9 rows times 3 vectors are left out, which were kept on the stack and took 8 % longer
    for 512 x 768 x 768 than 8 times 3.
    """
    registers = processor.vector_registers
    for vectors in range(1, 9):
        wide = vectors * registers_per_vector
        near = processor.broadcast_cost
        far = _b_vector_cost(processor, terms * lanes * vectors * 4)
        least, more = processor.fma_latency, 0.0
        if short_blocks:
            far, least = L1_VECTOR_COST, least + ROW_ADDRESS_LATENCY * separate_addresses
        elif split_vectors:
            (least, near, far), more = (
                SPLIT_VECTOR_COSTS,
                processor.extra_vector_cost * (vectors - 1),
            )
        if lanes * vectors > max(n, lanes):
            break
        if short_blocks and wide > MAX_B_REGISTERS and vectors > 1:
            continue
        for rows in range(1, max(min(m, max_rows), 1) + 1):
            if rows * wide > registers - OPERAND_REGISTERS or rows * wide + wide + 1 > registers:
                break
            if processor.unrolled_terms > 1 and (rows + 2) * wide > registers:
                break
            busy, loads = rows * wide, near * rows + far * wide
            step = (max(busy, loads, least) + NON_BOTTLENECK_SHARE * min(busy, loads)) * (1 + more)
            count = -(-m // rows) * -(-n // (lanes * vectors))
            yield count * step, rows, vectors
