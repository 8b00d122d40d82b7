"""Concrete terms as graphs, and whether a rule rewrites one into another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from superopt.generate.enumeration.bank import constant_entries
from superopt.generate.enumeration.pattern import (
    Pattern,
    PatternCall,
    PatternConstant,
    PatternVariable,
)
from superopt.generate.families.family import Family
from superopt.generate.generalize.candidates import RewriteCandidate
from superopt.ir import graph
from superopt.ops import OPS
from superopt.rules.lang.functions import Result
from superopt.rules.lang.rule import Rule
from superopt.rules.match.derive import Derived, DeriveLimits, derive
from superopt.rules.match.graph_context import graph_context
from superopt.rules.match.matcher import matches
from superopt.rules.match.rule_index import RuleIndex
from superopt.rules.trial.instances import Instance
from superopt.te.expr.dtype import F32
from superopt.te.expr.tensor import TensorType


def candidate_inputs(c: RewriteCandidate) -> tuple[graph.Input, ...]:
    """Return a graph input for each variable, with the shape at which the candidate was found."""
    return tuple(graph.Input(f"v{k}", TensorType(F32, shape)) for k, shape in enumerate(c.shapes))


def term_value(p: Pattern, family: Family, inputs: Sequence[graph.Input]) -> graph.Value:
    """Return the term as a graph's value."""
    match p:
        case PatternVariable(n):
            return inputs[n]
        case PatternConstant(name):
            kind, shape = family.constants[name]
            array = np.array(constant_entries(kind, shape), np.float32)
            return graph.constant(array.reshape(shape))
        case PatternCall(u, operands):
            use = family.uses[u]
            made = graph.node(
                use.op, [term_value(o, family, inputs) for o in operands], **dict(use.attrs)
            )
            return graph.result(made, use.result)


# One rewrite, with operands of commutative operators in any order.
ONE_STEP = DeriveLimits(
    max_steps=1, max_growth=8, max_graphs=1000, max_seconds=float("inf"), forward_only=True
)


def is_covered(c: RewriteCandidate, family: Family, index: RuleIndex) -> bool:
    """True if a rule of the index rewrites the candidate's left side into its right side."""
    return derive_candidate(c, family, index, ONE_STEP) is not None


def rule_instance(c: RewriteCandidate, family: Family, rule: Rule) -> Instance | None:
    """Return the candidate as an instance of a rule that rewrites its left side into its right
    side; None for another rule. The instance has no sides: it is a template for others."""
    if not is_covered(c, family, RuleIndex([rule])):
        return None
    inputs = candidate_inputs(c)
    roots = tuple(term_value(p, family, inputs) for p in c.left)
    for m in matches(rule, graph_context(graph.Graph(inputs, roots))):
        if m.part is None and m.roots == roots:
            named = {n: _rename_input(n, v) for n, v in m.bindings.items()}
            given = tuple(v for v in named.values() if isinstance(v, graph.Input))
            return Instance(given, (), (), {}, named)
    return Instance((), (), (), {}, {})


def _rename_input(name: str, v: Result) -> Result:
    """Return an input under the rule's name for it."""
    return graph.Input(name, v.type) if isinstance(v, graph.Input) else v


def derive_candidate(
    c: RewriteCandidate, family: Family, index: RuleIndex, limits: DeriveLimits
) -> list[str] | None:
    """Return the names of the rules of a chain from one side of the candidate to the other; None
    without a chain."""
    inputs = candidate_inputs(c)
    roots = tuple(term_value(p, family, inputs) for p in c.left)
    goal: tuple[graph.Value, ...] = (term_value(c.right, family, inputs),)
    if c.axis is not None:
        sizes = [_axis_size(r, c.axis) for r in roots]
        split = graph.node(OPS["Split"], goal, axis=c.axis, split=tuple(sizes))
        goal = graph.results(split)
    found = derive(graph.Graph(inputs, roots), graph.Graph(inputs, goal), index, limits)
    if not isinstance(found, Derived):
        return None
    return sorted({link.rule for link in (*found.forward, *found.backward)})


def _axis_size(v: graph.Value, axis: int) -> int:
    assert v.type.shape is not None
    return int(v.type.shape[axis])  # type: ignore[arg-type]
