"""Where a rule was applied: what its sizes are there."""

from __future__ import annotations

from collections.abc import Mapping

from superopt.rules.lang.rule import Rule
from superopt.rules.match.graph_context import graph_context
from superopt.rules.match.matcher import matches
from superopt.search.move import Step
from superopt.te.expr import index
from superopt.te.expr.node import Expr


def sizes_at(rule: Rule, step: Step, sizes: Mapping[str, int]) -> dict[str, int]:
    """What the names of a rule's sizes are where a step applied it, at these sizes of the model;
    none where that is not found in the whole graph (of a tactic, whose rewrites have others)."""
    for m in matches(rule, graph_context(step.before)):
        if m.roots and set(m.roots) == step.change.keys():
            return {
                name: index.evaluate(value, dict(sizes))
                for name, value in m.bindings.items()
                if isinstance(value, int) or (isinstance(value, Expr) and _known(value, sizes))
            }
    return {}


def _known(size: Expr, sizes: Mapping[str, int]) -> bool:
    return index.symbols(size) <= sizes.keys()
