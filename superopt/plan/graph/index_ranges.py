"""Indices that are computed from sizes and constants: within which axes they must be.

A kernel reads some element of the same tensor where an index is out of range. ONNX makes it an
error, and ONNX Runtime raises it. Whether indices from sizes are in range follows from the sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

from superopt.ir import graph
from superopt.ir.node_attributes import node_attributes
from superopt.te.analysis.bind_sizes import evaluate_shape
from superopt.te.expr import index
from superopt.te.expr.dtype import INDEX
from superopt.te.expr.node import Const, Dim, Expr

MAX_READ_BYTES = 1 << 20  # of a constant whose least and greatest elements are computed
KEEPS_ELEMENTS = frozenset(
    ("Cast", "Expand", "Identity", "Reshape", "Squeeze", "Tile", "Transpose", "Unsqueeze")
)
# Those that keep the columns of the last axis, if its size stays.
KEEPS_COLUMNS = frozenset(("Cast", "Expand", "Identity", "Reshape", "Unsqueeze"))
Range = tuple[Expr, Expr]  # the least and the greatest element of a tensor


@dataclass(frozen=True, slots=True)
class IndexedAxis:
    """Indices along an axis of `size` elements. column: they are this column of the last axis of
    `indices`; None: all elements."""

    indices: graph.Value
    size: Dim
    column: int | None = None


def indexed_axes(n: graph.Node) -> Iterator[IndexedAxis]:
    """Yield the indices of a Gather or scatter, in all its forms."""
    kind = n.op.name.removeprefix("ai.onnx::")  # without a tensor expression, at symbolic sizes
    if kind not in _INDEX_OPS or any(v is None or v.type.shape is None for v in n.inputs[:2]):
        return
    data, indices = (v for v in n.inputs[:2] if v is not None)
    shape, at = data.type.shape or (), indices.type.shape or ()
    attributes = node_attributes(n)
    if not kind.endswith("ND"):
        axis = attributes.get("axis", 0)
        if shape and isinstance(axis, int):
            yield IndexedAxis(indices, shape[axis])
        return
    first = attributes.get("batch_dims", 0)
    depth = at[-1] if at else None
    if not isinstance(first, int) or not isinstance(depth, int):
        return
    sizes = shape[first : first + depth]
    joined = graph.producer(indices)
    if depth == 1:
        yield from (IndexedAxis(indices, size) for size in sizes)
    elif joined is not None and joined.op.name == "Concat" and len(joined.inputs) == depth:
        parts = zip(joined.inputs, sizes, strict=False)
        yield from (IndexedAxis(v, size) for v, size in parts if v is not None)
    else:
        yield from (IndexedAxis(indices, size, k) for k, size in enumerate(sizes))


_INDEX_OPS = frozenset(("Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND"))


def element_range(
    v: graph.Value | None, column: int | None = None, max_bytes: int = MAX_READ_BYTES
) -> Range | None:
    """Return the least and the greatest element of a tensor that is computed from sizes and
    constants; None of another one. column: of this column of the last axis. max_bytes: of constants
    that are read."""
    if isinstance(v, graph.Constant):
        return _constant_range(v, column) if 0 < v.nbytes <= max_bytes else None
    if column is not None:
        found = _column_source(v, column)
        return None if found is None else element_range(*found, max_bytes)
    n = None if v is None else graph.producer(v)
    if n is None:
        return None
    if n.op.name in KEEPS_ELEMENTS:
        return element_range(n.inputs[0], None, max_bytes)
    combine = _RANGES.get(n.op.name)
    if combine is not None:
        return combine(n)
    operation = _OPERATIONS.get(n.op.name)
    if operation is None:
        return None
    parts = [element_range(x, None, max_bytes) for x in n.inputs if x is not None]
    known = [x for x in parts if x is not None]
    return operation(known) if len(known) == len(parts) and known else None


def _column_source(v: graph.Value | None, column: int) -> tuple[graph.Value, int | None] | None:
    """Return the tensor, and the column of it or None for all, that has the elements of a column;
    None if they are computed in another way."""
    n = None if v is None else graph.producer(v)
    if v is None or n is None or not n.inputs or n.inputs[0] is None:
        return None
    if n.op.name == "Concat" and dict(n.attrs)["axis"] in (-1, len(v.type.shape or ()) - 1):
        for part in n.inputs:
            width = (part.type.shape or (None,))[-1] if part is not None else None
            if part is None or not isinstance(width, int):
                return None
            if column < width:
                return part, None if width == 1 else column
            column -= width
        return None
    source = n.inputs[0]
    ends = [(x.type.shape or (None,))[-1] for x in (source, v)]
    keeps_columns = n.op.name in KEEPS_COLUMNS and ends[0] == ends[1] and ends[0] is not None
    return (source, column) if keeps_columns else None


def _constant_range(v: graph.Constant, column: int | None) -> Range | None:
    if v.type.dtype is None or not v.type.dtype.is_int:
        return None
    a = v.load() if column is None else v.load()[..., column]
    return (index.as_index(int(a.min())), index.as_index(int(a.max()))) if a.size else None


def _shape_range(n: graph.Node) -> Range | None:
    """Return the range of a part of a shape."""
    attrs = dict(n.attrs)
    shape = None if n.inputs[0] is None else n.inputs[0].type.shape
    start, end = attrs["start"], attrs["end"]
    if shape is None or not isinstance(start, int) or not isinstance(end, int | None):
        return None
    dims = [index.as_index(d) for d in shape[start:end]]
    return (_apply("min", dims), _apply("max", dims)) if dims else None


def _position_range(n: graph.Node) -> Range | None:
    """Return the range of positions that follow each other."""
    attrs = dict(n.attrs)
    start, limit = attrs["start"], attrs["limit"]
    if attrs["delta"] != 1 or not all(isinstance(x, int | Expr) for x in (start, limit)):
        return None
    return index.as_index(start), index.as_index(index.as_index(limit) - 1)  # type: ignore[arg-type]


def _apply(fn: str, es: list[Expr]) -> Expr:
    first, *others = dict.fromkeys(es)
    for e in others:
        first = index.apply(fn, (first, e), INDEX)
    return index.as_index(first)


def _add(parts: list[Range]) -> Range:
    (a, b), (c, d) = parts
    return index.as_index(a + c), index.as_index(b + d)


def _subtract(parts: list[Range]) -> Range:
    (a, b), (c, d) = parts
    return index.as_index(a - d), index.as_index(b - c)


def _select(fn: str) -> Callable[[list[Range]], Range]:
    def combine(parts: list[Range]) -> Range:
        return _apply(fn, [a for a, _ in parts]), _apply(fn, [b for _, b in parts])

    return combine


def _join(parts: list[Range]) -> Range:
    return _apply("min", [a for a, _ in parts]), _apply("max", [b for _, b in parts])


_RANGES: Mapping[str, Callable[[graph.Node], Range | None]] = {
    "Range": _position_range,
    "Shape": _shape_range,
}
_OPERATIONS: Mapping[str, Callable[[list[Range]], Range]] = {
    "Add": _add,
    "Concat": _join,
    "Max": _select("max"),
    "Min": _select("min"),
    "Sub": _subtract,
}


def range_conditions(n: graph.Node) -> Iterator[tuple[Expr, Expr]]:
    """Yield pairs of sizes, of which the first must be at most the second, so that all indices of a
    node that are computed from sizes are in range."""
    for axis in indexed_axes(n):
        found = element_range(axis.indices, axis.column)
        if found is not None:
            least, greatest = found
            size = index.as_index(axis.size)
            yield index.as_index(-size), least
            yield index.as_index(greatest + 1), size


def index_reason(n: graph.Node, sizes: Mapping[str, int]) -> str:
    """Return why a node has no kernel if an index that is computed from `sizes` is out of range; an
    empty string if there is none."""
    for a, b in range_conditions(n):
        if not index.symbols(a) | index.symbols(b) <= sizes.keys():
            continue
        if index.evaluate(a, dict(sizes)) > index.evaluate(b, dict(sizes)) and _reads(n, sizes):
            return f"an index that is computed from sizes is out of range: {a} > {b}"
    return ""


def _reads(n: graph.Node, sizes: Mapping[str, int]) -> bool:
    """True if a node has indices."""
    indices = n.inputs[1]
    shape = () if indices is None else indices.type.shape or ()
    if indices is None or not all(index.symbols(d) <= sizes.keys() for d in shape):
        return False
    return bool(prod(evaluate_shape(indices.type, sizes)))


def index_guards(nodes: Iterable[graph.Node], sizes: Mapping[str, int]) -> dict[Expr, bool]:
    """Return the comparisons of sizes that say whether indices are in range, and whether they hold
    at these sizes."""
    out: dict[Expr, bool] = {}
    for n in nodes:
        for a, b in range_conditions(n):
            if index.symbols(a) | index.symbols(b) <= sizes.keys() and _reads(n, sizes):
                compared = Expr.compare("le", a, b)
                if not isinstance(compared, Const):
                    out[compared] = index.evaluate(a, dict(sizes)) <= index.evaluate(b, dict(sizes))
    return out
