"""Evaluate tensors in a domain, box by box."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from superopt import guard
from superopt.te.analysis.affine import Affine
from superopt.te.analysis.bind_sizes import bind
from superopt.te.eval.array_ops import StridedView
from superopt.te.eval.array_plan import array_program
from superopt.te.eval.domain import Domain, Reals
from superopt.te.eval.frame import Frame, static_extent
from superopt.te.eval.strided import slice_dims, strided_view
from superopt.te.expr.node import Axis
from superopt.te.expr.tensor import Tensor


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
        run = _Evaluation(inputs, domain or Reals(), {}, {})
        return [run.tensor(t) for t in tensors]


@dataclass(frozen=True, slots=True)
class _Evaluation:
    """Results computed so far, and padded sources."""

    inputs: Mapping[str, np.ndarray]
    domain: Domain
    results: dict[Tensor, np.ndarray]
    padded: dict[StridedView, np.ndarray]

    def tensor(self, t: Tensor) -> np.ndarray:
        found = self.results.get(t)
        if found is None:
            found = self.results[t] = self.load_input(t) if t.body is None else self.compute(t)
        return found

    def load_input(self, t: Tensor) -> np.ndarray:
        try:
            array = self.inputs[t.name]
        except KeyError:
            raise KeyError(f"missing input {t.name}; given: {', '.join(self.inputs)}") from None
        out = self.domain.load(array, t.type)
        shape = (*self.domain.component_shape(t.dtype), *t.shape)
        if out.shape != shape:
            raise ValueError(f"input {t.name} is {out.shape}, expected {shape}")
        return out

    def unconverted_array(self, t: Tensor) -> np.ndarray:
        if t.body is not None:
            return self.tensor(t)
        array = self.inputs.get(t.name)
        return self.load_input(t) if array is None or array.shape != t.shape else array

    def compute(self, t: Tensor) -> np.ndarray:
        made = array_program(t)
        lead = self.domain.component_shape(t.dtype)
        full = (*lead, *made.shape)
        if len(made.boxes) == 1 and not any(f.base for f in made.boxes[0].position):
            (whole,) = made.boxes
            value = Frame(self, made.shared).run(whole.body)
            lengths = tuple(static_extent(a) for a in whole.axes)
            return np.broadcast_to(value, (*lead, *lengths)).reshape(full)
        stored = self.domain.storage_dtype(t.dtype)
        guard.require_memory(
            math.prod(full) * stored.itemsize, f"a tensor of shape {list(made.shape)}"
        )
        out = np.empty(full, stored)
        for box in made.boxes:
            value = Frame(self, made.shared).run(box.body)
            _box_view(out, box.position, box.axes)[...] = value
        self.padded.clear()
        return out

    def padded_source(self, view: StridedView, fill: np.ndarray) -> np.ndarray:
        """Return the source of a padded view, from `first` to `last` on each dimension."""
        found = self.padded.get(view)
        if found is not None:
            return found
        source, edge = self.tensor(view.tensor), view.padding
        assert edge is not None
        lead = source.shape[: source.ndim - len(edge.first)]
        ends = list(zip(edge.low, edge.high, edge.first, edge.last, strict=True))
        inside = [(max(low, first), min(high, last)) for low, high, first, last in ends]
        if all((a, b) == (f, e) for (a, b), (_, _, f, e) in zip(inside, ends, strict=True)):
            out = slice_dims(source, len(lead), [slice(a, b + 1) for a, b in inside])
        else:
            shape = (*lead, *(e - f + 1 for _, _, f, e in ends))
            guard.require_memory(
                math.prod(shape) * source.dtype.itemsize, f"padding to {list(shape)}"
            )
            out = np.empty(shape, source.dtype)
            out[...] = fill.reshape((*fill.shape[: len(lead)], *(1,) * len(ends)))
            if all(a <= b for a, b in inside):
                starts = [end[2] for end in ends]
                target = [slice(a - f, b - f + 1) for (a, b), f in zip(inside, starts, strict=True)]
                cut = slice_dims(source, len(lead), [slice(a, b + 1) for a, b in inside])
                slice_dims(out, len(lead), target)[...] = cut
        self.padded[view] = out
        return out


def _box_view(out: np.ndarray, place: tuple[Affine, ...], axes: tuple[Axis, ...]) -> np.ndarray:
    """Return the elements of `out` that a box covers, over the axes of the box."""
    lead = out.ndim - len(place)
    start = slice_dims(out, lead, [slice(f.base, None) for f in place])
    steps = [
        sum(f.coefficient(a) * s for f, s in zip(place, out.strides[lead:], strict=True))
        for a in axes
    ]
    shape = (*out.shape[:lead], *(static_extent(a) for a in axes))
    return strided_view(start, shape, (*out.strides[:lead], *steps), writeable=True)


__all__ = ["bind", "evaluate", "evaluate_all"]
