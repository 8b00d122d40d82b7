"""The float class of a rule: how its right side rounds compared to its left side.

    E0  the same operations on the same numbers, bit by bit, Inf and NaN included
    E1  sums and products in another order
    E2  the same rational function: expanded, factored, folded into weights. Inf and NaN may reach
        more results, but not fewer
    E3  a finite number in place of Inf or NaN, or the reverse; a result that jumps by a rounding

Both sides are computed on instances of the rule in `te/rounding.py`, whose elements record their
history; and over the reals with some operands NaN, infinite, zero, or beyond the range of a cast. A
rational function that no longer depends on an operand, as x - x or x * 0, is finite where that is
not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, islice

import numpy as np

from superopt.ir.evaluate import evaluate, node_results
from superopt.ir.graph import Constant, Graph, Node, Value, nodes, results
from superopt.ir.op import expression
from superopt.rules.cases import cases, said
from superopt.rules.draws import generator, real_feeds
from superopt.rules.instances import Instance, instances
from superopt.rules.rule import FLOAT_CLASSES, Rule
from superopt.te.columns import NEAR
from superopt.te.domain import Reals
from superopt.te.dtype import BOOL, F32, F64, I64, DType
from superopt.te.node import Apply, Expr, Load, Reduce
from superopt.te.ranged import Ranged, largest, smallest
from superopt.te.rounding import DEGREES, Rounding, agree

COUNT = 12  # instances
ELEMENTS, FEWEST = 1 << 16, 2  # elements of all instances; instances if these are large
DRAWS = ("normal", "positive")
# Exceptional values: the share of each operand's elements drawn from them.
EXCEPTIONS = {
    "none": (0.3, (math.nan,)),
    "some": (0.3, (math.inf, -math.inf, 0.0)),
    "most": (0.8, (math.inf, -math.inf, 0.0, math.nan)),
}
FEW = 32  # elements of all operands for which a whole operand is exceptional
DISTRIBUTED, EXCEPTIONAL = 2, 3  # indices of these classes
# Functions with exact results.
EXACT = frozenset(
    ("max", "min", "neg", "abs", "sign", "select", "lt", "le", "eq", "ne", "isnan", "isinf",
     "floor", "ceil", "round", "and", "or", "xor", "not", "cast")
)  # fmt: skip


def classed(rule: Rule) -> Rule:
    """Return the rule with the computed class, if that is above its own: E3 if none is computed."""
    try:
        found = float_class(rule) or FLOAT_CLASSES[EXCEPTIONAL]
    except (IndexError, MemoryError):  # some index of the left side is out of range
        found = FLOAT_CLASSES[EXCEPTIONAL]
    return rule if found <= rule.float_class else replace(rule, float_class=found)


def float_class(rule: Rule, seed: int = 0, count: int = COUNT) -> str | None:
    """Return the lowest class that describes `rule` on `count` instances; None if there are none,
    or no small one: an operation is a thousand times slower here."""
    if said(rule) > ELEMENTS:
        return None
    some = cases(rule, seed, count, ELEMENTS, FEWEST)
    return class_on(chain(some.plain, islice(some.cramped, count // 2)), seed)


def class_on(some: Iterable[Instance], seed: int) -> str | None:
    """Return the lowest class that describes a rule on these instances; None if there are none."""
    worst = -1
    for number, one in enumerate(some):
        for draw in DRAWS:
            worst = max(worst, _degree(one, draw, seed + 31 * number))
        worst = max(worst, _exceptions(one, seed + 31 * number))
        if worst == EXCEPTIONAL:
            break
    return FLOAT_CLASSES[worst] if worst >= 0 else None


def _degree(one: Instance, draw: str, seed: int) -> int:
    """Return how exactly both sides agree on these numbers. A comparison of differently rounded
    values may flip: its result differs, however close its operands are."""
    feeds = real_feeds(one, draw, seed)
    here, there = Rounding(seed), Rounding(seed)
    left, right = _computed(one, one.lhs, feeds, here), _computed(one, one.rhs, feeds, there)
    for degree in range(len(DEGREES) if here.unsure == there.unsure else 1):
        if all(
            v.type.dtype is not None and agree(degree, a, b, v.type.dtype)
            for v, a, b in zip(one.lhs, left, right, strict=True)
        ):
            return degree
    return EXCEPTIONAL


def _computed(
    one: Instance, roots: tuple[Value, ...], feeds: dict[str, np.ndarray], domain: Rounding
) -> list[np.ndarray]:
    held: dict[Value, np.ndarray] = {}
    for i in one.inputs:
        assert i.type.dtype is not None
        x = feeds[i.name]
        held[i] = domain.leaves(x, i.type.dtype, i.name) if i.type.dtype.is_float else x

    def value(v: Value) -> np.ndarray:
        if v in held:
            return held[v]
        assert isinstance(v, Constant)
        return domain.load(v.load(), v.type)

    for n in nodes(roots):
        operands = [None if v is None else value(v) for v in n.inputs]
        found = node_results(n, operands, domain.at(*_site(n)))
        held.update(zip(results(n), found, strict=True))
    return [value(v) for v in roots]


def _site(n: Node) -> tuple[str, str]:
    """Return the operator as `Rounding.site`, and its name if it rounds more than once."""
    types = tuple(None if v is None else v.type for v in n.inputs)
    bodies = [t.body for t in expression(n.op, types, n.attrs) if t.body is not None]
    attrs = [(k, v) for k, v in n.attrs if k != "keepdims"]
    site = f"{n.op.name} {attrs} {[str(t) for t in types]}"
    return site, n.op.name if sum(map(_roundings, bodies)) > 1 else ""


def _roundings(e: Expr) -> int:
    match e:
        case Reduce("sum", _, Apply("mul", args)):  # the sum rounds its products
            return 1 + sum(map(_roundings, args))
        case Apply(fn, args, dtype):
            return (dtype.is_float and fn not in EXACT) + sum(map(_roundings, args))
        case Reduce(fn, _, body, dtype):
            return (dtype.is_float and fn in ("sum", "prod")) + _roundings(body)
        case Load(t):
            return _roundings(t.body) if t.body is not None else 0
        case _:
            return 0


def _exceptions(one: Instance, seed: int) -> int:
    """Return the class as far as NaN, Inf and zeros in operands determine it: in some elements of
    each operand, in all elements of one small operand, and from casts that overflow."""
    feeds = real_feeds(one, "normal", seed)
    floats = [name for name, x in feeds.items() if x.dtype.kind == "f"]
    small = sum(feeds[name].size for name in floats) <= FEW
    worst = 0
    for what, (share, some) in EXCEPTIONS.items():
        drawn = dict(feeds)
        for name in floats:
            rng = generator(f"{name} {what}", seed)
            there = rng.random(feeds[name].shape) < share
            drawn[name] = _put(feeds[name], there, rng.choice(some, feeds[name].shape))
        worst = max(worst, _seen(one, drawn))
        for name in floats if small else ():
            value = generator(f"{name} all {what}", seed).choice(some)
            worst = max(worst, _seen(one, {**feeds, name: _put(feeds[name], True, value)}))
    if EXCEPTIONAL in map(partial(_seen, one), _beyond(one, feeds, seed)):
        return EXCEPTIONAL  # but overflow of sums elsewhere is known
    return worst


def _beyond(
    one: Instance, feeds: dict[str, np.ndarray], seed: int
) -> Iterator[dict[str, np.ndarray]]:
    """Yield numbers that overflow or underflow in a type of a cast: in some elements, and in
    all."""
    values = [v for n in nodes((*one.lhs, *one.rhs)) for v in (*n.inputs, *results(n))]
    kinds = {v.type.dtype for v in values if v is not None}
    floats = [k for k in kinds if k is not None and k.is_float]
    if not floats:
        return
    least = min(floats, key=largest)
    wide = [i.name for i in one.inputs if _exceeds(i.type.dtype, largest(least))]
    for share in (EXCEPTIONS["some"][0], 1.0) if wide else ():
        for scale in (10 * largest(least), smallest(least) / 10):
            some = dict(feeds)
            for name in wide:
                there = generator(f"{name} beyond {scale}", seed).random(feeds[name].shape) < share
                some[name] = _put(feeds[name], there, np.copysign(scale, feeds[name]))
            yield some


def _exceeds(dtype: DType | None, least: float) -> bool:
    return dtype is not None and dtype.is_float and largest(dtype) > 10 * least


def _put(x: np.ndarray, there: np.ndarray | bool, value: np.ndarray) -> np.ndarray:
    return np.where(there, value, x).astype(x.dtype)


def _seen(one: Instance, feeds: dict[str, np.ndarray]) -> int:
    worst = 0
    left = evaluate(Graph(one.inputs, one.lhs), feeds, Ranged())
    right = evaluate(Graph(one.inputs, one.rhs), feeds, Ranged())
    for a, b in zip(left, right, strict=True):
        if a.dtype.kind != "f":
            worst = max(worst, EXCEPTIONAL if (a != b).any() else 0)
            continue
        number, still = np.isfinite(a), np.isfinite(b)
        apart = number & still & ~np.isclose(a, b, rtol=NEAR, atol=NEAR * (1 + _size(a)))
        if (apart | (still & ~number)).any():
            return EXCEPTIONAL
        if (number & ~still).any() or not np.array_equal(a[~number], b[~number], equal_nan=True):
            worst = max(worst, DISTRIBUTED)
    return worst


def _size(x: np.ndarray) -> float:
    """Return the root mean square of the finite elements."""
    fine = x[np.isfinite(x)]
    return float(np.sqrt(np.mean(np.square(fine)))) if fine.size else 0.0


def growth(rule: Rule, seed: int = 0, count: int = COUNT) -> float | None:
    """Return the ratio of the right side's error to the left side's: root mean squares over the
    elements of instances, in float32 from normal numbers against float64. None if the left side has
    no error, or no instance has that type."""
    left = right = 0.0
    for number, one in enumerate(islice(instances(rule, seed), count)):
        values = [*one.inputs, *(r for n in nodes((*one.lhs, *one.rhs)) for r in results(n))]
        if any(v.type.dtype not in (F32, I64, BOOL) for v in values):
            continue
        feeds = real_feeds(one, "normal", seed + 31 * number)
        for roots, side in ((one.lhs, 0), (one.rhs, 1)):
            graph = Graph(one.inputs, roots)
            for got, true in zip(
                evaluate(graph, feeds, Reals()), evaluate(graph, feeds, Reals(F64)), strict=True
            ):
                error = _relative(got, true)
                left, right = (left + error, right) if not side else (left, right + error)
    return math.sqrt(right / left) if left else None


def _relative(got: np.ndarray, true: np.ndarray) -> float:
    """Return the mean squared error over the mean square."""
    if true.dtype.kind != "f" or not np.isfinite(true).all() or not true.any():
        return 0.0
    return float(np.mean(np.square(got - true)) / np.mean(np.square(true)))
