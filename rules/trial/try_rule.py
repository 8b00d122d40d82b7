"""The trial of a rule: both sides on random instances, over the reals and over a prime field.

    try_rule(rule, seed=0, count=16) -> Passed | Refuted | Untestable

In float64 a wrong rule is off by far more than rounding. The field has no rounding at all: two
different rational functions agree on random elements with a probability of about 1 in 2^31. The
field cannot judge a law that mixes + with max or abs, or one of an uninterpreted function (tanh is
odd): there it disagrees, and only the floats count (`over_field=False`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from superopt.ir.evaluate import evaluate
from superopt.ir.graph import Constant, Graph, Value, nodes
from superopt.ir.op import expression
from superopt.rules.lang.rule import Rule, has_one_shape, has_one_size
from superopt.rules.lang.term import App, Number, walk
from superopt.rules.lang.unrounded import without_rounding
from superopt.rules.trial.cases import Cases, cases
from superopt.rules.trial.draws import (
    DRAWS,
    EXCEPTIONAL_DRAWS,
    LARGE_SCALES,
    draw_array,
    mix_in_rule_numbers,
    overflow_draws,
    real_feeds,
)
from superopt.rules.trial.instances import Instance
from superopt.rules.trial.wrong_elements import finiteness_changes, wrong_elements
from superopt.te.eval.batched_reals import BatchedReals
from superopt.te.eval.domain import Domain, Reals
from superopt.te.eval.prime_field import PrimeField, record_zero_divisions
from superopt.te.expr.dtype import BOOL, F64
from superopt.te.expr.functions import scalar_function
from superopt.te.expr.node import Apply, Expr, Load, Reduce

FIELD_JUDGED = frozenset(("ring", "quotient", "equal"))  # functions that the field can judge
STORED_TYPES_DRAW = "in the types of the model, normal"  # not in float64


@dataclass(frozen=True, slots=True)
class Passed:
    """Both sides agreed on all instances; `over_field`: over the prime field, too."""

    instances: int
    over_field: bool

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        over = "floats and a prime field" if self.over_field else "floats"
        return f"both sides agree on {self.instances} instances, over {over}"


@dataclass(frozen=True, slots=True)
class Refuted:
    """The sides differ: on which instance, in which output, at which index, and both values."""

    instance: Instance
    draw: str
    output: int
    index: tuple[int, ...]
    left: object
    right: object

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return (
            f"{self.draw}: output {self.output} at {list(self.index)} is {self.left} on the left,"
            f" {self.right} on the right, for {self.instance}"
        )


@dataclass(frozen=True, slots=True)
class Untestable:
    """No instance was found, or too few, or none on which the sides have a finite value."""

    reason: str

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return self.reason


Verdict = Passed | Refuted | Untestable


def try_rule(rule: Rule, seed: int = 0, count: int = 16) -> Verdict:
    """Try `rule` on `count` instances and some cramped ones. Equal seeds give equal verdicts. A
    rule within steps is tried without its rounding, too."""
    try:
        if rule.steps and not (plain := _try_rule(without_rounding(rule), seed, count)):
            return plain
        return _try_rule(rule, seed, count)
    except MemoryError:
        return Untestable("an instance exceeds the available memory")


def _try_rule(rule: Rule, seed: int, count: int) -> Verdict:
    return try_on_instances(rule, cases(rule, seed, count), seed)


# What to do if random draws find no instances.
HINT = "; `*, n: likely(...)` as the last parameters says which sizes and attributes fit"


def try_on_instances(rule: Rule, trial_cases: Cases, seed: int) -> Verdict:
    """Try `rule` on these instances, each plain one on several inputs."""
    tried = 0
    field, finite = True, False
    draws: tuple[str, ...] = ()
    for number, one in enumerate(trial_cases.plain):
        if not tried:
            draws = draws_for(rule, one)
        tried += 1
        verdict = _try_instance(rule, one, draws, seed + 31 * number)
        if isinstance(verdict, Refuted):
            return verdict
        field, finite = field and verdict.in_field, finite or verdict.has_finite
    enough = (
        1 if has_one_shape(rule) else 5 if has_one_size(rule) else trial_cases.count
    )  # that exist
    if tried < min(trial_cases.count, enough):
        return Untestable(f"only {tried} of {trial_cases.count} instances were found{HINT}")
    if tried and not finite:
        return Untestable("no instance has a finite value")
    few = (DRAWS[0], *_exceptional_draws(rule)[:1])
    for number, one in enumerate(trial_cases.cramped):
        wrong = _find_real_difference(rule, one, few, seed + 31 * number)
        if isinstance(wrong, Refuted):
            return wrong
    return Passed(tried, field)


def draws_for(rule: Rule, one: Instance) -> tuple[str, ...]:
    """Return the draws for a rule, determined by one of its instances."""
    large = LARGE_SCALES if "exp" in scalar_functions((*one.lhs, *one.rhs)) else ()
    return (*DRAWS, *large, *overflow_draws(one), *_exceptional_draws(rule))


def _exceptional_draws(rule: Rule) -> tuple[str, ...]:
    return EXCEPTIONAL_DRAWS if rule.float_class == "E0" or _mentions_exceptions(rule) else ()


def _mentions_exceptions(rule: Rule) -> bool:
    """True if a rule tests for NaN or infinities."""
    terms = [t for side in (*rule.lhs, *rule.rhs) for t in walk(side)]
    return any(
        (isinstance(t, App) and t.op.name in ("IsNaN", "IsInf"))
        or (isinstance(t, Number) and not math.isfinite(t.value))
        for t in terms
    )


@dataclass(frozen=True, slots=True)
class _Held:
    """A rule held on an instance. in_field: also over the field; has_finite: with finite values."""

    in_field: bool
    has_finite: bool


def _try_instance(rule: Rule, one: Instance, draws: Sequence[str], seed: int) -> _Held | Refuted:
    finite = _find_real_difference(rule, one, draws, seed)
    if isinstance(finite, Refuted):
        return finite
    with record_zero_divisions() as zeros:  # whose value is arbitrary
        verdict = _field_difference(one, seed)
    if verdict is None:
        return _Held(True, finite)
    return verdict if is_decided_in_prime_field(one) and not zeros else _Held(False, finite)


def _find_real_difference(
    rule: Rule, one: Instance, draws: Sequence[str], seed: int
) -> bool | Refuted:
    """Return a difference over the reals, or else whether there were finite values."""
    finite = False
    for draw, sides in evaluate_draws(rule, one, draws, seed):
        if isinstance(sides, IndexError):  # the left side's indices are in range
            return Refuted(one, f"float64, {draw}", 0, (), "a value", str(sides))
        found = real_difference(rule, one, draw, *sides)
        if found is not None:
            return found
        finite = finite or all(_mostly_finite(s) for s in sides[0])
    if rule.float_class == "E0" and has_float_casts(one):
        feeds = real_feeds(one, draws[0], seed)
        found = real_difference(rule, one, STORED_TYPES_DRAW, *evaluate_sides(one, feeds, Reals()))
        if found is not None:
            return found
    return finite


def has_float_casts(one: Instance) -> bool:
    """True if floats are cast, as between types of different precision."""
    made = (n for n in nodes((*one.lhs, *one.rhs)) if n.op.name in ("Cast", "CastLike"))
    return any(t.dtype is not None and t.dtype.is_float for n in made for t in n.types)


def evaluate_draws(
    rule: Rule, one: Instance, draws: Sequence[str], seed: int
) -> Iterator[tuple[str, Sides | IndexError]]:
    """Yield both sides on each draw; evaluated at once if there are only floats."""
    feeds = {draw: draw_feeds(rule, one, draw, seed) for draw in draws}
    if len(draws) > 1 and has_only_floats(one):
        every = {i.name: np.stack([feeds[d][i.name] for d in draws]) for i in one.inputs}
        try:
            left, right = evaluate_sides(one, every, BatchedReals(F64, len(draws)))
        except IndexError as e:  # for every draw: no input is an index
            yield draws[0], e
            return
        for n, draw in enumerate(draws):
            yield draw, ([a[n] for a in left], [b[n] for b in right])
        return
    for draw in draws:
        try:
            yield draw, evaluate_sides(one, feeds[draw], Reals(F64))
        except IndexError as e:
            yield draw, e


def draw_feeds(rule: Rule, one: Instance, draw: str, seed: int) -> dict[str, np.ndarray]:
    """Return the inputs of a draw; draw "whole" also has the literals of the rule."""
    feeds = real_feeds(one, draw, seed)
    if draw == "whole":
        mix_in_rule_numbers(rule, feeds, seed, {i.name for i in one.inputs if i in one.limits})
    return feeds


def has_only_floats(one: Instance) -> bool:
    """True if all values are floats or bools."""
    made = (t for n in nodes((*one.lhs, *one.rhs)) for t in n.types)
    return all(
        t.dtype is not None and (t.dtype.is_float or t.dtype is BOOL)
        for t in (*(i.type for i in one.inputs), *made)
    )


# --- over the reals -------------------------------------------------------------------------------


Sides = tuple[list[np.ndarray], list[np.ndarray]]


def evaluate_sides(one: Instance, feeds: Mapping[str, np.ndarray], domain: Domain) -> Sides:
    """Return the values of both sides."""
    left = evaluate(Graph(one.inputs, one.lhs), feeds, domain)
    return left, evaluate(Graph(one.inputs, one.rhs), feeds, domain)


def real_difference(
    rule: Rule, one: Instance, draw: str, left: list[np.ndarray], right: list[np.ndarray]
) -> Refuted | None:
    """Return the first element of the right side that the rule's float class does not allow."""
    for output, (a, b) in enumerate(zip(left, right, strict=True)):
        if draw in LARGE_SCALES and rule.float_class != "E0":
            wrong = finiteness_changes(rule.float_class, a, b)
        else:
            wrong = wrong_elements(rule.float_class, a, b, rule.steps)
        if wrong.any():
            at = tuple(int(k) for k in np.argwhere(wrong)[0])
            place = draw if draw == STORED_TYPES_DRAW else f"float64, {draw}"
            return Refuted(one, place, output, at, a[at].item(), b[at].item())
    return None


def _mostly_finite(x: np.ndarray) -> bool:
    return x.dtype.kind != "f" or not x.size or float(np.mean(np.isfinite(x))) > 0.5


# --- over the field -------------------------------------------------------------------------------


def _field_difference(one: Instance, seed: int) -> Refuted | None:
    """Return the first element in which the sides differ over the prime field."""
    domain = PrimeField(seed)
    feeds: dict[str, np.ndarray] = {}
    for n, i in enumerate(one.inputs):
        assert i.type.dtype is not None
        if i.type.dtype.is_float:
            feeds[i.name] = domain.random(i.type, seed * 101 + n)
        else:
            feeds[i.name] = draw_array(i, one.limits.get(i), "normal", seed)
    left, right = evaluate_sides(one, feeds, domain)
    for output, (v, a, b) in enumerate(zip(one.lhs, left, right, strict=True)):
        assert v.type.dtype is not None
        wrong = ~domain.elements_equal(a, b, v.type.dtype)
        if wrong.any():
            at = tuple(int(k) for k in np.argwhere(wrong)[0])
            where = (0, *at) if v.type.dtype.is_float else at
            return Refuted(one, "prime field", output, at, a[where].item(), b[where].item())
    return None


def is_decided_in_prime_field(one: Instance) -> bool:
    """True if both sides are rational functions, so that a difference in the field is one over the
    reals. False if a constant was rounded: nine times the float nearest to 1 / 9 is not 1 in the
    field."""
    roots = (*one.lhs, *one.rhs)
    if any(
        _has_rounded_fractions(v) for n in nodes(roots) for v in n.inputs if isinstance(v, Constant)
    ):
        return False
    return all(
        scalar_function(fn).field_semantics in FIELD_JUDGED for fn in scalar_functions(roots)
    )


MAX_FRACTION_DENOMINATOR = 4096  # largest denominator of a fraction that a float may stand for
MAX_DISTINCT_NUMBERS = 64  # in a constant with such fractions


def _has_rounded_fractions(c: Constant) -> bool:
    """True if a constant has floats that stand for inexact fractions, as 1 / 9."""
    assert c.type.dtype is not None
    if not c.type.dtype.is_float:
        return False
    array = c.load()
    numbers = np.unique(array)
    if len(numbers) > MAX_DISTINCT_NUMBERS or not np.isfinite(numbers.astype(np.float64)).all():
        return False
    for number in numbers:
        exact = Fraction(float(number))
        near = exact.limit_denominator(MAX_FRACTION_DENOMINATOR)
        if near not in (0, exact) and array.dtype.type(float(near)) == number:
            return True
    return False


def scalar_functions(roots: Sequence[Value]) -> frozenset[str]:
    """Return the scalar functions of float elements that values are computed with."""
    found: set[str] = set()
    for n in nodes(roots):
        types = tuple(None if v is None else v.type for v in n.inputs)
        for t in expression(n.op, types, n.attrs):
            if t.body is not None:
                found.update(_functions(t.body))
    return frozenset(found)


def _functions(e: Expr) -> Iterator[str]:
    match e:
        case Apply(fn, args, dtype):
            if fn == "cast":
                if args[0].dtype.is_float and not dtype.is_float:
                    yield "floor"
            elif fn != "select" and any(a.dtype.is_float for a in args):
                yield fn
            for a in args:
                yield from _functions(a)
        case Reduce(fn, _, body, dtype):
            if dtype.is_float and fn in ("max", "min"):
                yield fn
            yield from _functions(body)
        case Load(t, index, _):
            if t.body is not None:
                yield from _functions(t.body)
            for i in index:
                yield from _functions(i)
        case _:
            return
