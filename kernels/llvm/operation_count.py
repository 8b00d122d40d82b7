"""Operation counts: arithmetic, and bytes read and written."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from math import prod

import numpy as np

from superopt.kernels.llvm.builder import TextBuilder, Value
from superopt.kernels.llvm.functions import emit_function
from superopt.te.analysis.walk import computed_tensors, loads
from superopt.te.expr.dtype import DType
from superopt.te.expr.node import Apply, Axis, Expr, Index, Load, Reduce
from superopt.te.expr.symbolic_int import hint
from superopt.te.expr.tensor import Tensor

_UNCOUNTED = frozenset(("select", "cast", "bitcast"))
_LANES = 16  # typical vector length
_WEIGHTS = (
    ("llvm.fmuladd", 2),
    ("llvm.fma.", 2),
    (" fadd ", 1),
    (" fsub ", 1),
    (" fmul ", 1),
    (" fdiv ", 1),
)


def count_operations(t: Tensor, tables: Mapping[Tensor, np.ndarray] | None = None) -> int:
    """Return the number of element operations: an FMA is two, a function as many as its polynomial
    has, any other is one, each counted over the axes it depends on. Indices, casts and selects are
    free.

    tables: factors known at compile time, of which 0 costs nothing, and 1 and -1 no product.
    """
    count = 0.0
    for x in computed_tensors([t]):
        assert x.body is not None
        hangs = _AxisDependence(tables or {})
        hangs.axes(x.body)
        count += sum(cost * _step_count(axes) for axes, cost in hangs.operations)
    return round(count)


def count_bytes(t: Tensor, constants: Collection[Tensor]) -> tuple[int, int]:
    """Return the bytes of constants, and of all else, that are read and written, each element once.
    A gather from a table counts only as many elements as it reads."""
    hangs = _AxisDependence({})
    read: dict[Tensor, int] = {}
    for x in computed_tensors([t]):
        assert x.body is not None
        for load in loads(x.body):
            if load.tensor.body is None:
                read[load.tensor] = read.get(load.tensor, 0) + _step_count(hangs.axes(load))
    size = {x: min(n, prod(_static_shape(x))) * _element_bytes(x) for x, n in read.items()}
    fixed = sum(n for x, n in size.items() if x in constants)
    return fixed, prod(_static_shape(t)) * _element_bytes(t) + sum(size.values()) - fixed


class _AxisDependence:
    """The axes that expressions depend on, and the operations in them with their costs."""

    def __init__(self, tables: Mapping[Tensor, np.ndarray]) -> None:
        self.tables = tables
        self.known: dict[Expr, frozenset[Axis]] = {}
        self.operations: list[tuple[frozenset[Axis], float]] = []

    def axes(self, e: Expr) -> frozenset[Axis]:
        found = self.known.get(e)
        if found is None:
            found = self.known[e] = self._axes(e)
        return found

    def _axes(self, e: Expr) -> frozenset[Axis]:
        match e:
            case Axis():
                return frozenset((e,))
            case Apply(fn, args):
                axes = frozenset[Axis]().union(*map(self.axes, args))
                if fn not in _UNCOUNTED and args[0].dtype.kind != "x":
                    cost = function_operations(fn, args[0].dtype, len(args), e.dtype)
                    self.operations.append((axes, cost * self._share(e, is_product=fn == "mul")))
                return axes
            case Load(_, index):
                return frozenset[Axis]().union(*map(self.axes, index))
            case Index(element, bound):
                return self.axes(element) | self.axes(bound)
            case Reduce(_, axes, body):
                inside = self.axes(body) | frozenset(axes)
                self.operations.append((inside, self._share(body)))
                return inside - frozenset(axes)
        return frozenset()

    def _share(self, e: Expr, is_product: bool = False) -> float:
        """Return the share of the values of `e` that are computed, where factors from tables are 0,
        and, of a product with a factor from a table, also where that is 1 or -1."""
        share = 1.0
        for load in _factors(e) if self.tables else ():
            table = self.tables.get(load.tensor)
            if table is not None:
                trivial = (
                    (0, 1, -1) if is_product and isinstance(e, Apply) and load in e.args else (0,)
                )
                share *= 1 - float(np.isin(table, trivial).mean())
        return share


def _factors(e: Expr) -> Iterator[Load]:
    """Yield the loads in a product."""
    match e:
        case Load():
            yield e
        case Apply("mul", args):
            for x in args:
                yield from _factors(x)


@lru_cache(maxsize=256)
def function_operations(fn: str, operand_dtype: DType, count: int, dtype: DType) -> int:
    """Return the operations of a function of `count` arguments of type `operand_dtype`, as it is
    emitted."""
    t = TextBuilder(has_avx512=True)
    try:
        emit_function(t, fn, [Value(f"%a{n}", operand_dtype, _LANES) for n in range(count)], dtype)
    except NotImplementedError:
        return 1
    return max(1, sum(n for line in t.lines for what, n in _WEIGHTS if what in line))


def _step_count(axes: Collection[Axis]) -> int:
    return prod(hint(a.size) for a in axes)


def _static_shape(t: Tensor) -> list[int]:
    return [hint(n) for n in t.sizes]


def _element_bytes(t: Tensor) -> int:
    return max(t.dtype.bits // 8, 1)
