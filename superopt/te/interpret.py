"""The values of a tensor: the steps of its program as numpy operations, in a domain."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from superopt.te import plan as p
from superopt.te.affine import Affine
from superopt.te.bind import bind
from superopt.te.contract import contract
from superopt.te.domain import Domain, Reals
from superopt.te.dtype import BOOL, INDEX, DType
from superopt.te.expr import Tensor
from superopt.te.fn import FOLDS, function
from superopt.te.node import Axis
from superopt.te.strided import part, strided

MOST_BYTES = 96 << 20  # of the elements that a reduction is over, at a time
FEW_TERMS = 16  # a reduction of so many terms, or so many places of a window, is computed ...
MOST_LOOPS = 256
MANY_ELEMENTS = 1 << 11  # ... term by term, if each is of so many elements


def evaluate(
    tensor: Tensor, inputs: Mapping[str, np.ndarray], domain: Domain | None = None
) -> np.ndarray:
    """The value of `tensor`, whose sizes are numbers (see `bind`), from its inputs by name.

    The result may share memory with an input. Raises IndexError where an unguarded load is out of
    range, KeyError for a missing input, ValueError for an input of another shape.
    """
    return evaluate_all((tensor,), inputs, domain)[0]


def evaluate_all(
    tensors: Sequence[Tensor], inputs: Mapping[str, np.ndarray], domain: Domain | None = None
) -> list[np.ndarray]:
    """The values of several tensors; what they share is computed once. See `evaluate`."""
    with np.errstate(all="ignore"):
        run = _Run(inputs, domain or Reals(), {}, {})
        return [run.tensor(t) for t in tensors]


@dataclass(frozen=True, slots=True)
class _Run:
    """Tensors computed so far, and sources that were padded."""

    inputs: Mapping[str, np.ndarray]
    domain: Domain
    done: dict[Tensor, np.ndarray]
    padded: dict[p.View, np.ndarray]

    def tensor(self, t: Tensor) -> np.ndarray:
        found = self.done.get(t)
        if found is None:
            found = self.done[t] = self.given(t) if t.body is None else self.computed(t)
        return found

    def given(self, t: Tensor) -> np.ndarray:
        try:
            array = self.inputs[t.name]
        except KeyError:
            raise KeyError(f"no input {t.name}; given: {', '.join(self.inputs)}") from None
        out = self.domain.load(array, t.type)
        shape = (*self.domain.lead(t.dtype), *t.shape)
        if out.shape != shape:
            raise ValueError(f"input {t.name} is {out.shape}, expected {shape}")
        return out

    def computed(self, t: Tensor) -> np.ndarray:
        program = p.program(t)
        lead = self.domain.lead(t.dtype)
        full = (*lead, *program.shape)
        if len(program.parts) == 1 and not any(f.base for f in program.parts[0].place):
            (whole,) = program.parts
            value = _Frame(self, program.shared).run(whole.body)
            lengths = tuple(_extent(a) for a in whole.axes)
            return np.broadcast_to(value, (*lead, *lengths)).reshape(full)
        out = np.empty(full, self.domain.store(t.dtype))
        for box in program.parts:
            value = _Frame(self, program.shared).run(box.body)
            _window(out, box.place, box.axes)[...] = value
        self.padded.clear()
        return out

    def padding(self, view: p.View, fill: np.ndarray) -> np.ndarray:
        """The source of a padded view, from `first` to `last` on each dimension."""
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
            out = np.empty((*lead, *(e - f + 1 for _, _, f, e in ends)), source.dtype)
            out[...] = fill.reshape(*lead, *(1,) * len(ends))
            if all(a <= b for a, b in inside):
                starts = [end[2] for end in ends]
                target = [slice(a - f, b - f + 1) for (a, b), f in zip(inside, starts, strict=True)]
                cut = part(source, len(lead), [slice(a, b + 1) for a, b in inside])
                part(out, len(lead), target)[...] = cut
        self.padded[view] = out
        return out


def _extent(a: Axis) -> int:
    assert isinstance(a.extent, int)
    return a.extent


def _window(out: np.ndarray, place: tuple[Affine, ...], axes: tuple[Axis, ...]) -> np.ndarray:
    """The elements of `out` that a box covers, over the box's axes."""
    lead = out.ndim - len(place)
    start = part(out, lead, [slice(f.base, None) for f in place])
    steps = [
        sum(f.coefficient(a) * s for f, s in zip(place, out.strides[lead:], strict=True))
        for a in axes
    ]
    shape = (*out.shape[:lead], *(_extent(a) for a in axes))
    return strided(start, shape, (*out.strides[:lead], *steps), writeable=True)


@dataclass(frozen=True, slots=True)
class _Frame:
    """Steps with some axes restricted to ranges; what does not depend on those is the parent's."""

    run_of: _Run
    shared: frozenset[p.Plan]
    ranges: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    parent: _Frame | None = None
    done: dict[p.Plan, np.ndarray] = field(default_factory=dict)

    def within(self, ranges: Mapping[int, tuple[int, int]]) -> _Frame:
        return _Frame(self.run_of, self.shared, {**self.ranges, **ranges}, self)

    def run(self, step: p.Plan, keep: bool = False) -> np.ndarray:
        if self.parent is not None and all(
            self.ranges.get(a) == self.parent.ranges.get(a) for a in step.axes
        ):
            return self.parent.run(step, keep=True)
        found = self.done.get(step)
        if found is None:
            found = self.computed(step)
            if keep or step in self.shared:
                self.done[step] = found
        return found

    def computed(self, step: p.Plan) -> np.ndarray:
        domain = self.run_of.domain
        match step:
            case p.Fixed(scope, _, value, dtype):
                if dtype == INDEX:
                    return np.full((1,) * len(scope), value, np.int64)
                c = domain.const(value, dtype)
                return c.reshape(c.shape + (1,) * len(scope))
            case p.Ramp():
                return self.ramp(step.form, step.scope)
            case p.View():
                return self.view(step)
            case p.Pick():
                return self.pick(step)
            case p.Wrap(_, _, element, bound, masks):
                i = self.run(element).astype(np.int64)
                bad = (i < -bound) | (i >= bound)
                if bad.any():
                    self.check(bad, masks, f"an index is not in [-{bound}, {bound})")
                    i = np.where(bad, 0, i)
                return np.where(i < 0, i + bound, i)
            case p.Call(_, _, fn, args, kinds, dtype):
                values = [self.run(a) for a in args]
                if kinds[0] == INDEX and fn != "cast":
                    return _integers(fn, values)
                return domain.apply(fn, values, kinds, dtype)
            case p.Choose(_, _, guard, yes, no):
                return np.where(self.run(guard), self.run(yes), self.run(no))
            case p.Fold():
                return self.fold(step)
            case p.Contract(scope, _, inner, factors, dtype):
                wide = domain.wide(dtype)
                values = [_converted(domain, self.run(f), dtype, wide) for f in factors]
                rank, summed = len(inner), len(inner) - len(scope)
                out = contract(domain, wide, values, rank, summed)
                out = out.reshape(out.shape[: out.ndim - summed])
                return _converted(domain, out, wide, dtype)

    def range(self, position: int, scope: tuple[Axis, ...]) -> tuple[int, int]:
        return self.ranges.get(position) or (0, _extent(scope[position]))

    def ramp(self, form: p.Form, scope: tuple[Axis, ...]) -> np.ndarray:
        out = np.full((1,) * len(scope), form.base, np.int64)
        for position, c in form.terms:
            low, high = self.range(position, scope)
            shape = [1] * len(scope)
            shape[position] = high - low
            out = out + (np.arange(low, high, dtype=np.int64) * c).reshape(shape)
        return out

    def check(self, bad: np.ndarray, masks: tuple[p.Mask, ...], message: str) -> None:
        """Raise IndexError where an element that counts is bad."""
        for m in masks:
            guard = self.run(m.guard)
            bad = bad & (guard if m.holds else ~guard)
        if bad.any():
            raise IndexError(message)

    def placed(
        self,
        source: np.ndarray,
        forms: Sequence[p.Form],
        scope: tuple[Axis, ...],
        axes: list[int],
    ) -> np.ndarray:
        """A view of `source`, whose last dimensions are at `forms`, over the positions `axes`."""
        lead = source.ndim - len(forms)
        steps = dict.fromkeys(axes, 0)
        start: list[slice] = []
        for form, stride in zip(forms, source.strides[lead:], strict=True):
            base = form.base
            for position, c in form.terms:
                steps[position] += c * stride
                base += c * self.range(position, scope)[0]
            start.append(slice(base, None))
        used = {q for f in forms for q, _ in f.terms}
        lengths = [
            high - low if q in used else 1 for q in axes for low, high in (self.range(q, scope),)
        ]
        shape = (*source.shape[:lead], *lengths)
        strides = (*source.strides[:lead], *steps.values())
        return strided(part(source, lead, start), shape, strides)

    def view(self, step: p.View) -> np.ndarray:
        forms: Sequence[p.Form] = step.forms
        if step.margin is not None:
            edge = step.margin
            source = self.run_of.padding(step, self.run(edge.fill))
            if edge.masks:
                self.check_margin(step, edge)
            forms = [
                p.Form(f.base - first, f.terms) for f, first in zip(forms, edge.first, strict=True)
            ]
        else:
            source = self.run_of.tensor(step.tensor)
            if step.flat:
                lead = source.shape[: source.ndim - step.tensor.rank]
                source = np.ascontiguousarray(source).reshape(*lead, -1)
        return self.placed(source, forms, step.scope, list(range(len(step.scope))))

    def check_margin(self, step: p.View, edge: p.Margin) -> None:
        outside = np.zeros((1,) * len(step.scope), np.bool_)
        for form, low, high in zip(step.forms, edge.low, edge.high, strict=True):
            i = self.ramp(form, step.scope)
            outside = outside | (i < low) | (i > high)
        if outside.any():
            name, shape = step.tensor.name, list(step.tensor.shape)
            self.check(outside, edge.masks, f"a load of {name} is out of its shape {shape}")

    def pick(self, step: p.Pick) -> np.ndarray:
        source = self.run_of.tensor(step.tensor)
        shape = step.tensor.shape
        lead = source.ndim - len(shape)
        axes = sorted({q for _, f in step.forms for q, _ in f.terms})
        chosen = sorted(step.axes.difference(axes))
        indices: list[np.ndarray] = []
        for d, inner in step.picked:
            n = shape[d]
            assert isinstance(n, int)
            i = self.run(inner)
            bad = (i < 0) | (i >= n)
            if bad.any():
                message = f"a load of {step.tensor.name} is out of its shape {list(shape)}"
                self.check(bad, step.masks, message)
                i = np.clip(i, 0, max(n - 1, 0))
            indices.append(i.reshape([i.shape[q] for q in chosen]))
        if 0 in shape:  # nothing to load, and nothing that counts
            full = [
                high - low for q in sorted(step.axes) for low, high in (self.range(q, step.scope),)
            ]
            out = np.zeros((*source.shape[:lead], *full), source.dtype)
        else:
            dims = [d for d, _ in step.picked] + [d for d, _ in step.forms]
            moved = source.transpose(*range(lead), *(lead + d for d in dims))
            forms = [f for _, f in step.forms]
            table = self.table(moved, lead + len(indices), forms, step.scope, axes)
            where: list[slice | np.ndarray] = [slice(None)] * lead
            out = table[(*where, *indices)]
            order = [*chosen, *axes]
            back = sorted(range(len(order)), key=order.__getitem__)
            out = out.transpose(*range(lead), *(lead + q for q in back))
        ordered = dict(zip(sorted(step.axes), out.shape[lead:], strict=True))
        return out.reshape(*out.shape[:lead], *(ordered.get(q, 1) for q in range(len(step.scope))))

    def table(
        self,
        source: np.ndarray,
        lead: int,
        forms: list[p.Form],
        scope: tuple[Axis, ...],
        axes: list[int],
    ) -> np.ndarray:
        """`source` with its dimensions from `lead` on at `forms`."""
        if all(
            f.base == 0 and f.terms == ((q, 1),) and self.range(q, scope) == (0, n)
            for f, q, n in zip(forms, axes, source.shape[lead:], strict=False)
        ) and len(forms) == len(axes):
            return source
        return self.placed(source, forms, scope, axes)

    def fold(self, step: p.Fold) -> np.ndarray:
        domain = self.run_of.domain
        outer, inner = len(step.scope), len(step.body.scope)
        wide = domain.wide(step.dtype)
        out = self.folded(step, wide, list(range(outer, inner)))
        out = out.reshape(out.shape[: out.ndim - (inner - outer)])
        return _converted(domain, out, wide, step.dtype)

    def folded(self, step: p.Fold, wide: DType, left: list[int]) -> np.ndarray:
        """The reduction over this frame's ranges, in `wide`; the axes `left` may be taken apart."""
        domain, scope = self.run_of.domain, step.body.scope
        outer = len(step.scope)
        length = {q: high - low for q in range(len(scope)) for low, high in (self.range(q, scope),)}
        depends = [q for q in sorted(step.body.axes) if length[q] > 1]
        terms = math.prod(length[q] for q in depends if q >= outer)
        kept = math.prod(length[q] for q in depends if q < outer)
        loops = [q for q in left if q in depends and (q in step.sliding or terms <= FEW_TERMS)]
        looped = math.prod(length[q] for q in loops)
        if loops and looped <= MOST_LOOPS and terms * kept >= looped * MANY_ELEMENTS:
            return self.one_by_one(step, wide, loops[0], 1, [q for q in left if q != loops[0]])
        size = 8 * math.prod(domain.lead(step.dtype))
        if terms * kept * size > MOST_BYTES and not self.free(step, wide):
            q = max(depends, key=lambda a: (a < outer, length[a]))
            pieces = min(length[q], -(-terms * kept * size // MOST_BYTES))
            if pieces > 1:
                return self.one_by_one(step, wide, q, -(-length[q] // pieces), left)
        x = _converted(domain, self.run(step.body), step.dtype, wide)
        lead = x.ndim - len(scope)
        full = [length[q] if q >= outer else x.shape[lead + q] for q in range(len(scope))]
        if step.fn in ("sum", "prod"):
            x = np.broadcast_to(x, (*x.shape[:lead], *full))
        over = tuple(q - len(scope) for q in range(outer, len(scope)))
        return domain.reduce(step.fn, x, over, wide)

    def free(self, step: p.Fold, wide: DType) -> bool:
        """Is the body a view that numpy reduces as it is?"""
        plain = isinstance(step.body, p.View) and wide == step.dtype
        return plain and not self.run_of.domain.lead(wide)

    def one_by_one(
        self, step: p.Fold, wide: DType, position: int, width: int, left: list[int]
    ) -> np.ndarray:
        """`folded` in pieces of `width` on an axis, combined or (an outer axis) put together."""
        domain = self.run_of.domain
        low, high = self.range(position, step.body.scope)
        total: np.ndarray | None = None
        pieces: list[np.ndarray] = []
        for i in range(low, high, width):
            frame = self.within({position: (i, min(i + width, high))})
            piece = frame.folded(step, wide, left)
            if position < len(step.scope):
                pieces.append(piece)
            elif total is None:
                total = piece
            else:
                total = domain.apply(FOLDS[step.fn], (total, piece), (wide, wide), wide)
        if total is not None:
            return total
        return np.concatenate(pieces, axis=position - len(step.body.scope))


def _converted(domain: Domain, x: np.ndarray, kind: DType, dtype: DType) -> np.ndarray:
    return x if kind == dtype else domain.apply("cast", (x,), (kind,), dtype)


def _integers(fn: str, values: list[np.ndarray]) -> np.ndarray:
    """Index arithmetic on int64 arrays."""
    if fn == "floordiv":
        return np.asarray(values[0] // values[1])
    operation = function(fn).ints
    assert operation is not None
    out = values[0]
    if len(values) == 1:
        return operation(out)
    for v in values[1:]:
        out = operation(out, v)
    return out


__all__ = ["BOOL", "Reals", "bind", "evaluate", "evaluate_all"]
