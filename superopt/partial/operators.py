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

from superopt.ir import graph as g
from superopt.ops import OPS
from superopt.partial.moves import Move, there
from superopt.partial.nodes import behind, both, cut_out, exchanged, joined_along, shaped_as
from superopt.partial.restrict import shape_of
from superopt.partial.scene import Scene
from superopt.partial.weights import (
    Named,
    carried,
    composed,
    dense,
    diagonal,
    enlarged,
    folded,
    length,
    scaled,
)


def moved(s: Scene, x: g.Value) -> Named:
    """Move a part of one axis of an activation to another axis, or back."""
    shape = shape_of(x)
    if len(shape) < 3:
        return
    axes = range(len(shape))
    for axis, to, (label, f), phases, back in product(
        axes, axes, s.factors, (True, False), (True, False)
    ):
        if axis == to or shape[axis] % f or (1 in (axis, to) and {axis, to} & {0}):
            continue
        name = f"{label} {'phases' if phases else 'blocks'} of {axis} to {to}"
        move = Move(axis, to, f, phases)
        if not back:
            yield name, partial(there, x, move)
        elif phases:  # blocks go back as they came
            yield f"{name} back", partial(there, x, move, True)


def moved_twice(s: Scene, x: g.Value) -> Named:
    """Move both sides of an image at once: space to batch or to channels, and back."""
    shape = shape_of(x)
    if len(shape) != 4:
        return
    for (label, f), phases, to in product(s.factors, (True, False), (0, 1)):
        name = f"{label} {'phases' if phases else 'blocks'} of both to {to}"
        if not (shape[2] % f or shape[3] % f):
            yield name, partial(both, x, Move(2, to, f, phases), Move(3, to, f, phases))
        if not shape[to] % (f * f):
            moves = Move(to, 3, f, False), Move(to, 2, f, False)
            yield f"{name} back", partial(both, x, *moves, back=phases)


def cut(s: Scene, x: g.Value) -> Named:
    """Slice a part of an axis that the program splits, or a prefix of the wanted size."""
    shape = shape_of(x)
    for axis, sizes in s.parts:
        if axis < len(shape) and shape[axis] == sum(sizes):
            for k in range(len(sizes)):
                name = f"part {k} of {axis} of {len(sizes)}"
                yield name, partial(cut_out, x, axis, sum(sizes[:k]), sizes[k])
    if len(shape) == len(s.out):
        for axis, (n, wanted) in enumerate(zip(shape, s.out, strict=True)):
            if n > wanted:
                yield f"first of {axis}", partial(cut_out, x, axis, 0, wanted)


def joined(s: Scene, *some: g.Value) -> Named:
    """Concatenate along an axis. Smaller kernels are centred in the largest."""
    shapes = [shape_of(v) for v in some]
    if len({len(x) for x in shapes}) > 1 or len(set(some)) < len(some):
        return
    rank = len(shapes[0])
    pictures = any(map(_batched, some))
    if sum(len({x[d] for x in shapes}) > 1 for d in range(2 if rank > 2 else rank)) > 1:
        return
    for axis in range(rank if pictures or rank < 3 else 2):
        wide = list(some)
        if rank > 2 and not pictures:
            wide = [_enlarged(v, [max(c) for c in zip(*(x[2:] for x in shapes), strict=True)])
                    for v in some]  # fmt: skip
        rest = {(*x[:axis], *x[axis + 1 :]) for x in map(shape_of, wide)}
        if len(rest) == 1:
            yield f"along {axis}", partial(g.node, OPS["Concat"], wide, axis=axis)


def _batched(v: g.Value) -> bool:
    """True if a leaf of the value is an activation."""
    leaves = [v] if isinstance(v, g.Input) else [
        x for n in g.nodes([v]) for x in n.inputs if isinstance(x, g.Input)
    ]  # fmt: skip
    return any(picture(x.name) for x in leaves)


def picture(name: str) -> bool:
    """True if an input of this name is an activation: a model input or computed from one."""
    return name[0] in "xyz"


def _enlarged(v: g.Value, sides: Sequence[int]) -> g.Value:
    """Pad with zeros on all sides, keeping the centre."""
    own = shape_of(v)[2:]
    front = [n // 2 - k // 2 for k, n in zip(own, sides, strict=True)]
    behind = [n - k - f for k, n, f in zip(own, sides, front, strict=True)]
    if not any((*front, *behind)):
        return v
    return g.node(OPS["Pad"], [v], pads=(0, 0, *front, 0, 0, *behind))


def turned(s: Scene, x: g.Value) -> Named:
    """Transpose matrices, and heads of them."""
    rank = len(shape_of(x))
    for a, b in ((rank - 2, rank - 1), (rank - 3, rank - 2)):
        if a >= 0 and rank < 5:
            perm = list(range(rank))
            perm[a], perm[b] = b, a
            yield f"{a} and {b}", partial(g.node, OPS["Transpose"], [x], perm=tuple(perm))


def shaped(s: Scene, x: g.Value) -> Named:
    """Reshape to a matrix (1x1 kernels, images by pixel, batches of rows), and to the wanted
    shape."""
    shape = shape_of(x)
    if len(shape) > 2 and prod(shape[2:]) == 1:
        yield "without sides", partial(shaped_as, x, shape[:2])
    if len(shape) == 4 and prod(shape[2:]) > 1:
        yield "sides as one", partial(shaped_as, x, (*shape[:2], prod(shape[2:])))
    if len(shape) == 3:
        yield "rows", partial(shaped_as, x, (prod(shape[:2]), shape[2]))
    if shape != s.out and prod(shape) == prod(s.out):
        yield "as wanted", partial(shaped_as, x, s.out)
    if len(shape) == len(s.out) - 1 and len(s.out) == 4 and shape[:2] == (s.out[0], s.out[2]):
        yield "in heads", partial(shaped_as, x, (*shape[:2], s.out[1], s.out[3]))


def stacked(s: Scene, *some: g.Value) -> Named:
    """Stack matrices as a batch, padding rows with zeros."""
    shapes = [shape_of(v) for v in some]
    if {len(x) for x in shapes} != {2} or len({x[1] for x in shapes}) > 1:
        return
    rows = max(x[0] for x in shapes)
    wide = [
        v if x[0] == rows else g.node(OPS["Pad"], [v], pads=(0, 0, rows - x[0], 0))
        for v, x in zip(some, shapes, strict=True)
    ]
    each = [g.node(OPS["Reshape"], [v], shape=(1, rows, shapes[0][1])) for v in wide]
    yield "", partial(g.node, OPS["Concat"], each, axis=0)


def apart(s: Scene, x: g.Value) -> Named:
    """Concatenate the matrices of a batch by rows, without padding rows."""
    shape = shape_of(x)
    for axis, sizes in s.parts:
        if axis == 0 and len(shape) == 3 and (shape[0], shape[1]) == (len(sizes), max(sizes)):
            rows = []
            for k, n in enumerate(sizes):
                one = g.node(OPS["Reshape"], [cut_out(x, 0, k, 1)], shape=shape[1:])
                rows.append(one if n == shape[1] else cut_out(one, 0, 0, n))
            yield "", partial(g.node, OPS["Concat"], rows, axis=0)


def convolved(s: Scene, x: g.Value, w: g.Value) -> Named:
    """Convolve with the strides, dilations and pads of the program's windows, with same padding,
    and without padding. Channels determine the groups."""
    image, kernel = shape_of(x), shape_of(w)
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
            how: dict[str, Any] = {"strides": strides, "dilations": dilations, "pads": pads}
            if tuple(how.values()) not in seen:
                seen.add(tuple(how.values()))
                yield _said(how), partial(g.node, OPS["Conv"], [x, w], group=group, **how)


def _said(how: dict[str, Any]) -> str:
    return " ".join(f"{k} {','.join(map(str, v))}" for k, v in how.items())


def multiplied(s: Scene, a: g.Value, b: g.Value) -> Named:
    if min(len(shape_of(a)), len(shape_of(b))) < 2:
        return
    yield "", partial(g.node, OPS["MatMul"], [a, b])
    if s.transposed:
        yield "of the transposed", partial(g.node, OPS["MatMul"], [a, exchanged(b)])


def added(s: Scene, a: g.Value, b: g.Value) -> Named:
    if shape_of(a) == shape_of(b) and a is not b:
        yield "", partial(g.node, OPS["Add"], [a, b])


def shifted(s: Scene, x: g.Value, b: g.Value) -> Named:
    """Add a bias for each channel of an image, or column of a matrix."""
    shape, n = shape_of(x), length(b)
    axis = 1 if s.windows else len(shape) - 1
    if axis < len(shape) and shape[axis] == n:
        around = (1,) * axis + (n,) + (1,) * (len(shape) - axis - 1)
        yield "", partial(g.node, OPS["Add"], [x, shaped_as(b, around)])


def spaced(s: Scene, x: g.Value, y: g.Value) -> Named:
    """Concatenate two images with so many zeros between that no window crosses."""
    shape = shape_of(x)
    for axis, gap in s.gaps:
        if shape == shape_of(y) and len(shape) == len(s.out):
            yield f"along {axis}", partial(joined_along, [behind(x, axis, gap), y], axis)


def unspaced(s: Scene, x: g.Value) -> Named:
    """Drop the gap between two images; return them as a batch."""
    shape = shape_of(x)
    for axis, gap in s.gaps:
        if len(shape) == len(s.out) and shape[axis] > gap and (shape[axis] - gap) % 2 == 0:
            n = (shape[axis] - gap) // 2
            some = [cut_out(x, axis, begin, n) for begin in (0, n + gap)]
            yield f"along {axis}", partial(joined_along, some, 0)


@dataclass(frozen=True, slots=True)
class Operator:
    """weight_operands: which operands are weights. ordered: the operand order matters.
    is_applicable: whether a program can use it. is_product: it sums over an operand axis.
    is_permutation: it returns the elements of its operand."""

    name: str
    kinds: tuple[bool, ...]
    made: Callable[..., Named]
    when: Callable[[Scene], object] = lambda s: True
    ordered: bool = True
    product: bool = False
    moves: bool = False

    @property
    def known(self) -> bool:
        return all(self.kinds)


def _several(s: Scene) -> bool:
    return s.products > 1


def _windows(s: Scene) -> bool:
    return bool(s.windows)


def _turns(s: Scene) -> bool:
    return s.turns > 0


def _biased(s: Scene) -> bool:
    return s.biased


def _gaps(s: Scene) -> bool:
    return s.products == 2 and bool(s.gaps)


X, W = False, True
OPERATORS = (
    Operator("move", (X,), moved, _windows, moves=True),
    Operator("move both sides", (X,), moved_twice, _windows, moves=True),
    Operator("cut", (X,), cut),
    Operator("join", (X, X), joined, _several),
    Operator("join", (W, W), joined, _several),
    Operator("join", (W, W, W), joined, lambda s: s.weights > 2),
    Operator("enlarge", (W,), enlarged, lambda s: s.strided),
    Operator("fold", (W,), folded, lambda s: s.strided),
    Operator("dense", (W,), dense, lambda s: s.groups),
    Operator("diagonal", (W, W), diagonal, _several),
    Operator("turn", (X,), turned, _turns, moves=True),
    Operator("turn", (W,), turned, _turns, moves=True),
    Operator("shape", (X,), shaped, moves=True),
    Operator("shape", (W,), shaped, moves=True),
    Operator("stack", (X, X), stacked, _several),
    Operator("stack", (W, W), stacked, _several),
    Operator("unstack", (X,), apart, _several),
    Operator("compose", (W, W), composed, lambda s: s.deep > 1),
    Operator("scale", (W, W), scaled),
    Operator("convolve", (X, W), convolved, _windows, product=True),
    Operator("multiply", (X, W), multiplied, product=True),
    Operator("multiply", (W, X), multiplied, product=True),
    Operator("add", (X, X), added, _several, ordered=False),
    Operator("multiply", (X, X), multiplied, lambda s: s.computed, product=True),
    Operator("carry", (W, W), carried, _biased),
    Operator("shift", (X, W), shifted, _biased),
    Operator("space", (X, X), spaced, _gaps),
    Operator("unspace", (X,), unspaced, _gaps),
)
