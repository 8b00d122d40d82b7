"""The smallest counterexample of a wrong rule: few axes, small sizes, simple numbers.

A trial refutes a rule on its first random draw, which is hard to read. Here many small instances
are drawn and evaluated in ascending size. On the first one where the sides differ, the numbers are
simplified one by one while the sides still differ. The result is the smallest of the draws; if
sizes up to 2 or 3 fit, few instances are missed.

    n = 2
    x: f32[2, 2] = [[0, 1], [0, 0]]
    lhs[0, 0] = 0
    rhs[0, 0] = 1
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from random import Random

import numpy as np

from superopt.ir.graph import Constant, Input, Node
from superopt.ir.syntax import show_attr
from superopt.rules.instances import Instance, attempt, changed, free_shapes, with_size
from superopt.rules.rule import Rule
from superopt.rules.sample.draw import Draw, Style
from superopt.rules.syntax import Param
from superopt.rules.term import names
from superopt.rules.trial import (
    AS_STORED,
    Refuted,
    both,
    casts,
    differ_real,
    draws_for,
    feeds_of,
)
from superopt.te.domain import Reals
from superopt.te.dtype import F64, to_numpy

Feeds = dict[str, np.ndarray]

SMALL = tuple(
    style
    for most in (2, 3)
    for rank in (1, 2, None, 3, 0, 4)
    for style in (
        *(Style(ones=ones, rank=rank, most=most) for ones in (0.5, 0.1, 1.0)),
        Style(equal=True, rank=rank, most=most),
    )
)
ATTEMPTS = 20  # attempts at an instance, for each style
TRIED = 250  # instances evaluated
SHRINKS = 200  # smaller instances tried in place of a found one
SIMPLE = (0, 1, -1, 2, -2, 3, -3, 4, -4, 0.5, -0.5, 1.5, 0.1)  # numbers, the simplest first
MOST_ELEMENTS = 64  # elements of an operand that are simplified
SHOWN = 64  # elements of an operand that are printed


@dataclass(frozen=True, slots=True)
class Counterexample:
    """Operands, by name, on which the sides of a rule differ, and their difference."""

    rule: Rule
    feeds: Mapping[str, np.ndarray]
    found: Refuted

    def lines(self) -> list[str]:
        """Return lines with the values of names, the operands, and the values of both sides."""
        one, at = self.found.instance, list(self.found.index)
        told = [f"{n} = {_said(v)}" for n, v in one.names.items() if _told(v)]
        rows = [", ".join(told)] if told else []
        order = {p.name: n for n, p in enumerate(self.rule.params)}
        inputs = sorted(one.inputs, key=lambda i: order.get(i.name, len(order)))
        rows += [f"{i.name}: {i.type} = {_elements(self.feeds[i.name])}" for i in inputs]
        if AS_STORED in self.found.draw:
            rows.append("in these types, not in float64:")
        elif any(_beyond(i, self.feeds[i.name]) for i in one.inputs):
            rows.append("in float64, whatever the types:")
        left, right = _apart(self.found.left, self.found.right)
        place = f"{at}" if at else ""
        many = f"output {self.found.output}: " if len(one.lhs) > 1 else ""
        return [*rows, f"{many}lhs{place} = {left}", f"{many}rhs{place} = {right}"]

    def __str__(self) -> str:
        return "; ".join(self.lines())


def smallest(
    rule: Rule, seed: int, known: Iterable[Instance] = (), attempts: int = ATTEMPTS
) -> Counterexample | None:
    """Return the smallest counterexample found over floats; None if there is none, as for a law
    that only the prime field refutes. known_instances: further instances to try. attempts: for
    small instances of each style; with 0, only known instances are shrunk."""
    given = {str(one): one for one in known}
    every = {str(one): one for one in _small(rule, seed, attempts)} | given
    for number, (name, one) in enumerate(sorted(every.items(), key=lambda e: _weight(e[1]))):
        if number >= TRIED and name not in given:
            continue
        found = _on(rule, one, seed + number)
        if found is not None:
            return _simpler(rule, _shrunk(rule, found, seed))
    return None


@dataclass(frozen=True, slots=True)
class _Off:
    """Operands of a draw, and the difference on them."""

    draw: str
    feeds: Feeds
    found: Refuted


def _on(rule: Rule, one: Instance, seed: int) -> _Off | None:
    """Return a failure on an instance, with finite values if possible."""
    best: _Off | None = None
    stored = (AS_STORED,) if rule.float_class == "E0" and casts(one) else ()
    for draw in sorted((*draws_for(rule, one), *stored), key=lambda d: d != "whole"):
        feeds = feeds_of(rule, one, draw, seed)
        found = _differ(rule, one, draw, feeds)
        if found is not None and _finite(found):
            return _Off(draw, feeds, found)
        if found is not None and best is None:
            best = _Off(draw, feeds, found)
    return best


def _shrunk(rule: Rule, off: _Off, seed: int) -> _Off:
    """Reduce sizes and axes while the sides still differ."""
    tries = iter(range(SHRINKS))
    for lesser in _lesser(rule, off.found.instance):
        if next(tries, None) is None:
            break
        if _weight(lesser) < _weight(off.found.instance):
            found = _on(rule, lesser, seed)
            if found is not None and _finite(found.found) >= _finite(off.found):
                return _shrunk(rule, found, seed)
    return off


def _lesser(rule: Rule, one: Instance) -> Iterator[Instance]:
    """Yield instances like `one` with a smaller size everywhere, in one name, or on one axis, or
    with one axis less."""
    free = free_shapes(rule, one)
    own = {n for p in rule.params if isinstance(p, Param) for f in p.shape or () for n in names(f)}
    sizes = {n: v for n, v in one.names.items() if n in own}
    there = {d for i in one.inputs for d in i.type.shape or () if isinstance(d, int)}
    for size in sorted(there, reverse=True):
        for less in range(1, size):
            some = {n: with_size(v, size, less) for n, v in sizes.items()}
            shapes = {n: with_size(s, size, less) for n, s in free.items()}
            yield from changed(rule, one, shapes, some)
            for n in sizes:
                yield from changed(rule, one, {}, {n: some[n]})
    for n, s in free.items():
        yield from changed(rule, one, {n: s[1:]}, {})
        for k, d in enumerate(s):
            for less in range(1, d):
                yield from changed(rule, one, {n: (*s[:k], less, *s[k + 1 :])}, {})


def _finite(found: Refuted) -> bool:
    """True if both values are finite numbers, which are more informative."""
    both = (found.left, found.right)
    return all(isinstance(v, (int, float)) and math.isfinite(v) for v in both)


def _small(rule: Rule, seed: int, attempts: int) -> Iterator[Instance]:
    rng = Random(f"{rule.name} small {seed}")
    for style in SMALL:
        for _ in range(attempts):
            one = attempt(rule, Draw(Random(rng.random()), style))
            if one is not None:
                yield one


def _weight(one: Instance) -> tuple[int, int, int, str]:
    """Return elements of the operands, then axes, then elements of the results."""
    inputs = [i.type.shape or () for i in one.inputs]
    results = [v.type.shape or () for v in one.lhs]
    return _count(inputs), sum(map(len, inputs)), _count(results), str(one)


def _count(shapes: Iterable[Iterable[object]]) -> int:
    return sum(int(np.prod([d for d in s if isinstance(d, int)], dtype=np.int64)) for s in shapes)


def _differ(rule: Rule, one: Instance, draw: str, feeds: Feeds) -> Refuted | None:
    try:
        left, _ = both(Instance(one.inputs, one.lhs, (), {}, {}), feeds, _domain(draw))
    except IndexError:  # the operands are invalid
        return None
    try:
        _, right = both(Instance(one.inputs, (), one.rhs, {}, {}), feeds, _domain(draw))
    except IndexError as e:
        return Refuted(one, draw, 0, (), "a value", str(e))
    return differ_real(rule, one, draw, left, right)


def _domain(draw: str) -> Reals:
    return Reals() if draw == AS_STORED else Reals(F64)


def _simpler(rule: Rule, off: _Off) -> Counterexample:
    """Simplify the numbers while the sides still differ."""
    held, found = dict(off.feeds), off.found
    limits = {i.name: limit for i, limit in found.instance.limits.items()}
    pending = [(name, k) for name, x in held.items() for k in range(min(x.size, MOST_ELEMENTS))]
    for name, k in (*pending, *pending):  # a number needed at first may not be needed later
        x = held[name]
        for v in _simpler_than(x.reshape(-1)[k], x.dtype, limits.get(name)):
            flat = x.reshape(-1).copy()
            flat[k] = v
            tried = {**held, name: flat.reshape(x.shape)}
            less = _differ(rule, found.instance, off.draw, tried)
            if less is not None and _finite(less) >= _finite(found):
                held, found = tried, less
                break
    return Counterexample(rule, held, found)


def _simpler_than(held: object, dtype: np.dtype, limit: int | None) -> Iterator[object]:
    """Yield simpler numbers of a type, the simplest first; for indices those in range."""
    if dtype.kind == "b":
        yield from (False,) if held else ()
        return
    for v in SIMPLE:
        if v == held:
            return
        if dtype.kind in "iu" and (v != int(v) or (dtype.kind == "u" and v < 0)):
            continue
        if limit is None or -limit <= v < limit:
            yield v


def _beyond(i: Input, x: np.ndarray) -> bool:
    """True if some numbers are not representable in the input's type."""
    assert i.type.dtype is not None
    with np.errstate(all="ignore"):
        stored = x.astype(to_numpy(i.type.dtype)).astype(x.dtype)
    return not np.array_equal(stored, x, equal_nan=x.dtype.kind == "f")


def _told(v: object) -> bool:
    """True for a size, an attribute or a number, False for an operand."""
    if isinstance(v, tuple):
        return all(map(_told, v))
    return not isinstance(v, (Input, Node))


def _said(v: object) -> str:
    if isinstance(v, Constant):
        return f"{_number(v.load().reshape(-1)[0].item())} {v.type}"
    if isinstance(v, tuple) and v and all(_attribute(pair) for pair in v):
        return f"({', '.join(f'{k}={show_attr(held)}' for k, held in v)})"
    return str(v)


def _attribute(v: object) -> bool:
    """True for a name and value that `**a` stands for."""
    return isinstance(v, tuple) and len(v) == 2 and isinstance(v[0], str)


def _elements(x: np.ndarray) -> str:
    if x.size > SHOWN:
        return f"{x.size} elements"
    return _nested(x.tolist())


def _nested(x: object) -> str:
    return f"[{', '.join(map(_nested, x))}]" if isinstance(x, list) else _number(x)


def _apart(a: object, b: object) -> tuple[str, str]:
    """Return both values with enough digits to differ."""
    x, y = _number(a), _number(b)
    return (x, y) if x != y else (repr(a), repr(b))


def _number(v: object) -> str:
    return f"{v:g}" if isinstance(v, float) else str(v)
