"""Laws of floats that may hold for integers, too.

Equal polynomials with whole coefficients are equal for integers that wrap around, and a law of the
order alone holds in any order. Sums in a maximum, and quotients, are other things for integers, and
no Relu is made of unsigned ones: there is none in ONNX.
"""

from __future__ import annotations

from dataclasses import replace

from superopt.generate.generalise import MOVES
from superopt.rules.lang.rule import Rule, parse_rules
from superopt.rules.lang.syntax import Param
from superopt.rules.lang.term import App, Number, Scalar, walk

RING = MOVES | {"Add", "Sub", "Neg", "Mul", "MatMul", "ReduceSum", "Expand", "Identity"}
ORDER = MOVES | {"Max", "Min", "ReduceMax", "ReduceMin", "Expand", "Identity"}


def of_numbers(rule: Rule) -> Rule | None:
    """The rule for all numbers, if it is a law of floats, and a polynomial one or one of the order,
    with whole numbers. It must be proved as such."""
    if not _whole(rule):
        return None
    kinds = [replace(p, kind="num") if isinstance(p, Param) else p for p in rule.params]
    (wide,) = parse_rules(str(replace(rule, params=tuple(kinds))))
    return wide


def _whole(rule: Rule) -> bool:
    parts = [t for side in (*rule.lhs, *rule.rhs) for t in walk(side)]
    ops = {t.op.name for t in parts if isinstance(t, App)}
    floats = all(p.kind == "f" for p in rule.params if isinstance(p, Param))
    numbers = all(float(t.value).is_integer() for t in parts if isinstance(t, Number))
    scaled = any(isinstance(t, Scalar) for t in parts)
    return floats and numbers and not scaled and (ops <= RING or ops <= ORDER)
