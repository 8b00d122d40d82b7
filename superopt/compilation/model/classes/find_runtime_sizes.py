"""Find the sizes that only a run gives, and where inputs of a segment have them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from superopt.compilation.model.classes.runtime_sizes import RuntimeSize
from superopt.ir import graph
from superopt.te.expr import index
from superopt.te.expr.node import Expr, Size
from superopt.te.expr.symbolic_int import SIZE_LEVELS

if TYPE_CHECKING:
    from superopt.onnx_io.import_.model import Model
    from superopt.plan.graph.partition import Segment

# The assumed value of a size that is known only at run time: of the highest level of sizes
# (te.expr.symbolic_int.SIZE_LEVELS), whose class has no upper limit.
EXAMPLE_RUNTIME_SIZE = 64
# An example within each level of sizes; large ones first.
INSIDE_LEVELS = (
    2 * SIZE_LEVELS[-1],
    *reversed([min(2 * n, above - 1) for n, above in pairwise(SIZE_LEVELS)]),
)
# Examples within each level, and the least of each, which may have a class of its own.
RUNTIME_COUNTS = (EXAMPLE_RUNTIME_SIZE, *dict.fromkeys((*INSIDE_LEVELS, *SIZE_LEVELS)))


def with_runtime_sizes(model: Model, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes, and example values of those that only a run gives."""
    return dict.fromkeys(model.size_producers, EXAMPLE_RUNTIME_SIZE) | dict(sizes)


def runtime_size_names(nodes: Sequence[graph.Node], sizes: Mapping[str, int]) -> frozenset[str]:
    """Return the names of the sizes of nodes that inputs of the model do not have."""
    values = {v for n in nodes for v in (*n.inputs, *graph.results(n)) if v is not None}
    shapes = (d for v in values for d in v.type.shape or ())
    attributes = (d for n in nodes for _, a in n.attrs for d in _sizes_of(a))
    return frozenset().union(*map(index.symbols, (*shapes, *attributes))) - sizes.keys()


def _sizes_of(a: object) -> Iterator[Expr]:
    if isinstance(a, tuple):
        for x in a:
            yield from _sizes_of(x)
    elif isinstance(a, Expr):
        yield a


def bind_runtime_sizes(s: Segment, sizes: Mapping[str, int]) -> tuple[RuntimeSize, ...]:
    """Return where a segment's inputs have the sizes that only a run gives.

    Raises NotImplementedError if no input has one of them.
    """
    found: dict[str, RuntimeSize] = {}
    for number, v in enumerate(s.inputs):
        for axis, d in enumerate(v.type.shape or ()):
            if isinstance(d, Size) and d.name not in sizes:
                found.setdefault(d.name, RuntimeSize(d.name, number, axis))
    if unknown := runtime_size_names(s.nodes, sizes) - found.keys():
        raise NotImplementedError(f"no input has the size {', '.join(sorted(unknown))}")
    return tuple(found.values())
