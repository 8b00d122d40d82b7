"""The bank: every tensor that operators compute from a family's inputs, level by level.

A *class* is a tensor: all terms that compute it. An *application* is an operator use applied to
classes; it computes a class, and so is a term for each choice of terms of its operands. Level k has
the classes whose smallest term has k operators. Operators are applied to classes only, not to terms
(observational equivalence, as in TASO and Ruler): the skipped terms follow by congruence.

Classes are identified by their values over a prime field on random inputs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache

import numpy as np

from superopt.generate.families.family import Family, OperatorUse, Shape
from superopt.ir.batched_evaluation import evaluate_batch
from superopt.ir.op import Attrs, InferError, canonical_attrs, infer
from superopt.te.eval import residues
from superopt.te.expr.dtype import F32
from superopt.te.expr.tensor import TensorType

BLOCK_ELEMENTS = 1 << 21  # elements of results that are computed together
# Approximate bytes of a level: if it would take more, only every nth candidate is tried.
MAX_LEVEL_BYTES = 6 << 30
CANDIDATE_BYTES = 128  # bytes of a candidate besides its value: columns, fingerprints, and sorting
COMMUTATIVE = frozenset(("Add", "Mul", "Max", "Min"))


@dataclass(slots=True)
class ClassValues:
    """The classes of one shape: numbers and values, (2, count, samples, *shape), 32 bits per
    residue."""

    classes: np.ndarray
    values: np.ndarray


@dataclass(slots=True)
class Applications:
    """Columns with a row for each application: its use, operands (-1: none), class, and size."""

    use: np.ndarray
    left: np.ndarray
    right: np.ndarray
    result_class: np.ndarray
    size: np.ndarray

    def __len__(self) -> int:
        return len(self.use)

    @staticmethod
    def empty() -> Applications:
        return Applications(*(np.empty(0, t) for t in (np.int16, *[np.int32] * 3, np.int8)))

    def concatenate(self, rows: Sequence[Applications]) -> Applications:
        every = (self, *rows)
        return Applications(
            *(np.concatenate([getattr(a, k) for a in every]) for k in self.__slots__)
        )


@dataclass(slots=True)
class Bank:
    """Everything enumerated so far.

    shape, level, first_application: of each class (-1 for leaves). leaves: classes of inputs and
    constants by name. candidate_counts, sample_steps: of each level, the number of candidates
    tried, and n if every nth was.
    """

    family: Family
    seed: int
    leaves: dict[str, int] = field(default_factory=dict)
    shapes: list[Shape] = field(default_factory=list)
    shape: np.ndarray = field(default_factory=lambda: np.empty(0, np.int16))
    level: np.ndarray = field(default_factory=lambda: np.empty(0, np.int8))
    first_application: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))
    applications: Applications = field(default_factory=Applications.empty)
    values: dict[tuple[Shape, int], ClassValues] = field(default_factory=dict)  # by shape and level
    fingerprints: np.ndarray = field(default_factory=lambda: np.empty((0, 2), np.uint64))
    candidate_counts: list[int] = field(default_factory=list)
    sample_steps: list[int] = field(default_factory=list)

    def uses(self) -> tuple[OperatorUse, ...]:
        return self.family.uses


def initial_bank(family: Family, seed: int) -> Bank:
    """Return the bank with the leaves only."""
    bank = Bank(family, seed)
    rng = np.random.default_rng(seed)
    leaves: list[tuple[str, Shape, np.ndarray]] = []
    for name, shape in family.inputs.items():
        drawn = [rng.integers(0, m, (1, family.samples, *shape), np.int64) for m in residues.MODULI]
        leaves.append((name, shape, np.stack(drawn)))
    for name, (kind, shape) in family.constants.items():
        leaves.append((name, shape, constant_values(kind, shape, family.samples)))
    for name, shape, value in leaves:
        found = fingerprints(value, shape, seed)
        at = _add_classes(bank, found, np.full(1, _shape_index(bank, shape), np.int16), 0)
        bank.leaves[name] = int(at[0])
        _store_values(bank, shape, 0, at, value)
    bank.candidate_counts.append(len(leaves))
    bank.sample_steps.append(1)
    return bank


def constant_values(kind: str, shape: Shape, samples: int) -> np.ndarray:
    """Return a constant of a family as (2, 1, samples, *shape)."""
    values = {v: residues.from_number(v) for v in (0, 1, 2, Fraction(1, math.prod(shape[2:])))}
    pair = np.stack([values[v] for v in constant_entries(kind, shape)], axis=-1).reshape(2, *shape)
    return np.broadcast_to(pair[:, None, None], (2, 1, samples, *shape))


def constant_entries(kind: str, shape: Shape) -> list[int | Fraction]:
    """Return the elements of a constant: zeros, ones, twos; eye, the identity; convolution kernels
    that keep each channel (dirac) or average it (means)."""
    match kind:
        case "zeros" | "ones" | "twos":
            return [("zeros", "ones", "twos").index(kind)] * math.prod(shape)
        case "eye" | "dirac":
            centre = tuple(k // 2 for k in shape[2:])
            return [int(i[0] == i[1] and i[2:] == centre) for i in np.ndindex(shape)]
        case "means":
            mean = Fraction(1, math.prod(shape[2:]))
            return [mean if i[0] == i[1] else 0 for i in np.ndindex(shape)]
    raise AssertionError(kind)


def fingerprints(values: np.ndarray, shape: Shape, seed: int) -> np.ndarray:
    """Return 128-bit fingerprints of the tensors (2, count, samples, *shape): a random linear form
    of the residues modulo p for each of two keys, in wrapping 64-bit sums, then mixed."""
    count = values.shape[1]
    flat = values[0].reshape(count, -1).astype(np.uint64)
    rng = np.random.default_rng((seed, *shape, len(shape)))
    keys = rng.integers(0, 1 << 63, (2, flat.shape[1] + 1), np.uint64) * np.uint64(2) + np.uint64(1)
    return _mix_bits(flat @ np.ascontiguousarray(keys[:, :-1].T) + keys[:, -1])


def _mix_bits(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    return np.asarray(x ^ (x >> np.uint64(31)))


def _shape_index(bank: Bank, shape: Shape) -> int:
    if shape not in bank.shapes:
        bank.shapes.append(shape)
    return bank.shapes.index(shape)


def _add_classes(bank: Bank, prints: np.ndarray, shape: np.ndarray, level: int) -> np.ndarray:
    begin = len(bank.level)
    bank.fingerprints = np.concatenate([bank.fingerprints, prints])
    bank.shape = np.concatenate([bank.shape, shape])
    bank.level = np.concatenate([bank.level, np.full(len(prints), level, np.int8)])
    bank.first_application = np.concatenate(
        [bank.first_application, np.full(len(prints), -1, np.int32)]
    )
    return np.arange(begin, begin + len(prints), dtype=np.int32)


def _store_values(
    bank: Bank, shape: Shape, level: int, classes: np.ndarray, values: np.ndarray
) -> None:
    old = bank.values.get((shape, level))
    if old is not None:
        classes = np.concatenate([old.classes, classes])
        values = np.concatenate([old.values, values], axis=1)
    bank.values[shape, level] = ClassValues(classes, np.ascontiguousarray(values, np.int32))


@dataclass(slots=True)
class _CandidateBatch:
    """Candidates of one shape at a level, before they are compared."""

    applications: Applications
    fingerprints: np.ndarray
    values: np.ndarray | None


def add_level(bank: Bank, *, keep_values: bool = True, max_bytes: int = MAX_LEVEL_BYTES) -> None:
    """Add the next level. Without `keep_values` the values of its classes are dropped: nothing can
    be built on them. If a level would take more than `max_bytes`, only every nth candidate is
    tried; `bank.sample_steps` has n."""
    level = len(bank.candidate_counts)
    by_shape: dict[Shape, list[_CandidateBatch]] = {}
    tried = 0
    every = [
        t for number, u in enumerate(bank.uses()) for t in _operand_pairings(bank, number, u, level)
    ]
    cut = -(-sum(t.bytes(bank.family.samples, keep_values) for t in every) // max_bytes) or 1
    for t in every:
        for found in _apply_pairing(bank, t, level, keep_values, cut):
            by_shape.setdefault(t.shape, []).append(found)
            tried += len(found.applications)
    bank.candidate_counts.append(tried)
    bank.sample_steps.append(cut)
    rows: list[Applications] = []
    for shape, some in by_shape.items():
        rows.append(_merge_candidates(bank, shape, level, some, keep_values))
    begin = len(bank.applications)
    bank.applications = bank.applications.concatenate(rows)
    fresh = np.arange(begin, len(bank.applications), dtype=np.int32)
    of = bank.applications.result_class[begin:]
    where, at = np.unique(of, return_index=True)
    new = bank.first_application[where] < 0
    leaf = bank.level[where] == 0
    bank.first_application[where[new & ~leaf]] = fresh[at[new & ~leaf]]


@dataclass(frozen=True, slots=True)
class _OperandPairing:
    """A use, by number, on all pairs of two sets of classes (one set: `right` is None), with the
    shapes of operands and result."""

    number: int
    use: OperatorUse
    left: ClassValues
    right: ClassValues | None
    shapes: tuple[Shape, ...]
    attrs: Attrs
    shape: Shape

    @property
    def count(self) -> int:
        return len(self.left.classes) * (1 if self.right is None else len(self.right.classes))

    def bytes(self, samples: int, keep_values: bool) -> int:
        """Return the bytes of the candidates; kept values count twice, while they are compared."""
        value = 2 * 4 * samples * math.prod(self.shape)
        return self.count * (CANDIDATE_BYTES + (2 * value if keep_values else 0))


def _operand_pairings(
    bank: Bank, number: int, u: OperatorUse, level: int
) -> Iterator[_OperandPairing]:
    """Yield the ways to apply `u` at a level."""
    held = list(bank.values.items())
    places: Iterator[tuple[tuple[Shape, ...], ClassValues, ClassValues | None]]
    if u.arity == 1:
        places = (((shape,), h, None) for (shape, at), h in held if at == level - 1)
    else:
        places = (
            ((left, right), h, k)
            for (left, a), h in held
            for (right, b), k in held
            if a + b == level - 1
        )
    for shapes, h, k in places:
        made = infer_result(u, shapes)
        if made is not None and math.prod(made[1]) <= bank.family.max_elements:
            yield _OperandPairing(number, u, h, k, shapes, *made)


def _apply_pairing(
    bank: Bank, pairing: _OperandPairing, level: int, keep_values: bool, sample_step: int
) -> Iterator[_CandidateBatch]:
    u, h, k = pairing.use, pairing.left, pairing.right
    commutes = u.name in COMMUTATIVE
    inputs = len(bank.family.inputs)  # the constants are the leaves after them
    m = 1 if k is None else len(k.classes)
    # with a common divisor some operands would never be used
    sample_step = next(c for c in itertools.count(sample_step) if math.gcd(c, m) == 1)
    step = (
        max(1, BLOCK_ELEMENTS // max(1, 4 * math.prod(pairing.shape) * bank.family.samples))
        * sample_step
    )
    for start in range(0, pairing.count, step):
        flat = np.arange(start, min(start + step, pairing.count), sample_step)
        i, j = flat // m, flat % m
        left = h.classes[i]
        right = np.full(len(i), -1, np.int32) if k is None else k.classes[j]
        if commutes:
            wanted = left <= right
            i, j, left, right = i[wanted], j[wanted], left[wanted], right[wanted]
        if level == 1:  # results of constants only are constants, and folded anyway
            wanted = (left < inputs) | ((right >= 0) & (right < inputs))
            i, j, left, right = i[wanted], j[wanted], left[wanted], right[wanted]
        if not u.allows_constants:
            fixed = [(inputs <= c) & (c < len(bank.leaves)) for c in (left, right)]
            wanted = ~(fixed[0] | fixed[1])
            i, j, left, right = i[wanted], j[wanted], left[wanted], right[wanted]
        if u.name == "Div" and k is not None:  # only by operands without zeros
            wanted = (k.values != 0).all(axis=(0, *range(2, k.values.ndim)))[j]
            i, j, left, right = i[wanted], j[wanted], left[wanted], right[wanted]
        if not len(i):
            continue
        operands = [x.values[:, n].astype(np.int64) for x, n in ((h, i), (k, j)) if x is not None]
        types = [TensorType(F32, s) for s in pairing.shapes]
        value = evaluate_batch(u.op, types, pairing.attrs, operands, bank.seed)[u.result]
        count = len(i)
        apps = Applications(
            np.full(count, pairing.number, np.int16),
            left,
            right,
            np.full(count, -1, np.int32),
            np.full(count, level, np.int8),
        )
        prints = fingerprints(value, pairing.shape, bank.seed)
        yield _CandidateBatch(apps, prints, value.astype(np.int32) if keep_values else None)


@lru_cache(maxsize=1 << 16)
def infer_result(u: OperatorUse, shapes: tuple[Shape, ...]) -> tuple[Attrs, Shape] | None:
    """Return the canonical attributes and the result's shape; None if the operands do not fit."""
    if not u.accepts(shapes):
        return None
    types = tuple(TensorType(F32, s) for s in shapes)
    try:
        attrs = canonical_attrs(u.op, types, dict(u.attrs))
        made = infer(u.op, types, attrs)[u.result].shape
    except InferError:
        return None
    assert made is not None
    if 0 in made:
        return None  # all empty tensors are equal
    return attrs, tuple(int(d) for d in made)  # type: ignore[arg-type]


def _merge_candidates(
    bank: Bank, shape: Shape, level: int, batches: Sequence[_CandidateBatch], keep_values: bool
) -> Applications:
    """Find the class of each candidate, known or new. Values that are the same for all inputs, such
    as x - x, are not used further: they are constants, and folded."""
    apps = batches[0].applications.concatenate([f.applications for f in batches[1:]])
    prints = np.concatenate([f.fingerprints for f in batches])
    number = _shape_index(bank, shape)
    known = np.flatnonzero(bank.shape == number).astype(np.int32)
    together = np.concatenate([bank.fingerprints[known], prints])
    mine = _first_occurrences(together)[len(known) :]
    new = np.unique(mine[mine >= len(known)])
    classes = _add_classes(bank, together[new], np.full(len(new), number, np.int16), level)
    lookup = np.concatenate([known, np.empty(len(prints), np.int32)])
    lookup[new] = classes
    apps.result_class = lookup[mine]
    if keep_values and len(new):
        values = np.concatenate([f.values for f in batches if f.values is not None], axis=1)
        values = values[:, new - len(known)]
        varies = (values != values[:, :, :1]).any(axis=(0, *range(2, values.ndim)))
        _store_values(bank, shape, level, classes[varies], values[:, varies])
    return apps


def _first_occurrences(prints: np.ndarray) -> np.ndarray:
    """Return the first position of each fingerprint. Compares one half first, which is four times
    as fast if it is distinctive."""
    _, first, inverse = np.unique(prints[:, 0], return_index=True, return_inverse=True)
    firsts = np.asarray(first[inverse])
    if np.array_equal(prints[firsts, 1], prints[:, 1]):
        return firsts
    rows = np.ascontiguousarray(prints).view([("a", np.uint64), ("b", np.uint64)]).ravel()
    _, first, inverse = np.unique(rows, return_index=True, return_inverse=True)
    return np.asarray(first[inverse])
