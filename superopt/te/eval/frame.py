"""Run array operations with numpy, over all of their axes or over ranges of some.

A reduction over too many elements is computed in pieces: a nested frame restricts some axes to
ranges; an operation that does not depend on those is computed once, by the parent frame.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Protocol

import numpy as np

from superopt import guard
from superopt.te.eval.array_ops import (
    AffineForm,
    AffineValues,
    ArrayOp,
    ConstantArray,
    Contraction,
    Elementwise,
    GatherElements,
    Mask,
    Padding,
    Reduction,
    Select,
    StridedView,
    WrapIndex,
)
from superopt.te.eval.contraction import contract
from superopt.te.eval.domain import Domain
from superopt.te.eval.strided import slice_dims, strided_view
from superopt.te.expr.dtype import F64, INDEX, DType
from superopt.te.expr.functions import REDUCTION_COMBINERS, scalar_function
from superopt.te.expr.node import Axis
from superopt.te.expr.tensor import Tensor, TensorType

ELEMENT_BYTES = 8  # of the largest element types, float64 and int64
MEASURED_ELEMENTS = guard.MIN_CHECKED_BYTES // ELEMENT_BYTES
MAX_REDUCTION_BYTES = 96 << 20  # of the elements that a reduction reads at a time
MAX_UNROLLED_TERMS = (
    16  # a reduction of at most so many terms, or window positions, is unrolled into ...
)
MAX_UNROLLED_LOOPS = 256
MIN_ELEMENTS_PER_TERM = 1 << 11  # ... elementwise operations, if each has at least so many elements


class TensorSource(Protocol):
    """Provides the elements of tensors."""

    @property
    def domain(self) -> Domain:
        """Return the domain of the elements."""

    def tensor(self, t: Tensor) -> np.ndarray:
        """Return the elements of a tensor."""

    def unconverted_array(self, t: Tensor) -> np.ndarray:
        """Return the elements of a tensor, but an input as given, perhaps not yet converted to the
        domain."""

    def padded_source(self, view: StridedView, fill: np.ndarray) -> np.ndarray:
        """Return the source of a padded view, from `first` to `last` on each dimension."""


def static_extent(a: Axis) -> int:
    assert isinstance(a.extent, int)
    return a.extent


@dataclass(frozen=True, slots=True)
class Frame:
    """An evaluation with some axes restricted to ranges; the parent computes what does not depend
    on them."""

    source: TensorSource
    shared: frozenset[ArrayOp]
    ranges: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    parent: Frame | None = None
    results: dict[ArrayOp, np.ndarray] = field(default_factory=dict)

    def restrict_axes(self, ranges: Mapping[int, tuple[int, int]]) -> Frame:
        return Frame(self.source, self.shared, {**self.ranges, **ranges}, self)

    def run(self, step: ArrayOp, keep: bool = False) -> np.ndarray:
        if self.parent is not None and all(
            self.ranges.get(a) == self.parent.ranges.get(a) for a in step.axes
        ):
            return self.parent.run(step, keep=True)
        found = self.results.get(step)
        if found is None:
            found = self.compute(step)
            if keep or step in self.shared:
                self.results[step] = found
        return found

    def compute(self, step: ArrayOp) -> np.ndarray:
        domain = self.source.domain
        guard.check_time("evaluating a graph")
        if not isinstance(step, StridedView | Reduction | ConstantArray):
            self.admit(step)
        match step:
            case ConstantArray(scope, _, value, dtype):
                if dtype == INDEX:
                    return np.full((1,) * len(scope), value, np.int64)
                c = domain.const(value, dtype)
                return c.reshape(c.shape + (1,) * len(scope))
            case AffineValues():
                return self.affine_values(step.form, step.scope)
            case StridedView():
                return self.view(step)
            case GatherElements():
                return self.gather(step)
            case WrapIndex(_, _, element, bound, masks):
                i = self.run(element).astype(np.int64)
                bad = (i < -bound) | (i >= bound)
                if bad.any():
                    self.check_indices(bad, masks, f"an index is not in [-{bound}, {bound})")
                    i = np.where(bad, 0, i)
                return np.where(i < 0, i + bound, i)
            case Elementwise(_, _, fn, args, kinds, dtype):
                values = [self.run(a) for a in args]
                if kinds[0] == INDEX and fn != "cast":
                    return np.asarray(apply_index_function(fn, values))
                return domain.apply(fn, values, kinds, dtype)
            case Select(_, _, condition, yes, no):
                return np.where(self.run(condition), self.run(yes), self.run(no))
            case Reduction():
                return self.reduce(step)
            case Contraction(scope, _, inner, factors, dtype):
                wide = domain.accumulation_dtype(dtype)
                values = [_convert(domain, self.run(f), dtype, wide) for f in factors]
                rank, summed = len(inner), len(inner) - len(scope)
                out = contract(domain, wide, values, rank, summed)
                out = out.reshape(out.shape[: out.ndim - summed])
                return _convert(domain, out, wide, dtype)

    def admit(self, step: ArrayOp) -> None:
        """Raise OverMemory or OutOfTime for an operation with too many elements."""
        count = 1
        for q in step.axes:
            low, high = self.axis_range(q, step.scope)
            count *= high - low
        if count > MEASURED_ELEMENTS:
            size = ELEMENT_BYTES * count * math.prod(self.source.domain.component_shape(F64))
            guard.require_memory(size, f"an intermediate result of {count} elements")

    def axis_range(self, position: int, scope: tuple[Axis, ...]) -> tuple[int, int]:
        return self.ranges.get(position) or (0, static_extent(scope[position]))

    def affine_values(self, form: AffineForm, scope: tuple[Axis, ...]) -> np.ndarray:
        out = np.full((1,) * len(scope), form.base, np.int64)
        for position, c in form.terms:
            low, high = self.axis_range(position, scope)
            shape = [1] * len(scope)
            shape[position] = high - low
            out = out + (np.arange(low, high, dtype=np.int64) * c).reshape(shape)
        return out

    def check_indices(self, bad: np.ndarray, masks: tuple[Mask, ...], message: str) -> None:
        """Raise IndexError where an element that the masks select is out of range."""
        for m in masks:
            guard = self.run(m.guard)
            bad = bad & (guard if m.holds else ~guard)
        if bad.any():
            raise IndexError(message)

    def strided_view(
        self,
        source: np.ndarray,
        forms: Sequence[AffineForm],
        scope: tuple[Axis, ...],
        axes: list[int],
    ) -> np.ndarray:
        """Return a view of `source`, whose last dimensions are indexed by `forms`, over the
        positions `axes`."""
        lead = source.ndim - len(forms)
        steps = dict.fromkeys(axes, 0)
        start: list[slice] = []
        for form, stride in zip(forms, source.strides[lead:], strict=True):
            base = form.base
            for position, c in form.terms:
                steps[position] += c * stride
                base += c * self.axis_range(position, scope)[0]
            start.append(slice(base, None))
        used = {q for f in forms for q, _ in f.terms}
        lengths = [
            high - low if q in used else 1
            for q in axes
            for low, high in (self.axis_range(q, scope),)
        ]
        shape = (*source.shape[:lead], *lengths)
        strides = (*source.strides[:lead], *steps.values())
        return strided_view(slice_dims(source, lead, start), shape, strides)

    def view(self, step: StridedView) -> np.ndarray:
        forms: Sequence[AffineForm] = step.forms
        if step.padding is not None:
            edge = step.padding
            source = self.source.padded_source(step, self.run(edge.fill))
            if edge.masks:
                self.check_margin(step, edge)
            forms = [
                AffineForm(f.base - first, f.terms)
                for f, first in zip(forms, edge.first, strict=True)
            ]
        else:
            source = self.source.tensor(step.tensor)
            if step.flat:
                lead = source.shape[: source.ndim - step.tensor.rank]
                if not source.flags.c_contiguous:
                    guard.require_memory(source.nbytes, f"a copy of {source.size} elements")
                source = np.ascontiguousarray(source).reshape((*lead, -1))
        return self.strided_view(source, forms, step.scope, list(range(len(step.scope))))

    def check_margin(self, step: StridedView, edge: Padding) -> None:
        outside = np.zeros((1,) * len(step.scope), np.bool_)
        for form, low, high in zip(step.forms, edge.low, edge.high, strict=True):
            i = self.affine_values(form, step.scope)
            outside = outside | (i < low) | (i > high)
        if outside.any():
            name, shape = step.tensor.name, list(step.tensor.shape)
            self.check_indices(outside, edge.masks, f"a load of {name} is out of its shape {shape}")

    def gather(self, step: GatherElements) -> np.ndarray:
        source = self.source.unconverted_array(
            step.tensor
        )  # converted after the needed elements are gathered
        shape = step.tensor.shape
        lead = source.ndim - len(shape)
        axes = sorted({q for _, f in step.forms for q, _ in f.terms})
        chosen = sorted(step.axes.difference(axes))
        indices: list[np.ndarray] = []
        for d, inner in step.gathered:
            n = shape[d]
            assert isinstance(n, int)
            i = self.run(inner)
            bad = (i < 0) | (i >= n)
            if bad.any():
                message = f"a load of {step.tensor.name} is out of its shape {list(shape)}"
                self.check_indices(bad, step.masks, message)
                i = np.clip(i, 0, max(n - 1, 0))
            indices.append(i.reshape([i.shape[q] for q in chosen]))
        if 0 in shape:  # nothing to load, and no element counts
            full = [
                high - low
                for q in sorted(step.axes)
                for low, high in (self.axis_range(q, step.scope),)
            ]
            out = np.zeros((*source.shape[:lead], *full), source.dtype)
        else:
            dims = [d for d, _ in step.gathered] + [d for d, _ in step.forms]
            moved = source.transpose(*range(lead), *(lead + d for d in dims))
            forms = [f for _, f in step.forms]
            table = self.sliced_source(moved, lead + len(indices), forms, step.scope, axes)
            where: list[slice | np.ndarray] = [slice(None)] * lead
            out = table[(*where, *indices)]
            order = [*chosen, *axes]
            back = sorted(range(len(order)), key=order.__getitem__)
            out = out.transpose(*range(lead), *(lead + q for q in back))
        kind = TensorType(step.tensor.dtype, out.shape[lead:])
        out = self.source.domain.load(out, kind)
        lead = out.ndim - len(step.axes)
        ordered = dict(zip(sorted(step.axes), out.shape[lead:], strict=True))
        return out.reshape(
            (*out.shape[:lead], *(ordered.get(q, 1) for q in range(len(step.scope))))
        )

    def sliced_source(
        self,
        source: np.ndarray,
        first_dim: int,
        forms: list[AffineForm],
        scope: tuple[Axis, ...],
        axes: list[int],
    ) -> np.ndarray:
        """Return `source` with its dimensions from `first_dim` on indexed by `forms`."""
        if all(
            f.base == 0 and f.terms == ((q, 1),) and self.axis_range(q, scope) == (0, n)
            for f, q, n in zip(forms, axes, source.shape[first_dim:], strict=False)
        ) and len(forms) == len(axes):
            return source
        return self.strided_view(source, forms, scope, axes)

    def reduce(self, step: Reduction) -> np.ndarray:
        domain = self.source.domain
        outer, inner = len(step.scope), len(step.body.scope)
        wide = domain.accumulation_dtype(step.dtype)
        out = self.reduce_ranges(step, wide, list(range(outer, inner)))
        out = out.reshape(out.shape[: out.ndim - (inner - outer)])
        return _convert(domain, out, wide, step.dtype)

    def reduce_ranges(self, step: Reduction, wide: DType, splittable: list[int]) -> np.ndarray:
        """Return the reduction over this frame's ranges, in `wide`; axes in `splittable` may be
        unrolled."""
        domain, scope = self.source.domain, step.body.scope
        outer = len(step.scope)
        length = {
            q: high - low for q in range(len(scope)) for low, high in (self.axis_range(q, scope),)
        }
        depends = [q for q in sorted(step.body.axes) if length[q] > 1]
        terms = math.prod(length[q] for q in depends if q >= outer)
        kept = math.prod(length[q] for q in depends if q < outer)
        loops = [
            q
            for q in splittable
            if q in depends and (q in step.window_axes or terms <= MAX_UNROLLED_TERMS)
        ]
        looped = math.prod(length[q] for q in loops)
        if (
            loops
            and looped <= MAX_UNROLLED_LOOPS
            and terms * kept >= looped * MIN_ELEMENTS_PER_TERM
        ):
            return self.reduce_in_pieces(
                step, wide, loops[0], 1, [q for q in splittable if q != loops[0]]
            )
        size = 8 * math.prod(domain.component_shape(step.dtype))
        if terms * kept * size > MAX_REDUCTION_BYTES and not self.is_plain_view(step, wide):
            q = max(depends, key=lambda a: (a < outer, length[a]))
            pieces = min(length[q], -(-terms * kept * size // MAX_REDUCTION_BYTES))
            if pieces > 1:
                return self.reduce_in_pieces(step, wide, q, -(-length[q] // pieces), splittable)
        x = _convert(domain, self.run(step.body), step.dtype, wide)
        lead = x.ndim - len(scope)
        full = [length[q] if q >= outer else x.shape[lead + q] for q in range(len(scope))]
        if step.fn in ("sum", "prod"):
            x = np.broadcast_to(x, (*x.shape[:lead], *full))
        over = tuple(q - len(scope) for q in range(outer, len(scope)))
        return domain.reduce(step.fn, x, over, wide)

    def is_plain_view(self, step: Reduction, wide: DType) -> bool:
        """True if the body is a view that numpy reduces without a copy."""
        plain = isinstance(step.body, StridedView) and wide == step.dtype
        return plain and not self.source.domain.component_shape(wide)

    def reduce_in_pieces(
        self, step: Reduction, wide: DType, position: int, width: int, splittable: list[int]
    ) -> np.ndarray:
        """Return `reduce_ranges` in pieces of `width` along an axis, combined or (on a kept axis)
        concatenated."""
        domain = self.source.domain
        low, high = self.axis_range(position, step.body.scope)
        total: np.ndarray | None = None
        pieces: list[np.ndarray] = []
        for i in range(low, high, width):
            frame = self.restrict_axes({position: (i, min(i + width, high))})
            piece = frame.reduce_ranges(step, wide, splittable)
            if position < len(step.scope):
                pieces.append(piece)
            elif total is None:
                total = piece
            else:
                total = domain.apply(
                    REDUCTION_COMBINERS[step.fn], (total, piece), (wide, wide), wide
                )
        if total is not None:
            return total
        return np.concatenate(pieces, axis=position - len(step.body.scope))


def _convert(domain: Domain, x: np.ndarray, source_dtype: DType, dtype: DType) -> np.ndarray:
    return x if source_dtype == dtype else domain.apply("cast", (x,), (source_dtype,), dtype)


def apply_index_function(fn: str, values: Sequence[Any]) -> Any:
    """Return index arithmetic on integers or int64 arrays."""
    if fn == "floordiv":
        return values[0] // values[1]
    operation: Callable[..., Any] | None = scalar_function(fn).int_impl
    assert operation is not None
    return reduce(operation, values) if len(values) > 1 else operation(values[0])
