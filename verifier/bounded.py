"""Proofs for all sizes up to a bound: both sides as polynomials at each size (tier B).

If all operands of a rule have one fixed shape, such as a tile, that proof is complete.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from superopt.rules.functions import NotKnown
from superopt.rules.rule import Rule, of_one_shape
from superopt.rules.syntax import Param
from superopt.te import index as ix
from superopt.te.bind import bind
from superopt.te.interpret import evaluate_all
from superopt.te.node import Expr
from superopt.te.polynomial import NoPolynomial, Polynomials
from superopt.verifier import facts
from superopt.verifier.attributes import Unsupported
from superopt.verifier.choices import NUMBERS, Ranks
from superopt.verifier.facts import OutOfTime
from superopt.verifier.instance import Instance, instances
from superopt.verifier.prove import ASSUMES, Limits, prove
from superopt.verifier.refute import LARGEST, true_at
from superopt.verifier.scalars import NEAREST
from superopt.verifier.scope import scope_of, unclear, words
from superopt.verifier.verdict import Proved, Scope, Unknown, Verdict

BOUND = 4  # largest size
MOST = 1 << 10  # shapes checked, over all instances
RANK = 4
EXACT = "exact polynomials"
BRIEF = 5.0  # seconds


def prove_bounded(rule: Rule, seconds: float, bound: int = BOUND) -> Verdict:
    """Prove that both sides of `rule` are equal at all sizes up to `bound`, at ranks up to 4.

    Unknown does not mean that they differ: two different polynomials may be equal as functions.
    """
    begin = time.thread_time()

    def since() -> float:
        return time.thread_time() - begin

    facts.start(seconds, float("inf"))
    if vague := unclear(rule):
        return Unknown(vague, since())
    if any(isinstance(p, Param) and p.kind == "num" for p in rule.params):
        return Unknown("numbers of several types, of which integers have no polynomials", since())
    ranks = scope_of(rule)
    ranks = Ranks(ranks.least, min(ranks.most, RANK))
    shapes = ways = 0
    fixed, nearest = True, False
    try:
        for one in instances(rule, ranks, NUMBERS[:1]):
            if one.roots or one.state.orders:
                return Unknown("numbers that stand for others", since())
            ways += 1
            fixed = fixed and not _names(one)  # also if no size up to the bound is valid
            for sizes in _sizes(one, bound):
                shapes += 1
                if shapes > MOST or since() > seconds:
                    return Unknown(f"more than {shapes - 1} shapes", since(), late=True)
                if not _same(one, sizes, domain := Polynomials()):
                    return Unknown(f"other polynomials for {one} at {sizes}", since())
                nearest = nearest or bool(domain.read)
    except OutOfTime:
        return Unknown(f"{seconds:g} seconds are over", since(), late=True)
    except (NoPolynomial, Unsupported, NotKnown, IndexError, RecursionError) as e:
        return Unknown(f"{type(e).__name__}: {e}", since())
    if not shapes:
        return Unknown("no instance", since())
    where = "the one shape there is" if fixed else f"{words(rule, ranks)}, sizes to {bound}"
    scope = Scope(f"{where}, by {EXACT}", ways, (*ASSUMES, *([NEAREST] if nearest else [])))
    return Proved(
        scope, (), (), shapes, 0, since(), ranks.most, "polynomials", bound=0 if fixed else bound
    )


def _sizes(one: Instance, bound: int) -> Iterator[dict[str, int]]:
    """Yield all sizes up to `bound` at which the instance exists."""
    tensors = (*one.inputs, *one.left, *one.right)
    names = _names(one)
    if bound ** len(names) > MOST:
        raise Unsupported(f"{len(names)} sizes")
    for values in itertools.product(range(1, bound + 1), repeat=len(names)):
        sizes = dict(zip(names, values, strict=True))
        if all(true_at(h, sizes) for h in one.state.hypotheses) and all(
            min((ix.evaluate(d, sizes) for d in t.shape), default=1) >= 1 for t in tensors
        ):
            yield sizes


def _names(one: Instance) -> list[str]:
    """Return the open sizes."""
    tensors = (*one.inputs, *one.left, *one.right)
    return sorted(
        frozenset().union(
            *(ix.symbols(d) for t in tensors for d in t.shape),
            *(ix.symbols(d) for d in one.names.values() if isinstance(d, Expr)),
            *(ix.symbols(h) for h in one.state.hypotheses),
        )
    )


def _same(one: Instance, sizes: dict[str, int], domain: Polynomials) -> bool:
    feeds: dict[str, np.ndarray] = {}
    for t in one.inputs:
        shape = tuple(ix.evaluate(d, sizes) for d in t.shape)
        if not t.dtype.is_float or np.prod(shape) > LARGEST:
            raise Unsupported(f"an operand of {t.dtype}{list(shape)}")
        feeds[t.name] = domain.input(t.name, shape)
    bound = [bind(t, sizes) for t in (*one.lhs, *one.rhs)]
    values = evaluate_all(bound, feeds, domain)
    half = len(one.lhs)
    return all(
        a.shape == b.shape and bool(np.all(a == b))
        for a, b in zip(values[:half], values[half:], strict=True)
    )


def best_proof(rule: Rule, limits: Limits) -> Verdict:
    """Prove `rule` for all sizes, or else up to a bound. For operands of one fixed shape the
    bounded proof is complete and faster, so it comes first."""
    if of_one_shape(rule) and (found := prove_bounded(rule, BRIEF)):
        return found
    first = prove(rule, limits)
    if not isinstance(first, Unknown) or of_one_shape(rule):
        return first
    again = prove_bounded(rule, min(limits.seconds, BRIEF))
    return replace(again, seconds=first.seconds + again.seconds) if again else first
