"""Grouped convolutions on a GPU, with an axis of groups and one within a group, so that tensor
cores multiply each group's matrices.

    y[c, h] = sum(x[c // d * e + k, h + r] * b[c, k, r] for k < e, r)
=>  y[g * md + o, h] = sum(x[g * me + k, h + r] * b'[g * md + o, k, r] for k < me, r)

Groups of few channels are merged m at a time, with zeros in b' between different groups: for 4
channels each this is four times the products, in blocks that tensor cores take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from superopt.kernels.algorithms import contraction
from superopt.kernels.algorithms.algorithm import Algorithm
from superopt.kernels.algorithms.gpu.gemm import product_choice
from superopt.kernels.algorithms.gpu.gemm_cost_model import rank_options
from superopt.kernels.algorithms.gpu.matrix_product import MatrixProduct, recognise_gemm
from superopt.kernels.algorithms.problem import Choice, Problem, remember_match
from superopt.kernels.loops.layout import Layout, Part, ScatteredLayout, effective_layout
from superopt.kernels.loops.loop_transforms import reduction
from superopt.kernels.loops.option import Option
from superopt.kernels.loops.substitution import scatter_layout
from superopt.kernels.triton.dot_limits import MIN_DOT_EXTENT
from superopt.te.analysis.inline import substitute_axes
from superopt.te.expr import index as te_index
from superopt.te.expr.node import Apply, Axis, Const, Expr, Load, Reduce
from superopt.te.expr.tensor import Tensor

MIN_GROUP_PRODUCTS = 16  # per input element of a group: fewer do not justify blocks of 16
MAX_MERGED_GROUPS = 8  # at a time
UNLIMITED_VECTOR = 1 << 30  # see match_contraction


@dataclass(frozen=True, slots=True)
class GroupedProblem:
    """The problem with an axis of groups in its result; the result's layout; and the constants made
    for it."""

    problem: Problem
    layout: ScatteredLayout
    derived_constants: Mapping[Tensor, tuple[Tensor, Callable[[np.ndarray], np.ndarray]]]


@dataclass(frozen=True, slots=True)
class _Groups:
    """channels: the axis of the result; outputs_per_group, inputs_per_group: channels; k: the
    reduction axis over these; channel_dimension: of `a`."""

    channels: Axis
    outputs_per_group: int
    inputs_per_group: int
    k: Axis
    channel_dimension: int

    @property
    def merged_groups(self) -> int:
        """The number of groups merged: the fewest that fill a block."""
        groups, least = (
            self.channels.size // self.outputs_per_group,
            min(self.outputs_per_group, self.inputs_per_group),
        )
        some = [m for m in range(1, MAX_MERGED_GROUPS + 1) if groups % m == 0]
        return next((m for m in some if m * least >= MIN_DOT_EXTENT), some[-1])


@remember_match
def match_grouped(p: Problem) -> GroupedProblem | None:
    """Match a grouped convolution; None if it is none, or its groups have too few channels."""
    c, found = (
        contraction.match_contraction(p.tensor, p.constants, UNLIMITED_VECTOR),
        reduction(p.tensor),
    )
    of = None if c is None or c.b_axes or found is None else _find_groups(c, found)
    if (
        c is None
        or of is None
        or found is None
        or of.outputs_per_group * of.inputs_per_group < MIN_GROUP_PRODUCTS
    ):
        return None
    m = of.merged_groups
    if m > 1 and (c.b.tensor not in p.constants or not _indexes_each_channel(c.b, of)):
        return None
    t, at = p.tensor, p.tensor.axes.index(of.channels)
    size = m * of.outputs_per_group
    names = {a.name for a in (*t.axes, *found.axes)}
    g = Axis(_fresh("group", names), of.channels.size // size)
    o = Axis(_fresh("o", names), size)
    k = of.k if m == 1 else Axis(_fresh("k", names), m * of.inputs_per_group)
    channel = te_index.as_index(g * size + o)
    made = {}
    wide = c.b
    if m > 1:
        wide, make = _merged_constant(c.b, of, k)
        made = {wide.tensor: (c.b.tensor, make)}
    read = list(c.a.index)
    read[of.channel_dimension] = te_index.as_index(g * (m * of.inputs_per_group) + k)
    change = {c.a: Load(c.a.tensor, tuple(read), c.a.dtype), c.b: wide}
    over = tuple(k if a == of.k else a for a in found.axes)
    axes = (*t.axes[:at], g, o, *t.axes[at + 1 :])
    assert t.body is not None
    body = substitute_axes(_replace_loads(t.body, found, change, over), {of.channels: channel})
    root = Tensor(t.name, t.dtype, tuple(a.size for a in axes), axes, body)
    layout = p.layouts.get(t)
    index = tuple(channel if a == of.channels else a for a in t.axes)
    lies = scatter_layout(t, layout, axes, index)
    own = {(root if x is t else x): y for x, y in p.layouts.items()}
    own[root] = _split_axis_layout(effective_layout(layout, t.rank), at)
    constants = {*p.constants, *made}
    return GroupedProblem(replace(p, tensor=root, layouts=own, constants=constants), lies, made)


def _find_groups(c: contraction.Contraction, reduction_expr: Reduce) -> _Groups | None:
    for at, i in enumerate(c.a.index):
        for a in c.batch_axes:
            for k in reduction_expr.axes:
                size = _group_divisor(i, a)
                each = k.size
                if size < 2 or a.size % size:
                    continue
                if not te_index.polynomial(te_index.as_index(i - a // size * each - k)):
                    others = [x for n, x in enumerate(c.a.index) if n != at]
                    if not any(
                        contraction._dependent_axes(x, UNLIMITED_VECTOR) & {a, k} for x in others
                    ):
                        return _Groups(a, size, each, k, at)
    return None


def _group_divisor(e: Expr, a: Axis) -> int:
    """Return the divisor of an axis in an index; 0 if there is none."""
    match e:
        case Apply("floordiv", (x, Const(n))) if x == a:
            return int(n)
        case Apply(_, args):
            return max((_group_divisor(x, a) for x in args), default=0)
    return 0


def _indexes_each_channel(b: Load, groups: _Groups) -> bool:
    """True if the constant is indexed by channel and by term."""
    return groups.channels in b.index and groups.k in b.index


def _merged_constant(
    b: Load, groups: _Groups, k: Axis
) -> tuple[Load, Callable[[np.ndarray], np.ndarray]]:
    """Return the constant with terms for all merged groups, and the function that makes it."""
    at, term = b.index.index(groups.channels), b.index.index(groups.k)
    shape = [n for n in b.tensor.shape if isinstance(n, int)]
    m = k.size // groups.inputs_per_group
    after = tuple(k.size if d == term else n for d, n in enumerate(shape))

    def make(array: np.ndarray) -> np.ndarray:
        given = np.moveaxis(array.reshape(shape), (at, term), (0, 1))
        out = np.zeros((given.shape[0], m, *given.shape[1:]), array.dtype)
        channels = np.arange(given.shape[0])
        out[channels, channels // groups.outputs_per_group % m] = given
        joined = out.reshape(given.shape[0], m * groups.inputs_per_group, *given.shape[2:])
        return np.ascontiguousarray(np.moveaxis(joined, (0, 1), (at, term)))

    wide = Tensor(f"{b.tensor.name}_groups", b.tensor.dtype, after)
    index = tuple(k if d == term else i for d, i in enumerate(b.index))
    return Load(wide, index, b.dtype), make


def _replace_loads(
    e: Expr, reduction_expr: Reduce, change: Mapping[Load, Load], axes: tuple[Axis, ...]
) -> Expr:
    match e:
        case Reduce(fn, _, body, dtype) if e == reduction_expr:
            return Reduce(fn, axes, _replace_loads(body, reduction_expr, change, axes), dtype)
        case Load() if e in change:
            return change[e]
        case Apply(fn, args, dtype):
            return Apply(
                fn, tuple(_replace_loads(a, reduction_expr, change, axes) for a in args), dtype
            )
    return e


def _split_axis_layout(lies: Layout, axis: int) -> Layout:
    """Return the layout with `axis` split in two."""
    out: list[Part] = []
    for x in lies.parts:
        n = x.axis + (x.axis > axis)
        out += [Part(n), Part(n + 1)] if x.axis == axis else [Part(n)]
    return Layout(tuple(out))


def _fresh(stem: str, names: set[str]) -> str:
    while stem in names:
        stem += "_"
    names.add(stem)
    return stem


@remember_match
def recognise_grouped_gemm(p: Problem) -> tuple[GroupedProblem, MatrixProduct] | None:
    """Match a grouped convolution whose groups are matrix products for tensor cores."""
    groups = match_grouped(p)
    m = None if groups is None else recognise_gemm(groups.problem)
    return None if groups is None or m is None else (groups, m)


def grouped_options(p: Problem, found: tuple[GroupedProblem, MatrixProduct]) -> Iterator[Option]:
    """Yield options by estimated time."""
    yield from rank_options(found[1])


def schedule_grouped(
    p: Problem, found: tuple[GroupedProblem, MatrixProduct], option: Option
) -> Choice:
    """Return the choice of an option."""
    groups, m = found
    how = product_choice(groups.problem, m, option)
    constants = {**groups.derived_constants, **how.derived_constants}
    return replace(how, layout=groups.layout, derived_constants=constants)


GROUPED_GEMM = Algorithm(
    ("gemm", "split_k_gemm"), "grouped convolution: a GEMM for each group, or for several",
    recognise_grouped_gemm, grouped_options, schedule_grouped, exclusive=True,
)  # fmt: skip
