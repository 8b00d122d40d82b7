"""Partial rules: a program, its mutant, where that is right, what corrects it; all proved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from superopt.ir import graph as g
from superopt.partial import claims, correct, sizes
from superopt.partial.generalise import generalised
from superopt.partial.regions import Regions
from superopt.partial.sizes import Sized
from superopt.partial.symbolic import NoFormula, Parts, parts
from superopt.rules.rule import LIBRARY, Rule, parse_rules
from superopt.verifier.prove import Limits, prove
from superopt.verifier.verdict import Proved, Verdict

FOLDER = LIBRARY / "partial"
HOW = ("recomputed", "widened")


@dataclass(frozen=True, slots=True)
class Corrected:
    """The program as its mutant and a correction: an ordinary rule."""

    how: str
    rule: Rule
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class PartialRule:
    """pair: `program => mutant`. claims: for each box of `parts.equal`, that it is equal, and what
    the prover says of that. corrected: rules, those first that are proved; of a mutant that is
    equal everywhere, the pair itself."""

    pair: Rule
    parts: Parts
    claims: tuple[tuple[Rule, Verdict], ...]
    corrected: tuple[Corrected, ...]

    @property
    def proved(self) -> bool:
        """Are all boxes that are said to be equal proved so?"""
        return all(isinstance(v, Proved) for _, v in self.claims)

    @property
    def everywhere(self) -> bool:
        return not self.parts.different


@lru_cache(maxsize=1)
def load_pairs() -> tuple[Rule, ...]:
    """The pairs that come with superopt."""
    out: list[Rule] = []
    for path in sorted(FOLDER.glob("*.pairs")):
        out += parse_rules(path.read_text(encoding="utf-8"), path.name)
    return tuple(out)


def partial_rule(pair: Rule, limits: Limits | None = None, seed: int = 0) -> PartialRule:
    """Regions at some sizes, their formulas, the proofs, and the corrections. Raises NoFormula,
    InferError, TooMany (see `regions`), and ValueError for pairs of tensors of any rank."""
    some = sizes.some(pair, seed)
    found = parts(some)
    told = tuple((c, prove(c, limits)) for c in claims.claims(pair, found))
    if not found.different:
        own = replace(pair, float_class="E2")
        return PartialRule(pair, found, told, (Corrected("equal", own, told[0][1]),))
    made = [c for how in HOW for c in _corrected(how, pair, found, some, limits)]
    made.sort(key=lambda c: not isinstance(c.verdict, Proved))
    return PartialRule(pair, found, told, tuple(made))


def _corrected(
    how: str, pair: Rule, found: Parts, some: Sequence[Sized], limits: Limits | None
) -> list[Corrected]:
    """The pair with such a correction, where it has one."""
    try:
        values = [_value(how, s, r) for s, (_, r) in zip(some, found.seen, strict=True)]
        term = generalised(values, [s.sizes for s in some])
    except (correct.NoCorrection, NoFormula):
        return []
    where = (*pair.where, *claims.conditions(found))
    name = f"{pair.name}-{how}"
    rule = replace(pair, name=name, rhs=(term,), where=where, float_class="E2")
    return [Corrected(how, rule, prove(rule, limits))]


def _value(how: str, s: Sized, r: Regions) -> g.Value:
    if how == "recomputed":
        return correct.recomputed(s.left, s.right, r)
    return correct.widened(s.left, s.right)
