"""The sizes of a rule where it was applied."""

from __future__ import annotations

from collections.abc import Mapping

from superopt.rules.lang.rule import Rule
from superopt.rules.match.graph_context import graph_context
from superopt.rules.match.matcher import matches
from superopt.search.move import Step
from superopt.te.expr import index
from superopt.te.expr.node import Expr


def rule_sizes_at(rule: Rule, step: Step, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the values of a rule's sizes where a step applied it, at these sizes of the model;
    empty if that is not found in the whole graph (for a tactic, whose rewrites have other sizes).
    """
    for m in matches(rule, graph_context(step.before)):
        if m.roots and set(m.roots) == step.change.keys():
            return {
                name: index.evaluate(value, dict(sizes))
                for name, value in m.bindings.items()
                if isinstance(value, int)
                or (isinstance(value, Expr) and _is_computable(value, sizes))
            }
    return {}


def _is_computable(size: Expr, sizes: Mapping[str, int]) -> bool:
    return index.symbols(size) <= sizes.keys()
