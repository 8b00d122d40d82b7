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

from superopt.generate.enumeration.bank import (
    MAX_LEVEL_BYTES,
    Bank,
    add_level,
    constant_values,
    infer_result,
    initial_bank,
)
from superopt.generate.enumeration.ematching import Relations
from superopt.generate.enumeration.pattern import (
    Equation,
    Pattern,
    PatternCall,
    PatternConstant,
    PatternVariable,
    TermReader,
    call_count,
    call_depth,
    number_in_order,
    split_variable,
    use_numbers,
    variable_numbers,
)
from superopt.generate.families.family import Family, Shape
from superopt.ir.batched_evaluation import evaluate_batch
from superopt.ir.op import canonical_attrs
from superopt.te.eval import residues
from superopt.te.eval.prime_field import PrimeField
from superopt.te.expr.dtype import BOOL, F32
from superopt.te.expr.tensor import TensorType


@dataclass(frozen=True, slots=True)
class LevelStats:
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
class FoundEquations:
    """A family's bank, the equations that relate its equal tensors, and counts.

    doubtful: pairs that are equal by coincidence on the inputs. non_orientable: pairs in which
    neither side has all the variables: both equal a constant without a name in the family.
    """

    bank: Bank
    equations: list[Equation] = field(default_factory=list)
    levels: list[LevelStats] = field(default_factory=list)
    doubtful: int = 0
    non_orientable: int = 0


def find_equations(
    family: Family,
    max_ops: int,
    seed: int,
    *,
    keep_last_values: bool = False,
    max_bytes: int = MAX_LEVEL_BYTES,
    progress: Callable[[str], None] = lambda text: None,
) -> FoundEquations:
    """Enumerate `family` up to `max_ops` operators. keep_last_values: of the last level, if it is
    complete. max_bytes: of a level, see `add_level`."""
    found = FoundEquations(initial_bank(family, seed))
    for level in range(1, max_ops + 1):
        start = time.monotonic()
        add_level(
            found.bank,
            keep_values=level < max_ops or (keep_last_values and level <= family.complete_ops),
            max_bytes=max_bytes,
        )
        middle = time.monotonic()
        unrelated, fresh = _relate_level(found, level)
        end = time.monotonic()
        bank = found.bank
        found.levels.append(
            LevelStats(
                bank.candidate_counts[level],
                len(bank.level),
                len(bank.applications) - int((bank.level > 0).sum()),
                unrelated,
                fresh,
                middle - start,
                end - middle,
                bank.sample_steps[level],
            )
        )
        progress(f"{family.name}: {level} operators, {bank.candidate_counts[level]:,} candidates")
    return found


def _relate_level(found: FoundEquations, level: int) -> tuple[int, int]:
    """Add the equations that the bank needs up to `level`; return the numbers of unrelated
    applications and of new equations. Above the family's `complete_ops`, only terms with an equal
    of two fewer operators are related."""
    bank = found.bank
    related = Relations.build(bank, level)
    for e in found.equations:
        related.apply_equation(e)
    rows = related.unrelated_applications()
    if level > bank.family.complete_ops:
        rows = rows[bank.level[bank.applications.result_class[rows]] <= level - 2]
    unrelated = len(rows)
    reader = TermReader.for_bank(bank)
    before = len(found.equations)
    order = sorted(map(int, rows), key=lambda row: (*equation_weight(reader.equation(row)), row))
    rows = np.array(order, dtype=np.int32)
    while len(rows):
        e = reader.equation(int(rows[0]))
        wide = generalize_variables(e, bank.family, bank.seed) if is_orientable(e) else None
        if wide is not None and related.apply_equation(wide):
            found.equations.append(wide)
        elif not is_orientable(e):
            found.non_orientable += 1
            rows = rows[1:]
        else:
            found.doubtful += 1
            rows = rows[1:]
        first = related.class_nodes(bank.applications.result_class[rows])
        rows = rows[related.components_of(rows) != related.components_of(first)]
    return unrelated, len(found.equations) - before


def generalize_variables(e: Equation, family: Family, seed: int) -> Equation | None:
    """Return the equation with its variables split as far as it still holds; None if it does not
    hold."""
    if not is_confirmed(e, family, seed + 1):
        return None
    for n in range(len(e.inputs)):
        e = next((w for w in split_variable(e, n) if is_confirmed(w, family, seed + 1)), e)
    return number_in_order(e)


CONFIRMING_INPUTS = 64  # inputs for confirming an equation, other than those that produced it


def is_confirmed(e: Equation, family: Family, seed: int) -> bool:
    """True if both sides agree on new inputs, with new functions. On the bank's inputs a small
    tensor may be all positive by chance."""
    values = random_inputs(e, family, seed)
    left, right = (evaluate_term(p, family, values, seed) for p in (e.left, e.right))
    return left.shape == right.shape and bool(np.array_equal(left[0], right[0]))


def random_inputs(e: Equation, family: Family, seed: int) -> tuple[np.ndarray, ...]:
    """Return a value for each variable of an equation, (2, 1, CONFIRMING_INPUTS, *shape).

    A third of them are negative in all elements, a third positive: one of nine random elements is
    nearly always positive, so that the maximum would never be negative.
    """
    return _draw_inputs(tuple(family.inputs[i] for i in e.inputs), seed)


@lru_cache(maxsize=1 << 8)
def _draw_inputs(shapes: tuple[Shape, ...], seed: int) -> tuple[np.ndarray, ...]:
    """Draw inputs once for all equations with these shapes; they are read-only."""
    rng = np.random.default_rng((seed, 1))
    return tuple(_draw_signed(rng, shape, seed) for shape in shapes)


SIGN_DRAWS = 8  # of which one has the required sign


def _draw_signed(rng: np.random.Generator, shape: Shape, seed: int) -> np.ndarray:
    wanted = (SIGN_DRAWS, CONFIRMING_INPUTS, *shape)
    drawn = np.stack([rng.integers(0, m, wanted) for m in residues.MODULI])
    below = PrimeField(seed).apply("lt", (drawn, np.zeros_like(drawn)), (F32, F32), BOOL)
    sign = (np.arange(CONFIRMING_INPUTS) % 3).reshape(-1, *(1,) * len(shape))
    right = np.where(sign == 0, True, np.where(sign == 1, below, ~below))
    first = np.argmax(right, axis=0)
    return np.take_along_axis(drawn, first[None, None], axis=1)


def evaluate_term(
    p: Pattern, family: Family, values: Sequence[np.ndarray], seed: int
) -> np.ndarray:
    """Evaluate the term on values of its variables, with keyed functions of `seed`."""
    match p:
        case PatternVariable(n):
            return values[n]
        case PatternConstant(name):
            return constant_values(*family.constants[name], CONFIRMING_INPUTS)
        case PatternCall(u, operands):
            use = family.uses[u]
            some = [evaluate_term(o, family, values, seed) for o in operands]
            types = [TensorType(F32, x.shape[3:]) for x in some]
            attrs = canonical_attrs(use.op, tuple(types), dict(use.attrs))
            return evaluate_batch(use.op, types, attrs, some, seed)[use.result]


def term_shape(p: Pattern, e: Equation, family: Family) -> Shape:
    """Return the shape of a part of an equation."""
    match p:
        case PatternVariable(n):
            return family.inputs[e.inputs[n]]
        case PatternConstant(name):
            return family.constants[name][1]
        case PatternCall(u, operands):
            made = infer_result(family.uses[u], tuple(term_shape(o, e, family) for o in operands))
            assert made is not None
            return made[1]


def is_orientable(e: Equation) -> bool:
    """True if one side has all the variables."""
    left, right = set(variable_numbers(e.left)), set(variable_numbers(e.right))
    return left <= right or right <= left


def equation_weight(e: Equation) -> tuple[int, ...]:
    """Return the sort key of equations: small ones first, among these those with sides of similar
    size (a law about a part precedes one about how the join was made), then those with the most
    variables, then flat ones with few operators: the laws that a textbook would name, from which
    the others follow.
    """
    less, more = sorted((call_count(e.left), call_count(e.right)))
    used = [*variable_numbers(e.left), *variable_numbers(e.right)]
    return (
        more,
        more - less if more - less > 1 else 0,
        less,
        -len(set(used)),
        max(call_depth(e.left), call_depth(e.right)),
        len({*use_numbers(e.left), *use_numbers(e.right)}),
        len(used),
    )
