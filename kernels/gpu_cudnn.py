"""Convolutions by the vendor's library (cuDNN, through torch): a candidate beside our own.

What is made of the sums (a bias, what is added, relu) is a kernel behind it, as behind products:
torch's forms of cuDNN that do it, too, write a tensor of their own, which would be copied. Sums
are of float32, and rounded to the result's type once more than ours where that has 16 bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from superopt.kernels import contraction as co
from superopt.kernels.element import ranged_read
from superopt.kernels.gpu_convolution import Convolution
from superopt.kernels.gpu_library import NAME, Call, behind, plain
from superopt.kernels.gpu_products import turned_of
from superopt.kernels.layout import Layout, lying
from superopt.kernels.option import Option
from superopt.kernels.problem import Choice, Problem
from superopt.kernels.transform import reduction
from superopt.te import index as ix
from superopt.te.affine import affine
from superopt.te.dtype import BF16, F16, F32
from superopt.te.expr import Tensor
from superopt.te.node import Apply, Axis, Expr, Load, Reduce

MOST = 3  # dimensions of a picture


@dataclass(frozen=True, slots=True)
class Found:
    """A sum of products that is a convolution. a, b: what is read, the constant second; axes: of
    results, as the library writes them; order: of the constant's dimensions, as it reads them."""

    sums: Reduce
    a: Load
    b: Load
    axes: tuple[Axis, ...]
    order: tuple[int, ...]
    how: Convolution


def convolved(p: Problem) -> Iterator[Option]:
    """The options, where the library computes this convolution."""
    if convolution_of(p) is not None:
        yield Option.of(NAME)
        yield Option.of(NAME, tried=1)


def convolution_of(p: Problem, tried: bool = False) -> Found | None:
    """The convolution of a picture, which lies with channels last, with a constant. None where it
    is none of the library's: that pads both sides alike, and computes all of a result."""
    c, found = co.contraction(p.tensor, p.constants, 1), reduction(p.tensor)
    if c is None or found is None or c.b.tensor not in p.constants or c.a.tensor in p.constants:
        return None
    a, b, rank = c.a, c.b, c.a.tensor.rank
    kinds = a.dtype == b.dtype and a.dtype in (F16, BF16, F32)
    if (
        not kinds
        or not 3 <= rank <= 2 + MOST
        or b.tensor.rank != rank
        or not _multiplied(found, a, b)
    ):
        return None
    match a.index[0], [i for i in b.index if isinstance(i, Axis) and i in p.tensor.axes]:
        case Axis() as count, [columns]:
            pass
        case _:
            return None
    each = [_along(i, p.tensor.axes, found.axes) for i in a.index[2:]]
    sides = [x for x in each if x is not None]
    axes = (count, *(x.result for x in sides), columns)
    over = [x for x in found.axes if x not in [y.window for y in sides]]
    if len(sides) < len(each) or len(over) != 1 or set(axes) != set(p.tensor.axes):
        return None
    (k,) = over
    order = (columns, *(x.window for x in sides), k)
    shape = dict(zip(b.index, b.tensor.shape, strict=True))
    if len(set(axes)) < rank or any(shape.get(x) != x.extent for x in order):
        return None
    groups = _groups(a, k, columns)
    lies = lying(p.layouts.get(a.tensor), rank)
    if not groups or not _last(lies, a.tensor) or a.tensor.shape[0] != count.extent:
        return None
    border = [lies.border(d) for d in range(2, rank)]
    inner = [n for n in a.tensor.shape[1:] if isinstance(n, int)]
    size = [n + 2 * m for n, m in zip(inner[1:], border, strict=True)]
    pad = [x.pad - m for x, m in zip(sides, border, strict=True)]
    extents = [co.extent(x.result) for x in sides]
    window = [co.extent(x.window) for x in sides]
    for n, m, x, wide, wanted in zip(size, pad, sides, window, extents, strict=True):
        if m < 0 or (n + 2 * m - x.dilation * (wide - 1) - 1) // x.step + 1 != wanted:
            return None
    given = (co.extent(count), inner[0], *size)
    how = Convolution(
        given, (co.extent(columns), *extents), tuple(window), tuple(x.step for x in sides),
        tuple(pad), tuple(x.dilation for x in sides), groups, tried,
    )  # fmt: skip
    at = {i: d for d, i in enumerate(b.index)}
    return Found(found, a, b, axes, tuple(at[x] for x in order), how)


@dataclass(frozen=True, slots=True)
class _Side:
    """Where a picture is read along a dimension: result * step + window * dilation - pad."""

    result: Axis
    window: Axis
    step: int
    dilation: int
    pad: int


def _along(i: Expr, results: Sequence[Axis], over: Sequence[Axis]) -> _Side | None:
    form = affine(ix.as_index(i))
    if form is None or len(form.axes) != 2:
        return None
    (one, step), (other, dilation) = sorted(form.terms, key=lambda x: x[0] not in results)
    if one not in results or other not in over or min(step, dilation) < 1 or form.base > 0:
        return None
    return _Side(one, other, step, dilation, -form.base)


def _multiplied(found: Reduce, a: Load, b: Load) -> bool:
    """Are both all that is multiplied, the first one with zeros beyond its edges?"""
    match found.body:
        case Apply("mul", (x, y)):
            some = [plain(e) for e in (x, y)]
        case _:
            return False
    for n, e in enumerate(some):
        match e:
            case Apply("select", (guard, Load() as inside, zero)) if inside == a:
                if ranged_read(guard, inside, zero):
                    some[n] = inside
    return set(some) == {a, b}


def _groups(a: Load, k: Axis, columns: Axis) -> int:
    """How many groups of channels there are, of which each makes its part of the result; 0 where
    channels are read in another order."""
    channels, each, made = a.tensor.shape[1], co.extent(k), co.extent(columns)
    assert isinstance(channels, int)
    groups = channels // each
    if not groups or channels % each or made % groups:
        return 0
    first = columns // (made // groups) * each if groups > 1 else ix.as_index(0)
    return groups if not ix.polynomial(ix.as_index(a.index[1] - first - k)) else 0


def _last(lies: Layout, t: Tensor) -> bool:
    """Does it lie with channels innermost, whole, and zeros around its sides only?"""
    order = [x.axis for x in lies.parts if t.shape[x.axis] != 1]
    wanted = [d for d in (0, *range(2, t.rank), 1) if t.shape[d] != 1]
    whole = all(x.block == 1 and (x.axis > 1 or not x.border) for x in lies.parts)
    return whole and order == wanted


def convolution(p: Problem, option: Option) -> Choice | None:
    """The convolution, and what is made of it. None where it is none of the library's."""
    f = convolution_of(p, "tried" in dict(option.knobs))
    if f is None:
        return None
    shape = [n for n in f.b.tensor.shape if isinstance(n, int)]
    turned = turned_of(f.b.tensor, f.order, tuple(shape[d] for d in f.order))

    def make(array: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(array.reshape(shape).transpose(f.order))

    # What is read, for those who ask; the library computes it.
    read = Load(turned, tuple(f.b.index[d] for d in f.order), f.b.dtype)
    body = Reduce("sum", f.sums.axes, Apply("mul", (f.a, read), f.a.dtype), f.a.dtype)

    call, made = Call((f.a.tensor, turned), str(f.how)), {turned: (f.b.tensor, make)}
    return behind(p, f.axes, f.sums, body, call, made, option)
