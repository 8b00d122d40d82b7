"""The float class of a rule: what its right side does to the roundings of its left one.

    E0  the same operations on the same numbers, bit by bit, infinities and NaN, too
    E1  sums and products in another order
    E2  the same rational function: multiplied out, factored, folded into weights. What is infinite
        or no number may reach more results, but none that had it is without
    E3  a number where there was none, or the other way round

Both sides are computed on instances of the rule in `te/rounding.py`, whose elements know how they
came about; and over the reals with a part of the operands not a number. A rational function that no
longer hangs on an operand, as x - x, or x * 0, has a number where that has none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain, islice

import numpy as np

from superopt.ir.evaluate import evaluate, node_results
from superopt.ir.graph import Constant, Graph, Node, Value, nodes, results
from superopt.ir.op import expression
from superopt.rules.draws import generator, real_feeds
from superopt.rules.instances import Instance, instances
from superopt.rules.rule import FLOAT_CLASSES, Rule
from superopt.rules.trial import cases
from superopt.te.domain import Reals
from superopt.te.dtype import BOOL, F32, F64, I64
from superopt.te.node import Apply, Expr, Load, Reduce
from superopt.te.rounding import DEGREES, Asked, Rounding, agree

COUNT = 12  # instances
DRAWS = ("normal", "positive")
GONE = 0.3  # of the numbers of each operand
FEW = 32  # numbers of all operands, of which those of one may all be drawn, or none
DISTRIBUTED, EXCEPTIONAL = 2, 3  # places of these classes
# Functions whose result needs no rounding.
EXACT = frozenset(
    ("max", "min", "neg", "abs", "sign", "select", "lt", "le", "eq", "ne", "isnan", "isinf",
     "floor", "ceil", "round", "and", "or", "xor", "not", "cast")
)  # fmt: skip


def classed(rule: Rule) -> Rule:
    """The rule, in the class that is computed, where that is above its own: E3 where none is."""
    try:
        found = float_class(rule) or FLOAT_CLASSES[EXCEPTIONAL]
    except (IndexError, MemoryError):  # no index of the left side's is out of range
        found = FLOAT_CLASSES[EXCEPTIONAL]
    return rule if found <= rule.float_class else replace(rule, float_class=found)


def float_class(rule: Rule, seed: int = 0, count: int = COUNT) -> str | None:
    """The lowest class that describes `rule` on so many instances; None where there are none."""
    some = cases(rule, seed, count)
    return class_on(chain(some.plain, islice(some.cramped, count // 2)), seed)


def class_on(some: Iterable[Instance], seed: int) -> str | None:
    """The lowest class that describes a rule on these instances; None where there are none."""
    worst = -1
    for number, one in enumerate(some):
        for draw in DRAWS:
            worst = max(worst, _degree(one, draw, seed + 31 * number))
        worst = max(worst, _exceptions(one, seed + 31 * number))
        if worst == EXCEPTIONAL:
            break
    return FLOAT_CLASSES[worst] if worst >= 0 else None


def _degree(one: Instance, draw: str, seed: int) -> int:
    """How exactly both sides compute the same from these numbers."""
    feeds = real_feeds(one, draw, seed)
    left, here = _computed(one, one.lhs, feeds, seed)
    right, there = _computed(one, one.rhs, feeds, seed)
    for degree in range(len(DEGREES)):
        same = all(
            v.type.dtype is not None and agree(degree, a, b, v.type.dtype)
            for v, a, b in zip(one.lhs, left, right, strict=True)
        )
        if same and (here.within(there, degree) or there.within(here, degree)):
            return degree
    return EXCEPTIONAL


def _computed(
    one: Instance, roots: tuple[Value, ...], feeds: dict[str, np.ndarray], seed: int
) -> tuple[list[np.ndarray], Asked]:
    """The results, and what was compared on the way."""
    domain = Rounding(seed)
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
    return [value(v) for v in roots], domain.asked


def _site(n: Node) -> tuple[str, str]:
    """The operator, as `Rounding.site`; and its name, where it rounds more than once."""
    types = tuple(None if v is None else v.type for v in n.inputs)
    bodies = [t.body for t in expression(n.op, types, n.attrs) if t.body is not None]
    attrs = [(k, v) for k, v in n.attrs if k != "keepdims"]
    site = f"{n.op.name} {attrs} {[str(t) for t in types]}"
    return site, n.op.name if sum(map(_roundings, bodies)) > 1 else ""


def _roundings(e: Expr) -> int:
    match e:
        case Reduce("sum", _, Apply("mul", args)):  # whose products are the sum's
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
    """The class, as far as it hangs on where operands that are no numbers are seen: some elements
    of each, and all of one operand, which small ones need."""
    feeds = real_feeds(one, "normal", seed)
    some = dict(feeds)
    floats = [name for name, x in feeds.items() if x.dtype.kind == "f"]
    for name in floats:
        gone = generator(f"{name} gone", seed).random(feeds[name].shape) < GONE
        some[name] = _gone(feeds[name], gone)
    worst = _seen(one, some)
    if sum(feeds[name].size for name in floats) > FEW:
        return worst
    return max([worst, *(_seen(one, {**feeds, n: _gone(feeds[n], True)}) for n in floats)])


def _gone(x: np.ndarray, where: np.ndarray | bool) -> np.ndarray:
    return np.where(where, np.nan, x).astype(x.dtype)


def _seen(one: Instance, feeds: dict[str, np.ndarray]) -> int:
    worst = 0
    left = evaluate(Graph(one.inputs, one.lhs), feeds, Reals(F64))
    right = evaluate(Graph(one.inputs, one.rhs), feeds, Reals(F64))
    for a, b in zip(left, right, strict=True):
        if a.dtype.kind != "f":
            worst = max(worst, EXCEPTIONAL if (a != b).any() else 0)
        else:
            lost, won = np.isnan(a) & ~np.isnan(b), np.isnan(b) & ~np.isnan(a)
            worst = max(worst, EXCEPTIONAL if lost.any() else DISTRIBUTED if won.any() else 0)
    return worst


def growth(rule: Rule, seed: int = 0, count: int = COUNT) -> float | None:
    """How many times the left side's error the right side's is, root mean squares over the elements
    of instances, computed in float32 from normal numbers and compared with float64. None where the
    left side has no error, or no instance is of that type."""
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
    """The mean squared error over the mean square."""
    if true.dtype.kind != "f" or not np.isfinite(true).all() or not true.any():
        return 0.0
    return float(np.mean(np.square(got - true)) / np.mean(np.square(true)))
