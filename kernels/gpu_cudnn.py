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
    if c is None or found is None or not _given(p, c) or not _multiplied(found, c.a, c.b):
        return None
    a, b = c.a, c.b
    each = [_along(i, p.tensor.axes, found.axes) for i in a.index[2:]]
    sides = [x for x in each if x is not None]
    results, windows = [x.result for x in sides], [x.window for x in sides]
    rest = sorted((x for x in p.tensor.axes if x not in results), key=lambda x: x in b.index)
    over = [x for x in found.axes if x not in windows]
    if (len(rest), len(over), len(sides)) != (2, 1, len(each)):
        return None
    (count, columns), (k,) = rest, over
    order = (columns, *windows, k)
    whole = dict(zip(b.index, b.tensor.shape, strict=True))
    if any(whole.get(x) != x.extent for x in order) or not _of_each(a, count):
        return None
    groups, lies = _groups(a, k, columns), lying(p.layouts.get(a.tensor), a.tensor.rank)
    if not groups or not _last(lies, a.tensor):
        return None
    channels, *inner = (n for n in a.tensor.shape[1:] if isinstance(n, int))
    borders = [lies.border(2 + d) for d in range(len(inner))]
    size = [n + 2 * m for n, m in zip(inner, borders, strict=True)]
    pad = [x.pad - m for x, m in zip(sides, borders, strict=True)]
    if not all(x.fills(n, m) for x, n, m in zip(sides, size, pad, strict=True)):
        return None
    how = Convolution(
        (co.extent(count), channels, *size), tuple(map(co.extent, (columns, *results))),
        tuple(map(co.extent, windows)), tuple(x.step for x in sides), tuple(pad),
        tuple(x.dilation for x in sides), groups, tried,
    )  # fmt: skip
    at = {i: d for d, i in enumerate(b.index)}
    return Found(found, a, b, (count, *results, columns), tuple(at[x] for x in order), how)


def _given(p: Problem, c: co.Contraction) -> bool:
    """Are both of a type and of ranks that the library takes, and is only the second constant?"""
    fixed = [x.tensor in p.constants for x in (c.a, c.b)]
    kinds = c.a.dtype == c.b.dtype and c.a.dtype in (F16, BF16, F32)
    rank = c.a.tensor.rank
    return fixed == [False, True] and kinds and c.b.tensor.rank == rank and 3 <= rank <= 2 + MOST


@dataclass(frozen=True, slots=True)
class _Side:
    """Where a picture is read along a dimension: result * step + window * dilation - pad."""

    result: Axis
    window: Axis
    step: int
    dilation: int
    pad: int

    def fills(self, extent: int, pad: int) -> bool:
        """Is the result all that there is, of so many elements with zeros on both sides?"""
        last = extent + 2 * pad - self.dilation * (co.extent(self.window) - 1) - 1
        return pad >= 0 and last // self.step + 1 == self.result.extent


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


def _of_each(a: Load, count: Axis) -> bool:
    """Is a result's picture of the picture of its number? Of one, none may be said."""
    first = a.index[0] == count or (count.extent == 1 and a.index[0] == ix.as_index(0))
    return first and a.tensor.shape[0] == count.extent


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
