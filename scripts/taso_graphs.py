"""TASO's rules as graphs: the shapes of each side, and its operators as ONNX's."""

from __future__ import annotations

import itertools
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.taso import (
    ACTIVATIONS,
    ARITY,
    Form,
    IllFormed,
    Published,
    Sized,
    Term,
    Unknowns,
    number,
    numbers,
    plus,
)
from superopt.ir import graph
from superopt.ir.op import Attr
from superopt.ops import OPS
from superopt.te.expr.dtype import F32
from superopt.te.expr.tensor import TensorType

IMAGES = {"conv2d", "poolavg", "poolmax", "enlarge", "Cpool", "Iconv"}
POINTWISE = {"ewadd": "Add", "ewmul": "Mul", "smul": "Mul"}
UNARY = {"relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid"}
WIDEST = 7  # of a kernel, unless it is enlarged
MOST_GROUPS = 16  # ways to say which convolutions have two groups, as their weights may ask for


@dataclass(frozen=True, slots=True)
class Built:
    """A rule's sides over the same inputs."""

    left: graph.Graph
    right: graph.Graph


def build(rules: tuple[Published, ...], alike: bool = False) -> Built:
    """A graph for each side, with an output for each of `rules`, which share their names. Sizes
    differ where they may, or are alike where they may. IllFormed where there are no such shapes."""
    every = [t for r in rules for side in (r.left, r.right) for t in _terms(side)]
    convs = sum(t.op == "conv2d" for t in every)
    problem = IllFormed("")
    for rank in _ranks(every):
        for groups in sorted(itertools.product((1, 2), repeat=convs), key=sum)[:MOST_GROUPS]:
            try:
                return _built(rules, rank, groups, alike)
            except IllFormed as e:
                problem = e
    raise problem


def _ranks(every: list[Term]) -> tuple[int, ...]:
    """Of the operands: 4 where one is an image, what a concatenation says, or the first that can
    be."""
    said = {int(t.args[1].op) for t in every if t.op == "concat" and len(t.args) == 4}
    if said or any(t.op in IMAGES for t in every):
        return tuple(said or {4})
    return (2, 3, 4)


def _terms(t: Term) -> list[Term]:
    return [t, *(x for a in t.args for x in _terms(a))]


def _built(rules: tuple[Published, ...], rank: int, groups: tuple[int, ...], alike: bool) -> Built:
    every = [t for r in rules for side in (r.left, r.right) for t in _terms(side)]
    scalars = {t.args[1].op for t in every if t.op == "smul"}
    shapes = _Shapes(rank, scalars, groups)
    sides = []
    for r in rules:
        left, right = shapes.of(r.left), shapes.of(r.right)
        shapes.equal(left.dims, right.dims)
        sides.append((left, right))
    forms = [f for pair in sides for s in pair for x in _sized(s) for f in x.dims]
    forms += [f for pair in sides for s in pair for x in _sized(s) for f in x.cuts if f is not None]
    values = shapes.sizes.values(forms, alike)
    make = _Make(shapes, values)
    inputs = tuple(make.inputs.values())
    left_outs = tuple(make.value(left) for left, _ in sides)
    right_outs = tuple(make.value(right) for _, right in sides)
    return Built(graph.Graph(inputs, left_outs), graph.Graph(inputs, right_outs))


def _sized(s: Sized) -> list[Sized]:
    return [s, *(x for a in s.args for x in _sized(a))]


class _Shapes:
    """Follows terms with unknown sizes."""

    def __init__(self, rank: int, scalars: set[str], groups: tuple[int, ...]) -> None:
        self.rank, self.scalars = rank, scalars
        self.groups = list(groups)  # of the convolutions in the order in which they come
        self.sizes = Unknowns()
        self.names: dict[str, tuple[Form, ...]] = {}

    def equal(self, a: tuple[Form, ...], b: tuple[Form, ...]) -> None:
        if len(a) != len(b):
            raise IllFormed(f"ranks {len(a)} and {len(b)} differ")
        for x, y in zip(a, b, strict=True):
            self.sizes.equate(x, y)

    def fresh(self, rank: int) -> tuple[Form, ...]:
        return tuple(self.sizes.fresh() for _ in range(rank))

    def of(self, t: Term) -> Sized:
        if t.op not in ARITY:
            rank = 0 if t.op in self.scalars else self.rank
            if t.op not in self.names:
                self.names[t.op] = self.fresh(rank)
            dims = self.names[t.op]
            return Sized(t.op, (), (), dims, (None,) * len(dims))
        k = numbers(t.op, len(t.args))
        nums = tuple(int(a.op) for a in t.args[:k])
        if t.op in ("split_0", "split_1") and not nums:
            (inner,) = t.args
            if inner.op != "split":
                raise IllFormed(f"{t.op} of {inner.op}, which is no split")
            nums, t = (int(inner.args[0].op),), Term(t.op, inner.args[1:])
            k = 0
        args = tuple(self.of(a) for a in t.args[k:])
        if t.op == "conv2d":
            nums = (*nums, self.groups.pop(0))
        dims, cuts = self.result(t.op, nums, args)
        return Sized(t.op, nums, args, dims, cuts)

    def result(
        self, op: str, nums: tuple[int, ...], args: tuple[Sized, ...]
    ) -> tuple[tuple[Form, ...], tuple[Form | None, ...]]:
        """The sizes of an operator's result, and where it may be cut."""
        match op, args:
            case (("ewadd" | "ewmul"), (a, b)):
                self.equal(a.dims, b.dims)
                cuts = tuple(y if x is None else x for x, y in zip(a.cuts, b.cuts, strict=True))
                return a.dims, cuts
            case (("relu" | "tanh" | "sigmoid"), (a,)):
                return a.dims, a.cuts
            case "smul", (a, _):
                return a.dims, a.cuts
            case "transpose", (a,):
                if len(a.dims) != 2:
                    raise IllFormed(f"transpose of rank {len(a.dims)}")
                return a.dims[::-1], a.cuts[::-1]
            case "matmul", (a, b):
                self.equal(a.dims[:-2], b.dims[:-2])
                self.sizes.equate(a.dims[-1], b.dims[-2])
                return (*a.dims[:-1], b.dims[-1]), (*a.cuts[:-1], b.cuts[-1])
            case "conv2d", (a, w):
                for d in w.dims[2:]:
                    self.sizes.kernels.append((d, WIDEST))
                self.sizes.equate(a.dims[1], plus((), w.dims[1], nums[4]))
                of_group = self.sizes.fresh()
                self.sizes.equate(w.dims[0], plus((), of_group, nums[4]))
                self.sizes.whole.append(of_group)
                space = self.slid(a.dims[2:], w.dims[2:], nums[:2], nums[2])
                return (a.dims[0], w.dims[0], *space), (a.cuts[0], w.cuts[0], None, None)
            case (("poolavg" | "poolmax"), (a,)):
                kernel = (number(nums[0]), number(nums[1]))
                space = self.slid(a.dims[2:], kernel, nums[2:4], nums[4])
                return (*a.dims[:2], *space), (*a.cuts[:2], None, None)
            case "enlarge", (a,):
                for d, most in zip(a.dims[2:], nums, strict=True):
                    self.sizes.kernels.append((d, most))
                return (*a.dims[:2], *map(number, nums)), (*a.cuts[:2], None, None)
            case "concat", (a, b):
                return self.joined(nums[0], a, b)
            case (("split_0" | "split_1"), (a,)):
                return self.cut(nums[0], op == "split_1", a)
        if op in ("Cpool", "Iconv"):
            c = self.sizes.fresh()
            return (c, c, *map(number, nums)), (None,) * 4
        dims = (self.sizes.fresh(),) * 2 if op == "Imatmul" else self.fresh(self.rank)
        return dims, (None,) * len(dims)

    def slid(
        self, space: tuple[Form, ...], kernel: tuple[Form, ...], strides: tuple[int, ...], pad: int
    ) -> tuple[Form, ...]:
        """Where a window fits. Beyond stride 1, sizes that strides divide without a rest."""
        out = []
        for size, k, stride in zip(space, kernel, strides, strict=True):
            if stride == 1:
                out.append(plus(plus(size, k, -1), number(1)) if pad else size)
                continue
            n = self.sizes.fresh()
            fits = plus(plus((), n, stride), k) if pad else plus((), n, stride)
            self.sizes.equate(size, plus(fits, number(stride), -1) if pad else fits)
            out.append(n)
        return tuple(out)

    def joined(
        self, axis: int, a: Sized, b: Sized
    ) -> tuple[tuple[Form, ...], tuple[Form | None, ...]]:
        if axis >= len(a.dims) or len(a.dims) != len(b.dims):
            raise IllFormed(f"concat along axis {axis} of ranks {len(a.dims)} and {len(b.dims)}")
        for k, (x, y) in enumerate(zip(a.dims, b.dims, strict=True)):
            if k != axis:
                self.sizes.equate(x, y)
        dims = [*a.dims[:axis], plus(a.dims[axis], b.dims[axis]), *a.dims[axis + 1 :]]
        return tuple(dims), tuple(d if k == axis else a.cuts[k] for k, d in enumerate(a.dims))

    def cut(
        self, axis: int, second: bool, a: Sized
    ) -> tuple[tuple[Form, ...], tuple[Form | None, ...]]:
        first = a.cuts[axis] if axis < len(a.cuts) else None
        if first is None:
            raise IllFormed(f"nothing was joined along axis {axis} that could be split")
        part = plus(a.dims[axis], first, -1) if second else first
        dims = [part if k == axis else d for k, d in enumerate(a.dims)]
        return tuple(dims), tuple(None if k == axis else c for k, c in enumerate(a.cuts))


class _Make:
    """Makes values of terms, once their sizes are known."""

    def __init__(self, shapes: _Shapes, values: dict[int, int]) -> None:
        self.shapes, self.values = shapes, values
        self.inputs = {
            name: graph.Input(name, TensorType(F32, self.shape(dims)))
            for name, dims in shapes.names.items()
        }

    def shape(self, dims: tuple[Form, ...]) -> tuple[int, ...]:
        return tuple(self.shapes.sizes.known(d, self.values) for d in dims)

    def value(self, s: Sized) -> graph.Value:
        if s.op in self.inputs:
            return self.inputs[s.op]
        shape = self.shape(s.dims)
        args = [self.value(a) for a in s.args]
        match s.op:
            case "ewadd" | "ewmul" | "smul":
                return graph.node(OPS[POINTWISE[s.op]], args)
            case "relu" | "tanh" | "sigmoid":
                return graph.node(OPS[UNARY[s.op]], args)
            case "transpose":
                return graph.node(OPS["Transpose"], args)
            case "matmul":
                return _activated(graph.node(OPS["MatMul"], args), s.nums[0] if s.nums else 0)
            case "concat":
                return graph.node(OPS["Concat"], args, axis=s.nums[0])
            case "split_0" | "split_1":
                return self.part(s, args)
            case "conv2d":
                pads = _pads(self.shape(s.args[1].dims[2:]), s.nums[:2], s.nums[2])
                more: dict[str, Attr] = {"group": s.nums[4], "strides": s.nums[:2], "pads": pads}
                made = graph.node(OPS["Conv"], args, **more)
                return _activated(made, s.nums[3])
            case "poolavg" | "poolmax":
                kernel, strides = s.nums[:2], s.nums[2:4]
                pads = _pads(kernel, strides, s.nums[4])
                more = {"kernel_shape": kernel, "strides": strides, "pads": pads}
                if s.op == "poolmax":
                    return graph.node(OPS["MaxPool"], args, **more)
                return graph.node(OPS["AveragePool"], args, count_include_pad=1, **more)
            case "enlarge":
                old = self.shape(s.args[0].dims)
                by = tuple((new - o) // 2 for new, o in zip(shape, old, strict=True))
                return graph.node(OPS["Pad"], args, pads=(*by, *by)) if any(by) else args[0]
        return graph.constant(_known(s.op, shape))

    def part(self, s: Sized, args: list[graph.Value]) -> graph.Value:
        (axis,) = s.nums
        whole = self.shape(s.args[0].dims)[axis]
        kept = self.shape(s.dims)[axis]
        sizes = (kept, whole - kept) if s.op == "split_0" else (whole - kept, kept)
        return graph.result(
            graph.node(OPS["Split"], args, axis=axis, split=sizes), int(s.op == "split_1")
        )


def _pads(kernel: tuple[int, ...], strides: tuple[int, ...], padding: int) -> tuple[int, ...]:
    """What padding 0 adds so that a stride's part of the size is left; padding 1 adds nothing."""
    total = [0 if padding else max(k - s, 0) for k, s in zip(kernel, strides, strict=True)]
    return (*((t + 1) // 2 for t in total), *(t // 2 for t in total))


def _activated(v: graph.Value, code: int) -> graph.Value:
    return graph.node(OPS[ACTIVATIONS[code]], [v]) if ACTIVATIONS[code] else v


def _known(op: str, shape: tuple[int, ...]) -> np.ndarray:
    """TASO's constants."""
    if op == "Iewmul":
        return np.ones(shape, np.float32)
    if op == "Imatmul":
        return np.eye(shape[0], dtype=np.float32)
    out = np.zeros(shape, np.float32)
    each = np.arange(shape[0])
    if op == "Iconv":
        out[each, each, shape[2] // 2, shape[3] // 2] = 1
    else:
        out[each, each] = 1 / (shape[2] * shape[3])
    return out
