"""Contractions (sums of products): which operand is which.

    y[m, n] = sum(a[m, k] * b[k, n] for k)        a matrix product, or a convolution

b is usually a constant.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod

from superopt.kernels.loops.layout import Layout, ScatteredLayout
from superopt.kernels.loops.loop_transforms import reduction
from superopt.te.analysis import affine
from superopt.te.analysis.walk import index_axes, is_window_load, loads
from superopt.te.expr.node import Apply, Axis, Const, Expr, Load, Reduce
from superopt.te.expr.symbolic_int import hint
from superopt.te.expr.tensor import Tensor

MIN_REUSE_ROWS = 4  # from so many rows on, packing b pays
MAX_VECTOR_ELEMENTS = 16  # elements of the longest vector


@dataclass(frozen=True, slots=True)
class Contraction:
    """A sum of products a * b. a_axes, b_axes: axes of the result that only a, or only b, depends
    on; batch_axes: those that both depend on (groups, batches)."""

    a: Load
    b: Load
    a_axes: tuple[Axis, ...]
    b_axes: tuple[Axis, ...]
    batch_axes: tuple[Axis, ...]


def match_contraction(
    t: Tensor,
    constants: Collection[Tensor],
    vector: int = MAX_VECTOR_ELEMENTS,
    of_integers: bool = False,
) -> Contraction | None:
    """Match the sum of products that `t` is or contains; None if there is none. vector: number of
    neighbours in the result that read the same element of a, where groups are multiples of it.
    of_integers: the sum is of these, which algorithms with other sums than these must not match;
    operands may have the same zero point for all elements."""
    found = reduction(t)
    if found is None or found.fn != "sum" or found.dtype.is_float == of_integers:
        return None
    match found.body:
        case Apply("mul", (x, y)):
            some = [[e for e in loads(f) if e.index or not of_integers] for f in (x, y)]
        case _:
            return None
    if any(len(ls) != 1 for ls in some):
        return None
    a, b = some[0][0], some[1][0]
    alike = (a.tensor in constants) == (b.tensor in constants)
    in_a, in_b = _index_axes(a, vector), _index_axes(b, vector)
    # batch axes are not window positions: attention heads may be adjacent
    slid = [is_window_load(set(t.axes) - (in_a & in_b), found.axes, e) for e in (a, b)]
    if slid[0] != slid[1] and alike:  # windows slide over a
        turned = slid[1]
    else:
        turned = alike and _is_contiguous_along(t, a) and not _is_contiguous_along(t, b)
    if turned or (a.tensor in constants and b.tensor not in constants):
        a, b, in_a, in_b = b, a, in_b, in_a
    of_a = tuple(x for x in t.axes if x in in_a and x not in in_b)
    of_b = tuple(x for x in t.axes if x in in_b and x not in in_a)
    return Contraction(a, b, of_a, of_b, tuple(x for x in t.axes if x in in_a and x in in_b))


def _index_axes(e: Load, vector: int) -> set[Axis]:
    """Return the axes that an operand's index depends on."""
    return set[Axis]().union(*(_dependent_axes(i, vector) for i in e.index))


def _dependent_axes(e: Expr, vector: int) -> set[Axis]:
    """Return the axes that an index depends on. An axis that only selects a block of at least a
    vector does not count."""
    match e:
        case Apply("floordiv", (Axis(), Const(n))) if int(n) % vector == 0:
            return set()
        case Axis():
            return {e}
        case Apply(_, args) | Load(_, args):
            return set[Axis]().union(*(_dependent_axes(a, vector) for a in args))
    return index_axes(e)


def _is_contiguous_along(t: Tensor, e: Load) -> bool:
    """True if the last axis of `t` runs along the last dimension of the operand."""
    return bool(e.index) and bool(t.axes) and t.axes[-1] in index_axes(e.index[-1])


def buffer_load(e: Load, layouts: Mapping[Tensor, Layout | ScatteredLayout]) -> Load:
    """Return the load with its buffer's index."""
    layout = layouts.get(e.tensor)
    if not isinstance(layout, Layout):
        return e
    inside = Tensor(e.tensor.name, e.dtype, layout.shape(e.tensor.sizes))
    return Load(inside, layout.buffer_index(e.index), e.dtype)


def axis_stride(e: Load, axis: Axis) -> int | None:
    """Return the row-major distance of neighbours along `axis`, in elements, of a symbolic tensor
    at the example sizes; None if it varies."""
    step, size = 0, 1
    for i, n in zip(reversed(e.index), reversed(e.tensor.sizes), strict=True):
        form = affine.affine(i)
        if form is None:
            return None
        step += form.coefficient(axis) * size
        size *= hint(n)
    return step


def element_count(t: Tensor) -> int:
    """Return the number of elements of a tensor, of a symbolic one at the example sizes."""
    return prod(map(hint, t.sizes))


@dataclass(frozen=True, slots=True)
class InputFactor:
    """A factor of a product, over free indices of the tensor that it loads."""

    axes: tuple[Axis, ...]
    body: Expr


def input_factor(reduction_expr: Reduce, load: Load, kept: Collection[Axis] = ()) -> InputFactor:
    """Return the factor that loads an operand with its index as free axes, so that it can be read
    anywhere. kept: axes whose dimensions keep their indices."""
    axes = tuple(Axis(f"p{d}", n) for d, n in enumerate(load.tensor.shape))
    assert isinstance(reduction_expr.body, Apply)
    x = next(e for e in reduction_expr.body.args if load in loads(e))
    env = {
        i: x
        for i, x in zip(load.index, axes, strict=True)
        if not isinstance(i, Const) and index_axes(i).isdisjoint(kept)
    }
    return InputFactor(axes, _replace_indices(x, env))


def _replace_indices(e: Expr, env: Mapping[Expr, Expr]) -> Expr:
    """Return `e` with whole index expressions replaced."""
    if e in env:
        return env[e]
    match e:
        case Load(t, index, dtype):
            return Load(t, tuple(_replace_indices(i, env) for i in index), dtype)
        case Apply(fn, args, dtype):
            return Apply(fn, tuple(_replace_indices(a, env) for a in args), dtype)
    return e
