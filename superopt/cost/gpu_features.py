"""Features of a GPU option before it is measured, for the learned ranking (learned_ranking.py):
bytes, tensor core work, blocks per multiprocessor, waves, launch time, and the predicted total.

The machine's rates are those of the analytic ranking (kernels/algorithms/gpu/blocks.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from superopt.cost.tuning_records import TimedOption
from superopt.kernels.algorithms.gpu.blocks import (
    ADD_PARTS_NS,
    BLOCK_START_NS,
    ELEMENT_END_NS,
    LAUNCH_NS,
    MAX_BLOCKS_PER_SM,
    MAX_WARPS_PER_SM,
    MEMORY_BYTES_PER_NS,
    MIN_STEP_NS,
    MIN_WGMMA_ROWS,
    MULTIPROCESSORS,
    PARTIAL_BYTES_PER_NS,
    PIPELINE_STAGES,
    PRODUCTS_PER_NS,
    REGISTER_BLOCK_ELEMENTS,
    SHARED_MEMORY_BYTES,
    SM_BYTES_PER_NS,
)
from superopt.kernels.algorithms.gpu.grouped_gemm import match_grouped
from superopt.kernels.algorithms.gpu.matrix_product import match_matrix_product
from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.loops.option import Option

FEATURE_ALGORITHMS = (
    "gemm", "split_k_gemm", "vendor", "block_reduction", "elementwise", "transpose", "row_wise",
    "online_attention", "gated_gemm", "separate_gates", "window_tiles", "small_m_gemm",
)  # fmt: skip
STEP_MODELLED_ALGORITHMS = (
    "gemm",
    "split_k_gemm",
    "online_attention",
    "gated_gemm",
    "separate_gates",
)  # by steps, in gemm_cost_model.py
FEATURE_KNOBS = (
    "rows", "columns", "k_block", "keys", "elements", "warps", "stages", "parts", "transposed",
    "gates", "autotuned", "stacked_rows", "programs", "step",
)  # fmt: skip
PROBLEM_LENGTH = 12  # numbers that describe a problem


def problem_numbers(p: Problem) -> tuple[int, ...]:
    """Return the numbers that describe a problem: elements, terms of each one's reduction, bytes of
    constants and of other operands; rows, columns and depth as a matrix product, the batch, the
    extent of the innermost reduction, bytes of an element; 1 for a matrix product; and the number
    of axes of a row program."""
    elements, terms, fixed, other, _, last, _ = p.features()
    groups = None if p.row_axes else match_grouped(p)
    m = None if p.row_axes else match_matrix_product(p if groups is None else groups.problem)
    if m is None:
        sizes = (max(elements // max(last, 1), 1), last, terms, 1, terms)
        item = max(p.tensor.dtype.bits // 8, 1)
        return (elements, terms, fixed, other, *sizes, item, 0, p.row_axes)
    batch = prod(a.size for a in m.batch)
    item = m.operand_bytes
    return (elements, terms, fixed, other, *m.sizes, batch, m.reduction_axes[-1].size, item, 1, 0)


def with_current_numbers(measurements: Iterable[TimedOption]) -> list[TimedOption]:
    """Return the measurements whose problems have the current description."""
    return [t for t in measurements if len(t.numbers) == PROBLEM_LENGTH]


@dataclass(frozen=True, slots=True)
class BlockTiling:
    """The tiling of an option: blocks of rows x columns (of all products computed together), their
    count, the steps of `depth` terms of each, and the bytes of shared memory of one."""

    rows: int
    columns: int
    depth: int
    count: int
    steps: int
    shared_bytes: int


def block_tiling(numbers: tuple[int, ...], option: Option) -> BlockTiling:
    """Return the tiling of an option. numbers: of the problem."""
    elements, terms, _, _, rows, columns, depth, batch, _, item, *_ = numbers
    knobs = dict(option.knobs)
    high, wide, stages = knobs.get("rows", 1), knobs.get("columns", 1), knobs.get("stages", 1)
    match option.algorithm:
        case "gemm" | "split_k_gemm" | "gated_gemm" | "separate_gates":
            k_block, parts = knobs["k_block"], knobs.get("parts", 1)
            count = parts * batch * _ceil_div(rows, high) * _ceil_div(columns, wide)
            wide *= knobs["gates"] if option.algorithm == "gated_gemm" else 1
            shared = stages * (high + wide) * k_block * item
            steps = _ceil_div(depth, parts * k_block)
            return BlockTiling(high, wide, k_block, count, steps, shared)
        case "online_attention":
            keys = knobs["keys"]
            count, shared = _ceil_div(elements, columns * high), 2 * stages * keys * columns * item
            return BlockTiling(high, max(columns, 1), keys, count, _ceil_div(depth, keys), shared)
        case "block_reduction" | "small_m_gemm":
            k_block, count = knobs["k_block"], _ceil_div(elements, high * wide)
            return BlockTiling(high, wide, k_block, count, _ceil_div(depth, k_block), 0)
        case "elementwise":
            some = knobs["elements"]
            return BlockTiling(some, 1, 1, _ceil_div(elements, some), max(terms, 1), 0)
        case "transpose":
            return BlockTiling(high, wide, 1, _ceil_div(elements, high * wide), 1, 0)
    return BlockTiling(1, max(columns, 1), 1, max(rows, 1), 1, 0)


@dataclass(frozen=True, slots=True)
class PredictedTime:
    """The predicted time of an option in ns: blocks per multiprocessor; waves of blocks; product
    and read time of all steps of a block; memory time of all bytes; launches; and the total."""

    blocks_per_sm: int
    waves: float
    product_ns: float
    read_ns: float
    memory_ns: float
    launch_ns: float
    total_ns: float

    @property
    def gpu_share(self) -> float:
        """Return the share of the GPU that the option occupies."""
        return min(self.waves, 1.0)


def predict_time(numbers: tuple[int, ...], option: Option) -> PredictedTime:
    """Predict the time of an option. numbers: of the problem."""
    elements, _, fixed, other, *_, item, _, _ = numbers
    knobs, b = dict(option.knobs), block_tiling(numbers, option)
    stages = knobs.get("stages", PIPELINE_STAGES)
    warps, parts, area = knobs.get("warps", 4), knobs.get("parts", 1), b.rows * b.columns
    near = max(
        1,
        min(
            SHARED_MEMORY_BYTES // max(b.shared_bytes, 1),
            MAX_WARPS_PER_SM // max(warps, 1),
            REGISTER_BLOCK_ELEMENTS[stages == PIPELINE_STAGES] // area,
            MAX_BLOCKS_PER_SM,
        ),
    )
    waves = max(b.count, 1) / (MULTIPROCESSORS * near)
    groups = b.rows >= MIN_WGMMA_ROWS and warps >= 4
    gates = knobs.get("gates", 1)
    kernels = gates if option.algorithm == "separate_gates" else 1
    products = b.steps * area * b.depth * item / (2 * PRODUCTS_PER_NS[groups])
    read = b.steps * (b.rows + b.columns) * b.depth * item / SM_BYTES_PER_NS
    moved = (gates * fixed + other + elements * item) / MEMORY_BYTES_PER_NS
    launches = kernels * LAUNCH_NS + (
        ADD_PARTS_NS + parts * elements * 8 / PARTIAL_BYTES_PER_NS if parts > 1 else 0.0
    )
    steps = 0.0
    if option.algorithm in STEP_MODELLED_ALGORITHMS:
        together = min(near, _ceil_div(b.count, MULTIPROCESSORS))
        step = max(b.steps * MIN_STEP_NS[groups], together * max(products, read))
        steps = (
            kernels * math.ceil(waves) * (step + BLOCK_START_NS + together * area * ELEMENT_END_NS)
        )
    return PredictedTime(near, waves, products, read, moved, launches, launches + max(moved, steps))


def gpu_option_features(numbers: tuple[int, ...], option: Option) -> list[float]:
    """Return the features of an option. numbers: of the problem."""
    *sizes, item, product, lead = numbers
    knobs, b, t = dict(option.knobs), block_tiling(numbers, option), predict_time(numbers, option)
    amounts = (b.count, b.steps, b.shared_bytes, t.blocks_per_sm, t.waves, b.count * t.product_ns,
               b.count * t.read_ns, t.memory_ns, t.launch_ns, t.total_ns)  # fmt: skip
    _, _, _, _, rows, columns, *_ = numbers
    wasted = (
        _padding_ratio(rows, b.rows),
        _padding_ratio(columns, b.columns),
        math.ceil(t.waves) / t.waves,
    )
    algorithms = [float(option.algorithm == a) for a in FEATURE_ALGORITHMS]
    logs = [math.log2(x + 1) for x in (*sizes, *amounts)]
    own = [float(knobs.get(k, -1)) for k in FEATURE_KNOBS]
    return [*logs, *wasted, float(item), float(product), float(lead), *algorithms, *own]


def _ceil_div(n: int, step: int) -> int:
    return max(-(-n // max(step, 1)), 1)


def _padding_ratio(extent: int, step: int) -> float:
    """Return the ratio of computed to needed elements, for steps that do not divide an extent."""
    return _ceil_div(extent, step) * step / max(extent, 1)
