"""Element types that a rule leaves open: representatives, and all of them one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from superopt.rules.lang.rule import Rule
from superopt.rules.lang.syntax import LETTERS, Param, element_types
from superopt.te.expr.dtype import DTYPES, DType
from superopt.verifier.instances.choices import KIND_TYPES, NUMBER_TYPES

MAX_TYPE_CASES = 64
SEPARATE_TYPES_NOTE = "each element type by itself"


def representative_types(rule: Rule) -> frozenset[DType]:
    """Return the types that stand for others in an instance: a cast to or from them is
    uninterpreted."""
    kinds = {p.kind for p in rule.params if isinstance(p, Param)} - DTYPES.keys()
    return frozenset(t for k in kinds for t in (NUMBER_TYPES if k == "num" else (KIND_TYPES[k],)))


def rules_by_type(rule: Rule) -> Iterator[Rule]:
    """Yield the rule for each assignment of element types to its parameters, if these are few."""
    open_ = [p for p in rule.params if isinstance(p, Param) and p.kind not in DTYPES]
    keys = list(dict.fromkeys(p.kind if p.kind in LETTERS else p.name for p in open_))
    kinds = {p.kind if p.kind in LETTERS else p.name: p.kind for p in open_}
    choices = [sorted(t.name for t in element_types(kinds[k])) for k in keys]
    ways = 1
    for one in choices:
        ways *= len(one)
    if ways > MAX_TYPE_CASES:
        return
    for names in product(*choices):
        chosen = dict(zip(keys, names, strict=True))
        params = tuple(
            replace(p, kind=chosen[p.kind if p.kind in LETTERS else p.name]) if p in open_ else p
            for p in rule.params
        )
        yield replace(rule, params=params)
