"""Check that operators and shapes fit each other, before an enumeration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod

import numpy as np

from superopt.errors import UsageError
from superopt.generate.families.family import OperatorUse, Shape
from superopt.ir.batched_evaluation import evaluate_batch
from superopt.ir.evaluate import evaluate_node
from superopt.ir.op import InferError, canonical_attrs, infer
from superopt.te.eval import residues
from superopt.te.eval.prime_field import PrimeField
from superopt.te.expr.dtype import F32
from superopt.te.expr.tensor import TensorType

MAX_ELEMENTS = 4096  # of a tensor; thousands are held, each on several samples
SEARCH_ROUNDS = 4  # applications of operators to results, to find operands of another one
MAX_SHAPES = 64  # of which pairs are tried
TEST_BATCH_SHAPE = (7, 11)  # tensors and samples, unlike any tensor's own sizes


def shape_text(shape: Shape) -> str:
    """Return the shape as on the command line."""
    return "x".join(map(str, shape))


def fit_uses(
    operators: Sequence[OperatorUse], leaves: Mapping[str, Shape]
) -> tuple[tuple[OperatorUse, ...], int]:
    """Return a use for each result of each operator, and the most elements of a tensor: twice those
    of the largest leaf, or of the results of leaves.

    leaves: inputs and constants by name. Operators are applied to the leaves and to their results
        until each of them and each leaf fits somewhere. Raises UsageError if one does not.
    """
    tried = _ShapeSearch(operators)
    reached = list(dict.fromkeys(leaves.values()))
    fresh = tried.apply(reached, (), MAX_ELEMENTS)
    largest = max([2 * prod(s) for s in reached] + [prod(s) for s in fresh])
    for _ in range(SEARCH_ROUNDS):
        done = len(tried.result_types) == len(operators) and tried.used_shapes.issuperset(
            leaves.values()
        )
        if done or len(reached) > MAX_SHAPES:
            break
        before, reached = reached, list(dict.fromkeys([*reached, *fresh]))
        fresh = tried.apply(reached, before, largest)
    _check_all_fit(tried, leaves)
    uses = [
        replace(u, result=k, has_many_results=len(tried.result_types[n]) > 1)
        for n, u in enumerate(operators)
        for k, t in enumerate(tried.result_types[n])
        if t.dtype == F32
    ]
    return tuple(uses), largest


@dataclass(slots=True)
class _ShapeSearch:
    """The state of the search: the types of an operator's results, by its number; the operand
    shapes of these; a reason why operands did not fit; the shapes that some operator takes."""

    operators: Sequence[OperatorUse]
    result_types: dict[int, tuple[TensorType, ...]] = field(default_factory=dict)
    operand_shapes: dict[int, tuple[Shape, ...]] = field(default_factory=dict)
    misfit_reasons: dict[int, str] = field(default_factory=dict)
    used_shapes: set[Shape] = field(default_factory=set)

    def apply(
        self, shapes: Sequence[Shape], known_shapes: Sequence[Shape], max_elements: int
    ) -> list[Shape]:
        """Return the shapes of results of operators, with at most `max_elements`; skip operands
        that are all in `known_shapes`."""
        fresh: list[Shape] = []
        for n, u in enumerate(self.operators):
            for operands in product(shapes, repeat=u.arity):
                if all(s in known_shapes for s in operands):
                    continue
                try:
                    made = _result_types(u, operands, max_elements)
                except InferError as e:
                    self.misfit_reasons.setdefault(n, str(e))
                    continue
                self.result_types.setdefault(n, made)
                self.operand_shapes.setdefault(n, operands)
                self.used_shapes.update(operands)
                fresh += [_concrete_shape(t) for t in made if t.dtype == F32]
        return fresh


def _result_types(
    u: OperatorUse, operands: tuple[Shape, ...], max_elements: int
) -> tuple[TensorType, ...]:
    """Return the result types. Raises InferError if the operands do not fit, UsageError if an
    attribute value is never valid."""
    if not u.accepts(operands):
        raise InferError(
            f"none of {' and '.join(map(shape_text, operands))} is a vector to broadcast"
        )
    types = tuple(TensorType(F32, s) for s in operands)
    try:
        made = infer(u.op, types, canonical_attrs(u.op, types, dict(u.attrs)))
    except InferError:
        raise
    except (AssertionError, TypeError, ValueError, IndexError) as e:
        raise UsageError(
            f"{u}: {u.name} rejects the value of an attribute",
            str(e) or f"tested on {' and '.join(map(str, types))}",
            "see ONNX's definition of the operator",
        ) from e
    for t in made:
        if not 1 <= prod(_concrete_shape(t)) <= max_elements:
            raise InferError(
                f"{t} is made from {', '.join(map(str, types))}: it must have 1 to {max_elements} "
                "elements"
            )
    return made


def _is_batchable(u: OperatorUse, operands: tuple[Shape, ...]) -> bool:
    """True if evaluating a batch of tensors equals evaluating them one by one."""
    rng = np.random.default_rng(0)
    given = [
        np.stack([rng.integers(0, m, (*TEST_BATCH_SHAPE, *s), np.int64) for m in residues.MODULI])
        for s in operands
    ]
    types = [TensorType(F32, s) for s in operands]
    attrs = canonical_attrs(u.op, tuple(types), dict(u.attrs))
    try:
        batch = evaluate_batch(u.op, types, attrs, given, 0)
        for k in ((0, 0), (TEST_BATCH_SHAPE[0] - 1, TEST_BATCH_SHAPE[1] - 1)):
            alone = [x[:, *k] for x in given]
            one = evaluate_node(u.op, dict(attrs), alone, PrimeField(0), [F32] * len(alone))
            floats = [n for n, x in enumerate(one) if x.ndim == batch[n].ndim - 2]
            if not all(np.array_equal(one[n], batch[n][:, *k]) for n in floats):
                return False
    except (ValueError, IndexError):
        return False
    return True


def _concrete_shape(t: TensorType) -> Shape:
    assert t.shape is not None
    return tuple(int(d) for d in t.shape)  # type: ignore[arg-type]


def _check_all_fit(tried: _ShapeSearch, leaves: Mapping[str, Shape]) -> None:
    given = ", ".join(f"{n}={shape_text(s)}" for n, s in leaves.items())
    for n, u in enumerate(tried.operators):
        if n not in tried.result_types:
            raise UsageError(
                f"{u}: no operands fit",
                f"among {given} and their results: {tried.misfit_reasons[n]}",
                "pass other shapes, or leave the operator out",
            )
        if not any(t.dtype == F32 for t in tried.result_types[n]):
            raise UsageError(
                f"{u} returns {tried.result_types[n][0]}",
                "only float tensors (f32) are enumerated",
                "leave the operator out",
            )
        if not _is_batchable(u, tried.operand_shapes[n]):
            raise UsageError(
                f"{u} cannot be enumerated",
                "evaluating many tensors at once gives other results than one by one",
                "leave the operator out",
            )
    for name, shape in leaves.items():
        if shape not in tried.used_shapes:
            why = "; ".join(tried.misfit_reasons.values())
            raise UsageError(
                f"{name}, of shape {shape_text(shape) or 'no axes'}, fits no operator",
                f"beside {given}: {why}",
                "pass another shape, or leave it out",
            )
