"""Does a library say all that is equal in a family?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from superopt.generate.build import value
from superopt.generate.find import Found
from superopt.generate.pattern import Equation, Reader, show
from superopt.ir import graph as g
from superopt.rules.derive import Bounds, Derived, derive
from superopt.rules.index import Index
from superopt.rules.rule import Rule
from superopt.te.dtype import F32
from superopt.te.expr import TensorType

# The same on every machine. By congruence chains may be put together to longer ones.
BOUNDS = Bounds(steps=8, grow=2, graphs=4000, seconds=float("inf"))


@dataclass(frozen=True, slots=True)
class Completeness:
    """How many different equal pairs there are, and those that no chain of rules relates."""

    pairs: int
    missed: tuple[str, ...]


def equal_pairs(found: Found) -> list[Equation]:
    """Every application of the bank beside its class's smallest term, up to renaming."""
    reader = Reader.of(found.bank)
    a = found.bank.apps
    first = {int(r) for r in found.bank.first if r >= 0}
    shapes = found.bank.family.inputs
    known: dict[object, Equation] = {}
    for n in range(len(a)):
        if n not in first:
            e = reader.equation(n)
            known.setdefault((e.left, e.right, tuple(shapes[i] for i in e.inputs)), e)
    return list(known.values())


def completeness(
    found: Found,
    rules: Sequence[Rule],
    bounds: Bounds = BOUNDS,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Completeness:
    """Derive each equal pair of a bank from `rules`, at the family's shapes."""
    family = found.bank.family
    index = Index(rules)
    pairs = equal_pairs(found)
    missed: list[str] = []
    for n, e in enumerate(pairs):
        inputs = tuple(
            g.Input(f"v{k}", TensorType(F32, family.inputs[i])) for k, i in enumerate(e.inputs)
        )
        left, right = (g.Graph(inputs, (value(p, family, inputs),)) for p in (e.left, e.right))
        if not isinstance(derive(left, right, index, bounds), Derived):
            missed.append(f"{show(e.left, family)} = {show(e.right, family)}")
        progress(n + 1, len(pairs))
    return Completeness(len(pairs), tuple(missed))
