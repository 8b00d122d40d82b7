"""A part of a model that is linear in each of its inputs, and the same part at other sizes.

Mutants are enumerated at small sides and channels and instantiated at the model's sides. Both are
the same operators with other numbers. Which numbers are sizes, and how they depend on each other
(parts of a Split, heads of a Reshape), is derived from the shapes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from typing import Any

from superopt.ir import graph
from superopt.ops import OPS
from superopt.partial.correct.generalize import generalize, graph_inputs
from superopt.partial.correct.restrict import static_shape
from superopt.rules.lang.rule import show_side
from superopt.te.expr.dtype import F32
from superopt.te.expr.tensor import TensorType

Shape = tuple[int, ...]
SMALL_PRIMES = (2, 3, 5, 7, 11, 13)
MAX_KEPT_SIZE = 3  # sizes up to this are what they are
MIN_SMALL_SIDE = 8  # least side of a small image
SIZE_ATTRIBUTES = {
    "Reshape": "shape",
    "Split": "split",
    "Conv": "group",
}  # attributes that are sizes
CHANNEL_CHOICES = (
    (2, 3, 5),
    (3, 7, 4),
    (5, 4, 7),
    (7, 5, 3),
    (4, 9, 11),
    (9, 2, 8),
)  # a row for a name


@dataclass(frozen=True, slots=True)
class Program:
    """outs: results, computed from inputs. known: names of weights. axis: along which several
    results are concatenated. bias: a bias is added to each channel of each result; it is omitted,
    since it is equal wherever the rest is."""

    outputs: tuple[graph.Value, ...]
    weights: frozenset[str]
    axis: int = 0
    has_bias: bool = False

    @property
    def joined_output(self) -> graph.Value:
        """The results as one tensor. Raises InferError if they cannot be concatenated."""
        if len(self.outputs) == 1:
            return self.outputs[0]
        return graph.node(OPS["Concat"], self.outputs, axis=self.axis)

    @property
    def inputs(self) -> list[graph.Input]:
        return graph_inputs(*self.outputs)

    @property
    def key(self) -> str:
        """A key that programs with the same mutants share."""
        given = ", ".join(f"{i.name}{static_shape(i)}" for i in self.inputs)
        terms = tuple(generalize([v], [{}]) for v in self.outputs)
        bias = " and a bias" if self.has_bias else ""
        return f"({given}) {show_side(terms)} {self.axis}{bias}"


def resize(p: Program, shapes: Mapping[str, Shape], numbers: Mapping[int, int]) -> Program:
    """Return the program with inputs of these shapes, and `numbers` substituted for sizes in
    attributes. Raises InferError if that does not fit."""
    made: dict[graph.Value, graph.Value] = {
        i: graph.Input(i.name, TensorType(F32, shapes[i.name])) for i in p.inputs
    }
    for n in graph.nodes(p.outputs):
        attrs = {k: _replace_sizes(n.op.name, k, v, numbers) for k, v in n.attrs}
        again = graph.node(n.op, [None if v is None else made[v] for v in n.inputs], **attrs)
        made.update(zip(graph.results(n), graph.results(again), strict=True))
    return replace(p, outputs=tuple(made[v] for v in p.outputs))


def _replace_sizes(op: str, name: str, value: Any, numbers: Mapping[int, int]) -> Any:
    if SIZE_ATTRIBUTES.get(op) != name:
        return value
    if isinstance(value, tuple):
        return tuple(numbers.get(v, v) for v in value)
    return numbers.get(value, value)


def _named_sizes(n: graph.Node) -> tuple[int, ...]:
    """Return the sizes in the attributes of a node."""
    return _int_tuple(n, SIZE_ATTRIBUTES[n.op.name]) if n.op.name in SIZE_ATTRIBUTES else ()


def convolutions(p: Program) -> list[graph.Node]:
    """Return the convolutions of the program."""
    return [n for n in graph.nodes(p.outputs) if n.op.name == "Conv"]


def multiplies_computed(p: Program, n: graph.Node) -> bool:
    """True if a node multiplies two computed values."""
    return n.op.name == "MatMul" and not any(
        isinstance(v, graph.Input) and v.name in p.weights for v in n.inputs
    )


def has_fixed_sizes(p: Program) -> bool:
    """True if attributes name sizes, or relate rows and columns, so that the sizes are fixed."""
    return any(
        n.op.name in ("Reshape", "Split")
        or (n.op.name == "Conv" and n.attr("group") != 1)
        or multiplies_computed(p, n)
        for n in graph.nodes(p.outputs)
    )


def _spatial_axes(p: Program, i: graph.Input) -> range:
    """Return the spatial axes of an image or kernel."""
    return (
        range(2, len(static_shape(i))) if len(static_shape(i)) > 2 and convolutions(p) else range(0)
    )


def _axis_roles(p: Program, i: graph.Input) -> Iterator[tuple[int, int, bool]]:
    """Yield (axis, size, is_spatial) for each axis of an input."""
    sides = _spatial_axes(p, i)
    scale = i.name in p.weights and all(n == 1 for n in static_shape(i)[1:])
    for d, n in enumerate(static_shape(i)):
        yield d, n, d in sides and not scale


def free_channels(p: Program) -> dict[int, str]:
    """Return names for the sizes that may vary: channels, and contracted axes of matrices. Empty if
    attributes name sizes."""
    if has_fixed_sizes(p):
        return {}
    found: dict[int, str] = {}
    for i in p.inputs:
        for d, n, side in _axis_roles(p, i):
            rows = i.name not in p.weights and (
                d != 1 if convolutions(p) else d < len(static_shape(i)) - 1
            )
            if n > 1 and not side and not rows:
                found.setdefault(n, f"c{len(found)}")
    return {} if len(found) > len(CHANNEL_CHOICES) else found


def at_channel_choices(p: Program) -> list[tuple[dict[str, int], Program]]:
    """Return the program at three independent choices of its channels, or as it is."""
    named = free_channels(p)
    out = []
    for column in range(3 if named else 1):
        numbers = {n: CHANNEL_CHOICES[k][column] for k, n in enumerate(named)}
        shapes = {}
        for i in p.inputs:
            shape = list(static_shape(i))
            for d, n, side in _axis_roles(p, i):
                rows = i.name not in p.weights and (
                    d != 1 if convolutions(p) else d < len(shape) - 1
                )
                if not side and not rows:
                    shape[d] = numbers.get(n, n)
            shapes[i.name] = tuple(shape)
        out.append(({c: numbers[n] for n, c in named.items()}, resize(p, shapes, numbers)))
    return out


def fold_factors(p: Program) -> tuple[int, ...]:
    """Return the factors by which axes may be folded: two, and the strides and dilations."""
    found = {2}
    for n in convolutions(p):
        found |= {k for name in ("dilations", "strides") for k in _int_tuple(n, name) if 1 < k <= 4}
    return tuple(sorted(found))


def _int_tuple(n: graph.Node, name: str) -> tuple[int, ...]:
    value: Any = n.attr(name)
    return value if isinstance(value, tuple) else (value,)


def small_program(p: Program) -> Program:
    """Return the program with few channels and small images, whose sides have the same remainders.
    Raises InferError if there is none."""
    groups = {k for n in convolutions(p) for k in _int_tuple(n, "group")} - {1}
    wanted: dict[int, None] = {}
    sides: dict[tuple[int, int], int] = {}
    for i in p.inputs:
        for d, n, side in _axis_roles(p, i):
            if not side:
                wanted[n] = None
            elif i.name not in p.weights:
                sides[d, n] = 0
    for d, n in sides:
        sides[d, n] = _small_side(n, fold_factors(p), d)
    named = {k for n in graph.nodes(p.outputs) for k in _named_sizes(n)} - groups - {-1, 0}
    wanted |= dict.fromkeys(sorted(named))
    numbers = _small_sizes(
        tuple(wanted), groups, any(n.op.name == "Split" for n in graph.nodes(p.outputs))
    )
    shapes = {
        i.name: tuple(
            sides.get((d, n), n) if side and i.name not in p.weights
            else n if side else numbers[n]
            for d, n, side in _axis_roles(p, i)
        )
        for i in p.inputs
    }  # fmt: skip
    return resize(p, shapes, numbers)


def _small_side(n: int, by: tuple[int, ...], axis: int) -> int:
    least = MIN_SMALL_SIDE + 2 * (axis % 2)  # height and width are not the same
    if n <= least + 2:
        return n
    return next(s for s in range(least, n + 1) if all(s % f == n % f for f in by))


def _small_sizes(wanted: tuple[int, ...], groups: set[int], splits: bool) -> dict[int, int]:
    """Return small numbers for sizes. Products of sizes stay products, and sums stay sums if the
    program has a Split."""
    fixed = {k: k for k in groups - {*wanted}}
    out = {n: n for n in wanted if n <= MAX_KEPT_SIZE}
    made: dict[int, tuple[str, int, int]] = {}
    every = sorted({*wanted, *fixed} - {1})
    for a, b in combinations_with_replacement(every, 2):
        if a + b in wanted and a + b > MAX_KEPT_SIZE and splits:
            made[a + b] = ("+", a, b)
        if a * b in wanted and a * b > MAX_KEPT_SIZE:
            made[a * b] = ("*", a, b)
    for n in wanted:
        if n not in out and n not in made:
            free = next((k for k in SMALL_PRIMES if k not in out.values()), n)
            out[n] = free * max((k for k in fixed if n % k == 0), default=1)
    for n in sorted(made):
        how, a, b = made[n]
        x, y = (out.get(k, fixed.get(k, k)) for k in (a, b))
        out[n] = x * y if how == "*" else x + y
    return out
