"""Convolutions by cuDNN (through torch) as candidates beside generated kernels.

What follows the sums (bias, residual, relu) is a kernel of its own, as for products: torch's fused
cuDNN operators write a tensor of their own, which would have to be copied. Sums are in float32, and
rounded to a 16-bit result once more than in generated kernels.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from superopt.kernels.algorithms import contraction
from superopt.kernels.algorithms.algorithm import Algorithm, expect_no_gain
from superopt.kernels.algorithms.gpu.gemm import transposed_constant
from superopt.kernels.algorithms.gpu.vendor_gemm import (
    VENDOR,
    VendorCall,
    choice_with_epilogue,
    recognise_vendor_gemm,
    without_widening,
)
from superopt.kernels.algorithms.problem import Choice, Problem, remember_match
from superopt.kernels.loops.element import is_range_guard
from superopt.kernels.loops.layout import Layout, effective_layout
from superopt.kernels.loops.loop_transforms import reduction
from superopt.kernels.loops.option import Option
from superopt.kernels.vendor.cudnn import Convolution
from superopt.te.analysis.affine import affine
from superopt.te.expr import index
from superopt.te.expr.dtype import BF16, F16, F32
from superopt.te.expr.node import Apply, Axis, Expr, Load, Reduce
from superopt.te.expr.tensor import Tensor

MAX_SPATIAL_DIMENSIONS = 3  # spatial dimensions


@dataclass(frozen=True, slots=True)
class MatchedConvolution:
    """A sum of products that is a convolution. a, b: operands, the constant second; axes: of the
    result, as cuDNN writes it; order: of the constant's dimensions, as cuDNN reads it."""

    sum_expr: Reduce
    a: Load
    b: Load
    axes: tuple[Axis, ...]
    order: tuple[int, ...]
    convolution: Convolution


@remember_match
def recognise_vendor_convolution(p: Problem) -> MatchedConvolution | None:
    """Match a convolution that cuDNN computes, and that is no product for cuBLAS."""
    return match_convolution(p) if recognise_vendor_gemm(p) is None else None


def convolution_options(p: Problem, f: MatchedConvolution) -> list[Option]:
    """Return the options: cuDNN's algorithm by its heuristics, and by its measurements."""
    return [Option.make(VENDOR), Option.make(VENDOR, autotuned=1)]


def match_convolution(p: Problem) -> MatchedConvolution | None:
    """Match a convolution of a channels-last image with a constant. None if cuDNN does not have it:
    it pads both sides equally, and computes whole results."""
    c, found = contraction.match_contraction(p.tensor, p.constants, 1), reduction(p.tensor)
    if (
        c is None
        or found is None
        or not _has_supported_operands(p, c)
        or not _is_plain_product(found, c.a, c.b)
    ):
        return None
    a, b = c.a, c.b
    lies = effective_layout(p.layouts.get(a.tensor), a.tensor.rank)
    free = [x for x in p.tensor.axes if x not in b.index]
    each = {x.axis: _window_dimension(a.index[x.axis], free, found.axes) for x in lies.parts}
    along = {d: x for d, x in each.items() if x is not None}
    sides = list(along.values())
    results, windows = [x.result for x in sides], [x.window for x in sides]
    first = [d for d in each if d not in along]  # images, and channels
    match (
        [x for x in free if x not in results], [x for x in p.tensor.axes if x not in free],
        [x for x in found.axes if x not in windows], first,
    ):  # fmt: skip
        case [count], [columns], [k], [_, channel]:
            pass
        case _:
            return None
    order = (columns, *windows, k)
    whole = dict(zip(b.index, b.tensor.shape, strict=True))
    if any(whole.get(x) != x.extent for x in order) or not _maps_batch(a, first[0], count):
        return None
    groups = _group_count(a, channel, k, columns)
    if not groups or not _is_channels_last(lies, a.tensor, (first[0], *along, channel), along):
        return None
    channels = a.tensor.shape[channel]
    inner = [n for d in along if isinstance(n := a.tensor.shape[d], int)]
    borders = [lies.border(d) for d in along]
    size = [n + 2 * m for n, m in zip(inner, borders, strict=True)]
    pad = [x.pad - m for x, m in zip(sides, borders, strict=True)]
    if not all(x.covers_result(n, m) for x, n, m in zip(sides, size, pad, strict=True)):
        return None
    assert isinstance(channels, int)
    how = Convolution(
        (count.size, channels, *size), tuple(a.size for a in (columns, *results)),
        tuple(a.size for a in windows), tuple(x.step for x in sides), tuple(pad),
        tuple(x.dilation for x in sides), groups,
    )  # fmt: skip
    at = {i: d for d, i in enumerate(b.index)}
    return MatchedConvolution(
        found, a, b, (count, *results, columns), tuple(at[x] for x in order), how
    )


def _has_supported_operands(p: Problem, c: contraction.Contraction) -> bool:
    """True if dtypes and ranks are supported, and only the second operand is constant."""
    fixed = [x.tensor in p.constants for x in (c.a, c.b)]
    kinds = c.a.dtype == c.b.dtype and c.a.dtype in (F16, BF16, F32)
    rank = c.a.tensor.rank
    return (
        fixed == [False, True]
        and kinds
        and c.b.tensor.rank == rank
        and 3 <= rank <= 2 + MAX_SPATIAL_DIMENSIONS
    )


@dataclass(frozen=True, slots=True)
class _WindowDimension:
    """Where an image is read along a dimension: result * step + window * dilation - pad."""

    result: Axis
    window: Axis
    step: int
    dilation: int
    pad: int

    def covers_result(self, extent: int, pad: int) -> bool:
        """True if the result has the full extent, for `extent` elements with `pad` zeros on both
        sides."""
        last = extent + 2 * pad - self.dilation * (self.window.size - 1) - 1
        return pad >= 0 and last // self.step + 1 == self.result.extent


def _window_dimension(
    i: Expr, results: Sequence[Axis], reduction_axes: Sequence[Axis]
) -> _WindowDimension | None:
    form = affine(index.as_index(i))
    if form is None or len(form.axes) != 2:
        return None
    (one, step), (other, dilation) = sorted(form.terms, key=lambda x: x[0] not in results)
    if (
        one not in results
        or other not in reduction_axes
        or min(step, dilation) < 1
        or form.base > 0
    ):
        return None
    return _WindowDimension(one, other, step, dilation, -form.base)


def _is_plain_product(reduction_expr: Reduce, a: Load, b: Load) -> bool:
    """True if the sum's term is exactly a * b, with zeros beyond a's edges."""
    match reduction_expr.body:
        case Apply("mul", (x, y)):
            some = [without_widening(e) for e in (x, y)]
        case _:
            return False
    for n, e in enumerate(some):
        match e:
            case Apply("select", (guard, Load() as inside, zero)) if inside == a:
                if is_range_guard(guard, inside, zero):
                    some[n] = inside
    return set(some) == {a, b}


def _maps_batch(a: Load, d: int, count: Axis) -> bool:
    """True if result image n reads input image n; a batch of one may have index 0."""
    first = a.index[d] == count or (count.extent == 1 and a.index[d] == index.as_index(0))
    return first and a.tensor.shape[d] == count.extent


def _group_count(a: Load, d: int, k: Axis, columns: Axis) -> int:
    """Return the number of channel groups; 0 if channels are read in another order."""
    channels, each, made = a.tensor.shape[d], k.size, columns.size
    assert isinstance(channels, int)
    groups = channels // each
    if not groups or channels % each or made % groups:
        return 0
    first = columns // (made // groups) * each if groups > 1 else index.as_index(0)
    return groups if not index.polynomial(index.as_index(a.index[d] - first - k)) else 0


def _is_channels_last(
    lies: Layout, t: Tensor, order: Sequence[int], sides: Collection[int]
) -> bool:
    """True if `t` lies in this order of dimensions, unblocked, with borders only around spatial
    ones. Dimensions of extent 1 may lie anywhere."""
    found = [x.axis for x in lies.parts if t.shape[x.axis] != 1]
    whole = all(x.block == 1 and (x.axis in sides or not x.border) for x in lies.parts)
    return whole and found == [d for d in order if t.shape[d] != 1]


def schedule_vendor_convolution(p: Problem, f: MatchedConvolution, option: Option) -> Choice:
    """Return the choice of a cuDNN option: the convolution, and its epilogue."""
    shape = [n for n in f.b.tensor.shape if isinstance(n, int)]
    turned = transposed_constant(f.b.tensor, f.order, tuple(shape[d] for d in f.order))

    def make(array: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(array.reshape(shape).transpose(f.order))

    # the body only records what is read; cuDNN computes it
    read = Load(turned, tuple(f.b.index[d] for d in f.order), f.b.dtype)
    body = Reduce("sum", f.sum_expr.axes, Apply("mul", (f.a, read), f.a.dtype), f.a.dtype)

    convolution = replace(f.convolution, autotune="autotuned" in dict(option.knobs))
    call, made = VendorCall((f.a.tensor, turned), str(convolution)), {turned: (f.b.tensor, make)}
    return choice_with_epilogue(p, f.axes, f.sum_expr, body, call, made, option)


VENDOR_CONVOLUTION = Algorithm(
    (VENDOR,), "convolution by cuDNN", recognise_vendor_convolution, convolution_options,
    schedule_vendor_convolution, expect_no_gain, uses_vendor_library=True, replaces_sums=True,
)  # fmt: skip
