"""`rules show` of a partial rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from superopt.partial.cells import TooMany
from superopt.partial.claims import conditions
from superopt.partial.pairs import PartialRule, load_pairs, partial_rule, proved_parts
from superopt.partial.regions import Regions, regions
from superopt.partial.sizes import at, names_of, some
from superopt.partial.split import SPLIT, split
from superopt.partial.symbolic import parts as formulas
from superopt.partial.symbolic import show
from superopt.report.diagram import InParts
from superopt.report.partial import RIGHT, WRONG, Correction, PartialPage, Proof
from superopt.rules.readable import together
from superopt.rules.rule import Rule, show_side
from superopt.rules.term import show as shown
from superopt.verifier.verdict import Proved, Verdict

WIDEST, HIGHEST = 76, 40  # characters of a picture


def page(name: str, own: Sequence[Rule] = ()) -> PartialPage | None:
    """What is known of a pair of one's own, or of the library; None where none has this name."""
    found = [p for p in (*load_pairs(), *own) if p.name == name]
    return _page(partial_rule(found[-1])) if found else None


def _page(made: PartialRule) -> PartialPage:
    pair, parts = made.pair, made.parts
    sizes, seen = parts.seen[0]
    equal = [
        Proof(show(box), isinstance(v, Proved), str(v))
        for box, (_, v) in zip(parts.equal, made.claims, strict=True)
    ]
    corrections = [
        Correction(
            c.how, _sides(c.rule), _proof(c.rule, c.verdict), tuple(_proof(*p) for p in c.parts)
        )
        for c in made.corrected
    ]
    return PartialPage(
        pair.name, ", ".join(map(str, pair.params)), show_side(pair.lhs), show_side(pair.rhs),
        ", ".join(map(shown, pair.where)), parts.shape, tuple(equal),
        tuple(show(b) for b in parts.different), _needs(made), dict(sizes), seen.share,
        _picture(seen),
        tuple(corrections), all(r.exact for _, r in parts.seen),
    )  # fmt: skip


def _needs(made: PartialRule) -> tuple[str, ...]:
    """Of the sizes, for the boxes to be there, and for the proofs that they are equal."""
    of_boxes = map(shown, conditions(made.parts))
    of_proofs = (c for _, v in made.claims if isinstance(v, Proved) for c in v.derived)
    return together((*of_boxes, *of_proofs), least=1)


def in_parts(
    rule: Rule, own: Mapping[str, Rule], where: Callable[[], Mapping[str, int]] = dict
) -> InParts | None:
    """Of a rule that was made of a pair, one of one's own or of the library's; None for others, and
    where a pair of one's own has another program, or where it is right is not proved. where: gives
    the rule's sizes where it was applied, at which the picture is drawn; else it is at small ones.
    """
    pairs = {**({p.name: p for p in load_pairs()} if rule.made else {}), **own}
    base, is_split, _ = rule.name.partition(f"-{SPLIT}-")
    if is_split and base in pairs:
        pairs = {p.name: p for p in split(pairs[base])}
    pair = pairs.get(rule.name) or pairs.get(rule.name.rpartition("-")[0])
    if pair is None:
        return None
    given = base in own or pair.name in own
    if given and show_side(pair.lhs) != show_side(rule.lhs):
        return None
    found = proved_parts(pair) if given else formulas(some(pair))
    if found is None:
        return None
    sizes, seen = _seen(pair, where()) or found.seen[0]
    how = "equal" if not found.different else SPLIT if is_split else "recomputed"
    if pair.name != rule.name:
        how = rule.name.rpartition("-")[2]
    return InParts(
        rule.name, how, found.shape,
        tuple(map(show, found.equal)), tuple(map(show, found.different)),
        tuple(sizes.items()), seen.share, _picture(seen),
    )  # fmt: skip


def _seen(pair: Rule, where: Mapping[str, int]) -> tuple[Mapping[str, int], Regions] | None:
    """Where the pair is right at these sizes; None where they are not all of its, do not fit, or
    the boxes are too many."""
    names = names_of(pair)
    made = at(pair, {n: where[n] for n in names}) if where.keys() >= set(names) else None
    try:
        return None if made is None else (made.sizes, regions(made.left, made.right))
    except TooMany:
        return None


def _sides(r: Rule) -> str:
    where = ", ".join(together(map(shown, r.where), least=1))
    return f"{show_side(r.lhs)} => {show_side(r.rhs)}{where and f' where {where}'}"


def _proof(r: Rule, v: Verdict) -> Proof:
    if isinstance(v, Proved):
        v = replace(v, derived=together(v.derived, least=1))
    return Proof(r.name, isinstance(v, Proved), str(v))


def _picture(r: Regions) -> tuple[str, ...]:
    """Lines of the last axis, under each other along the one before: wrong where it ever is. Where
    there is no room, a character is several elements."""
    right = r.mask()
    if not right.size:
        return ()
    flat = right.reshape(-1, *right.shape[-2:]) if right.ndim > 1 else right.reshape(1, 1, -1)
    plane = np.asarray(flat.all(axis=0))
    high, wide = (
        max(-(-n // most), 1) for n, most in zip(plane.shape, (HIGHEST, WIDEST), strict=True)
    )
    lines = tuple(
        "".join(
            RIGHT if plane[i : i + high, j : j + wide].all() else WRONG
            for j in range(0, plane.shape[1], wide)
        )
        for i in range(0, plane.shape[0], high)
    )
    scaled = high > 1 or wide > 1
    return (*lines, f"(a character is {high} x {wide} elements)") if scaled else lines
