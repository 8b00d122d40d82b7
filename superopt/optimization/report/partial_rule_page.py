"""`rules show` of a partial rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from superopt.partial.correct.claims import box_conditions
from superopt.partial.correct.partial_rules import (
    PartialRule,
    load_pairs,
    partial_rule,
    prove_parts,
)
from superopt.partial.correct.sized_pairs import pair_at, sample_sizes, size_names
from superopt.partial.correct.split import SPLIT, split_pairs
from superopt.partial.correct.symbolic_boxes import format_symbolic_box
from superopt.partial.correct.symbolic_boxes import symbolic_regions as formulas
from superopt.partial.regions.cells import TooManyCells
from superopt.partial.regions.find import Regions, find_regions
from superopt.report.data.diagram import PartialRuleUse
from superopt.report.text.partial_rule import (
    DIFFERENT_MARK,
    EQUAL_MARK,
    ClaimProof,
    Correction,
    PartialPage,
)
from superopt.rules.lang.printer import show as shown
from superopt.rules.lang.readable import merge_conditions
from superopt.rules.lang.rule import Rule, show_side
from superopt.verifier.verdict import Proved, Verdict

MAX_PICTURE_COLUMNS, MAX_PICTURE_ROWS = 76, 40  # maximum characters of a drawing


def partial_rule_page(name: str, user_pairs: Sequence[Rule] = ()) -> PartialPage | None:
    """Return what is known of a pair of the user, or of the library; None if none has this name."""
    found = [p for p in (*load_pairs(), *user_pairs) if p.name == name]
    return _make_page(partial_rule(found[-1])) if found else None


def _make_page(rule: PartialRule) -> PartialPage:
    pair, parts = rule.pair, rule.parts
    sizes, seen = parts.sampled_regions[0]
    equal = [
        ClaimProof(format_symbolic_box(box), isinstance(v, Proved), str(v))
        for box, (_, v) in zip(parts.equal, rule.claims, strict=True)
    ]
    corrections = [
        Correction(
            c.kind,
            _sides_text(c.rule),
            _report_proof(c.rule, c.verdict),
            tuple(_report_proof(*p) for p in c.lemmas),
        )
        for c in rule.corrections
    ]
    return PartialPage(
        pair.name,
        ", ".join(map(str, pair.params)),
        show_side(pair.lhs),
        show_side(pair.rhs),
        ", ".join(map(shown, pair.where)),
        parts.shape,
        tuple(equal),
        tuple(format_symbolic_box(b) for b in parts.different),
        _conditions(rule),
        dict(sizes),
        seen.equal_share,
        _picture(seen),
        tuple(corrections),
        all(r.is_exact for _, r in parts.sampled_regions),
    )


def _conditions(rule: PartialRule) -> tuple[str, ...]:
    """Return the conditions on sizes for the boxes to exist, and for the proofs that they are
    equal."""
    of_boxes = map(shown, box_conditions(rule.parts))
    of_proofs = (c for _, v in rule.claims if isinstance(v, Proved) for c in v.derived)
    return merge_conditions((*of_boxes, *of_proofs), min_value=1)


def describe_partial_equality(
    rule: Rule,
    user_pairs: Mapping[str, Rule],
    applied_sizes: Callable[[], Mapping[str, int]] = dict,
) -> PartialRuleUse | None:
    """Return where the sides of a rule derived from a pair of the user or of the library are equal;
    None for other rules, and if a user's pair has another program, or its equality is not proved.
    applied_sizes: returns the rule's sizes where it was applied, for the drawing; else it shows
    small sizes."""
    pairs = {**({p.name: p for p in load_pairs()} if rule.is_from_pair else {}), **user_pairs}
    base, is_split, _ = rule.name.partition(f"-{SPLIT}-")
    if is_split and base in pairs:
        pairs = {p.name: p for p in split_pairs(pairs[base])}
    pair = pairs.get(rule.name) or pairs.get(rule.name.rpartition("-")[0])
    if pair is None:
        return None
    given = base in user_pairs or pair.name in user_pairs
    if given and show_side(pair.lhs) != show_side(rule.lhs):
        return None
    found = prove_parts(pair) if given else formulas(sample_sizes(pair))
    if found is None:
        return None
    sizes, seen = _regions_at(pair, applied_sizes()) or found.sampled_regions[0]
    how = "equal" if not found.different else SPLIT if is_split else "recomputed"
    if pair.name != rule.name:
        how = rule.name.rpartition("-")[2]
    return PartialRuleUse(
        rule.name,
        how,
        found.shape,
        tuple(map(format_symbolic_box, found.equal)),
        tuple(map(format_symbolic_box, found.different)),
        tuple(sizes.items()),
        seen.equal_share,
        _picture(seen),
    )


def _regions_at(
    pair: Rule, applied_sizes: Mapping[str, int]
) -> tuple[Mapping[str, int], Regions] | None:
    """Return where the pair is equal at these sizes; None if these are not all of its sizes or do
    not fit, or if there are too many boxes."""
    names = size_names(pair)
    made = (
        pair_at(pair, {n: applied_sizes[n] for n in names})
        if applied_sizes.keys() >= set(names)
        else None
    )
    try:
        return None if made is None else (made.sizes, find_regions(made.program, made.mutant))
    except TooManyCells:
        return None


def _sides_text(r: Rule) -> str:
    where = ", ".join(merge_conditions(map(shown, r.where), min_value=1))
    return f"{show_side(r.lhs)} => {show_side(r.rhs)}{where and f' where {where}'}"


def _report_proof(r: Rule, v: Verdict) -> ClaimProof:
    if isinstance(v, Proved):
        v = replace(v, derived=merge_conditions(v.derived, min_value=1))
    return ClaimProof(r.name, isinstance(v, Proved), str(v))


def _picture(r: Regions) -> tuple[str, ...]:
    """Return lines of the last axis, below each other along the second last: different if any
    element along other axes is. A character stands for several elements if the drawing is too
    large."""
    right = r.mask()
    if not right.size:
        return ()
    flat = right.reshape(-1, *right.shape[-2:]) if right.ndim > 1 else right.reshape(1, 1, -1)
    plane = np.asarray(flat.all(axis=0))
    high, wide = (
        max(-(-n // most), 1)
        for n, most in zip(plane.shape, (MAX_PICTURE_ROWS, MAX_PICTURE_COLUMNS), strict=True)
    )
    lines = tuple(
        "".join(
            EQUAL_MARK if plane[i : i + high, j : j + wide].all() else DIFFERENT_MARK
            for j in range(0, plane.shape[1], wide)
        )
        for i in range(0, plane.shape[0], high)
    )
    scaled = high > 1 or wide > 1
    return (*lines, f"(a character is {high} x {wide} elements)") if scaled else lines
