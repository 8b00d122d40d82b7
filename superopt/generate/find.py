"""Find the equations of a family that relate everything equal.

After each level every known equation is applied to the whole bank; an application that is still in
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
    """The counts of one level: candidates, distinct tensors and equal pairs so far, applications
    that earlier equations did not relate, the new equations that do, and seconds of both parts.
    cut: every nth candidate was tried, for want of memory.
    """

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
    """A family's bank, the equations that relate its equal tensors, and counts.

    doubtful: pairs that are equal by coincidence on the inputs. non_orientable: pairs in which
    neither side has all the variables: both equal a constant without a name in the family.
    """

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
    """Enumerate `family` up to `max_ops` operators. keep_last_values: of the last level, if it is
    complete. max_bytes: of a level, see `add_level`."""
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
    """Add the equations that the bank needs up to `level`; return the numbers of unrelated
    applications and of new equations. Above the family's `complete_ops`, only terms with an equal
    of two fewer operators are related."""
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
    """Return the equation with its variables split as far as it still holds; None if it does not
    hold."""
    if not confirmed(e, family, seed + 1):
        return None
    for n in range(len(e.inputs)):
        e = next((w for w in apart(e, n) if confirmed(w, family, seed + 1)), e)
    return in_order(e)


CONFIRMING = 64  # inputs for confirming an equation, other than those that produced it


def confirmed(e: Equation, family: Family, seed: int) -> bool:
    """True if both sides agree on new inputs, with new functions. On the bank's inputs a small
    tensor may be all positive by chance."""
    values = random_inputs(e, family, seed)
    left, right = (evaluated(p, family, values, seed) for p in (e.left, e.right))
    return left.shape == right.shape and bool(np.array_equal(left[0], right[0]))


def random_inputs(e: Equation, family: Family, seed: int) -> tuple[np.ndarray, ...]:
    """Return a value for each variable of an equation, (2, 1, CONFIRMING_INPUTS, *shape).

    A third of them are negative in all elements, a third positive: one of nine random elements is
    nearly always positive, so that the maximum would never be negative.
    """
    return _inputs(tuple(family.inputs[i] for i in e.inputs), seed)


@lru_cache(maxsize=1 << 8)
def _inputs(shapes: tuple[Shape, ...], seed: int) -> tuple[np.ndarray, ...]:
    """Draw inputs once for all equations with these shapes; they are read-only."""
    rng = np.random.default_rng((seed, 1))
    return tuple(_biased(rng, shape, seed) for shape in shapes)


DRAWS = 8  # of which one has the required sign


def _biased(rng: np.random.Generator, shape: Shape, seed: int) -> np.ndarray:
    wanted = (DRAWS, CONFIRMING, *shape)
    drawn = np.stack([rng.integers(0, m, wanted) for m in residues.MODULI])
    below = PrimeField(seed).apply("lt", (drawn, np.zeros_like(drawn)), (F32, F32), BOOL)
    sign = (np.arange(CONFIRMING) % 3).reshape(-1, *(1,) * len(shape))
    right = np.where(sign == 0, True, np.where(sign == 1, below, ~below))
    first = np.argmax(right, axis=0)
    return np.take_along_axis(drawn, first[None, None], axis=1)


def evaluated(p: Pattern, family: Family, values: Sequence[np.ndarray], seed: int) -> np.ndarray:
    """Evaluate the term on values of its variables, with keyed functions of `seed`."""
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
    """Return the shape of a part of an equation."""
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
    """True if one side has all the variables."""
    left, right = set(holes(e.left)), set(holes(e.right))
    return left <= right or right <= left


def weight(e: Equation) -> tuple[int, ...]:
    """Return the sort key of equations: small ones first, among these those with sides of similar
    size (a law about a part precedes one about how the join was made), then those with the most
    variables, then flat ones with few operators: the laws that a textbook would name, from which
    the others follow.
    """
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
