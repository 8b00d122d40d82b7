"""The equations of a family: what must be said so that everything equal is related.

After each level every equation known is applied to the whole bank; an application that is still in
another component than its class's smallest term gives a new equation, the most general first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from superopt.generate.bank import ROOM, Bank, begin, constant, grow, resulting
from superopt.generate.family import Family, Shape
from superopt.generate.pattern import (
    Equation,
    Hole,
    Leaf,
    Made,
    Pattern,
    Reader,
    apart,
    depth,
    holes,
    in_order,
    size,
    uses,
)
from superopt.generate.relate import Relations
from superopt.ir.batched_evaluation import evaluate_batch
from superopt.ir.op import canonical_attrs
from superopt.te.eval import residues
from superopt.te.eval.prime_field import PrimeField
from superopt.te.expr.dtype import BOOL, F32
from superopt.te.expr.tensor import TensorType


@dataclass(frozen=True, slots=True)
class Level:
    """One level's account: candidates, distinct tensors and equal pairs so far, applications that
    earlier equations did not relate, the equations that do, and seconds for either part. cut: the
    candidates are every nth of all, for want of memory."""

    candidates: int
    classes: int
    pairs: int
    unrelated: int
    fresh: int
    enumerating: float
    relating: float
    cut: int = 1


@dataclass(slots=True)
class Found:
    """A family's bank, the equations that relate what is equal in it, and how they were found.
    doubtful: pairs that are equal by coincidence on the inputs. unsayable: pairs of which neither
    side has all the variables: both are a constant that the family has no name for."""

    bank: Bank
    equations: list[Equation] = field(default_factory=list)
    levels: list[Level] = field(default_factory=list)
    doubtful: int = 0
    unsayable: int = 0


def find(
    family: Family,
    top: int,
    seed: int,
    *,
    keep: bool = False,
    room: int = ROOM,
    progress: Callable[[str], None] = lambda text: None,
) -> Found:
    """Enumerate `family` up to `top` operators. keep: the values of the last level too, where it is
    whole. room: bytes that a level may take, see `grow`."""
    found = Found(begin(family, seed))
    for level in range(1, top + 1):
        start = time.monotonic()
        grow(found.bank, keep=level < top or (keep and level <= family.whole), room=room)
        middle = time.monotonic()
        unrelated, fresh = _relate(found, level)
        end = time.monotonic()
        bank = found.bank
        found.levels.append(
            Level(
                bank.tried[level],
                len(bank.level),
                len(bank.apps) - int((bank.level > 0).sum()),
                unrelated,
                fresh,
                middle - start,
                end - middle,
                bank.cut[level],
            )
        )
        progress(f"{family.name}: {level} operators, {bank.tried[level]:,} candidates")
    return found


def _relate(found: Found, level: int) -> tuple[int, int]:
    """Add the equations that the bank needs up to `level`; what was unrelated, and how many. Beyond
    the operators that the family is whole at, of terms that have an equal of two fewer ones."""
    bank = found.bank
    related = Relations.of(bank, level)
    for e in found.equations:
        related.apply(e)
    rows = related.apart()
    if level > bank.family.whole:
        rows = rows[bank.level[bank.apps.of[rows]] <= level - 2]
    unrelated = len(rows)
    reader = Reader.of(bank)
    before = len(found.equations)
    order = sorted(map(int, rows), key=lambda row: (*weight(reader.equation(row)), row))
    rows = np.array(order, dtype=np.int32)
    while len(rows):
        e = reader.equation(int(rows[0]))
        wide = general(e, bank.family, bank.seed) if sayable(e) else None
        if wide is not None and related.apply(wide):
            found.equations.append(wide)
        elif not sayable(e):
            found.unsayable += 1
            rows = rows[1:]
        else:
            found.doubtful += 1
            rows = rows[1:]
        first = related.node(bank.apps.of[rows])
        rows = rows[related.found(rows) != related.found(first)]
    return unrelated, len(found.equations) - before


def general(e: Equation, family: Family, seed: int) -> Equation | None:
    """The equation with its holes told apart where it still holds; None where it never did."""
    if not confirmed(e, family, seed + 1):
        return None
    for n in range(len(e.inputs)):
        e = next((w for w in apart(e, n) if confirmed(w, family, seed + 1)), e)
    return in_order(e)


CONFIRMING = 64  # inputs on which an equation must hold that did not make it


def confirmed(e: Equation, family: Family, seed: int) -> bool:
    """Do both sides agree on new inputs, with new functions? On those of the bank a small tensor
    may be all positive by chance."""
    values = random_inputs(e, family, seed)
    left, right = (evaluated(p, family, values, seed) for p in (e.left, e.right))
    return left.shape == right.shape and bool(np.array_equal(left[0], right[0]))


def random_inputs(e: Equation, family: Family, seed: int) -> tuple[np.ndarray, ...]:
    """A value for each hole of an equation, (2, 1, CONFIRMING, *shape). A third of them are below
    zero in all elements, a third above: of nine elements one is nearly always above, so that what
    is said of the greatest of them is never seen where all are below."""
    return _inputs(tuple(family.inputs[i] for i in e.inputs), seed)


@lru_cache(maxsize=1 << 8)
def _inputs(shapes: tuple[Shape, ...], seed: int) -> tuple[np.ndarray, ...]:
    """Drawn once for all equations of inputs of these shapes; nobody writes into them."""
    rng = np.random.default_rng((seed, 1))
    return tuple(_biased(rng, shape, seed) for shape in shapes)


DRAWS = 8  # of which one is of the right sign


def _biased(rng: np.random.Generator, shape: Shape, seed: int) -> np.ndarray:
    wanted = (DRAWS, CONFIRMING, *shape)
    drawn = np.stack([rng.integers(0, m, wanted) for m in residues.MODULI])
    below = PrimeField(seed).apply("lt", (drawn, np.zeros_like(drawn)), (F32, F32), BOOL)
    sign = (np.arange(CONFIRMING) % 3).reshape(-1, *(1,) * len(shape))
    right = np.where(sign == 0, True, np.where(sign == 1, below, ~below))
    first = np.argmax(right, axis=0)
    return np.take_along_axis(drawn, first[None, None], axis=1)


def evaluated(p: Pattern, family: Family, values: Sequence[np.ndarray], seed: int) -> np.ndarray:
    """The term on values of its holes, with keyed functions of `seed`."""
    match p:
        case Hole(n):
            return values[n]
        case Leaf(name):
            return constant(*family.constants[name], CONFIRMING)
        case Made(u, operands):
            use = family.uses[u]
            some = [evaluated(o, family, values, seed) for o in operands]
            types = [TensorType(F32, x.shape[3:]) for x in some]
            attrs = canonical_attrs(use.op, tuple(types), dict(use.attrs))
            return evaluate_batch(use.op, types, attrs, some, seed)[use.result]


def shape_of(p: Pattern, e: Equation, family: Family) -> Shape:
    """The shape of a part of an equation."""
    match p:
        case Hole(n):
            return family.inputs[e.inputs[n]]
        case Leaf(name):
            return family.constants[name][1]
        case Made(u, operands):
            made = resulting(family.uses[u], tuple(shape_of(o, e, family) for o in operands))
            assert made is not None
            return made[1]


def sayable(e: Equation) -> bool:
    """Does one side have all the variables?"""
    left, right = set(holes(e.left)), set(holes(e.right))
    return left <= right or right <= left


def weight(e: Equation) -> tuple[int, ...]:
    """Small equations come first, of one size those whose sides are about as large: a part of what
    was joined is less than how the join came to be. Then those with the most variables, then flat
    ones of few operators: the laws that a textbook would name, from which the others follow."""
    less, more = sorted((size(e.left), size(e.right)))
    used = [*holes(e.left), *holes(e.right)]
    return (
        more,
        more - less if more - less > 1 else 0,
        less,
        -len(set(used)),
        max(depth(e.left), depth(e.right)),
        len({*uses(e.left), *uses(e.right)}),
        len(used),
    )
