"""Find the recipes (recipes.py) of packed constants: what their loaders do to the model's weights.
Each is tried before it is used: a constant without a recipe that gives its bytes is stored."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from superopt.compilation.artifact.recipes import APPLIED, INDEX_FUNCTIONS, Recipe
from superopt.ir import graph
from superopt.ir.constant_folding import FoldedConstant
from superopt.kernels.algorithms.cpu.winograd_convolution import transform_window
from superopt.kernels.loops.tile import Pack
from superopt.onnx_io.read.mapped_file import Region
from superopt.onnx_io.read.skeleton import Blob
from superopt.plan.program.constant_pool import content_digest
from superopt.plan.program.pack_constants import ConstantSlot
from superopt.plan.rewrites.matmul.horizontal_fusion import ConcatenatedConstant
from superopt.plan.selection.transformed_constants import TransformedConstant
from superopt.te.analysis.affine import affine
from superopt.te.expr.node import Apply, Axis, Const, Expr

MAX_OPERAND_BYTES = 1 << 15  # of an operand in float64 that is stored for a recipe
RESHAPING = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")


class NoRecipeError(Exception):
    """A constant is made in a way that recipes lack."""


@dataclass(slots=True)
class WeightIndex:
    """The weights of a model's file, by their places in memory, and by contents: an equal constant
    of another model may be the one that was packed. digests: by contents, once they are needed."""

    blobs: Sequence[Blob]
    arrays: list[np.ndarray] = field(init=False)
    starts: list[tuple[int, int]] = field(init=False)
    digests: dict[str, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.arrays = [
            np.frombuffer(b.view() if isinstance(b, Region) else b.tobytes(), np.uint8)
            for b in self.blobs
        ]
        self.starts = sorted((a.ctypes.data, n) for n, a in enumerate(self.arrays))

    @property
    def views(self) -> list[memoryview]:
        return [a.data for a in self.arrays]

    def find(self, array: np.ndarray) -> Recipe | None:
        """Return the recipe of an array in the memory of a weight, or with its contents."""
        return self._find_place(array) or self._find_contents(array)

    def _find_contents(self, array: np.ndarray) -> Recipe | None:
        if not self.digests:
            self.digests = {content_digest(a): n for n, a in enumerate(self.arrays)}
        held = np.ascontiguousarray(array).reshape(array.shape)
        if (n := self.digests.get(content_digest(held.reshape(-1).view(np.uint8)))) is None:
            return None
        return ["weight", n, 0, held.dtype.name, [*held.shape], [*held.strides]]

    def _find_place(self, array: np.ndarray) -> Recipe | None:
        at = array.ctypes.data
        k = bisect_right(self.starts, (at, len(self.starts))) - 1
        if k < 0 or not array.size or min(array.strides, default=0) < 0:
            return None
        begin, n = self.starts[k]
        last = sum((d - 1) * s for d, s in zip(array.shape, array.strides, strict=True))
        if at + last + array.itemsize > begin + len(self.arrays[n]):
            return None
        name = array.dtype.name
        return ["weight", n, at - begin, name, [*array.shape], [*array.strides]]


def slot_recipe(
    c: ConstantSlot, weights: WeightIndex, add_data: Callable[[np.ndarray], Recipe]
) -> Recipe:
    """Return the recipe of a packed constant. add_data: stores a small array, and returns its
    recipe. Raises NoRecipeError."""
    found = load_recipe(c.load, weights, add_data)
    return found if c.pack is None else _pack_recipe(c.pack, found)


def load_recipe(
    load: Callable[[], np.ndarray],
    weights: WeightIndex,
    add_data: Callable[[np.ndarray], Recipe],
) -> Recipe:
    """Return the recipe of what a loader returns. Raises NoRecipeError."""
    match load:
        case TransformedConstant(source, partial() as make) if make.func is transform_window:
            forms, window = make.args
            inner = load_recipe(source, weights, add_data)
            return ["winograd", [*map(list, forms)], [*window], inner]
        case ConcatenatedConstant(loads, shapes, axis):
            each = [
                ["reshape", [*shape], load_recipe(x, weights, add_data)]
                for x, shape in zip(loads, shapes, strict=True)
            ]
            return ["concat", axis, each]
        case FoldedConstant(value):
            return _value_recipe(value, load, weights, add_data, np.dtype(load().dtype).name)
    if (found := weights.find(load())) is None:
        raise NoRecipeError
    return found


def _value_recipe(
    v: graph.Value,
    folded: FoldedConstant,
    weights: WeightIndex,
    add_data: Callable[[np.ndarray], Recipe],
    dtype: str = "float64",
) -> Recipe:
    if isinstance(v, graph.Constant):
        return load_recipe(v.load, weights, add_data)
    if not isinstance(v, graph.Node):
        raise NoRecipeError
    inputs = [x for x in v.inputs if x is not None]
    if (fn := v.op.name.lower()) in APPLIED and len(inputs) == 2:
        operands: list[Any] = []
        for x in inputs:
            small = folded.float64_array(x) if isinstance(x, graph.Node) else None
            if small is not None and small.nbytes <= MAX_OPERAND_BYTES:
                operands.append(add_data(small))
            elif isinstance(x, graph.Constant) and 2 * x.nbytes <= MAX_OPERAND_BYTES:
                operands.append(add_data(x.load()))
            else:
                operands.append(_value_recipe(x, folded, weights, add_data))
        return ["apply", fn, dtype, *operands]
    if v.op.name == "Transpose" or v.op.name in RESHAPING:
        inner = _value_recipe(inputs[0], folded, weights, add_data, dtype)
        if v.op.name == "Transpose":
            return ["axes", [*v.attr("perm")], inner]  # type: ignore[misc]
        return ["reshape", [*(v.type.shape or ())], inner]
    raise NoRecipeError


def _pack_recipe(p: Pack, inner: Recipe) -> Recipe:
    shape = [a.extent for a in p.axes]
    numbers = {a: n for n, a in enumerate(p.axes)}
    forms = [affine(i) for i in p.index]
    known = [f for f in forms if f is not None]
    if len(known) == len(forms):
        terms = [[[numbers[a], c] for a, c in f.terms] for f in known]
        return ["pack", shape, [f.base for f in known], terms, inner]
    return ["gather", shape, [_index_recipe(i, numbers) for i in p.index], inner]


def _index_recipe(e: Expr, numbers: dict[Axis, int]) -> Any:
    match e:
        case Const(v):
            return int(v)
        case Axis():
            return ["axis", numbers[e]]
        case Apply(fn, (x, *others)) if fn in INDEX_FUNCTIONS:
            out = _index_recipe(x, numbers)
            for y in others:
                out = [fn, out, _index_recipe(y, numbers)]
            return out
    raise NoRecipeError
