"""Compute a Concat of slices of one tensor, each in its place, and other parts as that tensor with
the other parts written over it.

A program that is corrected where it is wrong (`superopt.partial.correct`) has this form. The tensor
is computed in place and costs no copy; a part that is written over it costs its own computation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from superopt.ir import graph as g
from superopt.te import index as ix

LEAST = 0.5  # share of the elements that come from the tensor, at least
Shape = tuple[int, ...]
Sizes = dict[str, int]
Once = Callable[[g.Value], bool]  # true if a value has one reader
Reads = Callable[[g.Value], int]  # the number of readers


@dataclass(frozen=True, slots=True)
class Patched:
    """A tensor with updates. base: a value of the result's shape. updates: (offset, value) pairs
    that are written over it in this order."""

    base: g.Value
    over: tuple[tuple[Shape, g.Value], ...]

    @property
    def values(self) -> tuple[g.Value, ...]:
        return (self.base, *(v for _, v in self.over))


def patched(graph: g.Graph, sizes: Mapping[str, int]) -> dict[g.Node, Patched]:
    """Return the nodes of a graph that are computed so."""
    readers = g.users(graph)
    known = dict(sizes)

    def once(v: g.Value) -> bool:
        return reads(v) == 1

    def reads(v: g.Value) -> int:
        return len(readers.get(v, ())) + (v in graph.outputs)

    out: dict[g.Node, Patched] = {}
    for n in g.nodes(graph):
        before = n.inputs[0] if n.inputs else None
        if n.op.name == "Concat" and not n.op.domain:
            found = _joined(n, known, once, reads)
            if found is not None:
                out[n] = found
        elif "elementwise" in n.op.laws and len(n.types) == 1 and before in out and once(before):
            assert isinstance(before, g.Node)
            if all(v is None or _single(v) for v in n.inputs[1:]):
                out[n] = _after(n, out[before])
    return out


def _single(v: g.Value) -> bool:
    """True for a constant scalar."""
    return isinstance(v, g.Constant) and v.type.shape == ()


def _after(n: g.Node, p: Patched) -> Patched:
    """Return the elementwise operator, whose other operands are scalars, applied to the base and
    each update."""

    def made(v: g.Value) -> g.Value:
        return g.node(n.op, (v, *n.inputs[1:]), **dict(n.attrs))

    return Patched(made(p.base), tuple((at, made(v)) for at, v in p.over))


def _joined(n: g.Node, sizes: Sizes, once: Once, reads: Reads) -> Patched | None:
    shape = _shape(n, sizes)
    whole = _count(n, sizes)
    if not whole:
        return None
    leaves = list(_leaves(n, (0,) * len(shape), sizes, once))
    kept: dict[g.Value, list[int]] = {}
    for k, (at, v) in enumerate(leaves):
        base = _kept(v, at, shape, sizes)
        if base is not None and once(v):
            kept.setdefault(base, []).append(k)
    for base, own in kept.items():
        size = sum(_count(leaves[k][1], sizes) for k in own)
        alone = reads(base) == len({leaves[k][1] for k in own})
        if size >= LEAST * whole and g.producer(base) is not None and alone:
            others = (x for k, x in enumerate(leaves) if k not in own)  # a value may occur twice
            return Patched(base, tuple((at, v) for at, v in others if 0 not in _shape(v, sizes)))
    return None


def _leaves(n: g.Node, at: Shape, sizes: Sizes, once: Once) -> Iterator[tuple[Shape, g.Value]]:
    """Yield (offset, value) for each operand of nested Concats that have no other reader."""
    axis = n.attr("axis")
    assert isinstance(axis, int)
    for v in n.inputs:
        assert v is not None
        p = g.producer(v)
        if isinstance(p, g.Node) and p.op is n.op and once(v):
            yield from _leaves(p, at, sizes, once)
        else:
            yield at, v
        at = (*at[:axis], at[axis] + _shape(v, sizes)[axis], *at[axis + 1 :])


def _kept(v: g.Value, at: Shape, shape: Shape, sizes: Sizes) -> g.Value | None:
    """Return the tensor of shape `shape` of which `v` is the slice that begins at `offset`; else
    None."""
    n = g.producer(v)
    if n is None or n.op.name != "Slice" or n.op.domain:
        return None
    (x,) = n.inputs
    assert x is not None
    axes, starts, steps = (_numbers(n.attr(k), sizes) for k in ("axes", "starts", "steps"))
    begin = dict(zip(axes, starts, strict=True))
    if any(s != 1 for s in steps) or _shape(x, sizes) != shape:
        return None
    return x if all(begin.get(d, 0) == a for d, a in enumerate(at)) else None


def _shape(v: g.Value, sizes: Sizes) -> Shape:
    return _numbers(v.type.shape, sizes)


def _count(v: g.Value, sizes: Sizes) -> int:
    return int(prod(_shape(v, sizes)))


def _numbers(some: object, sizes: Sizes) -> Shape:
    assert isinstance(some, Sequence)
    return tuple(ix.evaluate(d, sizes) for d in some)
