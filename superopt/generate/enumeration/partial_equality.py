"""Partially equal tensors: pairs of terms, and the boxes where they agree.

(Wang et al., PET, OSDI 2021.) Elements are compared by their values on all samples, so that sorting
finds the simplest class that agrees with another one at an element. Boxes lie between break points:
the indices along an axis at which the terms begin or cease to agree anywhere. These are the breaks
of their index maps, at the edges of padding and at the seams of joined or folded tensors; every
element is compared, so that no box is assumed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np

from superopt.generate.enumeration.bank import Bank
from superopt.generate.enumeration.find_equations import (
    CONFIRMING_INPUTS,
    FoundEquations,
    evaluate_term,
    random_inputs,
    term_shape,
)
from superopt.generate.enumeration.pattern import (
    Equation,
    Pattern,
    PatternCall,
    PatternVariable,
    TermReader,
    call_count,
    is_subterm,
    number_in_order,
    replace_subterm,
    subterms,
    variable_numbers,
)
from superopt.generate.families.family import Family, Shape

MIN_SHARE = 0.5  # share of the elements that must agree
Box = tuple[tuple[int, int], ...]  # [from, to) along each axis


@dataclass(frozen=True, slots=True)
class PartialEquality:
    """Both terms have shape `shape` and agree exactly on `boxes`, a `share` of it."""

    equation: Equation
    shape: Shape
    boxes: tuple[Box, ...]
    share: float


def partial_equalities(found: FoundEquations) -> list[PartialEquality]:
    """Return the partially equal pairs of a bank that kept the values of all levels.

    Excluded are pairs with a common root, which follow from pairs of operands; pairs of which a
    side joins a tensor with itself, which are instances of others; and pairs in which neither side
    has all inputs.
    """
    bank = found.bank
    reader = TermReader.for_bank(bank)
    known: dict[object, PartialEquality] = {}
    for shape in bank.shapes:
        levels = sorted(level for s, level in bank.values if s == shape)
        some = [bank.values[shape, level] for level in levels]
        if not some or not shape:
            continue
        classes = np.concatenate([h.classes for h in some])
        marks = _element_hashes(np.concatenate([h.values for h in some], axis=1), bank)
        for a, b in _candidate_pairs(marks):
            made = _make_pair(reader, int(classes[a]), int(classes[b]))
            if made is None:
                continue
            key = (made.left, made.right, tuple(bank.family.inputs[i] for i in made.inputs))
            if key in known:
                continue
            boxes = confirmed_boxes(made, found)
            if boxes:
                known[key] = PartialEquality(
                    made, shape, boxes, sum(map(_volume, boxes)) / int(np.prod(shape))
                )
    return list(known.values())


def instance_positions(found: Sequence[PartialEquality]) -> set[int]:
    """Return the positions of pairs that are instances of others: a subterm that both sides
    compute, or that only the first one has, is a variable of the other pair."""
    known = {(p.equation.left, p.equation.right) for p in found}
    return {n for n, p in enumerate(found) if any(s in known for s in _generalizations(p.equation))}


def _generalizations(e: Equation) -> Iterator[tuple[Pattern, Pattern]]:
    """Yield the sides with a variable for a term of the first."""
    free = PatternVariable(len(e.inputs))
    for s in {s for s in subterms(e.left) if isinstance(s, PatternCall)}:
        wide = Equation(
            replace_subterm(e.left, s, free), replace_subterm(e.right, s, free), (*e.inputs, "")
        )
        made = number_in_order(wide)
        yield made.left, made.right


def _element_hashes(values: np.ndarray, bank: Bank) -> np.ndarray:
    """Return one hash for each element of (2, count, samples, *shape), over all of its samples:
    (count, elements)."""
    _, count, samples = values.shape[:3]
    flat = values.reshape(2, count, samples, -1).astype(np.uint64)
    keys = np.random.default_rng((bank.seed, 7)).integers(1, 1 << 63, (2, samples, 1), np.uint64)
    out = np.zeros((count, flat.shape[-1]), np.uint64)
    for part in range(2):
        out += (flat[part] * (keys[part] | np.uint64(1))).sum(axis=1, dtype=np.uint64)
    return np.asarray(out ^ (out >> np.uint64(29)))


def _candidate_pairs(marks: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield pairs of rows, the earlier (smaller) one first, that agree on enough elements: each row
    with the first one that has its hash at some element."""
    seen: set[tuple[int, int]] = set()
    for column in range(marks.shape[1]):
        _, first, inverse = np.unique(marks[:, column], return_index=True, return_inverse=True)
        other = first[inverse]
        for b in np.flatnonzero(other != np.arange(len(other))):
            pair = (int(other[b]), int(b))
            if pair in seen:
                continue
            seen.add(pair)
            share = float(np.mean(marks[pair[0]] == marks[b]))
            if MIN_SHARE <= share < 1:
                yield pair


def _make_pair(reader: TermReader, a: int, b: int) -> Equation | None:
    left, right = reader.term(b), reader.term(a)
    if (
        not isinstance(left, PatternCall)
        or not isinstance(right, PatternCall)
        or left.use == right.use
    ):
        return None
    if not set(variable_numbers(right)) <= set(variable_numbers(left)) or _shares_computation(
        left, right
    ):
        return None
    if any(_joins_itself(p, reader.bank) for p in (left, right)):
        return None
    return number_in_order(Equation(left, right, tuple(reader.bank.family.inputs)))


def _joins_itself(p: Pattern, bank: Bank) -> bool:
    """True if a tensor is joined with itself, or with a term that contains it."""
    if not isinstance(p, PatternCall):
        return False
    if bank.family.uses[p.use].name == "Concat":
        a, b = p.operands
        if is_subterm(a, b) or is_subterm(b, a):
            return True
    return any(_joins_itself(o, bank) for o in p.operands)


def _shares_computation(left: PatternCall, right: PatternCall) -> bool:
    """True if one side is a part of the other, or both share a computed operand: then they
    trivially agree where it is passed through."""
    if is_subterm(left, right) or is_subterm(right, left):
        return True
    return any(o in right.operands for o in left.operands if call_count(o) > 0)


def confirmed_boxes(e: Equation, found: FoundEquations) -> tuple[Box, ...]:
    """Return the boxes in which both sides agree on new inputs with new functions; empty if they
    agree everywhere, or on too little."""
    bank = found.bank
    values = random_inputs(e, bank.family, bank.seed + 2)
    left, right = (evaluate_term(p, bank.family, values, bank.seed + 2) for p in (e.left, e.right))
    same = np.asarray((left[0] == right[0]).reshape(CONFIRMING_INPUTS, *left.shape[3:]).all(axis=0))
    if not MIN_SHARE <= float(np.mean(same)) < 1:
        return ()
    if not all(_covers_all_parts(p, e, bank.family, same) for p in (e.left, e.right)):
        return ()
    return mask_boxes(same)


def _covers_all_parts(p: Pattern, e: Equation, family: Family, same: np.ndarray) -> bool:
    """True unless the side is a Concat with a part in which nothing agrees: agreement in only one
    part is trivial."""
    if not isinstance(p, PatternCall) or family.uses[p.use].name != "Concat":
        return True
    (axis,) = (v for k, v in family.uses[p.use].attrs if k == "axis")
    assert isinstance(axis, int)
    seam = term_shape(p.operands[0], e, family)[axis]
    first, second = np.split(same, [seam], axis)
    return bool(first.any() and second.any())


def mask_boxes(same: np.ndarray) -> tuple[Box, ...]:
    """Return a mask as disjoint boxes: the cells between break points, merged along the last axes
    first."""
    points = [break_points(same, axis) for axis in range(same.ndim)]
    cells: list[Box] = []
    for cell in product(*(pairwise(p) for p in points)):
        if same[tuple(slice(a, b) for a, b in cell)].all():
            cells.append(cell)
    for axis in reversed(range(same.ndim)):
        cells = _merge_boxes(cells, axis)
    return tuple(sorted(cells))


def break_points(same: np.ndarray, axis: int) -> list[int]:
    """Return the indices along an axis at which a mask changes anywhere, including its ends."""
    flat = np.moveaxis(same, axis, 0).reshape(same.shape[axis], -1)
    changes = np.flatnonzero((flat[1:] != flat[:-1]).any(axis=1)) + 1
    return [0, *map(int, changes), same.shape[axis]]


def _merge_boxes(cells: list[Box], axis: int) -> list[Box]:
    """Merge neighbours along `axis` that are equal along the other axes."""
    out: dict[tuple[object, int], Box] = {}
    for c in sorted(cells, key=lambda c: c[axis]):
        rest = (c[:axis], c[axis + 1 :])
        before = out.pop((rest, c[axis][0]), None)
        low = c[axis][0] if before is None else before[axis][0]
        out[rest, c[axis][1]] = (*c[:axis], (low, c[axis][1]), *c[axis + 1 :])
    return list(out.values())


def _volume(box: Box) -> int:
    return int(np.prod([b - a for a, b in box]))
