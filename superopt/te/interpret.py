"""Evaluate tensors in a domain, box by box."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from superopt import guard
from superopt.te.affine import Affine
from superopt.te.bind import bind
from superopt.te.domain import Domain, Reals
from superopt.te.expr import Tensor
from superopt.te.frame import Frame, extent
from superopt.te.node import Axis
from superopt.te.plan import program
from superopt.te.steps import View
from superopt.te.strided import part, strided


def evaluate(
    tensor: Tensor, inputs: Mapping[str, np.ndarray], domain: Domain | None = None
) -> np.ndarray:
    """Return the value of `tensor`, whose sizes are integers (see `bind`), from its inputs by name.

    The result may share memory with an input. Raises IndexError where an unguarded load is out of
    range, KeyError for a missing input, ValueError for an input of another shape.
    """
    return evaluate_all((tensor,), inputs, domain)[0]


def evaluate_all(
    tensors: Sequence[Tensor], inputs: Mapping[str, np.ndarray], domain: Domain | None = None
) -> list[np.ndarray]:
    """Return the values of several tensors; shared parts are computed once. See `evaluate`."""
    with np.errstate(all="ignore"):
        run = _Run(inputs, domain or Reals(), {}, {})
        return [run.tensor(t) for t in tensors]


@dataclass(frozen=True, slots=True)
class _Run:
    """Results computed so far, and padded sources."""

    inputs: Mapping[str, np.ndarray]
    domain: Domain
    done: dict[Tensor, np.ndarray]
    padded: dict[View, np.ndarray]

    def tensor(self, t: Tensor) -> np.ndarray:
        found = self.done.get(t)
        if found is None:
            found = self.done[t] = self.given(t) if t.body is None else self.computed(t)
        return found

    def given(self, t: Tensor) -> np.ndarray:
        try:
            array = self.inputs[t.name]
        except KeyError:
            raise KeyError(f"missing input {t.name}; given: {', '.join(self.inputs)}") from None
        out = self.domain.load(array, t.type)
        shape = (*self.domain.lead(t.dtype), *t.shape)
        if out.shape != shape:
            raise ValueError(f"input {t.name} is {out.shape}, expected {shape}")
        return out

    def raw(self, t: Tensor) -> np.ndarray:
        if t.body is not None:
            return self.tensor(t)
        array = self.inputs.get(t.name)
        return self.given(t) if array is None or array.shape != t.shape else array

    def computed(self, t: Tensor) -> np.ndarray:
        made = program(t)
        lead = self.domain.lead(t.dtype)
        full = (*lead, *made.shape)
        if len(made.parts) == 1 and not any(f.base for f in made.parts[0].place):
            (whole,) = made.parts
            value = Frame(self, made.shared).run(whole.body)
            lengths = tuple(extent(a) for a in whole.axes)
            return np.broadcast_to(value, (*lead, *lengths)).reshape(full)
        stored = self.domain.store(t.dtype)
        guard.admit(math.prod(full) * stored.itemsize, f"a tensor of shape {list(made.shape)}")
        out = np.empty(full, stored)
        for box in made.parts:
            value = Frame(self, made.shared).run(box.body)
            _window(out, box.place, box.axes)[...] = value
        self.padded.clear()
        return out

    def padding(self, view: View, fill: np.ndarray) -> np.ndarray:
        """Return the source of a padded view, from `first` to `last` on each dimension."""
        found = self.padded.get(view)
        if found is not None:
            return found
        source, edge = self.tensor(view.tensor), view.margin
        assert edge is not None
        lead = source.shape[: source.ndim - len(edge.first)]
        ends = list(zip(edge.low, edge.high, edge.first, edge.last, strict=True))
        inside = [(max(low, first), min(high, last)) for low, high, first, last in ends]
        if all((a, b) == (f, e) for (a, b), (_, _, f, e) in zip(inside, ends, strict=True)):
            out = part(source, len(lead), [slice(a, b + 1) for a, b in inside])
        else:
            shape = (*lead, *(e - f + 1 for _, _, f, e in ends))
            guard.admit(math.prod(shape) * source.dtype.itemsize, f"padding to {list(shape)}")
            out = np.empty(shape, source.dtype)
            out[...] = fill.reshape((*fill.shape[: len(lead)], *(1,) * len(ends)))
            if all(a <= b for a, b in inside):
                starts = [end[2] for end in ends]
                target = [slice(a - f, b - f + 1) for (a, b), f in zip(inside, starts, strict=True)]
                cut = part(source, len(lead), [slice(a, b + 1) for a, b in inside])
                part(out, len(lead), target)[...] = cut
        self.padded[view] = out
        return out


def _window(out: np.ndarray, place: tuple[Affine, ...], axes: tuple[Axis, ...]) -> np.ndarray:
    """Return the elements of `out` that a box covers, over the axes of the box."""
    lead = out.ndim - len(place)
    start = part(out, lead, [slice(f.base, None) for f in place])
    steps = [
        sum(f.coefficient(a) * s for f, s in zip(place, out.strides[lead:], strict=True))
        for a in axes
    ]
    shape = (*out.shape[:lead], *(extent(a) for a in axes))
    return strided(start, shape, (*out.strides[:lead], *steps), writeable=True)


__all__ = ["bind", "evaluate", "evaluate_all"]
