"""The float class of a rule: how its right side rounds compared to its left side.

    E0  the same operations on the same numbers, bit by bit, Inf and NaN included
    E1  sums and products in another order
    E2  the same rational function: expanded, factored, folded into weights. Inf and NaN may reach
        more results, but not fewer
    E3  a finite number in place of Inf or NaN, or the reverse; a result that jumps by a rounding

Both sides are computed on instances of the rule in `te/eval/rounding.py`, whose elements record
their history; and over the reals with some operands NaN, infinite, zero, or beyond the range of a
cast. A rational function that no longer depends on an operand, as x - x or x * 0, is finite where
that is not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain, islice

import numpy as np

from superopt.ir.evaluate import evaluate, node_results
from superopt.ir.graph import Constant, Graph, Node, Value, nodes, results
from superopt.ir.op import expression
from superopt.rules.lang.rule import FLOAT_CLASSES, Rule
from superopt.rules.lang.unrounded import without_rounding
from superopt.rules.trial.cases import cases, literal_elements
from superopt.rules.trial.draws import named_rng, real_feeds
from superopt.rules.trial.exact_quantization import equal_input, equal_operand
from superopt.rules.trial.instances import Instance, instances
from superopt.te.eval.domain import Reals
from superopt.te.eval.range_limited import RangeLimitedReals, max_finite, min_subnormal
from superopt.te.eval.rounding import EXACTNESS_DEGREES, RoundingDomain
from superopt.te.eval.rounding_columns import RELATIVE_TOLERANCE, elements_agree
from superopt.te.expr.dtype import BOOL, F32, F64, I64, DType
from superopt.te.expr.node import Apply, Expr, Load, Reduce

INSTANCE_COUNT = 12  # instances
MAX_ELEMENTS, MIN_INSTANCES = 1 << 16, 2  # elements of all instances; instances if these are large
DRAWS = ("normal", "positive")
# Exceptional values: the share of each operand's elements drawn from them.
EXCEPTION_DRAWS = {
    "none": (0.3, (math.nan,)),
    "some": (0.3, (math.inf, -math.inf, 0.0)),
    "most": (0.8, (math.inf, -math.inf, 0.0, math.nan)),
}
MAX_SINGLE_OPERAND_NUMBERS = 32  # elements of all operands for which a whole operand is exceptional
DISTRIBUTED, EXCEPTIONAL = 2, 3  # indices of these classes
# Functions with exact results.
EXACT_FUNCTIONS = frozenset(
    ("max", "min", "neg", "abs", "sign", "select", "lt", "le", "eq", "ne", "isnan", "isinf",
     "floor", "ceil", "round", "and", "or", "xor", "not", "cast")
)  # fmt: skip


def with_computed_class(rule: Rule) -> Rule:
    """Return the rule with the computed class, if that is above its own: E3 if none is computed."""
    try:
        found = float_class(rule) or FLOAT_CLASSES[EXCEPTIONAL]
    except (IndexError, MemoryError):  # some index of the left side is out of range
        found = FLOAT_CLASSES[EXCEPTIONAL]
    return rule if found <= rule.float_class else replace(rule, float_class=found)


def float_class(rule: Rule, seed: int = 0, count: int = INSTANCE_COUNT) -> str | None:
    """Return the lowest class that describes `rule` on `count` instances; None if there are none,
    or no small one: an operation is a thousand times slower here. The class of a rule within steps
    is that of what is quantized."""
    rule = without_rounding(rule) if rule.steps else rule
    if literal_elements(rule) > MAX_ELEMENTS:
        return None
    some = cases(rule, seed, count, MAX_ELEMENTS, MIN_INSTANCES)
    return class_on_instances(chain(some.plain, islice(some.cramped, count // 2)), seed)


def class_on_instances(instance_list: Iterable[Instance], seed: int) -> str | None:
    """Return the lowest class that describes a rule on these instances; None if there are none."""
    worst = -1
    for number, one in enumerate(instance_list):
        for draw in DRAWS:
            worst = max(worst, _agreement_degree(one, draw, seed + 31 * number))
        worst = max(worst, _exceptional_class(one, seed + 31 * number))
        if worst == EXCEPTIONAL:
            break
    return FLOAT_CLASSES[worst] if worst >= 0 else None


def _agreement_degree(one: Instance, draw: str, seed: int) -> int:
    """Return how exactly both sides agree on these numbers. A comparison of differently rounded
    values may flip: its result differs, however close its operands are."""
    feeds = real_feeds(one, draw, seed)
    here, there = RoundingDomain(seed), RoundingDomain(seed)
    left, right = (
        _evaluate_rounding(one, one.lhs, feeds, here),
        _evaluate_rounding(one, one.rhs, feeds, there),
    )
    for degree in range(len(EXACTNESS_DEGREES) if here.undecided == there.undecided else 1):
        if all(
            v.type.dtype is not None and elements_agree(degree, a, b, v.type.dtype)
            for v, a, b in zip(one.lhs, left, right, strict=True)
        ):
            return degree
    return EXCEPTIONAL


def _evaluate_rounding(
    one: Instance, roots: tuple[Value, ...], feeds: dict[str, np.ndarray], domain: RoundingDomain
) -> list[np.ndarray]:
    held: dict[Value, np.ndarray] = {}
    for i in one.inputs:
        assert i.type.dtype is not None
        x = feeds[i.name]
        held[i] = domain.input_elements(x, i.type.dtype, i.name) if i.type.dtype.is_float else x

    def value(v: Value) -> np.ndarray:
        if v in held:
            return held[v]
        assert isinstance(v, Constant)
        return domain.load(v.load(), v.type)

    for n in nodes(roots):
        if (same := equal_operand(n)) is not None:
            held[results(n)[0]] = value(same)
            continue
        inputs = [equal_input(n) or n.inputs[0], *n.inputs[1:]] if n.inputs else []
        operands = [None if v is None else value(v) for v in inputs]
        found = node_results(n, operands, domain.for_operator(*_rounding_site(n)))
        held.update(zip(results(n), found, strict=True))
    return [value(v) for v in roots]


@lru_cache(maxsize=1 << 10)
def _rounding_site(n: Node) -> tuple[str, str]:
    """Return the operator as `Rounding.site`, and its name if it rounds more than once."""
    types = tuple(None if v is None else v.type for v in n.inputs)
    bodies = [t.body for t in expression(n.op, types, n.attrs) if t.body is not None]
    attrs = [(k, v) for k, v in n.attrs if k != "keepdims"]
    site = f"{n.op.name} {attrs} {[str(t) for t in types]}"
    return site, n.op.name if sum(map(_count_roundings, bodies)) > 1 else ""


def _count_roundings(e: Expr) -> int:
    match e:
        case Reduce("sum", _, Apply("mul", args)):  # the sum rounds its products
            return 1 + sum(map(_count_roundings, args))
        case Apply(fn, args, dtype):
            return (dtype.is_float and fn not in EXACT_FUNCTIONS) + sum(map(_count_roundings, args))
        case Reduce(fn, _, body, dtype):
            return (dtype.is_float and fn in ("sum", "prod")) + _count_roundings(body)
        case Load(t):
            return _count_roundings(t.body) if t.body is not None else 0
        case _:
            return 0


def _exceptional_class(one: Instance, seed: int) -> int:
    """Return the class as far as NaN, Inf and zeros in operands determine it: in some elements of
    each operand, in all elements of one small operand, and from casts that overflow."""
    feeds = real_feeds(one, "normal", seed)
    floats = [name for name, x in feeds.items() if x.dtype.kind == "f"]
    small = sum(feeds[name].size for name in floats) <= MAX_SINGLE_OPERAND_NUMBERS
    worst = 0
    for what, (share, some) in EXCEPTION_DRAWS.items():
        drawn = dict(feeds)
        for name in floats:
            rng = named_rng(f"{name} {what}", seed)
            there = rng.random(feeds[name].shape) < share
            drawn[name] = _replace_where(feeds[name], there, rng.choice(some, feeds[name].shape))
        worst = max(worst, _compare_exceptional(one, drawn))
        for name in floats if small else ():
            value = named_rng(f"{name} all {what}", seed).choice(some)
            worst = max(
                worst,
                _compare_exceptional(
                    one, {**feeds, name: _replace_where(feeds[name], True, value)}
                ),
            )
    if EXCEPTIONAL in map(
        partial(_compare_exceptional, one), _out_of_range_feeds(one, feeds, seed)
    ):
        return EXCEPTIONAL  # but overflow of sums elsewhere is known
    return worst


def _out_of_range_feeds(
    one: Instance, feeds: dict[str, np.ndarray], seed: int
) -> Iterator[dict[str, np.ndarray]]:
    """Yield numbers that overflow or underflow in a type of a cast: in some elements, and in
    all."""
    values = [v for n in nodes((*one.lhs, *one.rhs)) for v in (*n.inputs, *results(n))]
    kinds = {v.type.dtype for v in values if v is not None}
    floats = [k for k in kinds if k is not None and k.is_float]
    if not floats:
        return
    least = min(floats, key=max_finite)
    wide = [i.name for i in one.inputs if _exceeds_range(i.type.dtype, max_finite(least))]
    for share in (EXCEPTION_DRAWS["some"][0], 1.0) if wide else ():
        for scale in (10 * max_finite(least), min_subnormal(least) / 10):
            some = dict(feeds)
            for name in wide:
                there = named_rng(f"{name} beyond {scale}", seed).random(feeds[name].shape) < share
                some[name] = _replace_where(feeds[name], there, np.copysign(scale, feeds[name]))
            yield some


def _exceeds_range(dtype: DType | None, limit: float) -> bool:
    return dtype is not None and dtype.is_float and max_finite(dtype) > 10 * limit


def _replace_where(x: np.ndarray, mask: np.ndarray | bool, value: np.ndarray) -> np.ndarray:
    return np.where(mask, value, x).astype(x.dtype)


def _compare_exceptional(one: Instance, feeds: dict[str, np.ndarray]) -> int:
    worst = 0
    left = evaluate(Graph(one.inputs, one.lhs), feeds, RangeLimitedReals())
    right = evaluate(Graph(one.inputs, one.rhs), feeds, RangeLimitedReals())
    for a, b in zip(left, right, strict=True):
        if a.dtype.kind != "f":
            worst = max(worst, EXCEPTIONAL if (a != b).any() else 0)
            continue
        number, still = np.isfinite(a), np.isfinite(b)
        apart = (
            number
            & still
            & ~np.isclose(
                a, b, rtol=RELATIVE_TOLERANCE, atol=RELATIVE_TOLERANCE * (1 + _finite_rms(a))
            )
        )
        if (apart | (still & ~number)).any():
            return EXCEPTIONAL
        if (number & ~still).any() or not np.array_equal(a[~number], b[~number], equal_nan=True):
            worst = max(worst, DISTRIBUTED)
    return worst


def _finite_rms(x: np.ndarray) -> float:
    """Return the root mean square of the finite elements."""
    fine = x[np.isfinite(x)]
    return float(np.sqrt(np.mean(np.square(fine)))) if fine.size else 0.0


def error_growth(rule: Rule, seed: int = 0, count: int = INSTANCE_COUNT) -> float | None:
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
                error = _relative_error(got, true)
                left, right = (left + error, right) if not side else (left, right + error)
    return math.sqrt(right / left) if left else None


def _relative_error(got: np.ndarray, true: np.ndarray) -> float:
    """Return the mean squared error over the mean square."""
    if true.dtype.kind != "f" or not np.isfinite(true).all() or not true.any():
        return 0.0
    return float(np.mean(np.square(got - true)) / np.mean(np.square(true)))
