"""Extend float laws to integers.

Equal polynomials with integer coefficients are equal for wrapping integers, and a law of the order
alone holds in any order. Sums in a maximum, and quotients, differ for integers, and ONNX has no
Relu of unsigned ones.
"""

from __future__ import annotations

from dataclasses import replace

from superopt.generate.generalize.generalizations import MOVEMENT_OPS
from superopt.rules.lang.rule import Rule, parse_rules
from superopt.rules.lang.syntax import Param
from superopt.rules.lang.term import App, Number, Scalar, walk

RING_OPS = MOVEMENT_OPS | {"Add", "Sub", "Neg", "Mul", "MatMul", "ReduceSum", "Expand", "Identity"}
ORDER_OPS = MOVEMENT_OPS | {"Max", "Min", "ReduceMax", "ReduceMin", "Expand", "Identity"}


def extend_to_integers(rule: Rule) -> Rule | None:
    """Return the rule for all numeric types, if it is a polynomial float law or one of the order
    alone, with integer constants. The result has to be proved."""
    if not _is_integer_law(rule):
        return None
    kinds = [replace(p, kind="num") if isinstance(p, Param) else p for p in rule.params]
    (wide,) = parse_rules(str(replace(rule, params=tuple(kinds))))
    return wide


def _is_integer_law(rule: Rule) -> bool:
    parts = [t for side in (*rule.lhs, *rule.rhs) for t in walk(side)]
    ops = {t.op.name for t in parts if isinstance(t, App)}
    floats = all(p.kind == "f" for p in rule.params if isinstance(p, Param))
    numbers = all(float(t.value).is_integer() for t in parts if isinstance(t, Number))
    scaled = any(isinstance(t, Scalar) for t in parts)
    return floats and numbers and not scaled and (ops <= RING_OPS or ops <= ORDER_OPS)
