"""Block sizes, indices and buffers of streaming attention's kernels (streaming_kernel.py,
operand_bounds.py)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from superopt.kernels.loops.tile import Store, Update
from superopt.te.expr import index as te_index
from superopt.te.expr.dtype import F32, INDEX
from superopt.te.expr.index import as_index
from superopt.te.expr.node import Axis, Dim, Expr, Load
from superopt.te.expr.tensor import Tensor, compare, select


@dataclass(frozen=True, slots=True)
class Blocks:
    """Sizes of blocks. rows: of a parallel part; strip: rows whose scores stay in L1; keys: of a
    step of the online softmax; unit: of keys that a causal mask bounds, and whose values stay in L1
    for all rows of a strip; tile_rows, score_vectors, value_vectors: of the register tiles of both
    products; lanes: of a vector; unrolled_terms: of a sum."""

    rows: int
    strip: int
    keys: int
    unit: int
    tile_rows: int
    score_vectors: int
    value_vectors: int
    lanes: int
    unrolled_terms: int = 1

    @property
    def units(self) -> int:
        """The units of a step."""
        return self.keys // self.unit


def min_index(a: Dim | Expr, b: Dim | Expr) -> Expr:
    return te_index.apply("min", (as_index(a), as_index(b)), INDEX)


def max_index(a: Dim | Expr, b: Dim | Expr) -> Expr:
    return te_index.apply("max", (as_index(a), as_index(b)), INDEX)


def ceil_div(e: Expr, n: int) -> Expr:
    return as_index(as_index(e + (n - 1)) // n)


def index_axis(name: str, extent: Dim | Expr) -> Axis:
    return Axis(name, te_index.dim(as_index(extent)))


@dataclass(slots=True)
class ScratchBuffers:
    """The buffers of a kernel."""

    scratch: list[tuple[Tensor, str]] = field(default_factory=list)

    def local(self, name: str, *shape: int) -> Tensor:
        return self._add(name, shape, "local")

    def register(self, name: str, *axes: Axis) -> Load:
        return Load(self._add(name, [a.extent for a in axes], "register"), axes, F32)

    def _add(self, name: str, shape: Sequence[Dim], scope: str) -> Tensor:
        t = Tensor(name, F32, tuple(shape))
        self.scratch.append((t, scope))
        return t


def store(x: Load, value: Expr, *axes: Axis) -> Store:
    return Store(x.tensor, x.index, value, axes)


def larger_number(x: Expr, y: Expr) -> Expr:
    """Return the larger number, y if x is NaN; a NaN among scores makes the total NaN."""
    return select(compare("lt", y, x), x, y)


def accumulate(x: Load, fn: str, value: Expr, axes: Iterable[Axis] = (), *over: Axis) -> Update:
    return Update(x.tensor, x.index, fn, value, tuple(axes), over)


def first_unit_key(unit: Axis, length: Expr, b: Blocks) -> Expr:
    """Return the first key of a unit; the last one overlaps the one before, by whole vectors where
    keys are in these."""
    if te_index.mod(length, as_index(b.unit)) == as_index(0):
        return as_index(unit * b.unit)
    n = b.lanes if te_index.mod(length, as_index(b.lanes)) == as_index(0) else 1
    last = as_index(as_index(length // n) - b.unit // n)
    return as_index(min_index(as_index(unit * (b.unit // n)), last) * n)
