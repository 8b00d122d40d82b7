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

from superopt.ir import graph as g
from superopt.ops import OPS
from superopt.partial.generalise import generalised, inputs
from superopt.partial.restrict import shape_of
from superopt.rules.rule import show_side
from superopt.te.dtype import F32
from superopt.te.expr import TensorType

Shape = tuple[int, ...]
PRIMES = (2, 3, 5, 7, 11, 13)
KEPT = 3  # sizes up to this are what they are
SIDE = 8  # of a small picture, at least
SIZES = {"Reshape": "shape", "Split": "split", "Conv": "group"}  # attributes that are sizes
COPRIME = ((2, 3, 5), (3, 7, 4), (5, 4, 7), (7, 5, 3), (4, 9, 11), (9, 2, 8))  # a row for a name


@dataclass(frozen=True, slots=True)
class Program:
    """outs: results, computed from inputs. known: names of weights. axis: along which several
    results are concatenated. bias: a bias is added to each channel of each result; it is omitted,
    since it is equal wherever the rest is."""

    outs: tuple[g.Value, ...]
    known: frozenset[str]
    axis: int = 0
    bias: bool = False

    @property
    def whole(self) -> g.Value:
        """The results as one tensor. Raises InferError if they cannot be concatenated."""
        if len(self.outs) == 1:
            return self.outs[0]
        return g.node(OPS["Concat"], self.outs, axis=self.axis)

    @property
    def inputs(self) -> list[g.Input]:
        return inputs(*self.outs)

    @property
    def key(self) -> str:
        """A key that programs with the same mutants share."""
        given = ", ".join(f"{i.name}{shape_of(i)}" for i in self.inputs)
        terms = tuple(generalised([v], [{}]) for v in self.outs)
        bias = " and a bias" if self.bias else ""
        return f"({given}) {show_side(terms)} {self.axis}{bias}"


def resized(p: Program, shapes: Mapping[str, Shape], numbers: Mapping[int, int]) -> Program:
    """Return the program with inputs of these shapes, and `numbers` substituted for sizes in
    attributes. Raises InferError if that does not fit."""
    made: dict[g.Value, g.Value] = {
        i: g.Input(i.name, TensorType(F32, shapes[i.name])) for i in p.inputs
    }
    for n in g.nodes(p.outs):
        attrs = {k: _put(n.op.name, k, v, numbers) for k, v in n.attrs}
        again = g.node(n.op, [None if v is None else made[v] for v in n.inputs], **attrs)
        made.update(zip(g.results(n), g.results(again), strict=True))
    return replace(p, outs=tuple(made[v] for v in p.outs))


def _put(op: str, name: str, value: Any, numbers: Mapping[int, int]) -> Any:
    if SIZES.get(op) != name:
        return value
    if isinstance(value, tuple):
        return tuple(numbers.get(v, v) for v in value)
    return numbers.get(value, value)


def _named(n: g.Node) -> tuple[int, ...]:
    """Return the sizes in the attributes of a node."""
    return _ints(n, SIZES[n.op.name]) if n.op.name in SIZES else ()


def windows(p: Program) -> list[g.Node]:
    """Return the convolutions of the program."""
    return [n for n in g.nodes(p.outs) if n.op.name == "Conv"]


def computed(p: Program, n: g.Node) -> bool:
    """True if a node multiplies two computed values."""
    return n.op.name == "MatMul" and not any(
        isinstance(v, g.Input) and v.name in p.known for v in n.inputs
    )


def numbered(p: Program) -> bool:
    """True if attributes name sizes, or relate rows and columns, so that the sizes are fixed."""
    return any(
        n.op.name in ("Reshape", "Split")
        or (n.op.name == "Conv" and n.attr("group") != 1)
        or computed(p, n)
        for n in g.nodes(p.outs)
    )


def _sides(p: Program, i: g.Input) -> range:
    """Return the spatial axes of an image or kernel."""
    return range(2, len(shape_of(i))) if len(shape_of(i)) > 2 and windows(p) else range(0)


def _axes(p: Program, i: g.Input) -> Iterator[tuple[int, int, bool]]:
    """Yield (axis, size, is_spatial) for each axis of an input."""
    sides = _sides(p, i)
    scale = i.name in p.known and all(n == 1 for n in shape_of(i)[1:])
    for d, n in enumerate(shape_of(i)):
        yield d, n, d in sides and not scale


def channels(p: Program) -> dict[int, str]:
    """Return names for the sizes that may vary: channels, and contracted axes of matrices. Empty if
    attributes name sizes."""
    if numbered(p):
        return {}
    found: dict[int, str] = {}
    for i in p.inputs:
        for d, n, side in _axes(p, i):
            rows = i.name not in p.known and (d != 1 if windows(p) else d < len(shape_of(i)) - 1)
            if n > 1 and not side and not rows:
                found.setdefault(n, f"c{len(found)}")
    return {} if len(found) > len(COPRIME) else found


def at_channels(p: Program) -> list[tuple[dict[str, int], Program]]:
    """Return the program at three independent choices of its channels, or as it is."""
    named = channels(p)
    out = []
    for column in range(3 if named else 1):
        numbers = {n: COPRIME[k][column] for k, n in enumerate(named)}
        shapes = {}
        for i in p.inputs:
            shape = list(shape_of(i))
            for d, n, side in _axes(p, i):
                rows = i.name not in p.known and (d != 1 if windows(p) else d < len(shape) - 1)
                if not side and not rows:
                    shape[d] = numbers.get(n, n)
            shapes[i.name] = tuple(shape)
        out.append(({c: numbers[n] for n, c in named.items()}, resized(p, shapes, numbers)))
    return out


def factors(p: Program) -> tuple[int, ...]:
    """Return the factors by which axes may be folded: two, and the strides and dilations."""
    found = {2}
    for n in windows(p):
        found |= {k for name in ("dilations", "strides") for k in _ints(n, name) if 1 < k <= 4}
    return tuple(sorted(found))


def _ints(n: g.Node, name: str) -> tuple[int, ...]:
    value: Any = n.attr(name)
    return value if isinstance(value, tuple) else (value,)


def small(p: Program) -> Program:
    """Return the program with few channels and small images, whose sides have the same remainders.
    Raises InferError if there is none."""
    groups = {k for n in windows(p) for k in _ints(n, "group")} - {1}
    wanted: dict[int, None] = {}
    sides: dict[tuple[int, int], int] = {}
    for i in p.inputs:
        for d, n, side in _axes(p, i):
            if not side:
                wanted[n] = None
            elif i.name not in p.known:
                sides[d, n] = 0
    for d, n in sides:
        sides[d, n] = _side(n, factors(p), d)
    named = {k for n in g.nodes(p.outs) for k in _named(n)} - groups - {-1, 0}
    wanted |= dict.fromkeys(sorted(named))
    numbers = _few(tuple(wanted), groups, any(n.op.name == "Split" for n in g.nodes(p.outs)))
    shapes = {
        i.name: tuple(
            sides.get((d, n), n) if side and i.name not in p.known
            else n if side else numbers[n]
            for d, n, side in _axes(p, i)
        )
        for i in p.inputs
    }  # fmt: skip
    return resized(p, shapes, numbers)


def _side(n: int, by: tuple[int, ...], axis: int) -> int:
    least = SIDE + 2 * (axis % 2)  # height and width are not the same
    if n <= least + 2:
        return n
    return next(s for s in range(least, n + 1) if all(s % f == n % f for f in by))


def _few(wanted: tuple[int, ...], groups: set[int], splits: bool) -> dict[int, int]:
    """Return small numbers for sizes. Products of sizes stay products, and sums stay sums if the
    program has a Split."""
    fixed = {k: k for k in groups - {*wanted}}
    out = {n: n for n in wanted if n <= KEPT}
    made: dict[int, tuple[str, int, int]] = {}
    every = sorted({*wanted, *fixed} - {1})
    for a, b in combinations_with_replacement(every, 2):
        if a + b in wanted and a + b > KEPT and splits:
            made[a + b] = ("+", a, b)
        if a * b in wanted and a * b > KEPT:
            made[a * b] = ("*", a, b)
    for n in wanted:
        if n not in out and n not in made:
            free = next((k for k in PRIMES if k not in out.values()), n)
            out[n] = free * max((k for k in fixed if n % k == 0), default=1)
    for n in sorted(made):
        how, a, b = made[n]
        x, y = (out.get(k, fixed.get(k, k)) for k in (a, b))
        out[n] = x * y if how == "*" else x + y
    return out
