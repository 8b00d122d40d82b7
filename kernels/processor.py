"""Processors: what kernels cost on each kind, and how their loops are blocked. This table has the
thresholds of CPU kernels that differ between processors, each row with its origin.

Times are in vector FMAs: the time of one multiply-add of a whole vector.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf


@dataclass(frozen=True, slots=True)
class Processor:
    """A kind of processor.

    Registers and units:
      vector_registers. splits_vectors: it executes a vector multiplication in two halves.
    Register tiles (llvm/register_tiles.py):
      fma_latency: FMAs until an accumulator can be used again. broadcast_cost: of an element from
      L1. panel_vector_costs: of a vector of b, for panels of at most so many bytes.
      extra_vector_cost: relative cost of each further vector of a tile whose results go to another
      address. unrolled_terms: terms of a sum in one step of its loop.
    Caches:
      row_block_bytes: of a's rows that are multiplied by all of b before the next ones; inf: all
      rows. channel_block_terms: of a block of a long sum over blocked channels, whose panel of b
      stays near. min_packed_rows: from which panels of a matrix that is not constant are copied
      together; unaligned ones always are. copies_values: those of attention are copied head by
      head. collapsed_row_bytes: of an image that stays in L2.
    Algorithms, by measurements:
      collapsed_max_time_ratio: relative to the time row by row, below which collapsing the rows of
      an image pays, for rows with an address each, and for contiguous ones;
      collapsed_block_max_time_ratio: the same if channels are in blocks.
      strassen_product_cost: factor of a register tile's time; strassen_move_cost: factor of the
      time of additions; strassen_bytes_per_fma: of a constant from memory; strassen_tile: minimum
      rows and maximum vectors.
      winograd_max_time_ratio: relative to the direct convolution, below which it pays;
      winograd_tile_bytes: of tiles that stay in L2; winograd_memory_bytes, winograd_l3_bytes: of a
      filter for each FMA, from memory and from the last-level cache; winograd_spill_bytes: of tiles
      that do not stay in L2; winograd_transform_cost: of a transform's FMA;
      winograd_wide_cost, winograd_narrow_cost: relative, of tiles of four vectors and of one.
      block_sum_rows, block_tile: register tiles of block-scaled integers.
      bf16_dot_time: of an instruction that adds 16 products of pairs of bfloat16 (VDPBF16PS).
    permutes_bytes: it has an instruction that looks up 64 bytes in a table of as many (VPERMB).
    """

    name: str
    vector_registers: int
    fma_latency: float
    broadcast_cost: float
    panel_vector_costs: tuple[tuple[float, float], ...]
    collapsed_row_bytes: int
    collapsed_max_time_ratio: tuple[float, float]
    strassen_product_cost: float
    strassen_move_cost: float
    strassen_bytes_per_fma: float
    strassen_tile: tuple[int, int]
    winograd_max_time_ratio: float
    winograd_tile_bytes: int
    winograd_memory_bytes: float
    winograd_l3_bytes: float
    winograd_spill_bytes: float
    winograd_transform_cost: float
    winograd_wide_cost: float
    block_sum_rows: int
    block_tile: tuple[int, int]
    splits_vectors: bool = False
    extra_vector_cost: float = 0.0
    unrolled_terms: int = 1
    row_block_bytes: float = inf
    channel_block_terms: range = range(0)
    collapsed_block_max_time_ratio: tuple[float, float] = (1.02, 1.03)
    winograd_narrow_cost: float = 1.0
    min_packed_rows: float = inf
    copies_values: bool = False
    bf16_dot_time: float = 1.0
    permutes_bytes: bool = False

    @property
    def has_few_registers(self) -> bool:
        """True for 16 vector registers, which come with smaller caches."""
        return self.vector_registers <= FEW_REGISTERS


FEW_REGISTERS = 16
FMAS_PER_CYCLE = 2  # of all kinds, with whole vectors or halves of these
# Instructions for products of bfloat16, and of uint8 and int8: `instructions` of a kernel
# (loops/tile.py).
AMX, AVX512_BF16 = "amx", "avx512_bf16"
AMX_INT8, AVX512_VNNI, AVX_VNNI = "amx_int8", "avx512_vnni", "avx_vnni"
AVX_INT16 = "avx_int16"
AVX512_VBMI = "avx512_vbmi"  # for tables of bytes
TILE_ROW_BYTES = 64  # of AMX
TILE_INSTRUCTIONS = (AMX, AMX_INT8)

# AMD Zen 5, 512-bit units, 1 MiB of L2: register tiles fitted to 115 kernels
# (scripts/bench_tuning.py), Strassen to 27 products from 49 x 160 x 960 to 3136 x 64 x 256,
# Winograd and collapsed rows to the convolutions of four models.
ZEN5 = Processor(
    "Zen 5",
    vector_registers=32,
    fma_latency=4,
    broadcast_cost=0.5,
    panel_vector_costs=((inf, 1.5),),
    collapsed_row_bytes=600_000,
    collapsed_max_time_ratio=(0.88, 0.94),
    strassen_product_cost=0.96,
    strassen_move_cost=1.0,
    strassen_bytes_per_fma=8,
    strassen_tile=(8, 1),
    winograd_max_time_ratio=0.7,
    winograd_tile_bytes=800_000,
    winograd_memory_bytes=6,
    winograd_l3_bytes=12,
    winograd_spill_bytes=6,
    winograd_transform_cost=1.4,
    winograd_wide_cost=1.05,
    block_sum_rows=4,
    block_tile=(6, 4),
)

# AMD Zen 4, which executes a vector of 64 bytes in two halves, and meanwhile reads twice as much:
# register tiles fitted to 60 kernels of five models, Strassen to 26 products. Of 16 convolutions
# that Winograd was estimated to take 0.44 to 1.04 of, all took less than estimated, by up to 0.15.
ZEN4 = replace(
    ZEN5,
    name="Zen 4",
    splits_vectors=True,
    extra_vector_cost=0.005,
    strassen_product_cost=1.02,
    winograd_max_time_ratio=0.93,
)

# Intel Xeon from Sapphire Rapids on, two 512-bit units, 2 MiB of L2, a last-level cache that gives
# one core 28 GB/s: fitted to 12 products from 49 x 2048 x 512 to 1024 x 1024 x 1024 and 17
# convolutions of 64 to 2048 channels, with constants from beyond L2 (family 6, model 207, 16 cores,
# idle). It loads two vectors or elements a cycle, for two FMAs: tiles of one vector, which
# Strassen's method needs, reach half of the peak. Unrolling by four, 512 x 768 x 768 takes 3.81 ms
# instead of 4.60: scalar instructions of the loop share ports with FMAs. Copying panels of b takes
# 10 % less time from 256 rows on (8 products of 256 x 256 x 256, 4 of 384 x 64 x 384), a quarter of
# it for 1024 x 1024 x 1024, and as long for 128 rows. Attention of 12 heads, 64 wide, with copied
# values is 1.3 times as fast for 384 tokens and 1.9 times for 1024. Of 3 x 3 convolutions with 256
# channels and more, blocks of 1,152 terms take up to 30 % less time.
XEON = replace(
    ZEN5,
    name="Xeon",
    broadcast_cost=1.5,
    panel_vector_costs=((inf, 2.1),),
    unrolled_terms=4,
    row_block_bytes=512 << 10,
    channel_block_terms=range(512, 1172),
    min_packed_rows=192,
    copies_values=True,
    collapsed_max_time_ratio=(0.98, 0.98),
    collapsed_block_max_time_ratio=(1.25, 1.25),
    winograd_max_time_ratio=0.85,
    winograd_memory_bytes=2.5,
    winograd_l3_bytes=4.5,
    winograd_spill_bytes=2.5,
    winograd_transform_cost=2.6,
    winograd_narrow_cost=1.25,
    bf16_dot_time=2.0,  # one a cycle, and two FMAs
)

# Processors with 16 vector registers, by AMD Zen 3: AVX2, 512 KiB of L2. FMAs have no memory
# operand to spare; blocks of channels are fitted to 55 convolutions of 144 to 1280 channels.
AVX2 = Processor(
    "AVX2",
    vector_registers=FEW_REGISTERS,
    fma_latency=8,
    broadcast_cost=1.0,
    panel_vector_costs=((16_500, 1.0), (50_000, 2.0), (inf, 4.0)),
    collapsed_row_bytes=250_000,
    collapsed_max_time_ratio=(0.88, 0.97),
    strassen_product_cost=0.96,
    strassen_move_cost=4.5,
    strassen_bytes_per_fma=4,
    strassen_tile=(6, 2),
    winograd_max_time_ratio=0.82,
    winograd_tile_bytes=400_000,
    winograd_memory_bytes=3,
    winograd_l3_bytes=6,
    winograd_spill_bytes=3,
    winograd_transform_cost=2.4,
    winograd_wide_cost=1.1,
    block_sum_rows=2,
    block_tile=(4, 2),
    channel_block_terms=range(64, 145),
    min_packed_rows=12,
    copies_values=True,
)

# AArch64: 32 registers, four of whose FMAs may be executed at a time, each in four cycles. Not
# measured: there was no such processor, only an emulator.
AARCH64 = replace(ZEN5, name="AArch64", fma_latency=8)

# WebAssembly in V8 on x86-64, which has 16 registers of 16 bytes, for a product's operands and
# results too, as it has no FMA: of 11, 12, 14 and 16 registers 12 took least, 0.87 to 0.93 of the
# time with 16 (a 2-layer BERT, mobilenet_v2 and resnet18; Node 20, family 6, model 167).
WASM = replace(AVX2, name="WebAssembly", vector_registers=12)
