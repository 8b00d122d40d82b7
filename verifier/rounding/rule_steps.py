"""Rules whose results are equal within quantization steps.

    QuantizeLinear(e1, s, z) => QuantizeLinear(e2, t, z)

is within k steps if e1 / s and e2 / t are equal over the real numbers and their float32 rounding
errors are E1 and E2 with E1 + E2 < k. For the computed quotients y1 and y2, |y1 - y2| < k, so that

    rint(y1) <= y1 + 1/2 < y2 + k + 1/2 <= rint(y2) + k + 1

and both are integers: rint(y1) <= rint(y2) + k, and the other way round. Adding the zero point and
limiting to the range of the type move results no farther apart. This holds for ties in any
direction, but not for another rounding, such as towards zero: then rint(y) <= y + 1/2 is false.

A quotient beyond the range of the type, which has at most 16 bits, is limited to it, as the
zero point is in the range: errors that are relative to the quotient are taken at its ends.

E1 and E2 are bounded in `error_bounds.py`, for every order of additions, from the ranges of the
integers, the numbers of terms, and the rule's conditions on scales and sizes. That is done for
each instance that the proof over the real numbers has: the operators' expressions with symbolic
sizes, so that a new operator needs nothing here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from superopt.ir.syntax import MalformedText
from superopt.rules.lang.functions import Result
from superopt.rules.lang.rule import Rule
from superopt.rules.lang.syntax import Param
from superopt.rules.lang.term import Binary, Call, Compare, Formula, Lit, Name
from superopt.rules.lang.unrounded import (
    positive_operands,
    without_bounds_of_values,
    without_rounding,
)
from superopt.te.expr.node import Expr
from superopt.verifier.context import OutOfTime, ProofContext
from superopt.verifier.instances.attributes import Unsupported
from superopt.verifier.instances.choices import VALUE_PREFIX, Ranks
from superopt.verifier.instances.element_types import rules_by_type
from superopt.verifier.instances.instance import Instance, instances
from superopt.verifier.instances.scope import SEVERAL_TYPES, rank_scope, unclear_reason
from superopt.verifier.prove import Limits, prove
from superopt.verifier.rounding.error_bounds import (
    SAFETY,
    Amount,
    Unbounded,
    add,
    limit_relative,
)
from superopt.verifier.rounding.error_bounds import Limits as BoundLimits
from superopt.verifier.rounding.expressions import TensorBounds, posynomial_of_size
from superopt.verifier.rounding.posynomials import (
    Condition,
    Posynomial,
    as_posynomial,
    least_upper_bound,
    symbol,
)
from superopt.verifier.verdict import Proved, Unknown, Verdict

STEPS_NOTE = "float32 in any order of additions, without overflow"
MAX_QUOTIENT = 65535.0  # steps from the zero point, beyond which the results are limited


def prove_within_steps(rule: Rule, limits: Limits, ranks: Ranks | None = None) -> Verdict:
    """Prove that the sides of a rule with `steps` differ by no more than those: equality over the
    real numbers, and bounds of the rounding errors."""
    begin = time.thread_time()

    def since() -> float:
        return time.thread_time() - begin

    try:
        plain = without_rounding(rule)
    except MalformedText as e:
        return Unknown(str(e), since())
    equal = without_bounds_of_values(plain)
    found = prove(equal, replace(limits, has_exact_casts=True), ranks)
    if not isinstance(found, Proved):
        return found
    try:
        error = largest_error(plain, equal, replace(limits, seconds=limits.seconds - since()))
    except (Unbounded, Unsupported, OutOfTime) as e:
        text = str(e) or "the time is over"
        return Unknown(f"equal over the real numbers; no bound of rounding: {text}", since())
    if not error < rule.steps:
        return Unknown(
            f"equal over the real numbers; rounding errors are up to {error:.3g} steps, and less"
            f" than {rule.steps} must be shown",
            since(),
        )
    note = f"{STEPS_NOTE}: errors below {_round_up(error):g} of {rule.steps} steps"
    scope = replace(found.scope, assumes=(*found.scope.assumes, note))
    return replace(found, scope=scope, seconds=since())


def _round_up(error: float) -> float:
    """Return an error in hundredths, rounded up."""
    return math.ceil(error * 100) / 100


def largest_error(plain: Rule, equal: Rule, limits: Limits) -> float:
    """Return the largest sum of both sides' rounding errors, in steps, over all instances of a rule
    without rounding. equal: without the conditions that bound values."""
    worst = 0.0
    for pair in _by_type(plain, equal):
        context = ProofContext.with_limits(limits.seconds, limits.work)
        for one in instances(context, pair.equal, rank_scope(pair.equal)):
            worst = max(worst, _InstanceErrors(context, pair.plain, one).total())
    return worst


@dataclass(frozen=True, slots=True)
class _RulePair:
    plain: Rule
    equal: Rule


def _by_type(plain: Rule, equal: Rule) -> Iterator[_RulePair]:
    """Yield the rules for each assignment of element types, if it matters."""
    if unclear_reason(equal) != SEVERAL_TYPES:
        yield _RulePair(plain, equal)
        return
    for a, b in zip(rules_by_type(plain), rules_by_type(equal), strict=True):
        yield _RulePair(a, b)


@dataclass(slots=True)
class _InstanceErrors:
    """The rounding errors of one instance."""

    context: ProofContext
    rule: Rule
    instance: Instance

    def total(self) -> float:
        """Return the largest error of both sides together. Raises Unbounded if a limit of the
        analysis is not shown to hold."""
        conditions = [*self.conditions()]
        limits = BoundLimits()
        total: Amount = as_posynomial(0.0)
        for side in (self.instance.lhs, self.instance.rhs):
            (root,) = side
            bounds = TensorBounds(limits, name_of=self.context.unknowns.name)
            quotient = limit_relative(bounds.tensor(root), MAX_QUOTIENT)
            total = add(total, limits.total_error(quotient))
        sizes = {n for a in (total, *(x for x, _ in limits.amounts)) for n in _symbols(a)}
        conditions += [
            Condition(as_posynomial(1.0), symbol(n))
            for n in sorted(sizes)
            if not n.startswith(VALUE_PREFIX)
        ]
        self.require_positive(sizes)
        for amount, most in limits.amounts:
            found = least_upper_bound(_posynomial(amount), conditions)
            if not found * SAFETY <= most:
                raise Unbounded(f"{amount} may exceed {most:.3g}")
        return least_upper_bound(_posynomial(total), conditions) * SAFETY

    def require_positive(self, names: set[str]) -> None:
        """Raise Unbounded unless conditions say that these values are above 0."""
        positive = positive_operands(self.rule)
        for n in sorted(names):
            if n.startswith(VALUE_PREFIX) and n.removeprefix(VALUE_PREFIX) not in positive:
                raise Unbounded(f"no condition says that value({n[len(VALUE_PREFIX) :]}) > 0")

    def conditions(self) -> Iterator[Condition]:
        """Yield the rule's conditions that compare monomials."""
        for f in self.rule.where:
            if not isinstance(f, Compare):
                continue
            sides = (f.first, *(g for _, g in f.rest))
            for a, b, (op, _) in zip(sides, sides[1:], f.rest, strict=False):
                low, high = self.monomial(a), self.monomial(b)
                if op in (">", ">="):
                    low, high = high, low
                if op in ("<", "<=", ">", ">=") and low is not None and high is not None:
                    yield Condition(low, high)

    def monomial(self, f: Formula) -> Posynomial | None:
        """Return a formula as one positive term; None for others."""
        names: Mapping[str, Result] = self.instance.names
        match f:
            case Lit(int() | float() as v) if v > 0:
                return as_posynomial(float(v))
            case Call("value", (Name(n),)) if self.is_float(n):
                return symbol(VALUE_PREFIX + n)
            case Name(n):
                return self.size(names.get(n))
            case Binary("*", a, b):
                x, y = self.monomial(a), self.monomial(b)
                return None if x is None or y is None else x * y
            case Binary("/", a, b):
                x, y = self.monomial(a), self.monomial(b)
                by = None if y is None else y.inverse()
                return None if x is None or by is None else x * by
            case Binary("**", a, Lit(int() as n)) if n > 0:
                x = self.monomial(a)
                return None if x is None else _power(x, n)
            case _:
                return None

    def is_float(self, name: str) -> bool:
        kinds = [p.kind for p in self.rule.params if isinstance(p, Param) and p.name == name]
        return kinds == ["f32"]

    def size(self, r: Result) -> Posynomial | None:
        """Return a size as one term."""
        if isinstance(r, int) and r > 0:
            return as_posynomial(float(r))
        if not isinstance(r, Expr):
            return None
        try:
            found = posynomial_of_size(r)
        except Unbounded:
            return None
        return found if found.single_term is not None else None


def _power(x: Posynomial, n: int) -> Posynomial:
    out = as_posynomial(1.0)
    for _ in range(n):
        out = out * x
    return out


def _posynomial(a: Amount) -> Posynomial:
    return a if isinstance(a, Posynomial) else as_posynomial(float(a))


def _symbols(a: Amount) -> Iterator[str]:
    if isinstance(a, Posynomial):
        yield from (n for powers in a.terms for n, _ in powers)
