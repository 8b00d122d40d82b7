"""Tensors that are equal on part of their elements: pairs of terms, and the boxes where they agree.

(Wang et al., PET, OSDI 2021.) Elements are compared by their values on all samples at once, so that
the simplest class that agrees with another one at an element is found by sorting. Boxes lie between
break points: the places along an axis at which the two terms begin or cease to agree anywhere.
These are where their index maps break, at the edges of padding and at the seams of what was joined
or folded; elements are compared one by one, so that no box is taken for granted.
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
Box = tuple[tuple[int, int], ...]  # from, to (not in it) along each axis


@dataclass(frozen=True, slots=True)
class Partial:
    """Both terms compute `shape` and agree on `boxes`, a `share` of it, and nowhere else."""

    sides: Equation
    shape: Shape
    boxes: tuple[Box, ...]
    share: float


def partial(found: Found) -> list[Partial]:
    """The partially equal pairs of a bank that kept the values of all levels. Left out: pairs that
    share their root, which follow from pairs of operands; pairs of which a side joins a tensor with
    itself, which are cases of others; and pairs in which no side has all inputs."""
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
    """The places of pairs that are others with a term in place of a variable: what both sides
    compute of it, or the first, where the other does not read it, may be anything."""
    known = {(p.sides.left, p.sides.right) for p in found}
    return {n for n, p in enumerate(found) if any(s in known for s in _wider(p.sides))}


def _wider(e: Equation) -> Iterator[tuple[Pattern, Pattern]]:
    """The sides with a variable for a term of the first."""
    free = Hole(len(e.inputs))
    for s in {s for s in parts_of(e.left) if isinstance(s, Made)}:
        wide = Equation(replaced(e.left, s, free), replaced(e.right, s, free), (*e.inputs, ""))
        made = in_order(wide)
        yield made.left, made.right


def _marks(values: np.ndarray, bank: Bank) -> np.ndarray:
    """One number for each element of (2, count, samples, *shape), from all of its samples: (count,
    elements)."""
    _, count, samples = values.shape[:3]
    flat = values.reshape(2, count, samples, -1).astype(np.uint64)
    keys = np.random.default_rng((bank.seed, 7)).integers(1, 1 << 63, (2, samples, 1), np.uint64)
    out = np.zeros((count, flat.shape[-1]), np.uint64)
    for part in range(2):
        out += (flat[part] * (keys[part] | np.uint64(1))).sum(axis=1, dtype=np.uint64)
    return np.asarray(out ^ (out >> np.uint64(29)))


def _candidates(marks: np.ndarray) -> Iterator[tuple[int, int]]:
    """Pairs of rows, the earlier (smaller) one first, that agree on enough elements: each row with
    the first one that has its mark at one of the elements."""
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
    """Is a tensor joined with itself, or with what has it inside?"""
    if not isinstance(p, Made):
        return False
    if bank.family.uses[p.use].name == "Concat":
        a, b = p.operands
        if within(a, b) or within(b, a):
            return True
    return any(_doubled(o, bank) for o in p.operands)


def _shared(left: Made, right: Made) -> bool:
    """Is one side a part of the other, or an operand of both the same computation? They agree where
    it is passed through, which says nothing."""
    if within(left, right) or within(right, left):
        return True
    return any(o in right.operands for o in left.operands if size(o) > 0)


def confirmed_boxes(e: Equation, found: Found) -> tuple[Box, ...]:
    """The boxes in which both sides agree on new inputs with new functions; none where they agree
    everywhere, or on too little."""
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
    """Where a side is a Concat: is something equal in each of its parts? One part that is the same
    on both sides is no news."""
    if not isinstance(p, Made) or family.uses[p.use].name != "Concat":
        return True
    (axis,) = (v for k, v in family.uses[p.use].attrs if k == "axis")
    assert isinstance(axis, int)
    seam = shape_of(p.operands[0], e, family)[axis]
    first, second = np.split(same, [seam], axis)
    return bool(first.any() and second.any())


def boxes_of(same: np.ndarray) -> tuple[Box, ...]:
    """A mask as boxes that do not overlap: the cells between break points, joined along the last
    axes first."""
    points = [breaks(same, axis) for axis in range(same.ndim)]
    cells: list[Box] = []
    for cell in product(*(pairwise(p) for p in points)):
        if same[tuple(slice(a, b) for a, b in cell)].all():
            cells.append(cell)
    for axis in reversed(range(same.ndim)):
        cells = _joined(cells, axis)
    return tuple(sorted(cells))


def breaks(same: np.ndarray, axis: int) -> list[int]:
    """The places along an axis at which a mask changes anywhere, its ends included."""
    flat = np.moveaxis(same, axis, 0).reshape(same.shape[axis], -1)
    changes = np.flatnonzero((flat[1:] != flat[:-1]).any(axis=1)) + 1
    return [0, *map(int, changes), same.shape[axis]]


def _joined(cells: list[Box], axis: int) -> list[Box]:
    """Neighbours along `axis` that are alike along the other axes as one."""
    out: dict[tuple[object, int], Box] = {}
    for c in sorted(cells, key=lambda c: c[axis]):
        rest = (c[:axis], c[axis + 1 :])
        before = out.pop((rest, c[axis][0]), None)
        low = c[axis][0] if before is None else before[axis][0]
        out[rest, c[axis][1]] = (*c[:axis], (low, c[axis][1]), *c[axis + 1 :])
    return list(out.values())


def _volume(box: Box) -> int:
    return int(np.prod([b - a for a, b in box]))
