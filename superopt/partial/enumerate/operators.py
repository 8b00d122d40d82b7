"""The operators that mutants consist of, with attributes suggested by the program's sizes and
windows.

Each is a function of a program's hints and of operands. It yields names and constructors of values,
which raise InferError if the operands do not fit. One name denotes the same operator at all sizes,
with other numbers. Weights are constants at run time, so operators on weights alone cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod
from typing import Any

from superopt.ir import graph
from superopt.ops import OPS
from superopt.partial.correct.restrict import static_shape
from superopt.partial.enumerate.axis_moves import AxisMove, apply_move
from superopt.partial.enumerate.hints import ProgramHints
from superopt.partial.enumerate.nodes import (
    apply_moves,
    concat,
    pad_end,
    reshape,
    slice_axis,
    transpose_matrix,
)
from superopt.partial.enumerate.weight_operators import (
    NamedCandidates,
    block_diagonal,
    carry_bias,
    compose_kernels,
    dense_kernel,
    fold_kernel,
    pad_kernel,
    scale_kernel,
    vector_length,
)


def move_axis(s: ProgramHints, x: graph.Value) -> NamedCandidates:
    """Move a part of one axis of an activation to another axis, or back."""
    shape = static_shape(x)
    if len(shape) < 3:
        return
    axes = range(len(shape))
    for axis, to, (label, f), phases, back in product(
        axes, axes, s.factors, (True, False), (True, False)
    ):
        if axis == to or shape[axis] % f or (1 in (axis, to) and {axis, to} & {0}):
            continue
        name = f"{label} {'phases' if phases else 'blocks'} of {axis} to {to}"
        move = AxisMove(axis, to, f, phases)
        if not back:
            yield name, partial(apply_move, x, move)
        elif phases:  # blocks go back as they came
            yield f"{name} back", partial(apply_move, x, move, True)


def move_both_sides(s: ProgramHints, x: graph.Value) -> NamedCandidates:
    """Move both sides of an image at once: space to batch or to channels, and back."""
    shape = static_shape(x)
    if len(shape) != 4:
        return
    for (label, f), phases, to in product(s.factors, (True, False), (0, 1)):
        name = f"{label} {'phases' if phases else 'blocks'} of both to {to}"
        if not (shape[2] % f or shape[3] % f):
            yield (
                name,
                partial(apply_moves, x, AxisMove(2, to, f, phases), AxisMove(3, to, f, phases)),
            )
        if not shape[to] % (f * f):
            moves = AxisMove(to, 3, f, False), AxisMove(to, 2, f, False)
            yield f"{name} back", partial(apply_moves, x, *moves, back=phases)


def slice_part(s: ProgramHints, x: graph.Value) -> NamedCandidates:
    """Slice a part of an axis that the program splits, or a prefix of the wanted size."""
    shape = static_shape(x)
    for axis, sizes in s.axis_parts:
        if axis < len(shape) and shape[axis] == sum(sizes):
            for k in range(len(sizes)):
                name = f"part {k} of {axis} of {len(sizes)}"
                yield name, partial(slice_axis, x, axis, sum(sizes[:k]), sizes[k])
    if len(shape) == len(s.output_shape):
        for axis, (n, wanted) in enumerate(zip(shape, s.output_shape, strict=True)):
            if n > wanted:
                yield f"first of {axis}", partial(slice_axis, x, axis, 0, wanted)


def concat_operands(s: ProgramHints, *operands: graph.Value) -> NamedCandidates:
    """Concatenate along an axis. Smaller kernels are centred in the largest."""
    shapes = [static_shape(v) for v in operands]
    if len({len(x) for x in shapes}) > 1 or len(set(operands)) < len(operands):
        return
    rank = len(shapes[0])
    has_image = any(map(_is_activation, operands))
    if sum(len({x[d] for x in shapes}) > 1 for d in range(2 if rank > 2 else rank)) > 1:
        return
    for axis in range(rank if has_image or rank < 3 else 2):
        wide = list(operands)
        if rank > 2 and not has_image:
            wide = [_pad_around(v, [max(c) for c in zip(*(x[2:] for x in shapes), strict=True)])
                    for v in operands]  # fmt: skip
        rest = {(*x[:axis], *x[axis + 1 :]) for x in map(static_shape, wide)}
        if len(rest) == 1:
            yield f"along {axis}", partial(graph.node, OPS["Concat"], wide, axis=axis)


def _is_activation(v: graph.Value) -> bool:
    """True if a leaf of the value is an activation."""
    leaves = [v] if isinstance(v, graph.Input) else [
        x for n in graph.nodes([v]) for x in n.inputs if isinstance(x, graph.Input)
    ]  # fmt: skip
    return any(is_activation_name(x.name) for x in leaves)


def is_activation_name(name: str) -> bool:
    """True if an input of this name is an activation: a model input or computed from one."""
    return name[0] in "xyz"


def _pad_around(v: graph.Value, sides: Sequence[int]) -> graph.Value:
    """Pad with zeros on all sides, keeping the centre."""
    own = static_shape(v)[2:]
    front = [n // 2 - k // 2 for k, n in zip(own, sides, strict=True)]
    behind = [n - k - f for k, n, f in zip(own, sides, front, strict=True)]
    if not any((*front, *behind)):
        return v
    return graph.node(OPS["Pad"], [v], pads=(0, 0, *front, 0, 0, *behind))


def transpose_axes(s: ProgramHints, x: graph.Value) -> NamedCandidates:
    """Transpose matrices, and heads of them."""
    rank = len(static_shape(x))
    for a, b in ((rank - 2, rank - 1), (rank - 3, rank - 2)):
        if a >= 0 and rank < 5:
            perm = list(range(rank))
            perm[a], perm[b] = b, a
            yield f"{a} and {b}", partial(graph.node, OPS["Transpose"], [x], perm=tuple(perm))


def reshape_operand(s: ProgramHints, x: graph.Value) -> NamedCandidates:
    """Reshape to a matrix (1x1 kernels, images by pixel, batches of rows), and to the wanted
    shape."""
    shape = static_shape(x)
    if len(shape) > 2 and prod(shape[2:]) == 1:
        yield "without sides", partial(reshape, x, shape[:2])
    if len(shape) == 4 and prod(shape[2:]) > 1:
        yield "sides as one", partial(reshape, x, (*shape[:2], prod(shape[2:])))
    if len(shape) == 3:
        yield "rows", partial(reshape, x, (prod(shape[:2]), shape[2]))
    if shape != s.output_shape and prod(shape) == prod(s.output_shape):
        yield "as wanted", partial(reshape, x, s.output_shape)
    if (
        len(shape) == len(s.output_shape) - 1
        and len(s.output_shape) == 4
        and shape[:2] == (s.output_shape[0], s.output_shape[2])
    ):
        yield "in heads", partial(reshape, x, (*shape[:2], s.output_shape[1], s.output_shape[3]))


def stack_matrices(s: ProgramHints, *some: graph.Value) -> NamedCandidates:
    """Stack matrices as a batch, padding rows with zeros."""
    shapes = [static_shape(v) for v in some]
    if {len(x) for x in shapes} != {2} or len({x[1] for x in shapes}) > 1:
        return
    rows = max(x[0] for x in shapes)
    wide = [
        v if x[0] == rows else graph.node(OPS["Pad"], [v], pads=(0, 0, rows - x[0], 0))
        for v, x in zip(some, shapes, strict=True)
    ]
    each = [graph.node(OPS["Reshape"], [v], shape=(1, rows, shapes[0][1])) for v in wide]
    yield "", partial(graph.node, OPS["Concat"], each, axis=0)


def unstack_matrices(s: ProgramHints, x: graph.Value) -> NamedCandidates:
    """Concatenate the matrices of a batch by rows, without padding rows."""
    shape = static_shape(x)
    for axis, sizes in s.axis_parts:
        if axis == 0 and len(shape) == 3 and (shape[0], shape[1]) == (len(sizes), max(sizes)):
            rows = []
            for k, n in enumerate(sizes):
                one = graph.node(OPS["Reshape"], [slice_axis(x, 0, k, 1)], shape=shape[1:])
                rows.append(one if n == shape[1] else slice_axis(one, 0, 0, n))
            yield "", partial(graph.node, OPS["Concat"], rows, axis=0)


def convolve(s: ProgramHints, x: graph.Value, w: graph.Value) -> NamedCandidates:
    """Convolve with the strides, dilations and pads of the program's windows, with same padding,
    and without padding. Channels determine the groups."""
    image, kernel = static_shape(x), static_shape(w)
    if len(image) != len(kernel) or len(image) < 3 or image[1] % kernel[1]:
        return
    group = image[1] // kernel[1]
    if kernel[0] % group:
        return
    one = (1,) * (len(kernel) - 2)
    ours = [w for w in s.windows if len(w[0]) == len(one)]
    seen = set()
    for strides, dilations in dict.fromkeys([*((t, d) for t, d, _ in ours), (one, one)]):
        reach = [(k - 1) * d for k, d in zip(kernel[2:], dilations, strict=True)]
        around = [p for t, d, p in ours if (t, d) == (strides, dilations)]
        around += [tuple(r // 2 for r in reach) + tuple(r - r // 2 for r in reach)]
        around += [tuple(r - r // 2 for r in reach) + tuple(r // 2 for r in reach)]
        for pads in (*around, (0,) * (2 * len(one))):
            attrs: dict[str, Any] = {"strides": strides, "dilations": dilations, "pads": pads}
            if tuple(attrs.values()) not in seen:
                seen.add(tuple(attrs.values()))
                make = partial(graph.node, OPS["Conv"], [x, w], group=group, **attrs)
                yield _attrs_text(attrs), make


def _attrs_text(attrs: dict[str, Any]) -> str:
    return " ".join(f"{k} {','.join(map(str, v))}" for k, v in attrs.items())


def multiply(s: ProgramHints, a: graph.Value, b: graph.Value) -> NamedCandidates:
    if min(len(static_shape(a)), len(static_shape(b))) < 2:
        return
    yield "", partial(graph.node, OPS["MatMul"], [a, b])
    if s.has_transposed_weight:
        yield "of the transposed", partial(graph.node, OPS["MatMul"], [a, transpose_matrix(b)])


def add(s: ProgramHints, a: graph.Value, b: graph.Value) -> NamedCandidates:
    if static_shape(a) == static_shape(b) and a is not b:
        yield "", partial(graph.node, OPS["Add"], [a, b])


def add_bias(s: ProgramHints, x: graph.Value, b: graph.Value) -> NamedCandidates:
    """Add a bias for each channel of an image, or column of a matrix."""
    shape, n = static_shape(x), vector_length(b)
    axis = 1 if s.windows else len(shape) - 1
    if axis < len(shape) and shape[axis] == n:
        around = (1,) * axis + (n,) + (1,) * (len(shape) - axis - 1)
        yield "", partial(graph.node, OPS["Add"], [x, reshape(b, around)])


def concat_with_gap(s: ProgramHints, x: graph.Value, y: graph.Value) -> NamedCandidates:
    """Concatenate two images with so many zeros between that no window crosses."""
    shape = static_shape(x)
    for axis, gap in s.gaps:
        if shape == static_shape(y) and len(shape) == len(s.output_shape):
            yield f"along {axis}", partial(concat, [pad_end(x, axis, gap), y], axis)


def remove_gap(s: ProgramHints, x: graph.Value) -> NamedCandidates:
    """Drop the gap between two images; return them as a batch."""
    shape = static_shape(x)
    for axis, gap in s.gaps:
        if len(shape) == len(s.output_shape) and shape[axis] > gap and (shape[axis] - gap) % 2 == 0:
            n = (shape[axis] - gap) // 2
            some = [slice_axis(x, axis, begin, n) for begin in (0, n + gap)]
            yield f"along {axis}", partial(concat, some, 0)


@dataclass(frozen=True, slots=True)
class Operator:
    """weight_operands: which operands are weights. ordered: the operand order matters.
    is_applicable: whether a program can use it. is_product: it sums over an operand axis.
    is_permutation: it returns the elements of its operand."""

    name: str
    weight_operands: tuple[bool, ...]
    apply: Callable[..., NamedCandidates]
    is_applicable: Callable[[ProgramHints], object] = lambda s: True
    ordered: bool = True
    is_product: bool = False
    is_permutation: bool = False

    @property
    def is_weight_only(self) -> bool:
        return all(self.weight_operands)


def _has_several_products(s: ProgramHints) -> bool:
    return s.products > 1


def _has_windows(s: ProgramHints) -> bool:
    return bool(s.windows)


def _has_transposes(s: ProgramHints) -> bool:
    return s.transposes > 0


def _has_bias(s: ProgramHints) -> bool:
    return s.has_bias


def _has_gaps(s: ProgramHints) -> bool:
    return s.products == 2 and bool(s.gaps)


ACTIVATION, WEIGHT = False, True
OPERATORS = (
    Operator("move", (ACTIVATION,), move_axis, _has_windows, is_permutation=True),
    Operator("move both sides", (ACTIVATION,), move_both_sides, _has_windows, is_permutation=True),
    Operator("cut", (ACTIVATION,), slice_part),
    Operator("join", (ACTIVATION, ACTIVATION), concat_operands, _has_several_products),
    Operator("join", (WEIGHT, WEIGHT), concat_operands, _has_several_products),
    Operator("join", (WEIGHT, WEIGHT, WEIGHT), concat_operands, lambda s: s.weights > 2),
    Operator("enlarge", (WEIGHT,), pad_kernel, lambda s: s.is_strided),
    Operator("fold", (WEIGHT,), fold_kernel, lambda s: s.is_strided),
    Operator("dense", (WEIGHT,), dense_kernel, lambda s: s.has_groups),
    Operator("diagonal", (WEIGHT, WEIGHT), block_diagonal, _has_several_products),
    Operator("turn", (ACTIVATION,), transpose_axes, _has_transposes, is_permutation=True),
    Operator("turn", (WEIGHT,), transpose_axes, _has_transposes, is_permutation=True),
    Operator("shape", (ACTIVATION,), reshape_operand, is_permutation=True),
    Operator("shape", (WEIGHT,), reshape_operand, is_permutation=True),
    Operator("stack", (ACTIVATION, ACTIVATION), stack_matrices, _has_several_products),
    Operator("stack", (WEIGHT, WEIGHT), stack_matrices, _has_several_products),
    Operator("unstack", (ACTIVATION,), unstack_matrices, _has_several_products),
    Operator("compose", (WEIGHT, WEIGHT), compose_kernels, lambda s: s.product_depth > 1),
    Operator("scale", (WEIGHT, WEIGHT), scale_kernel),
    Operator("convolve", (ACTIVATION, WEIGHT), convolve, _has_windows, is_product=True),
    Operator("multiply", (ACTIVATION, WEIGHT), multiply, is_product=True),
    Operator("multiply", (WEIGHT, ACTIVATION), multiply, is_product=True),
    Operator("add", (ACTIVATION, ACTIVATION), add, _has_several_products, ordered=False),
    Operator(
        "multiply",
        (ACTIVATION, ACTIVATION),
        multiply,
        lambda s: s.multiplies_computed,
        is_product=True,
    ),
    Operator("carry", (WEIGHT, WEIGHT), carry_bias, _has_bias),
    Operator("shift", (ACTIVATION, WEIGHT), add_bias, _has_bias),
    Operator("space", (ACTIVATION, ACTIVATION), concat_with_gap, _has_gaps),
    Operator("unspace", (ACTIVATION,), remove_gap, _has_gaps),
)
