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
from superopt.rules.lang.rule import Rule
from superopt.rules.lang.syntax import Param
from superopt.rules.lang.term import free_names
from superopt.rules.trial.instances import (
    Instance,
    changed_instances,
    open_shapes,
    replace_size,
    try_instance,
)
from superopt.rules.trial.sample.draw import Draw, Style
from superopt.rules.trial.try_rule import (
    STORED_TYPES_DRAW,
    Refuted,
    draw_feeds,
    draws_for,
    evaluate_sides,
    has_float_casts,
    real_difference,
)
from superopt.te.eval.domain import Reals
from superopt.te.expr.dtype import F64, to_numpy

Feeds = dict[str, np.ndarray]

SMALL_STYLES = tuple(
    style
    for most in (2, 3)
    for rank in (1, 2, None, 3, 0, 4)
    for style in (
        *(Style(ones_share=ones, rank=rank, max_size=most) for ones in (0.5, 0.1, 1.0)),
        Style(equal_sizes=True, rank=rank, max_size=most),
    )
)
ATTEMPTS_PER_STYLE = 20  # attempts at an instance, for each style
MAX_EVALUATED = 250  # instances evaluated
MAX_SHRINKS = 200  # smaller instances tried in place of a found one
SIMPLE_NUMBERS = (0, 1, -1, 2, -2, 3, -3, 4, -4, 0.5, -0.5, 1.5, 0.1)  # numbers, the simplest first
MAX_SIMPLIFIED_ELEMENTS = 64  # elements of an operand that are simplified
MAX_SHOWN_ELEMENTS = 64  # elements of an operand that are printed


@dataclass(frozen=True, slots=True)
class Counterexample:
    """Operands, by name, on which the sides of a rule differ, and their difference."""

    rule: Rule
    feeds: Mapping[str, np.ndarray]
    difference: Refuted

    def lines(self) -> list[str]:
        """Return lines with the values of names, the operands, and the values of both sides."""
        one, at = self.difference.instance, list(self.difference.index)
        told = [f"{n} = {_show_value(v)}" for n, v in one.names.items() if _is_printable(v)]
        rows = [", ".join(told)] if told else []
        order = {p.name: n for n, p in enumerate(self.rule.params)}
        inputs = sorted(one.inputs, key=lambda i: order.get(i.name, len(order)))
        rows += [f"{i.name}: {i.type} = {_show_elements(self.feeds[i.name])}" for i in inputs]
        if STORED_TYPES_DRAW in self.difference.draw:
            rows.append("in these types, not in float64:")
        elif any(_exceeds_type(i, self.feeds[i.name]) for i in one.inputs):
            rows.append("in float64, for any types:")
        left, right = _distinct_texts(self.difference.left, self.difference.right)
        place = f"{at}" if at else ""
        many = f"output {self.difference.output}: " if len(one.lhs) > 1 else ""
        return [*rows, f"{many}lhs{place} = {left}", f"{many}rhs{place} = {right}"]

    def __str__(self) -> str:
        return "; ".join(self.lines())


def smallest_counterexample(
    rule: Rule,
    seed: int,
    known_instances: Iterable[Instance] = (),
    attempts: int = ATTEMPTS_PER_STYLE,
) -> Counterexample | None:
    """Return the smallest counterexample found over floats; None if there is none, as for a law
    that only the prime field refutes. known_instances: further instances to try. attempts: for
    small instances of each style; with 0, only known instances are shrunk."""
    given = {str(one): one for one in known_instances}
    every = {str(one): one for one in _small_instances(rule, seed, attempts)} | given
    for number, (name, one) in enumerate(sorted(every.items(), key=lambda e: _size_key(e[1]))):
        if number >= MAX_EVALUATED and name not in given:
            continue
        found = _failure_on(rule, one, seed + number)
        if found is not None:
            return _simplify_numbers(rule, _shrink(rule, found, seed))
    return None


@dataclass(frozen=True, slots=True)
class _Failure:
    """Operands of a draw, and the difference on them."""

    draw: str
    feeds: Feeds
    difference: Refuted


def _failure_on(rule: Rule, one: Instance, seed: int) -> _Failure | None:
    """Return a failure on an instance, with finite values if possible."""
    best: _Failure | None = None
    stored = (STORED_TYPES_DRAW,) if rule.float_class == "E0" and has_float_casts(one) else ()
    for draw in sorted((*draws_for(rule, one), *stored), key=lambda d: d != "whole"):
        feeds = draw_feeds(rule, one, draw, seed)
        found = _difference(rule, one, draw, feeds)
        if found is not None and _is_finite(found):
            return _Failure(draw, feeds, found)
        if found is not None and best is None:
            best = _Failure(draw, feeds, found)
    return best


def _shrink(rule: Rule, failure: _Failure, seed: int) -> _Failure:
    """Reduce sizes and axes while the sides still differ."""
    tries = iter(range(MAX_SHRINKS))
    for lesser in _smaller_instances(rule, failure.difference.instance):
        if next(tries, None) is None:
            break
        if _size_key(lesser) < _size_key(failure.difference.instance):
            found = _failure_on(rule, lesser, seed)
            if found is not None and _is_finite(found.difference) >= _is_finite(failure.difference):
                return _shrink(rule, found, seed)
    return failure


def _smaller_instances(rule: Rule, one: Instance) -> Iterator[Instance]:
    """Yield instances like `one` with a smaller size everywhere, in one name, or on one axis, or
    with one axis less."""
    free = open_shapes(rule, one)
    own = {
        n for p in rule.params if isinstance(p, Param) for f in p.shape or () for n in free_names(f)
    }
    sizes = {n: v for n, v in one.names.items() if n in own}
    there = {d for i in one.inputs for d in i.type.shape or () if isinstance(d, int)}
    for size in sorted(there, reverse=True):
        for less in range(1, size):
            some = {n: replace_size(v, size, less) for n, v in sizes.items()}
            shapes = {n: replace_size(s, size, less) for n, s in free.items()}
            yield from changed_instances(rule, one, shapes, some)
            for n in sizes:
                yield from changed_instances(rule, one, {}, {n: some[n]})
    for n, s in free.items():
        yield from changed_instances(rule, one, {n: s[1:]}, {})
        for k, d in enumerate(s):
            for less in range(1, d):
                yield from changed_instances(rule, one, {n: (*s[:k], less, *s[k + 1 :])}, {})


def _is_finite(found: Refuted) -> bool:
    """True if both values are finite numbers, which are more informative."""
    both = (found.left, found.right)
    return all(isinstance(v, (int, float)) and math.isfinite(v) for v in both)


def _small_instances(rule: Rule, seed: int, attempts: int) -> Iterator[Instance]:
    rng = Random(f"{rule.name} small {seed}")
    for style in SMALL_STYLES:
        for _ in range(attempts):
            one = try_instance(rule, Draw(Random(rng.random()), style))
            if one is not None:
                yield one


def _size_key(one: Instance) -> tuple[int, int, int, str]:
    """Return elements of the operands, then axes, then elements of the results."""
    inputs = [i.type.shape or () for i in one.inputs]
    results = [v.type.shape or () for v in one.lhs]
    return _count(inputs), sum(map(len, inputs)), _count(results), str(one)


def _count(shapes: Iterable[Iterable[object]]) -> int:
    return sum(int(np.prod([d for d in s if isinstance(d, int)], dtype=np.int64)) for s in shapes)


def _difference(rule: Rule, one: Instance, draw: str, feeds: Feeds) -> Refuted | None:
    try:
        left, _ = evaluate_sides(Instance(one.inputs, one.lhs, (), {}, {}), feeds, _domain(draw))
    except IndexError:  # the operands are invalid
        return None
    try:
        _, right = evaluate_sides(Instance(one.inputs, (), one.rhs, {}, {}), feeds, _domain(draw))
    except IndexError as e:
        return Refuted(one, draw, 0, (), "a value", str(e))
    return real_difference(rule, one, draw, left, right)


def _domain(draw: str) -> Reals:
    return Reals() if draw == STORED_TYPES_DRAW else Reals(F64)


def _simplify_numbers(rule: Rule, failure: _Failure) -> Counterexample:
    """Simplify the numbers while the sides still differ."""
    held, found = dict(failure.feeds), failure.difference
    limits = {i.name: limit for i, limit in found.instance.limits.items()}
    pending = [
        (name, k) for name, x in held.items() for k in range(min(x.size, MAX_SIMPLIFIED_ELEMENTS))
    ]
    for name, k in (*pending, *pending):  # a number needed at first may not be needed later
        x = held[name]
        for v in _simpler_numbers(x.reshape(-1)[k], x.dtype, limits.get(name)):
            flat = x.reshape(-1).copy()
            flat[k] = v
            tried = {**held, name: flat.reshape(x.shape)}
            less = _difference(rule, found.instance, failure.draw, tried)
            if less is not None and _is_finite(less) >= _is_finite(found):
                held, found = tried, less
                break
    return Counterexample(rule, held, found)


def _simpler_numbers(value: object, dtype: np.dtype, limit: int | None) -> Iterator[object]:
    """Yield simpler numbers of a type, the simplest first; for indices those in range."""
    if dtype.kind == "b":
        yield from (False,) if value else ()
        return
    for v in SIMPLE_NUMBERS:
        if v == value:
            return
        if dtype.kind in "iu" and (v != int(v) or (dtype.kind == "u" and v < 0)):
            continue
        if limit is None or -limit <= v < limit:
            yield v


def _exceeds_type(i: Input, x: np.ndarray) -> bool:
    """True if some numbers are not representable in the input's type."""
    assert i.type.dtype is not None
    with np.errstate(all="ignore"):
        stored = x.astype(to_numpy(i.type.dtype)).astype(x.dtype)
    return not np.array_equal(stored, x, equal_nan=x.dtype.kind == "f")


def _is_printable(v: object) -> bool:
    """True for a size, an attribute or a number, False for an operand."""
    if isinstance(v, tuple):
        return all(map(_is_printable, v))
    return not isinstance(v, (Input, Node))


def _show_value(v: object) -> str:
    if isinstance(v, Constant):
        return f"{_show_number(v.load().reshape(-1)[0].item())} {v.type}"
    if isinstance(v, tuple) and v and all(_is_attribute_pair(pair) for pair in v):
        return f"({', '.join(f'{k}={show_attr(held)}' for k, held in v)})"
    return str(v)


def _is_attribute_pair(v: object) -> bool:
    """True for a name and value that `**a` stands for."""
    return isinstance(v, tuple) and len(v) == 2 and isinstance(v[0], str)


def _show_elements(x: np.ndarray) -> str:
    if x.size > MAX_SHOWN_ELEMENTS:
        return f"{x.size} elements"
    return _show_nested(x.tolist())


def _show_nested(x: object) -> str:
    return f"[{', '.join(map(_show_nested, x))}]" if isinstance(x, list) else _show_number(x)


def _distinct_texts(a: object, b: object) -> tuple[str, str]:
    """Return both values with enough digits to differ."""
    x, y = _show_number(a), _show_number(b)
    return (x, y) if x != y else (repr(a), repr(b))


def _show_number(v: object) -> str:
    return f"{v:g}" if isinstance(v, float) else str(v)
