"""Laws of floats that hold for integers, too.

Equal polynomials with whole coefficients are equal for integers that wrap around, and a law of the
order alone holds in any order. Sums in a maximum, and quotients, are other things for integers, and
no Relu is made of unsigned ones: there is none in ONNX.
"""

from __future__ import annotations

from dataclasses import replace

from superopt.generate.generalise import MOVES
from superopt.generate.sound import LIMITS, Held
from superopt.rules.rule import Rule, parse_rules
from superopt.rules.syntax import Param
from superopt.rules.term import App, Number, Scalar, walk
from superopt.rules.trial import try_rule
from superopt.verifier.attributes import UNSEEN_ONES
from superopt.verifier.prove import prove
from superopt.verifier.verdict import Proved

RING = MOVES | {"Add", "Sub", "Neg", "Mul", "MatMul", "ReduceSum", "Expand", "Identity"}
ORDER = MOVES | {"Max", "Min", "ReduceMax", "ReduceMin", "Expand", "Identity"}
CASES = 6  # instances of a trial


def widened(held: Held, seed: int) -> Held:
    """The rule for all numbers, where it is one of floats and is proved for integers, too."""
    if not held.proved or not _whole(held.rule):
        return held
    kinds = [replace(p, kind="num") if isinstance(p, Param) else p for p in held.rule.params]
    (wide,) = parse_rules(str(replace(held.rule, params=tuple(kinds))))
    verdict = prove(wide, LIMITS)
    if not isinstance(verdict, Proved) or not verdict.whole:
        return held
    if UNSEEN_ONES in verdict.scope.assumes or not try_rule(wide, seed, CASES):
        return held
    return replace(held, rule=wide)


def _whole(rule: Rule) -> bool:
    """Is it a law of floats, and a polynomial one or one of the order, with whole numbers?"""
    parts = [t for side in (*rule.lhs, *rule.rhs) for t in walk(side)]
    ops = {t.op.name for t in parts if isinstance(t, App)}
    floats = all(p.kind == "f" for p in rule.params if isinstance(p, Param))
    numbers = all(float(t.value).is_integer() for t in parts if isinstance(t, Number))
    scaled = any(isinstance(t, Scalar) for t in parts)
    return floats and numbers and not scaled and (ops <= RING or ops <= ORDER)
