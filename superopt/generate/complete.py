"""Does a library say all that is equal in a family?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

from superopt.generate.build import value
from superopt.generate.find import Found
from superopt.generate.pattern import Equation, Made, Pattern, Reader, in_order, show
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
    known: dict[object, Equation] = {}
    for n in range(len(a)):
        if n not in first:
            e = reader.equation(n)
            known.setdefault(_key(e, found), e)
    return list(known.values())


def every_term(found: Found, most: int) -> list[Equation]:
    """Every term of up to `most` operators beside its class's smallest term, up to renaming: brute
    force, with all terms as operands and not the smallest ones only."""
    reader = Reader.of(found.bank)
    a, bank = found.bank.apps, found.bank
    terms: dict[tuple[int, int], list[Pattern]] = {
        (c, 0): [reader.term(c)] for c in bank.leaves.values()
    }
    rows: dict[int, list[int]] = {}
    for n in range(len(a)):
        rows.setdefault(int(a.size[n]), []).append(n)
    for k in range(1, most + 1):
        for n in (n for smallest in range(1, k + 1) for n in rows.get(smallest, ())):
            left, right = int(a.left[n]), int(a.right[n])
            made: list[tuple[Pattern, ...]]
            if right < 0:
                made = [(t,) for t in terms.get((left, k - 1), ())]
            else:
                made = [
                    pair
                    for i in range(k)
                    for pair in product(terms.get((left, i), ()), terms.get((right, k - 1 - i), ()))
                ]
            if made:
                use, of = int(a.use[n]), int(a.of[n])
                terms.setdefault((of, k), []).extend(Made(use, some) for some in made)
    names = tuple(bank.family.inputs)
    known: dict[object, Equation] = {}
    for (c, _), some in terms.items():
        for t in some:
            if t != reader.term(c):
                e = in_order(Equation(t, reader.term(c), names))
                known.setdefault(_key(e, found), e)
    return list(known.values())


def _key(e: Equation, found: Found) -> object:
    return e.left, e.right, tuple(found.bank.family.inputs[i] for i in e.inputs)


def completeness(
    found: Found,
    rules: Sequence[Rule],
    bounds: Bounds = BOUNDS,
    pairs: Sequence[Equation] | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Completeness:
    """Derive each equal pair of a bank from `rules`, at the family's shapes. pairs: other ones."""
    family = found.bank.family
    index = Index(rules)
    pairs = equal_pairs(found) if pairs is None else pairs
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
