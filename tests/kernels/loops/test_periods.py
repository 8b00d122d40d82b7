"""What is read by quotients and rests of its index: tiles that know where their lanes read."""

from __future__ import annotations

import numpy as np
import pytest

from superopt.kernels.loops.elementwise_schedule import (
    MAX_ROW_TILE_ELEMENTS,
    TILE_ELEMENTS,
    default_schedule,
)
from superopt.kernels.loops.layout import row_major
from superopt.kernels.loops.loop_transforms import initial_loops
from superopt.kernels.loops.lower import lower_kernel
from superopt.kernels.loops.schedule import Split, Vectorize
from superopt.kernels.runtime.cpu import load_kernel
from superopt.te.expr import index
from superopt.te.expr.dtype import F32
from superopt.te.expr.node import Axis, Expr, Load
from superopt.te.expr.tensor import Tensor, TensorType, placeholder

READS = {
    "repeated": lambda i, n, source: i % source,
    "stretched": lambda i, n, source: i * source // n,
    "between": lambda i, n, source: (i * 2 + 1) * source // (n * 2),
    "turned": lambda i, n, source: (n - 1 - i) // -(-n // source),
}
# How many are read from, and how many there are.
SIZES = [
    (44, 88),
    (44, 66),
    (43, 67),
    (3, 90),
    (100, 300),
    (1, 70),
    (300, MAX_ROW_TILE_ELEMENTS + 88),
    (7, 9),
]


def stretch(read: str, source: int, size: int) -> tuple[Tensor, Tensor]:
    x = placeholder("x", TensorType(F32, (5, source)))
    rows, i = Axis("i0", 5), Axis("i1", size)
    place: Expr = index.as_index(READS[read](i, size, source))
    return x, Tensor("y", F32, (5, size), (rows, i), Load(x, (index.as_index(rows), place), F32))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("read", READS)
def test_it_reads_the_right_places(read: str, size: tuple[int, int]) -> None:
    x, y = stretch(read, *size)
    kernel = load_kernel(lower_kernel("k", [x], [y]))
    given = np.random.default_rng(0).standard_normal((5, size[0])).astype(np.float32)
    out = np.empty((5, size[1]), np.float32)
    kernel(given, out)
    places = [READS[read](i, size[1], size[0]) for i in range(size[1])]
    np.testing.assert_array_equal(out, given[:, places])


@pytest.mark.parametrize(
    ("read", "size", "splits"),
    [
        ("repeated", (44, 88), [44]),
        ("repeated", (3, 90), [63]),
        ("repeated", (1000, 3000), [1000, TILE_ELEMENTS]),
        ("stretched", (44, 66), [63]),
        ("stretched", (43, 67), []),
        ("stretched", (999, 1001), [TILE_ELEMENTS]),
    ],
)
def test_tiles(read: str, size: tuple[int, int], splits: list[int]) -> None:
    _, y = stretch(read, *size)
    steps = default_schedule(initial_loops(y), row_major(2))
    own = [s.factor for s in steps if isinstance(s, Split) and s.axis.startswith("i1")]
    assert own == splits
    assert any(isinstance(s, Vectorize) for s in steps)
