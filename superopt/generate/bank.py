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

from superopt.generate.family import Family, Shape, Use
from superopt.ir.batched_evaluation import evaluate_batch
from superopt.ir.op import Attrs, InferError, canonical_attrs, infer
from superopt.te.eval import residues
from superopt.te.expr.dtype import F32
from superopt.te.expr.tensor import TensorType

BLOCK = 1 << 21  # elements of results that are computed together
# Approximate bytes of a level: if it would take more, only every nth candidate is tried.
ROOM = 6 << 30
CANDIDATE = 128  # bytes of a candidate besides its value: columns, fingerprints, and sorting
COMMUTATIVE = frozenset(("Add", "Mul", "Max", "Min"))


@dataclass(slots=True)
class Held:
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
    of: np.ndarray
    size: np.ndarray

    def __len__(self) -> int:
        return len(self.use)

    @staticmethod
    def none() -> Applications:
        return Applications(*(np.empty(0, t) for t in (np.int16, *[np.int32] * 3, np.int8)))

    def plus(self, rows: Sequence[Applications]) -> Applications:
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
    first: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))
    apps: Applications = field(default_factory=Applications.none)
    held: dict[tuple[Shape, int], Held] = field(default_factory=dict)  # by shape and level
    prints: np.ndarray = field(default_factory=lambda: np.empty((0, 2), np.uint64))
    tried: list[int] = field(default_factory=list)
    cut: list[int] = field(default_factory=list)

    def uses(self) -> tuple[Use, ...]:
        return self.family.uses


def begin(family: Family, seed: int) -> Bank:
    """Return the bank with the leaves only."""
    bank = Bank(family, seed)
    rng = np.random.default_rng(seed)
    leaves: list[tuple[str, Shape, np.ndarray]] = []
    for name, shape in family.inputs.items():
        drawn = [rng.integers(0, m, (1, family.samples, *shape), np.int64) for m in residues.MODULI]
        leaves.append((name, shape, np.stack(drawn)))
    for name, (kind, shape) in family.constants.items():
        leaves.append((name, shape, constant(kind, shape, family.samples)))
    for name, shape, value in leaves:
        found = fingerprints(value, shape, seed)
        at = _add(bank, found, np.full(1, _shape_number(bank, shape), np.int16), 0)
        bank.leaves[name] = int(at[0])
        _hold(bank, shape, 0, at, value)
    bank.tried.append(len(leaves))
    bank.cut.append(1)
    return bank


def constant(kind: str, shape: Shape, samples: int) -> np.ndarray:
    """Return a constant of a family as (2, 1, samples, *shape)."""
    values = {v: residues.from_number(v) for v in (0, 1, 2, Fraction(1, math.prod(shape[2:])))}
    pair = np.stack([values[v] for v in entries(kind, shape)], axis=-1).reshape(2, *shape)
    return np.broadcast_to(pair[:, None, None], (2, 1, samples, *shape))


def entries(kind: str, shape: Shape) -> list[int | Fraction]:
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
    return _spread(flat @ np.ascontiguousarray(keys[:, :-1].T) + keys[:, -1])


def _spread(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    return np.asarray(x ^ (x >> np.uint64(31)))


def _shape_number(bank: Bank, shape: Shape) -> int:
    if shape not in bank.shapes:
        bank.shapes.append(shape)
    return bank.shapes.index(shape)


def _add(bank: Bank, prints: np.ndarray, shape: np.ndarray, level: int) -> np.ndarray:
    begin = len(bank.level)
    bank.prints = np.concatenate([bank.prints, prints])
    bank.shape = np.concatenate([bank.shape, shape])
    bank.level = np.concatenate([bank.level, np.full(len(prints), level, np.int8)])
    bank.first = np.concatenate([bank.first, np.full(len(prints), -1, np.int32)])
    return np.arange(begin, begin + len(prints), dtype=np.int32)


def _hold(bank: Bank, shape: Shape, level: int, classes: np.ndarray, values: np.ndarray) -> None:
    old = bank.held.get((shape, level))
    if old is not None:
        classes = np.concatenate([old.classes, classes])
        values = np.concatenate([old.values, values], axis=1)
    bank.held[shape, level] = Held(classes, np.ascontiguousarray(values, np.int32))


@dataclass(slots=True)
class _Found:
    """Candidates of one shape at a level, before they are compared."""

    apps: Applications
    prints: np.ndarray
    values: np.ndarray | None


def grow(bank: Bank, *, keep: bool = True, room: int = ROOM) -> None:
    """Add the next level. Without `keep_values` the values of its classes are dropped: nothing can
    be built on them. If a level would take more than `max_bytes`, only every nth candidate is
    tried; `bank.sample_steps` has n."""
    level = len(bank.tried)
    by_shape: dict[Shape, list[_Found]] = {}
    tried = 0
    every = [t for number, u in enumerate(bank.uses()) for t in _tries(bank, number, u, level)]
    cut = -(-sum(t.bytes(bank.family.samples, keep) for t in every) // room) or 1
    for t in every:
        for found in _applied(bank, t, level, keep, cut):
            by_shape.setdefault(t.shape, []).append(found)
            tried += len(found.apps)
    bank.tried.append(tried)
    bank.cut.append(cut)
    rows: list[Applications] = []
    for shape, some in by_shape.items():
        rows.append(_merge(bank, shape, level, some, keep))
    begin = len(bank.apps)
    bank.apps = bank.apps.plus(rows)
    fresh = np.arange(begin, len(bank.apps), dtype=np.int32)
    of = bank.apps.of[begin:]
    where, at = np.unique(of, return_index=True)
    new = bank.first[where] < 0
    leaf = bank.level[where] == 0
    bank.first[where[new & ~leaf]] = fresh[at[new & ~leaf]]


@dataclass(frozen=True, slots=True)
class _Try:
    """A use, by number, on all pairs of two sets of classes (one set: `right` is None), with the
    shapes of operands and result."""

    number: int
    use: Use
    left: Held
    right: Held | None
    shapes: tuple[Shape, ...]
    attrs: Attrs
    shape: Shape

    @property
    def count(self) -> int:
        return len(self.left.classes) * (1 if self.right is None else len(self.right.classes))

    def bytes(self, samples: int, keep: bool) -> int:
        """Return the bytes of the candidates; kept values count twice, while they are compared."""
        value = 2 * 4 * samples * math.prod(self.shape)
        return self.count * (CANDIDATE + (2 * value if keep else 0))


def _tries(bank: Bank, number: int, u: Use, level: int) -> Iterator[_Try]:
    """Yield the ways to apply `u` at a level."""
    held = list(bank.held.items())
    places: Iterator[tuple[tuple[Shape, ...], Held, Held | None]]
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
        made = resulting(u, shapes)
        if made is not None and math.prod(made[1]) <= bank.family.largest:
            yield _Try(number, u, h, k, shapes, *made)


def _applied(bank: Bank, t: _Try, level: int, keep: bool, cut: int) -> Iterator[_Found]:
    u, h, k = t.use, t.left, t.right
    commutes = u.name in COMMUTATIVE
    inputs = len(bank.family.inputs)  # the constants are the leaves after them
    m = 1 if k is None else len(k.classes)
    # with a common divisor some operands would never be used
    cut = next(c for c in itertools.count(cut) if math.gcd(c, m) == 1)
    step = max(1, BLOCK // max(1, 4 * math.prod(t.shape) * bank.family.samples)) * cut
    for start in range(0, t.count, step):
        flat = np.arange(start, min(start + step, t.count), cut)
        i, j = flat // m, flat % m
        left = h.classes[i]
        right = np.full(len(i), -1, np.int32) if k is None else k.classes[j]
        if commutes:
            wanted = left <= right
            i, j, left, right = i[wanted], j[wanted], left[wanted], right[wanted]
        if level == 1:  # results of constants only are constants, and folded anyway
            wanted = (left < inputs) | ((right >= 0) & (right < inputs))
            i, j, left, right = i[wanted], j[wanted], left[wanted], right[wanted]
        if not u.constants:
            fixed = [(inputs <= c) & (c < len(bank.leaves)) for c in (left, right)]
            wanted = ~(fixed[0] | fixed[1])
            i, j, left, right = i[wanted], j[wanted], left[wanted], right[wanted]
        if u.name == "Div" and k is not None:  # only by operands without zeros
            wanted = (k.values != 0).all(axis=(0, *range(2, k.values.ndim)))[j]
            i, j, left, right = i[wanted], j[wanted], left[wanted], right[wanted]
        if not len(i):
            continue
        operands = [x.values[:, n].astype(np.int64) for x, n in ((h, i), (k, j)) if x is not None]
        types = [TensorType(F32, s) for s in t.shapes]
        value = evaluate_batch(u.op, types, t.attrs, operands, bank.seed)[u.result]
        count = len(i)
        apps = Applications(
            np.full(count, t.number, np.int16),
            left,
            right,
            np.full(count, -1, np.int32),
            np.full(count, level, np.int8),
        )
        prints = fingerprints(value, t.shape, bank.seed)
        yield _Found(apps, prints, value.astype(np.int32) if keep else None)


@lru_cache(maxsize=1 << 16)
def resulting(u: Use, shapes: tuple[Shape, ...]) -> tuple[Attrs, Shape] | None:
    """Return the canonical attributes and the result's shape; None if the operands do not fit."""
    if not u.takes(shapes):
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


def _merge(
    bank: Bank, shape: Shape, level: int, some: Sequence[_Found], keep: bool
) -> Applications:
    """Find the class of each candidate, known or new. Values that are the same for all inputs, such
    as x - x, are not used further: they are constants, and folded."""
    apps = some[0].apps.plus([f.apps for f in some[1:]])
    prints = np.concatenate([f.prints for f in some])
    number = _shape_number(bank, shape)
    known = np.flatnonzero(bank.shape == number).astype(np.int32)
    together = np.concatenate([bank.prints[known], prints])
    mine = _firsts(together)[len(known) :]
    new = np.unique(mine[mine >= len(known)])
    classes = _add(bank, together[new], np.full(len(new), number, np.int16), level)
    lookup = np.concatenate([known, np.empty(len(prints), np.int32)])
    lookup[new] = classes
    apps.of = lookup[mine]
    if keep and len(new):
        values = np.concatenate([f.values for f in some if f.values is not None], axis=1)
        values = values[:, new - len(known)]
        varies = (values != values[:, :, :1]).any(axis=(0, *range(2, values.ndim)))
        _hold(bank, shape, level, classes[varies], values[:, varies])
    return apps


def _firsts(prints: np.ndarray) -> np.ndarray:
    """Return the first position of each fingerprint. Compares one half first, which is four times
    as fast if it is distinctive."""
    _, first, inverse = np.unique(prints[:, 0], return_index=True, return_inverse=True)
    firsts = np.asarray(first[inverse])
    if np.array_equal(prints[firsts, 1], prints[:, 1]):
        return firsts
    rows = np.ascontiguousarray(prints).view([("a", np.uint64), ("b", np.uint64)]).ravel()
    _, first, inverse = np.unique(rows, return_index=True, return_inverse=True)
    return np.asarray(first[inverse])
