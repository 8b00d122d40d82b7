"""Proofs for all sizes up to a bound: both sides as polynomials at each size (tier B).

If all operands of a rule have one fixed shape, such as a tile, that proof is complete.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from superopt.rules.lang.functions import NotKnown
from superopt.rules.lang.rule import Rule, has_one_shape
from superopt.rules.lang.syntax import Param
from superopt.rules.library.records import Scope
from superopt.te.analysis.bind_sizes import bind
from superopt.te.eval.interpret import evaluate_all
from superopt.te.eval.polynomial import NotPolynomial, PolynomialDomain
from superopt.te.expr import index
from superopt.verifier.context import OutOfTime, ProofContext
from superopt.verifier.elements.scalars import NEAREST_NOTE
from superopt.verifier.instances.attributes import Unsupported
from superopt.verifier.instances.choices import Ranks
from superopt.verifier.instances.instance import Instance, instances
from superopt.verifier.instances.scope import rank_scope, show_ranks, unclear_reason
from superopt.verifier.instances.size_equations import holds_at
from superopt.verifier.prove import ASSUMPTIONS, Limits, prove
from superopt.verifier.refute import MAX_ELEMENTS, open_sizes
from superopt.verifier.rounding.rule_steps import prove_within_steps
from superopt.verifier.verdict import Proved, Unknown, Verdict

SIZE_BOUND = 4  # largest size
MAX_SHAPES = 1 << 10  # shapes checked, over all instances
MAX_RANK = 4
EXACT = "exact polynomials"
BRIEF_SECONDS = 5.0  # seconds


def prove_bounded(rule: Rule, seconds: float, bound: int = SIZE_BOUND) -> Verdict:
    """Prove that both sides of `rule` are equal at all sizes up to `bound`, at ranks up to 4.

    Unknown does not mean that they differ: two different polynomials may be equal as functions.
    """
    begin = time.thread_time()

    def since() -> float:
        return time.thread_time() - begin

    context = ProofContext.with_limits(seconds)
    if vague := unclear_reason(rule):
        return Unknown(vague, since())
    if any(isinstance(p, Param) and p.kind == "num" for p in rule.params):
        return Unknown("numbers of several types, of which integers have no polynomials", since())
    ranks = rank_scope(rule)
    ranks = Ranks(ranks.min_rank, min(ranks.max_rank, MAX_RANK))
    shapes = ways = 0
    fixed, nearest = True, False
    try:
        for one in instances(context, rule, ranks):
            if one.size_roots or one.state.number_orders:
                return Unknown("numbers that stand for others", since())
            ways += 1
            fixed = fixed and not open_sizes(one)  # also if no size up to the bound is valid
            for sizes in _valid_sizes(one, bound):
                shapes += 1
                if shapes > MAX_SHAPES or since() > seconds:
                    return Unknown(f"more than {shapes - 1} shapes", since(), is_out_of_budget=True)
                if not _are_equal_at(one, sizes, domain := PolynomialDomain()):
                    return Unknown(f"other polynomials for {one} at {sizes}", since())
                nearest = nearest or bool(domain.rationalized)
    except OutOfTime:
        return Unknown(f"{seconds:g} seconds are over", since(), is_out_of_budget=True)
    except (NotPolynomial, Unsupported, NotKnown, IndexError, RecursionError) as e:
        return Unknown(f"{type(e).__name__}: {e}", since())
    if not shapes:
        return Unknown("no instance", since())
    where = "the one shape there is" if fixed else f"{show_ranks(rule, ranks)}, sizes to {bound}"
    scope = Scope(
        f"{where}, by {EXACT}", ways, (*ASSUMPTIONS, *([NEAREST_NOTE] if nearest else []))
    )
    return Proved(
        scope,
        (),
        (),
        shapes,
        0,
        since(),
        ranks.max_rank,
        "polynomials",
        bound=0 if fixed else bound,
    )


def _valid_sizes(one: Instance, bound: int) -> Iterator[dict[str, int]]:
    """Yield all sizes up to `bound` at which the instance exists."""
    tensors = (*one.inputs, *one.lhs_tensors, *one.rhs_tensors)
    names = open_sizes(one)
    if bound ** len(names) > MAX_SHAPES:
        raise Unsupported(f"{len(names)} sizes")
    for values in itertools.product(range(1, bound + 1), repeat=len(names)):
        sizes = dict(zip(names, values, strict=True))
        if all(holds_at(h, sizes) for h in one.state.hypotheses) and all(
            min((index.evaluate(d, sizes) for d in t.shape), default=1) >= 1 for t in tensors
        ):
            yield sizes


def _are_equal_at(one: Instance, sizes: dict[str, int], domain: PolynomialDomain) -> bool:
    feeds: dict[str, np.ndarray] = {}
    for t in one.inputs:
        shape = tuple(index.evaluate(d, sizes) for d in t.shape)
        if not t.dtype.is_float or np.prod(shape) > MAX_ELEMENTS:
            raise Unsupported(f"an operand of {t.dtype}{list(shape)}")
        feeds[t.name] = domain.symbolic_input(t.name, shape)
    bound = [bind(t, sizes) for t in (*one.lhs, *one.rhs)]
    values = evaluate_all(bound, feeds, domain)
    half = len(one.lhs)
    return all(
        a.shape == b.shape and bool(np.all(a == b))
        for a, b in zip(values[:half], values[half:], strict=True)
    )


def best_proof(rule: Rule, limits: Limits) -> Verdict:
    """Prove `rule` for all sizes, or else up to a bound. For operands of one fixed shape the
    bounded proof is complete and faster, so it comes first. A rule within steps is proved by
    equality and bounds of rounding errors."""
    if rule.steps:
        return prove_within_steps(rule, limits)
    if has_one_shape(rule) and (found := prove_bounded(rule, BRIEF_SECONDS)):
        return found
    first = prove(rule, limits)
    if not isinstance(first, Unknown) or has_one_shape(rule):
        return first
    again = prove_bounded(rule, min(limits.seconds, BRIEF_SECONDS))
    return replace(again, seconds=first.seconds + again.seconds) if again else first
