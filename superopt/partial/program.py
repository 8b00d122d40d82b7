"""A part of a model that is linear in each thing it is given, and the same part at other sizes.

Mutants of it are enumerated where its sides and channels are small, and are then made again at the
model's own sides. Both are the same operators with other numbers; which of these are sizes, and
which hang on each other (the parts of a Split, the heads of a Reshape), is read off the shapes.
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
    """outs: what is computed, of inputs; known: names of those that are weights. axis: along which
    several results are taken for one. bias: is one added to each channel of each result? It is left
    out, since it is equal wherever the rest is."""

    outs: tuple[g.Value, ...]
    known: frozenset[str]
    axis: int = 0
    bias: bool = False

    @property
    def whole(self) -> g.Value:
        """What is computed, as one tensor. Raises InferError where it cannot be joined."""
        if len(self.outs) == 1:
            return self.outs[0]
        return g.node(OPS["Concat"], self.outs, axis=self.axis)

    @property
    def inputs(self) -> list[g.Input]:
        return inputs(*self.outs)

    @property
    def key(self) -> str:
        """Of programs that have the same mutants."""
        given = ", ".join(f"{i.name}{shape_of(i)}" for i in self.inputs)
        terms = tuple(generalised([v], [{}]) for v in self.outs)
        bias = " and a bias" if self.bias else ""
        return f"({given}) {show_side(terms)} {self.axis}{bias}"


def resized(p: Program, shapes: Mapping[str, Shape], numbers: Mapping[int, int]) -> Program:
    """The program of inputs of these shapes, `numbers` put for sizes among its attributes. Raises
    InferError where that does not fit."""
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
    """The sizes that its attributes name."""
    return _ints(n, SIZES[n.op.name]) if n.op.name in SIZES else ()


def windows(p: Program) -> list[g.Node]:
    """Its convolutions."""
    return [n for n in g.nodes(p.outs) if n.op.name == "Conv"]


def computed(p: Program, n: g.Node) -> bool:
    """Does a node multiply what is computed by what is, too?"""
    return n.op.name == "MatMul" and not any(
        isinstance(v, g.Input) and v.name in p.known for v in n.inputs
    )


def numbered(p: Program) -> bool:
    """Do attributes name its sizes, or hang rows on columns, so that these are what they are?"""
    return any(
        n.op.name in ("Reshape", "Split")
        or (n.op.name == "Conv" and n.attr("group") != 1)
        or computed(p, n)
        for n in g.nodes(p.outs)
    )


def _sides(p: Program, i: g.Input) -> range:
    """The axes of an input along which a window moves, or its kernel has its size."""
    return range(2, len(shape_of(i))) if len(shape_of(i)) > 2 and windows(p) else range(0)


def _axes(p: Program, i: g.Input) -> Iterator[tuple[int, int, bool]]:
    """Of each axis of an input: which one, its size, and whether it is a side."""
    sides = _sides(p, i)
    scale = i.name in p.known and all(n == 1 for n in shape_of(i)[1:])
    for d, n in enumerate(shape_of(i)):
        yield d, n, d in sides and not scale


def channels(p: Program) -> dict[int, str]:
    """The sizes that may be any, and names for them: channels, and what matrices are summed over.
    None of a program whose attributes name them."""
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
    """The program at three choices of its channels, no one a formula of others; or as it is."""
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
    """By how much its axes may be folded: two, and what its windows skip."""
    found = {2}
    for n in windows(p):
        found |= {k for name in ("dilations", "strides") for k in _ints(n, name) if 1 < k <= 4}
    return tuple(sorted(found))


def _ints(n: g.Node, name: str) -> tuple[int, ...]:
    value: Any = n.attr(name)
    return value if isinstance(value, tuple) else (value,)


def small(p: Program) -> Program:
    """The program of few channels and small pictures, whose sides leave the same rest when they are
    folded. Raises InferError where there is none."""
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
    """Small numbers for sizes: products of others stay that, and sums, where something is split."""
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
