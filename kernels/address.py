"""Where elements lie in a buffer, as seen from a tile: what hangs on loops, what on the place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from superopt.kernels.text import Value
from superopt.kernels.walk import axes_of, loads
from superopt.te import index as ix
from superopt.te.expr import Tensor
from superopt.te.node import Axis, Expr

Moving = tuple[tuple[tuple[Expr, ...], int], ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a tile: the tile axes' values (of the last that of lane 0), and the lanes; `guard`
    says which of these may be read."""

    at: Mapping[Axis, int] = field(default_factory=dict)
    lane: Axis | None = None
    lanes: int = 0
    guard: Value | None = None


@dataclass(frozen=True, slots=True)
class Address:
    """The part that hangs on loops, the constant, and the step from a lane to the next."""

    moving: Moving
    constant: int
    step: int


def address(buffer: Tensor, index: Sequence[Expr], p: Place) -> Address | None:
    """An element's place; None where it is no sum of a tile's axes and of what hangs on loops."""
    place: dict[tuple[Expr, ...], int] = {}
    stride = 1
    for i, n in zip(reversed(index), reversed(buffer.shape), strict=True):
        for atoms, c in ix.polynomial(i).items():
            place[atoms] = place.get(atoms, 0) + c * stride
        assert isinstance(n, int)
        stride *= n
    moving: list[tuple[tuple[Expr, ...], int]] = []
    constant, step = 0, 0
    for atoms, c in place.items():
        match atoms:
            case ():
                constant += c
            case (Axis() as a,) if a in p.at:
                constant += c * p.at[a]
                step = c if a == p.lane and p.lanes else step
            case _ if c:
                if set(p.at) & set().union(*map(axes_of, atoms)):
                    return None
                moving.append((atoms, c))
    return Address(tuple(moving), constant, step)


def flat_index(buffer: Tensor, index: Sequence[Expr]) -> Expr:
    flat = ix.as_index(0)
    for i, n in zip(index, buffer.shape, strict=True):
        flat = ix.as_index(flat * n + i)
    return flat


def spread(flat: Expr, p: Place) -> tuple[Expr, tuple[int, ...]] | None:
    """A place, and how far from it each lane's element is, where that is known and less than two
    vectors; None where it is not."""
    assert p.lane is not None
    if next(loads(flat), None) is not None:
        return None  # an element says where
    env: dict[Expr, Expr] = {a: ix.as_index(k) for a, k in p.at.items()}
    some = []
    for k in range(p.lanes):
        at = ix.substitute(flat, {**env, p.lane: ix.as_index(p.at[p.lane] + k)})
        some.append(dict(ix.polynomial(at)))
    fixed = [at.pop((), 0) for at in some]
    if any(at != some[0] for at in some):
        return None
    low = min(fixed)
    order = tuple(n - low for n in fixed)
    if max(order) >= 2 * p.lanes:
        return None
    n = fixed.index(low)
    begin = ix.substitute(flat, {**env, p.lane: ix.as_index(p.at[p.lane] + n)})
    return ix.as_index(begin), order
