"""At which ranks a rule is proved."""

from __future__ import annotations

from superopt.rules.rule import Rule
from superopt.rules.syntax import Param
from superopt.rules.term import App, Name, Spread, walk
from superopt.verifier.instance import Ranks

SPATIAL = ("Conv", "ConvTranspose", "AveragePool", "MaxPool", "LpPool", "GlobalAveragePool",
           "GlobalMaxPool", "InstanceNormalization")


def scope_of(rule: Rule) -> Ranks:
    """Up to rank 4 where few operands are free, less where their combinations are many."""
    ops = {t.op.name for side in rule.lhs for t in walk(side) if isinstance(t, App)}
    free = {p.name if p.shape is None else _spread(p) for p in rule.params if isinstance(p, Param)
            if p.shape is None or _spread(p)}
    if ops.intersection(SPATIAL):
        return Ranks(0, 4)
    if any(
        isinstance(t, App) and t.op.name == "Transpose" for s in rule.lhs for t in walk(s)
    ) and len(free) <= 1:
        return Ranks(0, 4)
    return Ranks(0, 4 if len(free) <= 1 else 3 if len(free) <= 2 else 2)


def _spread(p: Param) -> str:
    for f in p.shape or ():
        if isinstance(f, Spread) and isinstance(f.value, Name):
            return f.value.id
    return ""
