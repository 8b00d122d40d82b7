"""Buffers of a loop's states and slices, step by step.

A state that is also a slice of a result is read from that result, one slice before. Other states
are double-buffered: one buffer is read while the other is written. The first step reads the initial
state in place.

Offsets and strides are SymbolicInts where sizes are symbolic (link.py gives them words).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

from superopt.ir import graph
from superopt.kernels.llvm.calls import Ref
from superopt.plan.graph.loop_node import LoopSpec, loop_spec
from superopt.te.expr import index
from superopt.te.expr.symbolic_int import extent, is_nonnegative

Locate = Callable[[graph.Value], Ref]


def nbytes(v: graph.Value, sizes: Mapping[str, int] = MappingProxyType({})) -> int:
    """Return the bytes of a value. sizes: those of symbols in its shape; none where sizes are
    symbolic."""
    assert v.type.dtype is not None
    shape = [index.evaluate(d, dict(sizes)) if sizes else extent(d) for d in v.type.shape or ()]
    return prod(shape) * max(v.type.dtype.bits // 8, 1)


@dataclass(frozen=True, slots=True)
class LoopBuffers:
    """The buffers of a loop node. outputs: what the body computes. targets: for each output, the
    result that it is a slice of, or the state that it is. carriers: for each state, the result from
    which it is read: a double-buffered state, or a tensor of slices."""

    node: graph.Node
    outputs: tuple[graph.Value, ...]
    targets: tuple[graph.Value, ...]
    carriers: tuple[graph.Value, ...]

    @property
    def spec(self) -> LoopSpec:
        return loop_spec(self.node)

    def values(self) -> Iterator[graph.Value]:
        """Yield the values that must be in memory while the loop runs."""
        yield from (v for v in self.node.inputs if v is not None)
        yield from self.targets

    def is_double_buffered(self, v: graph.Value) -> bool:
        """True if the result is a double-buffered state."""
        return v in graph.results(self.node)[: self.spec.states]

    def final_place(self, carrier: graph.Value, where: Locate) -> Ref:
        """Return the place of a state after the last step."""
        at, steps = where(carrier), extent(self.spec.steps)
        if self.is_double_buffered(carrier):
            return Ref(at.region, at.position, at.offset + steps % 2 * nbytes(carrier))
        moving = self.result_slice(carrier, where)
        return Ref(at.region, at.position, moving.offset + (steps - 1) * moving.stride)

    def arguments(self, where: Locate) -> Iterator[Ref]:
        """Yield the arguments of the body's program: states, slices, other values, outputs."""
        inputs = [v for v in self.node.inputs if v is not None]
        count, sliced = self.spec.states, len(self.spec.reads_backward)
        for carrier, initial in zip(self.carriers, inputs, strict=False):
            at, first = where(carrier), where(initial)
            if self.is_double_buffered(carrier):
                yield Ref(at.region, at.position, at.offset, 0, nbytes(carrier), 0, first)
            else:
                m = self.result_slice(carrier, where)
                yield Ref(m.region, m.position, m.offset - m.stride, m.stride, 0, 0, first)
        read = iter(self.spec.slices())
        for v, back in zip(inputs[count:], self.spec.reads_backward, strict=False):
            yield self.slice_ref(v, where(v), next(read), back)
        yield from map(where, inputs[count + sliced :])
        for target in self.targets:
            at, size = where(target), nbytes(target)
            if self.is_double_buffered(target):
                yield Ref(at.region, at.position, at.offset + size, 0, -size)
            else:
                yield self.result_slice(target, where)

    def result_slice(self, result: graph.Value, where: Locate) -> Ref:
        """Return the slice of a result that a step writes."""
        number = graph.results(self.node).index(result)
        back = self.spec.writes_backward[number - self.spec.states]
        return self.slice_ref(result, where(result), self.spec.body.outputs[number], back)

    def slice_ref(self, v: graph.Value, place: Ref, slice_: graph.Value, backward: bool) -> Ref:
        """Return the slice of a tensor that a step reads or writes."""
        size, end = nbytes(slice_), nbytes(v) - nbytes(slice_)
        if backward:
            return Ref(place.region, place.position, place.offset + end, -size)
        last = size * (extent(self.spec.steps) - 1)
        fits = is_nonnegative(index.as_index(end - last))
        return Ref(place.region, place.position, place.offset, size, 0, 0 if fits else end)


def loop_buffers(n: graph.Node, used: Collection[graph.Value]) -> LoopBuffers:
    """Return the buffers of a loop node. used: the results that are read."""
    what, made = loop_spec(n), graph.results(n)
    pairs = list(zip(what.body.outputs, made, strict=True))
    written = [(v, to) for v, to in pairs[what.states :] if to in used]
    carriers: list[graph.Value] = []
    for v, state in pairs[: what.states]:
        found = next((to for other, to in written if other is v), None)
        if found is None:
            written.append((v, found := state))
        carriers.append(found)
    outputs, targets = zip(*written, strict=True) if written else ((), ())
    return LoopBuffers(n, outputs, targets, tuple(carriers))
