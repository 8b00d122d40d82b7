"""Compute a Concat of slices of one tensor, each in its place, and other parts as that tensor with
the other parts written over it.

A corrected program (`superopt.partial.correct.corrections`) has this form. The tensor is computed
in place and costs no copy; a part that is written over it costs its own computation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from superopt.ir import graph as ir_graph
from superopt.te.analysis.bind_sizes import bind_dim
from superopt.te.expr.symbolic_int import extent, hint

MIN_BASE_SHARE = 0.5  # share of the elements that come from the tensor, at least
Shape = tuple[int, ...]
Sizes = dict[str, int]
IsReadOnce = Callable[[ir_graph.Value], bool]  # true if a value has one reader
CountReads = Callable[[ir_graph.Value], int]  # the number of readers


@dataclass(frozen=True, slots=True)
class ScatterInto:
    """A tensor with updates. base: a value of the result's shape. updates: (offset, value) pairs
    that are written over it in this order."""

    base: ir_graph.Value
    updates: tuple[tuple[Shape, ir_graph.Value], ...]

    @property
    def values(self) -> tuple[ir_graph.Value, ...]:
        return (self.base, *(v for _, v in self.updates))


def find_scatter_into(
    graph: ir_graph.Graph, sizes: Mapping[str, int]
) -> dict[ir_graph.Node, ScatterInto]:
    """Return the nodes of a graph that are computed so."""
    readers = ir_graph.users(graph)
    known = dict(sizes)

    def once(v: ir_graph.Value) -> bool:
        return reads(v) == 1

    def reads(v: ir_graph.Value) -> int:
        return len(readers.get(v, ())) + (v in graph.outputs)

    out: dict[ir_graph.Node, ScatterInto] = {}
    for n in ir_graph.nodes(graph):
        before = n.inputs[0] if n.inputs else None
        if n.op.name == "Concat" and not n.op.domain:
            found = _match_concat(n, known, once, reads)
            if found is not None:
                out[n] = found
        elif "elementwise" in n.op.laws and len(n.types) == 1 and before in out and once(before):
            assert isinstance(before, ir_graph.Node)
            if all(v is None or _is_scalar_constant(v) for v in n.inputs[1:]):
                out[n] = _apply_to_parts(n, out[before])
    return out


def _is_scalar_constant(v: ir_graph.Value) -> bool:
    """True for a constant scalar."""
    return isinstance(v, ir_graph.Constant) and v.type.shape == ()


def _apply_to_parts(n: ir_graph.Node, p: ScatterInto) -> ScatterInto:
    """Return the elementwise operator, whose other operands are scalars, applied to the base and
    each update."""

    def made(v: ir_graph.Value) -> ir_graph.Value:
        return ir_graph.node(n.op, (v, *n.inputs[1:]), **dict(n.attrs))

    return ScatterInto(made(p.base), tuple((at, made(v)) for at, v in p.updates))


def _match_concat(
    n: ir_graph.Node, sizes: Sizes, once: IsReadOnce, reads: CountReads
) -> ScatterInto | None:
    shape = _static_shape(n, sizes)
    leaves = list(_concat_operands(n, (0,) * len(shape), sizes, once))
    kept: dict[ir_graph.Value, list[int]] = {}
    for k, (at, v) in enumerate(leaves):
        base = _slice_source(v, at, shape, sizes)
        if base is not None and once(v):
            kept.setdefault(base, []).append(k)
    whole = _element_count(n, sizes) if kept else 0
    for base, own in kept.items() if whole != 0 else ():
        size = sum(_element_count(leaves[k][1], sizes) for k in own)
        alone = reads(base) == len({leaves[k][1] for k in own})
        is_most = hint(size) >= MIN_BASE_SHARE * hint(whole)
        if is_most and ir_graph.producer(base) is not None and alone:
            others = (x for k, x in enumerate(leaves) if k not in own)  # a value may occur twice
            return ScatterInto(
                base, tuple((at, v) for at, v in others if 0 not in _static_shape(v, sizes))
            )
    return None


def _concat_operands(
    n: ir_graph.Node, offset: Shape, sizes: Sizes, once: IsReadOnce
) -> Iterator[tuple[Shape, ir_graph.Value]]:
    """Yield (offset, value) for each operand of nested Concats that have no other reader."""
    axis = n.attr("axis")
    assert isinstance(axis, int)
    for v in n.inputs:
        assert v is not None
        p = ir_graph.producer(v)
        if isinstance(p, ir_graph.Node) and p.op is n.op and once(v):
            yield from _concat_operands(p, offset, sizes, once)
        else:
            yield offset, v
        offset = (*offset[:axis], offset[axis] + _static_shape(v, sizes)[axis], *offset[axis + 1 :])


def _slice_source(
    v: ir_graph.Value, offset: Shape, shape: Shape, sizes: Sizes
) -> ir_graph.Value | None:
    """Return the tensor of shape `shape` of which `v` is the slice that begins at `offset`; else
    None."""
    n = ir_graph.producer(v)
    if n is None or n.op.name != "Slice" or n.op.domain:
        return None
    (x,) = n.inputs
    assert x is not None
    axes, starts, steps = (_evaluate_sizes(n.attr(k), sizes) for k in ("axes", "starts", "steps"))
    begin = dict(zip(axes, starts, strict=True))
    if any(s != 1 for s in steps) or _static_shape(x, sizes) != shape:
        return None
    return x if all(begin.get(d, 0) == a for d, a in enumerate(offset)) else None


def _static_shape(v: ir_graph.Value, sizes: Sizes) -> Shape:
    return _evaluate_sizes(v.type.shape, sizes)


def _element_count(v: ir_graph.Value, sizes: Sizes) -> int:
    return prod(_static_shape(v, sizes))


def _evaluate_sizes(dims: object, sizes: Sizes) -> Shape:
    assert isinstance(dims, Sequence)
    return tuple(extent(bind_dim(d, sizes)) for d in dims)
