"""Fuse products of one operand with several constants horizontally into one product: queries, keys
and values of attention, the first convolutions of branches. Used on a GPU, where each launch has a
cost.

q[i, n] = f(sum(x[i, k] * a[k, n] for k), u[n])
v[i, n] = f(sum(x[i, k] * b[k, n] for k), w[n])   =>   one product with concat(a, b), concat(u, w)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from superopt.kernels.algorithms.contraction import match_contraction
from superopt.plan.rewrites.reductions.row_fusion import replace_tensors
from superopt.te.analysis.affine import rebuild
from superopt.te.analysis.inline import substitute_axes
from superopt.te.analysis.walk import index_axes
from superopt.te.expr import index as te_index
from superopt.te.expr.dtype import DType
from superopt.te.expr.node import Apply, Axis, Expr, Load, Reduce
from superopt.te.expr.tensor import Tensor

Constants = dict[Tensor, Callable[[], np.ndarray]]
COLUMN_AXIS = "column"


@dataclass(frozen=True, slots=True)
class _Member:
    """A product that may be fused. column_dim: the dimension of its result along which its
    constants vary. key: the product without these constants, and its shape. slots: the loads of
    these constants, each with the dimension that runs along the column axis."""

    t: Tensor
    column_dim: int
    key: object
    slots: tuple[tuple[Load, int], ...]

    @property
    def size(self) -> int:
        return self.t.sizes[self.column_dim]


def fuse_horizontally(
    current: Mapping[Tensor, Tensor], materialized: Collection[Tensor], constants: Constants
) -> dict[Tensor, Tensor]:
    """Return the definitions with such products fused; concatenated constants are added to
    `constants`. materialized: the tensors that must be in memory."""
    groups: dict[object, list[_Member]] = {}
    slots = _ConstantSlots()
    for t, now in current.items():
        member = None if t in materialized else _match_member(t, now, constants, slots)
        if member is not None:
            groups.setdefault(member.key, []).append(member)
    whole: dict[Tensor, tuple[Tensor, int, int]] = {}
    first: dict[Tensor, Tensor] = {}
    known = _ConcatenatedConstants(constants)
    for members in groups.values():
        if len(members) < 2:
            continue
        made = _fuse_members(members, current, known)
        first[members[0].t] = made
        begin = 0
        for m in members:
            whole[m.t] = made, m.column_dim, begin
            begin += m.size
    out: dict[Tensor, Tensor] = {}
    for t, now in current.items():
        new = first.get(t, now)
        if t in first or t not in whole:
            body = None if new.body is None else _redirect_loads(new.body, whole)
            key = new if t in first else t
            out[key] = (
                new if body == new.body else Tensor(new.name, new.dtype, new.shape, new.axes, body)
            )
    return out


class _ConstantSlots(dict[tuple[int, DType, tuple[object, ...]], Tensor]):
    """Placeholders for constants by number, element type, and shape without the column axis."""

    def slot(self, n: int, t: Tensor, d: int) -> Tensor:
        shape = (*t.shape[:d], 0, *t.shape[d + 1 :])
        return self.setdefault((n, t.dtype, shape), Tensor(f"slot{n}", t.dtype, shape))


def _match_member(
    t: Tensor, definition: Tensor, constants: Collection[Tensor], slots_of: _ConstantSlots
) -> _Member | None:
    c = match_contraction(definition, constants)
    if c is None or definition.body is None or len(c.b_axes) != 1:
        return None
    if c.b.tensor not in constants or c.a.tensor in constants:
        return None
    (column,) = c.b_axes
    env: dict[Axis, Expr] = {a: Axis(f"a{n}", a.extent) for n, a in enumerate(definition.axes)}
    env[column] = here = Axis(COLUMN_AXIS, 1 << 30)
    slots: list[tuple[Load, int]] = []
    form = _abstract_constants(
        substitute_axes(definition.body, env), here, constants, slots, slots_of
    )
    if form is None or not slots:
        return None
    at = definition.axes.index(column)
    rest = (*definition.shape[:at], *definition.shape[at + 1 :], definition.dtype)
    read = [x.tensor for x, _ in slots]
    same = tuple(read.index(x) for x in read)  # which slots are the same constant
    return _Member(t, at, (at, form, rest, same), tuple(slots))


def _abstract_constants(
    e: Expr, column: Axis, constants: Collection[Tensor], slots: list[tuple[Load, int]],
    slots_of: _ConstantSlots,
) -> Expr | None:  # fmt: skip
    """Return `e` with placeholders for the constants that vary along the column axis; None where
    anything else varies along it."""
    match e:
        case Load(t, index, dtype):
            along = [d for d, i in enumerate(index) if column in index_axes(i)]
            if not along:
                return e
            if t not in constants or len(along) > 1 or index[along[0]] != column:
                return None
            slots.append((e, along[0]))
            return Load(slots_of.slot(len(slots), t, along[0]), index, dtype)
        case Apply(fn, args, dtype):
            some = [_abstract_constants(a, column, constants, slots, slots_of) for a in args]
            found = tuple(a for a in some if a is not None)
            return Apply(fn, found, dtype) if len(found) == len(args) else None
        case Reduce(fn, axes, body, dtype):
            inner = _abstract_constants(body, column, constants, slots, slots_of)
            return None if inner is None else Reduce(fn, axes, inner, dtype)
    return None if column in index_axes(e) else e


def _fuse_members(
    members: Sequence[_Member],
    current: Mapping[Tensor, Tensor],
    concatenated: _ConcatenatedConstants,
) -> Tensor:
    """Return one product of all members, concatenated along the column axis."""
    now = current[members[0].t]
    at, total = members[0].column_dim, sum(m.size for m in members)
    column = Axis(now.axes[at].name, total)
    new: dict[Tensor, Tensor] = {}
    for n, (load, d) in enumerate(members[0].slots):
        new[load.tensor] = concatenated.constant([m.slots[n][0].tensor for m in members], d)
    axes = tuple(column if n == at else a for n, a in enumerate(now.axes))
    shape = tuple(a.extent for a in axes)
    assert now.body is not None
    body = replace_tensors(substitute_axes(now.body, {now.axes[at]: column}), new)
    return Tensor("beside", now.dtype, shape, axes, body)


class _ConcatenatedConstants(dict[tuple[int, tuple[Tensor, ...]], Tensor]):
    """Concatenated constants: one for all products that read the same constants, such as the steps
    of a recurrent network."""

    def __init__(self, constants: Constants) -> None:
        super().__init__()
        self.constants = constants

    def constant(self, tensors: Sequence[Tensor], d: int) -> Tensor:
        """Return the concatenation of `tensors` along dimension d."""
        key = d, tuple(tensors)
        if key not in self:
            first = tensors[0]
            total = sum(n for t in tensors if isinstance(n := t.shape[d], int))
            shape = (*first.shape[:d], total, *first.shape[d + 1 :])
            made = self[key] = Tensor(f"{first.name}_beside", first.dtype, shape)
            loads = tuple(self.constants[t] for t in tensors)
            shapes = tuple(tuple(n for n in t.shape if isinstance(n, int)) for t in tensors)
            self.constants[made] = ConcatenatedConstant(loads, shapes, d)
        return self[key]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class ConcatenatedConstant:
    """Returns constants of these shapes, concatenated along an axis."""

    loads: tuple[Callable[[], np.ndarray], ...]
    shapes: tuple[tuple[int, ...], ...]
    axis: int

    def __call__(self) -> np.ndarray:
        some = [x().reshape(shape) for x, shape in zip(self.loads, self.shapes, strict=True)]
        return np.concatenate(some, axis=self.axis)


def _redirect_loads(e: Expr, places: Mapping[Tensor, tuple[Tensor, int, int]]) -> Expr:
    """Return `e` with loads of a member as loads of the fused product."""
    match e:
        case Load(t, index, dtype):
            index = tuple(_redirect_loads(i, places) for i in index)
            if t not in places:
                return Load(t, index, dtype)
            made, at, begin = places[t]
            moved = te_index.as_index(index[at] + begin)
            return Load(made, (*index[:at], moved, *index[at + 1 :]), dtype)
        case Apply(fn, args, dtype):
            return rebuild(fn, tuple(_redirect_loads(a, places) for a in args), dtype)
        case Reduce(fn, axes, body, dtype):
            return Reduce(fn, axes, _redirect_loads(body, places), dtype)
    return e
