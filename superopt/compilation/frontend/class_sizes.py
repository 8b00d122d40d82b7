"""A model for a class of sizes: what its operators ask of sizes is answered at example sizes, and
each answer is a condition of the class.

An operator compares sizes to check its operands and to simplify its attributes: an attention mask
of length `total` is added to scores of length past + sequence, and a table of positions is cut at
min(past + sequence, 1024). Where sizes must be equal, one of their symbols is replaced by what it
equals; a size of 0 is replaced by 0, for which tensor expressions have no symbol.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from superopt.errors import ModelError
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.import_.model import Model
from superopt.te.expr import index
from superopt.te.expr.dtype import BOOL
from superopt.te.expr.node import Apply, Dim, Expr, Size

MAX_REPLACED_SIZES = 16  # a limit for imports of a model

Guards = dict[Expr, bool]


@dataclass(frozen=True, slots=True)
class ClassModel:
    """A model whose sizes are related. guards: comparisons of sizes, and whether they hold."""

    model: Model
    guards: Guards


class _ReplacedSizeError(Exception):
    """An operator needs a size to be equal to another one."""

    def __init__(self, name: str, value: Dim) -> None:
        self.name = name
        self.value = value


@dataclass(frozen=True, slots=True)
class _ExampleOracle:
    """A SizeOracle that answers by example sizes. guards: the answers."""

    sizes: Mapping[str, int]
    guards: Guards = field(default_factory=dict)

    def are_equal(self, a: Dim, b: Dim) -> bool:
        if not self._decide("eq", a, b):
            return False
        raise _solve_equality(index.as_index(a), index.as_index(b))

    def is_at_most(self, a: Dim, b: Dim) -> bool:
        return self._decide("le", a, b)

    def is_broadcast_equal(self, a: Dim, b: Dim) -> bool:
        return self.are_equal(a, b)

    def compare(self, fn: str, a: Dim, b: Dim) -> bool | None:
        return self._decide(fn, a, b)

    def _decide(self, fn: str, a: Dim, b: Dim) -> bool:
        x, y = index.as_index(a), index.as_index(b)
        if not index.symbols(x - y) <= self.sizes.keys():
            raise ValueError(f"{x} or {y} is known only at run time")
        p, q = (index.evaluate(e, dict(self.sizes)) for e in (x, y))
        holds = {"lt": p < q, "le": p <= q, "eq": p == q}[fn]
        self.guards[Apply(fn, (x, y), BOOL)] = holds
        return holds


def _solve_equality(a: Expr, b: Expr) -> _ReplacedSizeError:
    """Return the size that is replaced so that a == b. Raises ValueError if there is none."""
    for x, y in ((a, b), (b, a)):
        if isinstance(x, Size) and x.name not in index.symbols(y):
            return _ReplacedSizeError(x.name, index.dim(y))
    raise ValueError(f"{a} == {b} is not solved for a size")


def with_class_sizes(
    model: Model, sizes: Mapping[str, int], fixed: Collection[str] = ()
) -> ClassModel | None:
    """Return the model for a class that has these sizes; None if it has no conditions, or an
    operator cannot be decided. fixed: sizes that all of the class have."""
    replaced: dict[str, Dim] = {name: n for name, n in sizes.items() if n == 0 or name in fixed}
    for _ in range(MAX_REPLACED_SIZES):
        oracle = _ExampleOracle(sizes)
        try:
            made = import_model(model.source, replaced, oracle)
        except _ReplacedSizeError as e:
            one: dict[Expr, Expr] = {Size(e.name): index.as_index(e.value)}
            replaced = {
                name: index.dim(index.substitute(index.as_index(d), one))
                for name, d in replaced.items()
            }
            replaced[e.name] = e.value
            continue
        except ModelError:
            return None
        equal: Guards = {
            Apply("eq", (Size(name), index.as_index(d)), BOOL): True for name, d in replaced.items()
        }
        guards: Guards = {**equal, **oracle.guards}
        return ClassModel(made, guards) if guards else None
    return None
