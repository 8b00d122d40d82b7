"""The algorithms of each target, in one table.

Rows are in the order in which their options are tried. The first row that is recognised and marked
`exclusive` is the last one that applies. The default is the best option of the row with the least
predicted time (space.py). A new target is another entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from superopt.kernels.algorithms.algorithm import Algorithm
from superopt.kernels.algorithms.cpu.attention.complete_rows import ATTENTION
from superopt.kernels.algorithms.cpu.attention.streaming import STREAMING
from superopt.kernels.algorithms.cpu.block_scaled_gemm import BLOCK_SCALED_GEMM
from superopt.kernels.algorithms.cpu.collapsed_spatial_axes import COLLAPSED_GEMM
from superopt.kernels.algorithms.cpu.dot_products.block_scaled import BLOCK_SCALED_INT8
from superopt.kernels.algorithms.cpu.dot_products.gemm import (
    AMX_GEMM,
    AMX_INT8_GEMM,
    BF16_GEMM,
    INT8_GEMM,
)
from superopt.kernels.algorithms.cpu.dot_products.winograd import INT8_WINOGRAD
from superopt.kernels.algorithms.cpu.elementwise import ELEMENTWISE, TRANSPOSE
from superopt.kernels.algorithms.cpu.gemm import GEMM
from superopt.kernels.algorithms.cpu.gemv import GEMV
from superopt.kernels.algorithms.cpu.grouped_convolution import GROUPED_GEMM
from superopt.kernels.algorithms.cpu.planar_convolution import PLANAR_CONVOLUTION
from superopt.kernels.algorithms.cpu.reduction_schedules import REDUCTION
from superopt.kernels.algorithms.cpu.row_kernels import ROW_WISE
from superopt.kernels.algorithms.cpu.small_n_gemm import SMALL_N_GEMM
from superopt.kernels.algorithms.cpu.strassen_gemm import STRASSEN
from superopt.kernels.algorithms.cpu.tree_walk import TREE_WALK
from superopt.kernels.algorithms.cpu.winograd_convolution import WINOGRAD
from superopt.kernels.algorithms.gpu import elementwise as gpu_elementwise
from superopt.kernels.algorithms.gpu import gemm as gpu_gemm
from superopt.kernels.algorithms.gpu import grouped_gemm as gpu_grouped_gemm
from superopt.kernels.algorithms.gpu import row_programs as gpu_row_programs
from superopt.kernels.algorithms.gpu import transpose_tiles as gpu_transpose
from superopt.kernels.algorithms.gpu.attention_blocks import ONLINE_ATTENTION
from superopt.kernels.algorithms.gpu.block_reduction import BLOCK_REDUCTION
from superopt.kernels.algorithms.gpu.gated_gemm import GATED_GEMM, VENDOR_GATES
from superopt.kernels.algorithms.gpu.n_padding import PADDED_N_GEMM
from superopt.kernels.algorithms.gpu.small_m_gemm import SMALL_M_GEMM
from superopt.kernels.algorithms.gpu.vendor_attention import VENDOR_ATTENTION
from superopt.kernels.algorithms.gpu.vendor_convolution import VENDOR_CONVOLUTION
from superopt.kernels.algorithms.gpu.vendor_gemm import VENDOR_GEMM
from superopt.kernels.algorithms.gpu.window_tiles import WINDOW_TILES

ALGORITHMS: Mapping[str, tuple[Algorithm[Any], ...]] = {
    "cpu": (
        STREAMING, ATTENTION, TREE_WALK, ROW_WISE, BLOCK_SCALED_INT8, BLOCK_SCALED_GEMM,
        AMX_GEMM, BF16_GEMM, AMX_INT8_GEMM, INT8_GEMM, INT8_WINOGRAD, GEMV, SMALL_N_GEMM,
        GEMM, COLLAPSED_GEMM, WINOGRAD, STRASSEN, GROUPED_GEMM, PLANAR_CONVOLUTION,
        REDUCTION, TRANSPOSE, ELEMENTWISE,
    ),
    "cuda": (
        VENDOR_ATTENTION, ONLINE_ATTENTION, gpu_row_programs.ROW_WISE, VENDOR_GATES, GATED_GEMM,
        VENDOR_GEMM, VENDOR_CONVOLUTION, gpu_grouped_gemm.GROUPED_GEMM, gpu_gemm.GEMM,
        PADDED_N_GEMM, SMALL_M_GEMM, BLOCK_REDUCTION, gpu_transpose.TRANSPOSE, WINDOW_TILES,
        gpu_elementwise.ELEMENTWISE,
    ),
}  # fmt: skip


def algorithm_table() -> str:
    """Return the table in Markdown: target, option names, what the algorithm computes, its file."""
    rows = [
        (target, ", ".join(f"`{name}`" for name in a.names), a.computes, f"`{_file(a)}`")
        for target, algorithms in ALGORITHMS.items()
        for a in algorithms
    ]
    head = [("target", "options", "computes", "file"), ("---",) * 4]
    return "\n".join(f"| {' | '.join(row)} |" for row in (*head, *rows))


def _file(a: Algorithm[Any]) -> str:
    """Return the file of an algorithm."""
    return f"{a.schedule.__module__.removeprefix('superopt.').replace('.', '/')}.py"
