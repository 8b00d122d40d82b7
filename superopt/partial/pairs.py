"""Partial rules: a program, its mutant, the boxes where they are equal, and the corrections; all
proved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from superopt.ir import graph as g
from superopt.ir.op import InferError
from superopt.ops import OPS
from superopt.partial import claims, correct, sizes
from superopt.partial.boxes import Box
from superopt.partial.cells import TooMany
from superopt.partial.correct import Told
from superopt.partial.generalise import generalised
from superopt.partial.regions import Regions
from superopt.partial.restrict import sliced
from superopt.partial.sizes import Sized
from superopt.partial.split import SPLIT, split
from superopt.partial.symbolic import NoFormula, Part, Parts, Range, parts
from superopt.partial.terms import parsed
from superopt.rules.instances import unfit
from superopt.rules.rule import LIBRARY, Rule, parse_rules
from superopt.rules.syntax import AttrParam, Param
from superopt.rules.term import App, Formula, Term, Var
from superopt.te.dtype import F32
from superopt.te.expr import TensorType
from superopt.verifier.prove import Limits, prove
from superopt.verifier.verdict import Proved, Verdict

FOLDER = LIBRARY / "partial"
WHOLE = 20_000  # work for a proof in one piece: the same on every machine, unlike seconds
FEW = 4  # elements of an axis along which a box is taken apart
HOW = ("recomputed", "widened")


@dataclass(frozen=True, slots=True)
class Corrected:
    """The program as its mutant and a correction: an ordinary rule. how: one of CORRECTION_KINDS;
    "equal" if nothing is wrong; or "split", for sizes that the mutant does not accept. parts:
    lemmas that imply the rule if the prover cannot prove it at once: the concatenated parts of a
    tensor are the tensor, and each part of the program is the rule's part."""

    how: str
    rule: Rule
    verdict: Verdict
    parts: tuple[tuple[Rule, Verdict], ...] = ()

    @property
    def proved(self) -> bool:
        by_parts = bool(self.parts) and all(isinstance(v, Proved) for _, v in self.parts)
        return by_parts or isinstance(self.verdict, Proved)


@dataclass(frozen=True, slots=True)
class PartialRule:
    """pair: `program => mutant`. claims: for each box of `parts.equal` the claim that it is equal,
    with its verdict. corrections: rules, proved ones first; for a mutant that is equal everywhere,
    the pair itself."""

    pair: Rule
    parts: Parts
    claims: tuple[tuple[Rule, Verdict], ...]
    corrected: tuple[Corrected, ...]

    @property
    def proved(self) -> bool:
        """True if the claims of all equal boxes are proved."""
        return all(isinstance(v, Proved) for _, v in self.claims)

    @property
    def everywhere(self) -> bool:
        return not self.parts.different


@lru_cache(maxsize=1)
def load_pairs() -> tuple[Rule, ...]:
    """Return the pairs that superopt ships."""
    out: list[Rule] = []
    for path in sorted(FOLDER.glob("*.pairs")):
        out += parse_rules(path.read_text(encoding="utf-8"), path.name)
    return tuple(out)


def partial_rule(pair: Rule, limits: Limits | None = None, seed: int = 0) -> PartialRule:
    """Compute the regions at some sizes, their formulas, the proofs, and the corrections. Raises
    NoFormula, InferError, TooManyCells (see `find_regions`), and ValueError for pairs of any rank,
    of several results, or with sides that do not fit together."""
    if len(pair.lhs) > 1:
        raise ValueError(f"{pair.name} has {len(pair.lhs)} results, and boxes are of one")
    some = sizes.some(pair, seed)
    if not some and (why := unfit(pair, seed)):
        raise ValueError(why)
    return of_some(pair, some, limits)


def proved_parts(pair: Rule, limits: Limits | None = None) -> Parts | None:
    """Return where the pair is equal as proved formulas of the sizes; None if a claim is not proved
    or there are none."""
    try:
        found, told = _claimed(pair, parts(sizes.some(pair)), limits or Limits())
    except (NoFormula, TooMany, InferError, ValueError):
        return None
    return found if all(isinstance(v, Proved) for _, v in told) else None


def of_some(pair: Rule, some: Sequence[Sized], limits: Limits | None = None) -> PartialRule:
    """As `partial_rule`, for the pair at these sizes."""
    found, told = _claimed(pair, parts(some), limits or Limits())
    verdict = told[0][1] if len(told) == 1 else None
    made = [*_alone(pair, found, some, limits, verdict), *_splits(pair, limits)]
    made.sort(key=lambda c: not c.proved)
    return PartialRule(pair, found, told, tuple(made))


def _alone(
    pair: Rule,
    found: Parts,
    some: Sequence[Sized],
    limits: Limits | None,
    verdict: Verdict | None = None,
) -> list[Corrected]:
    """Return the corrections at sizes that the mutant accepts. verdict: on a mutant that is equal
    everywhere, if known."""
    if not found.different:
        own = replace(pair, float_class="E2")
        return [Corrected("equal", own, verdict or prove(own, limits))]
    return [c for how in HOW for c in _corrected(how, pair, found, some, limits)]


def _splits(pair: Rule, limits: Limits | None) -> list[Corrected]:
    """Return the corrections at sizes that the mutant does not accept (`split.py`)."""
    out = []
    for s in split(pair):
        some = sizes.some(s)
        try:
            made = _alone(s, parts(some), some, limits)
        except (NoFormula, TooMany):
            continue
        fine = (c for c in made if c.how != "widened")
        out += [replace(c, how=SPLIT, rule=replace(c.rule, name=s.name)) for c in fine]
    return out


def _claimed(
    pair: Rule, found: Parts, limits: Limits
) -> tuple[Parts, tuple[tuple[Rule, Verdict], ...]]:
    """Prove the claim of each equal box. A box that is not proved soon is split along an axis of
    few elements (a batch of two), if all parts are proved."""
    soon = replace(limits, work=min(limits.work, WHOLE))
    equal: list[Part] = []
    told: list[tuple[Rule, Verdict]] = []
    for part in found.equal:
        (claim,) = claims.claims(pair, found, [part])
        verdict = prove(claim, soon)
        apart = [] if isinstance(verdict, Proved) else _apart(part)
        each = [(c, prove(c, limits)) for c in claims.claims(pair, found, apart)]
        if each and all(isinstance(v, Proved) for _, v in each):
            equal += apart
            told += each
            continue
        if not isinstance(verdict, Proved):
            verdict = prove(claim, limits)
        equal.append(part)
        told.append((claim, verdict))
    return replace(found, equal=tuple(equal)), tuple(told)


def _apart(part: Part) -> list[Part]:
    for d, r in enumerate(part):
        if r.begin.isdigit() and r.end.isdigit() and 1 < int(r.end) - int(r.begin) <= FEW:
            places = range(int(r.begin), int(r.end), r.step)
            return [(*part[:d], Range(str(i), str(i + 1)), *part[d + 1 :]) for i in places]
    return []


def _corrected(
    how: str, pair: Rule, found: Parts, some: Sequence[Sized], limits: Limits | None
) -> list[Corrected]:
    """Return the pair with this kind of correction, if it has one."""
    rule = corrected(how, pair, found, some)
    if rule is None:
        return []
    limit = limits or Limits()
    verdict = prove(rule, replace(limit, work=min(limit.work, WHOLE)))
    if isinstance(verdict, Proved) or how != "recomputed":
        return [Corrected(how, rule, verdict)]
    try:
        lemmas = [(r, prove(r, limits)) for r in _lemmas(pair, found, some, rule.where)]
    except NoFormula:
        lemmas = []
    return [Corrected(how, rule, verdict, tuple(lemmas))]


def corrected(how: str, pair: Rule, found: Parts, some: Sequence[Sized]) -> Rule | None:
    """Return the program as its mutant with a correction, as formulas of the sizes; None if there
    is none."""
    try:
        values = [correction(how, s, r) for s, (_, r) in zip(some, found.seen, strict=True)]
        term = generalised(values, [s.sizes for s in some])
    except (correct.NoCorrection, NoFormula):
        return None
    where = (*pair.where, *claims.conditions(found))
    return replace(pair, name=f"{pair.name}-{how}", rhs=(term,), where=where, float_class="E2")


def correction(how: str, s: Sized, r: Regions) -> g.Value:
    """Return the program at these sizes as its mutant and a correction. Raises NoCorrection."""
    if how == "recomputed":
        return correct.recomputed(s.left, s.right, r)
    return correct.widened(s.left, s.right)


def _lemmas(
    pair: Rule, found: Parts, some: Sequence[Sized], where: tuple[Formula, ...]
) -> list[Rule]:
    """Return the lemmas of a recomputed correction, see `Correction`. Raises NoFormula."""
    told = [_leaves(r) for _, r in found.seen]
    if len({tuple(right for _, right in t) for t in told}) > 1:
        raise NoFormula("other parts at other sizes")
    at = [s.sizes for s in some]
    out = []
    for n, boxes in enumerate(zip(*told, strict=True)):
        lhs = [sliced(s.left, b) for s, (b, _) in zip(some, boxes, strict=True)]
        rhs = [correct.part(s.left, s.right, *b) for s, b in zip(some, boxes, strict=True)]
        if lhs != rhs:
            said, has = ((generalised(side, at),) for side in (lhs, rhs))
            out.append(_rule(pair, f"part {n}", pair.params, said, has, where))
    named = [p for p in pair.params if isinstance(p, Param)]
    any_ = "_".join(("any", *(p.name for p in named)))  # none of these
    whole = [g.Input(any_, s.left.type) for s in some]
    joins = [
        correct.assembled(r, lambda box, _, t=t: sliced(t, box))  # type: ignore[misc]
        for t, (_, r) in zip(whole, found.seen, strict=True)
    ]
    t = Param(any_, "f", tuple(parsed(d) for d in found.shape))
    neg = [  # a tensor alone is no program
        (g.node(OPS["Neg"], [t]), g.node(OPS["Neg"], [j]))
        for t, j in zip(whole, joins, strict=True)
    ]
    lhs_, rhs_ = (generalised(side, at) for side in zip(*neg, strict=True))
    more = tuple(App(OPS["Neg"], (Var(p.name),)) for p in named)  # w has no value by 2 w alone
    out.append(_rule(pair, "joined", (*named, t), (*more, lhs_), (*more, rhs_), where))
    return out


def _leaves(r: Regions) -> list[Told]:
    """Return the labelled boxes of a correction, in order."""
    out: list[Told] = []

    def note(box: Box, right: bool) -> g.Value:
        out.append((box, right))
        return g.Input(f"{len(out)}", TensorType(F32, tuple(s.count for s in box)))

    correct.assembled(r, note)
    return out


def _rule(
    pair: Rule,
    name: str,
    params: tuple[Param | AttrParam, ...],
    lhs: tuple[Term, ...],
    rhs: tuple[Term, ...],
    where: tuple[Formula, ...],
) -> Rule:
    named = replace(pair, name=f"{pair.name}-{name}", params=params, float_class="E2")
    return replace(named, lhs=lhs, rhs=rhs, where=where)
