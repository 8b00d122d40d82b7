"""Buffers of a loop's states and slices, step by step.

A state that is also a slice of a result is read from that result, one slice before. Other states
are double-buffered: one buffer is read while the other is written. The first step reads the initial
state in place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

from superopt.ir import graph as g
from superopt.kernels.calls import Ref
from superopt.plan.loops import Repeat, repeat
from superopt.te import index as ix

Where = Callable[[g.Value], Ref]


def nbytes(v: g.Value, sizes: Mapping[str, int] = MappingProxyType({})) -> int:
    """Return the bytes of a value. sizes: those of symbols in its shape."""
    assert v.type.dtype is not None
    shape = [ix.evaluate(d, dict(sizes)) for d in v.type.shape or ()]
    return prod(shape) * max(v.type.dtype.bits // 8, 1)


@dataclass(frozen=True, slots=True)
class Buffers:
    """The buffers of a loop node. outputs: what the body computes. targets: for each output, the
    result that it is a slice of, or the state that it is. carriers: for each state, the result from
    which it is read: a double-buffered state, or a tensor of slices."""

    node: g.Node
    outputs: tuple[g.Value, ...]
    targets: tuple[g.Value, ...]
    carriers: tuple[g.Value, ...]

    @property
    def what(self) -> Repeat:
        return repeat(self.node)

    def values(self) -> Iterator[g.Value]:
        """Yield the values that must be in memory while the loop runs."""
        yield from (v for v in self.node.inputs if v is not None)
        yield from self.targets

    def alternates(self, v: g.Value) -> bool:
        """True if the result is a double-buffered state."""
        return v in g.results(self.node)[: self.what.states]

    def final(self, carrier: g.Value, where: Where) -> Ref:
        """Return the place of a state after the last step."""
        at, steps = where(carrier), self.what.steps
        if self.alternates(carrier):
            return Ref(at.place, at.at, at.offset + steps % 2 * nbytes(carrier))
        moving = self.slice(carrier, where)
        return Ref(at.place, at.at, moving.offset + (steps - 1) * moving.stride)

    def arguments(self, where: Where) -> Iterator[Ref]:
        """Yield the arguments of the body's program: states, slices, other values, outputs."""
        inputs = [v for v in self.node.inputs if v is not None]
        count, sliced = self.what.states, len(self.what.reads_backward)
        for carrier, initial in zip(self.carriers, inputs, strict=False):
            at, first = where(carrier), where(initial)
            if self.alternates(carrier):
                yield Ref(at.place, at.at, at.offset, 0, nbytes(carrier), 0, first)
            else:
                m = self.slice(carrier, where)
                yield Ref(m.place, m.at, m.offset - m.stride, m.stride, 0, 0, first)
        read = iter(self.what.slices())
        for v, back in zip(inputs[count:], self.what.reads_backward, strict=False):
            yield self.moving(v, where(v), next(read), back)
        yield from map(where, inputs[count + sliced :])
        for target in self.targets:
            at, size = where(target), nbytes(target)
            if self.alternates(target):
                yield Ref(at.place, at.at, at.offset + size, 0, -size)
            else:
                yield self.slice(target, where)

    def slice(self, result: g.Value, where: Where) -> Ref:
        """Return the slice of a result that a step writes."""
        number = g.results(self.node).index(result)
        back = self.what.writes_backward[number - self.what.states]
        return self.moving(result, where(result), self.what.body.outputs[number], back)

    def moving(self, v: g.Value, at: Ref, slice_: g.Value, backward: bool) -> Ref:
        """Return the slice of a tensor that a step reads or writes."""
        size, end = nbytes(slice_), nbytes(v) - nbytes(slice_)
        if backward:
            return Ref(at.place, at.at, at.offset + end, -size)
        overlaps = size * (self.what.steps - 1) > end
        return Ref(at.place, at.at, at.offset, size, 0, end if overlaps else 0)


def buffers(n: g.Node, wanted: Collection[g.Value]) -> Buffers:
    """Return the buffers of a loop node. used: the results that are read."""
    what, made = repeat(n), g.results(n)
    pairs = list(zip(what.body.outputs, made, strict=True))
    written = [(v, to) for v, to in pairs[what.states :] if to in wanted]
    carriers: list[g.Value] = []
    for v, state in pairs[: what.states]:
        found = next((to for other, to in written if other is v), None)
        if found is None:
            written.append((v, found := state))
        carriers.append(found)
    outputs, targets = zip(*written, strict=True) if written else ((), ())
    return Buffers(n, outputs, targets, tuple(carriers))
