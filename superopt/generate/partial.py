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

from superopt.generate.bank import Bank
from superopt.generate.family import Family, Shape
from superopt.generate.find import CONFIRMING, Found, evaluated, random_inputs, shape_of
from superopt.generate.pattern import (
    Equation,
    Hole,
    Made,
    Pattern,
    Reader,
    holes,
    in_order,
    parts_of,
    replaced,
    size,
    within,
)

LEAST = 0.5  # share of the elements that must agree
Box = tuple[tuple[int, int], ...]  # [from, to) along each axis


@dataclass(frozen=True, slots=True)
class Partial:
    """Both terms have shape `shape` and agree exactly on `boxes`, a `share` of it."""

    sides: Equation
    shape: Shape
    boxes: tuple[Box, ...]
    share: float


def partial(found: Found) -> list[Partial]:
    """Return the partially equal pairs of a bank that kept the values of all levels.

    Excluded are pairs with a common root, which follow from pairs of operands; pairs of which a
    side joins a tensor with itself, which are instances of others; and pairs in which neither side
    has all inputs.
    """
    bank = found.bank
    reader = Reader.of(bank)
    known: dict[object, Partial] = {}
    for shape in bank.shapes:
        levels = sorted(level for s, level in bank.held if s == shape)
        some = [bank.held[shape, level] for level in levels]
        if not some or not shape:
            continue
        classes = np.concatenate([h.classes for h in some])
        marks = _marks(np.concatenate([h.values for h in some], axis=1), bank)
        for a, b in _candidates(marks):
            made = _pair(reader, int(classes[a]), int(classes[b]))
            if made is None:
                continue
            key = (made.left, made.right, tuple(bank.family.inputs[i] for i in made.inputs))
            if key in known:
                continue
            boxes = confirmed_boxes(made, found)
            if boxes:
                known[key] = Partial(
                    made, shape, boxes, sum(map(_volume, boxes)) / int(np.prod(shape))
                )
    return list(known.values())


def instances(found: Sequence[Partial]) -> set[int]:
    """Return the positions of pairs that are instances of others: a subterm that both sides
    compute, or that only the first one has, is a variable of the other pair."""
    known = {(p.sides.left, p.sides.right) for p in found}
    return {n for n, p in enumerate(found) if any(s in known for s in _wider(p.sides))}


def _wider(e: Equation) -> Iterator[tuple[Pattern, Pattern]]:
    """Yield the sides with a variable for a term of the first."""
    free = Hole(len(e.inputs))
    for s in {s for s in parts_of(e.left) if isinstance(s, Made)}:
        wide = Equation(replaced(e.left, s, free), replaced(e.right, s, free), (*e.inputs, ""))
        made = in_order(wide)
        yield made.left, made.right


def _marks(values: np.ndarray, bank: Bank) -> np.ndarray:
    """Return one hash for each element of (2, count, samples, *shape), over all of its samples:
    (count, elements)."""
    _, count, samples = values.shape[:3]
    flat = values.reshape(2, count, samples, -1).astype(np.uint64)
    keys = np.random.default_rng((bank.seed, 7)).integers(1, 1 << 63, (2, samples, 1), np.uint64)
    out = np.zeros((count, flat.shape[-1]), np.uint64)
    for part in range(2):
        out += (flat[part] * (keys[part] | np.uint64(1))).sum(axis=1, dtype=np.uint64)
    return np.asarray(out ^ (out >> np.uint64(29)))


def _candidates(marks: np.ndarray) -> Iterator[tuple[int, int]]:
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
            if LEAST <= share < 1:
                yield pair


def _pair(reader: Reader, a: int, b: int) -> Equation | None:
    left, right = reader.term(b), reader.term(a)
    if not isinstance(left, Made) or not isinstance(right, Made) or left.use == right.use:
        return None
    if not set(holes(right)) <= set(holes(left)) or _shared(left, right):
        return None
    if any(_doubled(p, reader.bank) for p in (left, right)):
        return None
    return in_order(Equation(left, right, tuple(reader.bank.family.inputs)))


def _doubled(p: Pattern, bank: Bank) -> bool:
    """True if a tensor is joined with itself, or with a term that contains it."""
    if not isinstance(p, Made):
        return False
    if bank.family.uses[p.use].name == "Concat":
        a, b = p.operands
        if within(a, b) or within(b, a):
            return True
    return any(_doubled(o, bank) for o in p.operands)


def _shared(left: Made, right: Made) -> bool:
    """True if one side is a part of the other, or both share a computed operand: then they
    trivially agree where it is passed through."""
    if within(left, right) or within(right, left):
        return True
    return any(o in right.operands for o in left.operands if size(o) > 0)


def confirmed_boxes(e: Equation, found: Found) -> tuple[Box, ...]:
    """Return the boxes in which both sides agree on new inputs with new functions; empty if they
    agree everywhere, or on too little."""
    bank = found.bank
    values = random_inputs(e, bank.family, bank.seed + 2)
    left, right = (evaluated(p, bank.family, values, bank.seed + 2) for p in (e.left, e.right))
    same = np.asarray((left[0] == right[0]).reshape(CONFIRMING, *left.shape[3:]).all(axis=0))
    if not LEAST <= float(np.mean(same)) < 1:
        return ()
    if not all(_reaches(p, e, bank.family, same) for p in (e.left, e.right)):
        return ()
    return boxes_of(same)


def _reaches(p: Pattern, e: Equation, family: Family, same: np.ndarray) -> bool:
    """True unless the side is a Concat with a part in which nothing agrees: agreement in only one
    part is trivial."""
    if not isinstance(p, Made) or family.uses[p.use].name != "Concat":
        return True
    (axis,) = (v for k, v in family.uses[p.use].attrs if k == "axis")
    assert isinstance(axis, int)
    seam = shape_of(p.operands[0], e, family)[axis]
    first, second = np.split(same, [seam], axis)
    return bool(first.any() and second.any())


def boxes_of(same: np.ndarray) -> tuple[Box, ...]:
    """Return a mask as disjoint boxes: the cells between break points, merged along the last axes
    first."""
    points = [breaks(same, axis) for axis in range(same.ndim)]
    cells: list[Box] = []
    for cell in product(*(pairwise(p) for p in points)):
        if same[tuple(slice(a, b) for a, b in cell)].all():
            cells.append(cell)
    for axis in reversed(range(same.ndim)):
        cells = _joined(cells, axis)
    return tuple(sorted(cells))


def breaks(same: np.ndarray, axis: int) -> list[int]:
    """Return the indices along an axis at which a mask changes anywhere, including its ends."""
    flat = np.moveaxis(same, axis, 0).reshape(same.shape[axis], -1)
    changes = np.flatnonzero((flat[1:] != flat[:-1]).any(axis=1)) + 1
    return [0, *map(int, changes), same.shape[axis]]


def _joined(cells: list[Box], axis: int) -> list[Box]:
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
