"""Do operators and shapes fit each other? Asked before anything is enumerated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod

import numpy as np

from superopt.errors import UsageError
from superopt.generate.family import Shape, Use
from superopt.ir.batched_evaluation import evaluate_batch
from superopt.ir.evaluate import evaluate_node
from superopt.ir.op import InferError, canonical_attrs, infer
from superopt.te.eval import residues
from superopt.te.eval.prime_field import PrimeField
from superopt.te.expr.dtype import F32
from superopt.te.expr.tensor import TensorType

MOST_ELEMENTS = 4096  # of a tensor; thousands of them are held, each on several samples
ROUNDS = 4  # operators below one that finds operands no sooner
MOST_SHAPES = 64  # of which pairs are tried
BATCH = (7, 11)  # tensors and samples, unlike any tensor's own sizes


def shown(shape: Shape) -> str:
    """As it is written on the command line."""
    return "x".join(map(str, shape))


def fitted(operators: Sequence[Use], leaves: Mapping[str, Shape]) -> tuple[tuple[Use, ...], int]:
    """A use for each result of each operator; and the elements of the largest tensor: twice those
    of the largest leaf, or what an operator makes of leaves. leaves: inputs and constants by name.

    Operators are applied to the leaves, and to what that makes, until each of them and each leaf
    has found its place. Raises UsageError where one does not.
    """
    tried = _Tried(operators)
    reached = list(dict.fromkeys(leaves.values()))
    fresh = tried.apply(reached, (), MOST_ELEMENTS)
    largest = max([2 * prod(s) for s in reached] + [prod(s) for s in fresh])
    for _ in range(ROUNDS):
        done = len(tried.made) == len(operators) and tried.used.issuperset(leaves.values())
        if done or len(reached) > MOST_SHAPES:
            break
        before, reached = reached, list(dict.fromkeys([*reached, *fresh]))
        fresh = tried.apply(reached, before, largest)
    _check(tried, leaves)
    uses = [
        replace(u, result=k, many=len(tried.made[n]) > 1)
        for n, u in enumerate(operators)
        for k, t in enumerate(tried.made[n])
        if t.dtype == F32
    ]
    return tuple(uses), largest


@dataclass(slots=True)
class _Tried:
    """What was found out. made: the types of an operator's results, by its number; of: the shapes
    of the operands that made them; why: a reason why operands did not fit; used: the shapes that
    some operator takes."""

    operators: Sequence[Use]
    made: dict[int, tuple[TensorType, ...]] = field(default_factory=dict)
    of: dict[int, tuple[Shape, ...]] = field(default_factory=dict)
    why: dict[int, str] = field(default_factory=dict)
    used: set[Shape] = field(default_factory=set)

    def apply(self, shapes: Sequence[Shape], before: Sequence[Shape], most: int) -> list[Shape]:
        """The shapes that operators make of these, at most `most` elements; operands that are all
        among `before` are left out."""
        fresh: list[Shape] = []
        for n, u in enumerate(self.operators):
            for operands in product(shapes, repeat=u.arity):
                if all(s in before for s in operands):
                    continue
                try:
                    made = _results(u, operands, most)
                except InferError as e:
                    self.why.setdefault(n, str(e))
                    continue
                self.made.setdefault(n, made)
                self.of.setdefault(n, operands)
                self.used.update(operands)
                fresh += [_concrete(t) for t in made if t.dtype == F32]
        return fresh


def _results(u: Use, operands: tuple[Shape, ...], most: int) -> tuple[TensorType, ...]:
    """Raises InferError where the operands do not fit, UsageError where no attribute ever does."""
    if not u.takes(operands):
        raise InferError(f"of {' and '.join(map(shown, operands))} none is a vector to broadcast")
    types = tuple(TensorType(F32, s) for s in operands)
    try:
        made = infer(u.op, types, canonical_attrs(u.op, types, dict(u.attrs)))
    except InferError:
        raise
    except (AssertionError, TypeError, ValueError, IndexError) as e:
        raise UsageError(
            f"{u}: there is an attribute whose value {u.name} does not take",
            str(e) or f"tried on {' and '.join(map(str, types))}",
            "see what ONNX says of the operator",
        ) from e
    for t in made:
        if not 1 <= prod(_concrete(t)) <= most:
            raise InferError(
                f"{t} is made of {', '.join(map(str, types))}: it is from 1 to {most} elements"
            )
    return made


def _together(u: Use, operands: tuple[Shape, ...]) -> bool:
    """Is a batch of tensors what they are one by one?"""
    rng = np.random.default_rng(0)
    given = [
        np.stack([rng.integers(0, m, (*BATCH, *s), np.int64) for m in residues.MODULI])
        for s in operands
    ]
    types = [TensorType(F32, s) for s in operands]
    attrs = canonical_attrs(u.op, tuple(types), dict(u.attrs))
    try:
        batch = evaluate_batch(u.op, types, attrs, given, 0)
        for k in ((0, 0), (BATCH[0] - 1, BATCH[1] - 1)):
            alone = [x[:, *k] for x in given]
            one = evaluate_node(u.op, dict(attrs), alone, PrimeField(0), [F32] * len(alone))
            floats = [n for n, x in enumerate(one) if x.ndim == batch[n].ndim - 2]
            if not all(np.array_equal(one[n], batch[n][:, *k]) for n in floats):
                return False
    except (ValueError, IndexError):
        return False
    return True


def _concrete(t: TensorType) -> Shape:
    assert t.shape is not None
    return tuple(int(d) for d in t.shape)  # type: ignore[arg-type]


def _check(tried: _Tried, leaves: Mapping[str, Shape]) -> None:
    given = ", ".join(f"{n}={shown(s)}" for n, s in leaves.items())
    for n, u in enumerate(tried.operators):
        if n not in tried.made:
            raise UsageError(
                f"{u}: no operands fit",
                f"of {given}, and what operators make of them: {tried.why[n]}",
                "give other shapes, or leave the operator out",
            )
        if not any(t.dtype == F32 for t in tried.made[n]):
            raise UsageError(
                f"{u} makes {tried.made[n][0]}",
                "what is enumerated are tensors of floats (f32)",
                "leave the operator out",
            )
        if not _together(u, tried.of[n]):
            raise UsageError(
                f"{u} cannot be enumerated",
                "of many tensors at once it makes something else than of each",
                "leave the operator out",
            )
    for name, shape in leaves.items():
        if shape not in tried.used:
            why = "; ".join(tried.why.values())
            raise UsageError(
                f"{name}, of shape {shown(shape) or 'no axes'}, fits no operator",
                f"beside {given}: {why}",
                "give it another shape, or leave it out",
            )
