"""Concrete terms as graphs, whether a rule rewrites one into another, and as which instance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from superopt.generate.bank import entries
from superopt.generate.claims import Claim
from superopt.generate.family import Family
from superopt.generate.pattern import Hole, Leaf, Made, Pattern
from superopt.ir import graph as g
from superopt.ops import OPS
from superopt.rules.context import context
from superopt.rules.derive import Bounds, Derived, derive
from superopt.rules.functions import Result
from superopt.rules.index import Index
from superopt.rules.instances import Instance
from superopt.rules.match import matches
from superopt.rules.rule import Rule
from superopt.te.dtype import F32
from superopt.te.expr import TensorType


def inputs_of(c: Claim) -> tuple[g.Input, ...]:
    """A graph input for each hole, of the shape at which the claim was found."""
    return tuple(g.Input(f"v{k}", TensorType(F32, shape)) for k, shape in enumerate(c.shapes))


def value(p: Pattern, family: Family, inputs: Sequence[g.Input]) -> g.Value:
    """The term as a graph's value."""
    match p:
        case Hole(n):
            return inputs[n]
        case Leaf(name):
            kind, shape = family.constants[name]
            array = np.array(entries(kind, shape), np.float32)
            return g.constant(array.reshape(shape))
        case Made(u, operands):
            use = family.uses[u]
            made = g.node(use.op, [value(o, family, inputs) for o in operands], **dict(use.attrs))
            return g.item(made, use.result)


# One rewrite, whatever it makes of the operands' order.
ONE = Bounds(steps=1, grow=8, graphs=1000, seconds=float("inf"), forward=True)


def covered(c: Claim, family: Family, index: Index) -> bool:
    """Does a rule of the index rewrite the claim's left side into its right side?"""
    return derived(c, family, index, ONE)


def instance(c: Claim, family: Family, rule: Rule) -> Instance | None:
    """The claim as an instance of a rule that rewrites its left side into its right side; None for
    another rule. Its sides are left out: it is what others are like."""
    if not covered(c, family, Index([rule])):
        return None
    inputs = inputs_of(c)
    roots = tuple(value(p, family, inputs) for p in c.left)
    for m in matches(rule, context(g.Graph(inputs, roots))):
        if m.part is None and m.roots == roots:
            named = {n: _called(n, v) for n, v in m.bindings.items()}
            given = tuple(v for v in named.values() if isinstance(v, g.Input))
            return Instance(given, (), (), {}, named)
    return Instance((), (), (), {}, {})


def _called(name: str, v: Result) -> Result:
    """An input under the name that a rule has for it."""
    return g.Input(name, v.type) if isinstance(v, g.Input) else v


def derived(c: Claim, family: Family, index: Index, bounds: Bounds) -> bool:
    """Does a chain of the index's rules lead from one side of the claim to the other?"""
    inputs = inputs_of(c)
    roots = tuple(value(p, family, inputs) for p in c.left)
    goal: tuple[g.Value, ...] = (value(c.right, family, inputs),)
    if c.axis is not None:
        sizes = [_size(r, c.axis) for r in roots]
        split = g.node(OPS["Split"], goal, axis=c.axis, split=tuple(sizes))
        goal = g.results(split)
    return isinstance(derive(g.Graph(inputs, roots), g.Graph(inputs, goal), index, bounds), Derived)


def _size(v: g.Value, axis: int) -> int:
    assert v.type.shape is not None
    return int(v.type.shape[axis])  # type: ignore[arg-type]
