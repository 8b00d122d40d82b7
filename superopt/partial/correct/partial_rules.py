"""Partial rules: a program, its mutant, the boxes where they are equal, and the corrections; all
proved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from superopt.ir import graph
from superopt.ir.op import InferError
from superopt.ops import OPS
from superopt.partial.correct import claims, sized_pairs
from superopt.partial.correct import corrections as correct_corrections
from superopt.partial.correct.corrections import LabelledBox
from superopt.partial.correct.formulas import parse_formula
from superopt.partial.correct.generalize import generalize
from superopt.partial.correct.restrict import slice_box
from superopt.partial.correct.sized_pairs import SizedPair
from superopt.partial.correct.split import SPLIT, split_pairs
from superopt.partial.correct.symbolic_boxes import (
    NoFormula,
    SymbolicBox,
    SymbolicRange,
    SymbolicRegions,
    symbolic_regions,
)
from superopt.partial.regions.boxes import Box
from superopt.partial.regions.cells import TooManyCells
from superopt.partial.regions.find import Regions
from superopt.rules.lang.rule import LIBRARY, Rule, parse_rules
from superopt.rules.lang.syntax import AttrParam, Param
from superopt.rules.lang.term import App, Formula, Term, Var
from superopt.rules.trial.instances import misfit_reason
from superopt.te.expr.dtype import F32
from superopt.te.expr.tensor import TensorType
from superopt.verifier.prove import Limits, prove
from superopt.verifier.verdict import Proved, Verdict

PAIRS_FOLDER = LIBRARY / "partial"
MAX_WHOLE_PROOF_WORK = (
    20_000  # work for a proof in one piece: the same on every machine, unlike seconds
)
MAX_SPLIT_ELEMENTS = 4  # elements of an axis along which a box is taken apart
CORRECTION_KINDS = ("recomputed", "widened")


@dataclass(frozen=True, slots=True)
class Correction:
    """The program as its mutant and a correction: an ordinary rule. how: one of CORRECTION_KINDS;
    "equal" if nothing is wrong; or "split", for sizes that the mutant does not accept. parts:
    lemmas that imply the rule if the prover cannot prove it at once: the concatenated parts of a
    tensor are the tensor, and each part of the program is the rule's part."""

    kind: str
    rule: Rule
    verdict: Verdict
    lemmas: tuple[tuple[Rule, Verdict], ...] = ()

    @property
    def is_proved(self) -> bool:
        by_parts = bool(self.lemmas) and all(isinstance(v, Proved) for _, v in self.lemmas)
        return by_parts or isinstance(self.verdict, Proved)


@dataclass(frozen=True, slots=True)
class PartialRule:
    """pair: `program => mutant`. claims: for each box of `parts.equal` the claim that it is equal,
    with its verdict. corrections: rules, proved ones first; for a mutant that is equal everywhere,
    the pair itself."""

    pair: Rule
    parts: SymbolicRegions
    claims: tuple[tuple[Rule, Verdict], ...]
    corrections: tuple[Correction, ...]

    @property
    def is_proved(self) -> bool:
        """True if the claims of all equal boxes are proved."""
        return all(isinstance(v, Proved) for _, v in self.claims)


@lru_cache(maxsize=1)
def load_pairs() -> tuple[Rule, ...]:
    """Return the pairs that superopt ships."""
    out: list[Rule] = []
    for path in sorted(PAIRS_FOLDER.glob("*.pairs")):
        out += parse_rules(path.read_text(encoding="utf-8"), path.name)
    return tuple(out)


def partial_rule(pair: Rule, limits: Limits | None = None, seed: int = 0) -> PartialRule:
    """Compute the regions at some sizes, their formulas, the proofs, and the corrections. Raises
    NoFormula, InferError, TooManyCells (see `find_regions`), and ValueError for pairs of any rank,
    of several results, or with sides that do not fit together."""
    if len(pair.lhs) > 1:
        raise ValueError(f"{pair.name} has {len(pair.lhs)} results, and boxes are of one")
    some = sized_pairs.sample_sizes(pair, seed)
    if not some and (why := misfit_reason(pair, seed)):
        raise ValueError(why)
    return partial_rule_at(pair, some, limits)


def prove_parts(pair: Rule, limits: Limits | None = None) -> SymbolicRegions | None:
    """Return where the pair is equal as proved formulas of the sizes; None if a claim is not proved
    or there are none."""
    try:
        found, told = _prove_claims(
            pair, symbolic_regions(sized_pairs.sample_sizes(pair)), limits or Limits()
        )
    except (NoFormula, TooManyCells, InferError, ValueError):
        return None
    return found if all(isinstance(v, Proved) for _, v in told) else None


def partial_rule_at(
    pair: Rule, some: Sequence[SizedPair], limits: Limits | None = None
) -> PartialRule:
    """As `partial_rule`, for the pair at these sizes."""
    found, told = _prove_claims(pair, symbolic_regions(some), limits or Limits())
    verdict = told[0][1] if len(told) == 1 else None
    made = [*_corrections(pair, found, some, limits, verdict), *_split_corrections(pair, limits)]
    made.sort(key=lambda c: not c.is_proved)
    return PartialRule(pair, found, told, tuple(made))


def _corrections(
    pair: Rule,
    found: SymbolicRegions,
    some: Sequence[SizedPair],
    limits: Limits | None,
    verdict: Verdict | None = None,
) -> list[Correction]:
    """Return the corrections at sizes that the mutant accepts. verdict: on a mutant that is equal
    everywhere, if known."""
    if not found.different:
        own = replace(pair, float_class="E2")
        return [Correction("equal", own, verdict or prove(own, limits))]
    return [c for how in CORRECTION_KINDS for c in _correction(how, pair, found, some, limits)]


def _split_corrections(pair: Rule, limits: Limits | None) -> list[Correction]:
    """Return the corrections at sizes that the mutant does not accept (`split.py`)."""
    out = []
    for s in split_pairs(pair):
        some = sized_pairs.sample_sizes(s)
        try:
            made = _corrections(s, symbolic_regions(some), some, limits)
        except (NoFormula, TooManyCells):
            continue
        fine = (c for c in made if c.kind != "widened")
        out += [replace(c, kind=SPLIT, rule=replace(c.rule, name=s.name)) for c in fine]
    return out


def _prove_claims(
    pair: Rule, found: SymbolicRegions, limits: Limits
) -> tuple[SymbolicRegions, tuple[tuple[Rule, Verdict], ...]]:
    """Prove the claim of each equal box. A box that is not proved soon is split along an axis of
    few elements (a batch of two), if all parts are proved."""
    soon = replace(limits, work=min(limits.work, MAX_WHOLE_PROOF_WORK))
    equal: list[SymbolicBox] = []
    told: list[tuple[Rule, Verdict]] = []
    for part in found.equal:
        (claim,) = claims.equality_claims(pair, found, [part])
        verdict = prove(claim, soon)
        apart = [] if isinstance(verdict, Proved) else _split_part(part)
        each = [(c, prove(c, limits)) for c in claims.equality_claims(pair, found, apart)]
        if each and all(isinstance(v, Proved) for _, v in each):
            equal += apart
            told += each
            continue
        if not isinstance(verdict, Proved):
            verdict = prove(claim, limits)
        equal.append(part)
        told.append((claim, verdict))
    return replace(found, equal=tuple(equal)), tuple(told)


def _split_part(part: SymbolicBox) -> list[SymbolicBox]:
    for d, r in enumerate(part):
        if (
            r.begin.isdigit()
            and r.end.isdigit()
            and 1 < int(r.end) - int(r.begin) <= MAX_SPLIT_ELEMENTS
        ):
            places = range(int(r.begin), int(r.end), r.step)
            return [(*part[:d], SymbolicRange(str(i), str(i + 1)), *part[d + 1 :]) for i in places]
    return []


def _correction(
    kind: str, pair: Rule, found: SymbolicRegions, some: Sequence[SizedPair], limits: Limits | None
) -> list[Correction]:
    """Return the pair with this kind of correction, if it has one."""
    rule = corrected_rule(kind, pair, found, some)
    if rule is None:
        return []
    limit = limits or Limits()
    verdict = prove(rule, replace(limit, work=min(limit.work, MAX_WHOLE_PROOF_WORK)))
    if isinstance(verdict, Proved) or kind != "recomputed":
        return [Correction(kind, rule, verdict)]
    try:
        lemmas = [(r, prove(r, limits)) for r in _lemmas(pair, found, some, rule.where)]
    except NoFormula:
        lemmas = []
    return [Correction(kind, rule, verdict, tuple(lemmas))]


def corrected_rule(
    kind: str, pair: Rule, found: SymbolicRegions, some: Sequence[SizedPair]
) -> Rule | None:
    """Return the program as its mutant with a correction, as formulas of the sizes; None if there
    is none."""
    try:
        values = [
            corrected_value(kind, s, r)
            for s, (_, r) in zip(some, found.sampled_regions, strict=True)
        ]
        term = generalize(values, [s.sizes for s in some])
    except (correct_corrections.NoCorrection, NoFormula):
        return None
    where = (*pair.where, *claims.box_conditions(found))
    return replace(pair, name=f"{pair.name}-{kind}", rhs=(term,), where=where, float_class="E2")


def corrected_value(kind: str, s: SizedPair, r: Regions) -> graph.Value:
    """Return the program at these sizes as its mutant and a correction. Raises NoCorrection."""
    if kind == "recomputed":
        return correct_corrections.recompute(s.program, s.mutant, r)
    return correct_corrections.widen(s.program, s.mutant)


def _lemmas(
    pair: Rule, found: SymbolicRegions, some: Sequence[SizedPair], where: tuple[Formula, ...]
) -> list[Rule]:
    """Return the lemmas of a recomputed correction, see `Correction`. Raises NoFormula."""
    told = [_labelled_boxes(r) for _, r in found.sampled_regions]
    if len({tuple(right for _, right in t) for t in told}) > 1:
        raise NoFormula("other parts at other sizes")
    at = [s.sizes for s in some]
    out = []
    for n, boxes in enumerate(zip(*told, strict=True)):
        lhs = [slice_box(s.program, b) for s, (b, _) in zip(some, boxes, strict=True)]
        rhs = [
            correct_corrections.corrected_part(s.program, s.mutant, *b)
            for s, b in zip(some, boxes, strict=True)
        ]
        if lhs != rhs:
            said, has = ((generalize(side, at),) for side in (lhs, rhs))
            out.append(_rule(pair, f"part {n}", pair.params, said, has, where))
    named = [p for p in pair.params if isinstance(p, Param)]
    any_ = "_".join(("any", *(p.name for p in named)))  # none of these
    whole = [graph.Input(any_, s.program.type) for s in some]
    joins = [
        correct_corrections.assemble(r, lambda box, _, t=t: slice_box(t, box))  # type: ignore[misc]
        for t, (_, r) in zip(whole, found.sampled_regions, strict=True)
    ]
    t = Param(any_, "f", tuple(parse_formula(d) for d in found.shape))
    neg = [  # a tensor alone is no program
        (graph.node(OPS["Neg"], [t]), graph.node(OPS["Neg"], [j]))
        for t, j in zip(whole, joins, strict=True)
    ]
    lhs_, rhs_ = (generalize(side, at) for side in zip(*neg, strict=True))
    more = tuple(App(OPS["Neg"], (Var(p.name),)) for p in named)  # w has no value by 2 w alone
    out.append(_rule(pair, "joined", (*named, t), (*more, lhs_), (*more, rhs_), where))
    return out


def _labelled_boxes(r: Regions) -> list[LabelledBox]:
    """Return the labelled boxes of a correction, in order."""
    out: list[LabelledBox] = []

    def note(box: Box, right: bool) -> graph.Value:
        out.append((box, right))
        return graph.Input(f"{len(out)}", TensorType(F32, tuple(s.count for s in box)))

    correct_corrections.assemble(r, note)
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
