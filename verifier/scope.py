"""At which ranks a rule is proved."""

from __future__ import annotations

from superopt.rules.rule import Rule
from superopt.rules.syntax import Param
from superopt.rules.term import App, Filled, Name, Spread, walk
from superopt.verifier.instance import Ranks

MOST = {0: 4, 1: 4, 2: 4}  # by how many operands have any rank
IMAGES = frozenset(
    (
        "Conv",
        "ConvTranspose",
        "AveragePool",
        "MaxPool",
        "LpPool",
        "GlobalAveragePool",
        "GlobalMaxPool",
        "GlobalLpPool",
        "InstanceNormalization",
        "BatchNormalization",
        "LRN",
    )
)


def scope_of(rule: Rule) -> Ranks:
    """Up to rank 4 where few operands are free, less where their combinations are many.

    Where every operator works element by element, ranks 0 and 1 stand for all: an axis has nothing
    to do with the others, and each operand is read at one place only.
    """
    if elementwise(rule):
        return Ranks(0, 1)
    apps = [t for side in (*rule.lhs, *rule.rhs) for t in walk(side) if isinstance(t, App)]
    if any(t.op.name in IMAGES for t in apps):
        return Ranks(0, 4)
    free = {n for p in rule.params if isinstance(p, Param) and (n := _free(p))}
    return Ranks(0, MOST.get(len(free), 3))


def elementwise(rule: Rule) -> bool:
    """Does every operator of both sides work element by element?"""
    terms = [t for side in (*rule.lhs, *rule.rhs) for t in walk(side)]
    apps = all("elementwise" in t.op.laws for t in terms if isinstance(t, App))
    return apps and not any(isinstance(t, Filled) for t in terms)


def words(rule: Rule, ranks: Ranks) -> str:
    """The ranks for which a proof at these holds."""
    tried = f"ranks {ranks.least} to {ranks.most}"
    return f"any rank, each axis by itself (from {tried})" if elementwise(rule) else tried


def _free(p: Param) -> str:
    """The name of what leaves the rank of `p` open."""
    if p.shape is None:
        return p.name
    for f in p.shape:
        if isinstance(f, Spread) and isinstance(f.value, Name):
            return f"*{f.value.id}"
    return ""
