"""Enumerate small programs that compute all or part of what a program computes.

Bottom-up enumeration at small sizes: each tensor that operators make of the program's inputs is
evaluated over a prime field. Of equal tensors the first, or the one with fewer products, is kept
and extended (observational equivalence). Tensors of the program's shape are compared with it
element by element. Those that agree on enough are *hits*: terms that can be instantiated at any
sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import combinations, product
from math import prod

import numpy as np

from superopt.ir import graph
from superopt.ir.batched_evaluation import evaluate_batch
from superopt.ir.op import InferError
from superopt.partial.correct.restrict import static_shape
from superopt.partial.enumerate.hints import ProgramHints, program_hints
from superopt.partial.enumerate.operators import OPERATORS, Operator
from superopt.partial.enumerate.program import Program, Shape
from superopt.te.eval import residues
from superopt.te.expr.dtype import F32
from superopt.te.expr.tensor import TensorType

MIN_EQUAL_SHARE = 0.25  # of the elements of the small program, of which a border is a larger share
MAX_CANDIDATES = 60_000  # candidates, at most
MAX_GROWTH = 6  # times the largest tensor of the program
MAX_BATCH_ELEMENTS = 1 << 20  # elements


@dataclass(frozen=True, slots=True)
class Candidate:
    """An input, by name; or an operator, by number and name, applied to terms."""

    name: str
    operator: int = -1
    operands: tuple[Candidate, ...] = ()

    @property
    def count(self) -> int:
        return (self.operator >= 0) + sum(t.count for t in self.operands)

    @property
    def outermost_product(self) -> int:
        """The number of the outermost product operator, or -1."""
        if self.operator >= 0 and OPERATORS[self.operator].is_product:
            return self.operator
        return max((t.outermost_product for t in self.operands), default=-1)

    def __str__(self) -> str:
        if self.operator < 0:
            return self.name
        own = OPERATORS[self.operator].name + (f" {self.name}" if self.name else "")
        return f"({own}: {', '.join(map(str, self.operands))})"


@dataclass(frozen=True, slots=True)
class Hit:
    """share: of the elements of the small program that are equal."""

    term: Candidate
    share: float


@dataclass(slots=True)
class _TensorGroup:
    """Tensors of one shape and kind, made by the same number of operators: terms, values (2, count,
    1, *shape), and counts: uses of each input, products, and permutations before and after a
    product."""

    terms: list[Candidate]
    values: np.ndarray
    counts: np.ndarray


_GroupKey = tuple[Shape, bool, int]  # shape, is it a weight, operators


@dataclass(slots=True)
class _Bank:
    hints: ProgramHints
    seed: int
    max_elements: int
    limits: np.ndarray  # of counts, but for what is moved after
    groups: dict[_GroupKey, _TensorGroup] = field(default_factory=dict)
    fewest_products: dict[object, int] = field(
        default_factory=dict
    )  # products of what is equal, at least
    applications: dict[object, list[tuple[str, graph.Value, list[graph.Input]]]] = field(
        default_factory=dict
    )
    useful: dict[tuple[Shape, bool], bool] = field(default_factory=dict)
    tried: int = 0


def find_hits(
    p: Program, max_operators: int, seed: int = 0, stop: Callable[[], bool] = lambda: False
) -> list[Hit]:
    """Return terms of up to `max_operators` operators that agree with a program of small sizes on
    enough elements. Raises InferError if its results cannot be concatenated."""
    wanted = program_hints(p)
    limits = np.array([*(n for _, n in wanted.input_uses), wanted.products, max_operators])
    largest = MAX_GROWTH * max(prod(static_shape(v)) for v in (*p.inputs, p.joined_output))
    bank = _Bank(wanted, seed, largest, limits)
    known: dict[graph.Value, np.ndarray] = {}
    rng = np.random.default_rng(seed)
    for i in p.inputs:
        shape = static_shape(i)
        drawn = np.stack([rng.integers(0, m, (1, 1, *shape), np.int64) for m in residues.MODULI])
        known[i] = drawn
        counts = np.array([[*(int(name == i.name) for name, _ in wanted.input_uses), 0, 0, 0]])
        _keep_new(bank, (shape, i.name in p.weights, 0), [Candidate(i.name)], drawn, counts)
    target = _evaluate(p.joined_output, known, seed)[:, 0, 0]
    out: dict[Candidate, Hit] = {}
    for level in range(1, max_operators + 1):
        for terms, values, counts, place in _grow(bank, level, max_operators, stop):
            if place[0] == wanted.output_shape and not place[1]:
                same = (values[:, :, 0] == target[:, None]).all(axis=0)
                shares = same.reshape(len(terms), -1).mean(axis=1)
                whole = (counts[:, : len(wanted.input_uses)] > 0).all(axis=1)  # nothing is left out
                for n in np.flatnonzero((shares >= MIN_EQUAL_SHARE) & whole):
                    if not _skips_products(terms[n], p.weights):
                        out[terms[n]] = Hit(terms[n], float(shares[n]))
            if level < max_operators:
                _keep_new(bank, place, terms, values, counts)
    return sorted(out.values(), key=lambda h: (-h.share, h.term.count))


def _skips_products(t: Candidate, weights: Collection[str]) -> bool:
    """True if an activation reaches the term without a product, unlike in any program. Its part of
    the result is wrong, and copying half of a program would seem to halve its cost."""
    if t.operator < 0:
        return t.name not in weights
    return not OPERATORS[t.operator].is_product and any(
        _skips_products(o, weights) for o in t.operands
    )


def _grow(
    bank: _Bank, level: int, max_level: int, stop: Callable[[], bool]
) -> Iterator[tuple[list[Candidate], np.ndarray, np.ndarray, _GroupKey]]:
    """Yield what one more operator makes; at the last level only tensors of the wanted shape."""
    last = level == max_level
    for number, op in enumerate(OPERATORS):
        if not op.is_applicable(bank.hints) or (last and op.is_weight_only):
            continue
        places = [[q for q in bank.groups if q[1] == kind] for kind in op.weight_operands]
        for chosen in product(*places):
            if sum(q[2] for q in chosen) != level - 1:
                continue
            if last and op.is_permutation and prod(chosen[0][0]) != prod(bank.hints.output_shape):
                continue
            if bank.tried >= MAX_CANDIDATES or stop():
                return
            some = [bank.groups[q] for q in chosen]
            rows, counts = _operand_choices(bank, op, some)
            for name, made, given in _applications(bank, number, op, chosen) if len(rows) else ():
                shape = static_shape(made)
                if prod(shape) > bank.max_elements or (last and shape != bank.hints.output_shape):
                    continue
                if level == max_level - 1 and not _is_useful(
                    bank, (shape, op.is_weight_only, level)
                ):
                    continue
                for begin in range(0, len(rows), step := max(1, MAX_BATCH_ELEMENTS // prod(shape))):
                    part = rows[begin : begin + step]
                    terms = [
                        Candidate(
                            name, number, tuple(h.terms[n] for h, n in zip(some, r, strict=True))
                        )
                        for r in part
                    ]
                    known: dict[graph.Value, np.ndarray] = {
                        i: h.values[:, part[:, k]].astype(np.int64)
                        for k, (i, h) in enumerate(zip(given, some, strict=True))
                    }
                    bank.tried += len(part)
                    values = _evaluate(made, known, bank.seed)
                    yield (
                        terms,
                        values,
                        counts[begin : begin + step],
                        (shape, op.is_weight_only, level),
                    )


def _is_useful(bank: _Bank, place: _GroupKey) -> bool:
    """True if one more operator on tensors of this shape and on inputs gives the wanted shape."""
    known = place[:2]
    if known not in bank.useful:
        given = [q for q in bank.groups if q[2] == 0]
        found = place[0] == bank.hints.output_shape or any(
            static_shape(made) == bank.hints.output_shape
            for number, op in enumerate(OPERATORS)
            if op.is_applicable(bank.hints)
            and not op.is_weight_only
            and not (op.is_permutation and prod(place[0]) != prod(bank.hints.output_shape))
            for k, kind in enumerate(op.weight_operands)
            if kind == place[1]
            for others in product(
                *(
                    [q for q in given if q[1] == c]
                    for c in (*op.weight_operands[:k], *op.weight_operands[k + 1 :])
                )
            )
            for _, made, _ in _applications(bank, number, op, (*others[:k], place, *others[k:]))
        )
        bank.useful[known] = found
    return bank.useful[known]


def _applications(
    bank: _Bank, number: int, op: Operator, chosen: Sequence[_GroupKey]
) -> list[tuple[str, graph.Value, list[graph.Input]]]:
    """Return the applications of an operator to any operands of these shapes."""
    key = (number, *(q[0] for q in chosen))
    if key not in bank.applications:
        given = [
            graph.Input(f"{'w' if weight else 'x'}{k}", TensorType(F32, shape))
            for k, (shape, weight, _) in enumerate(chosen)
        ]
        bank.applications[key] = [
            (name, made, given) for name, made in named_applications(bank.hints, op, given)
        ]
    return bank.applications[key]


def named_applications(
    hints: ProgramHints, op: Operator, operands: Sequence[graph.Value]
) -> Iterator[tuple[str, graph.Value]]:
    """Yield the applications of an operator to operands; nothing if they do not fit."""
    for name, make in op.apply(hints, *operands):
        with suppress(InferError):
            yield name, make()


def _operand_choices(
    bank: _Bank, op: Operator, groups: Sequence[_TensorGroup]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the operand choices within the limits, and their counts."""
    grid = np.meshgrid(*(np.arange(len(h.terms)) for h in groups), indexing="ij")
    rows = np.stack(grid, -1).reshape(-1, len(groups))
    for a, b in combinations(range(len(groups)), 2):
        if groups[a] is groups[b]:  # nothing is joined with itself, or added to it
            rows = rows[rows[:, a] != rows[:, b] if op.ordered else rows[:, a] < rows[:, b]]
    counts = np.sum([h.counts[rows[:, k]] for k, h in enumerate(groups)], axis=0)
    if op.is_product:
        counts[:, -3] += 1
    elif not op.is_weight_only:  # of what is computed, or not yet
        counts[:, -2] += counts[:, -3] == 0
        counts[:, -1] += counts[:, -3] > 0
    fine = (counts[:, :-1] <= bank.limits).all(axis=1)
    fine &= counts[:, -1] <= counts[:, -2] + bank.hints.transposes + (len(groups) > 1)
    return rows[fine], counts[fine]


def _evaluate(v: graph.Value, known: dict[graph.Value, np.ndarray], seed: int) -> np.ndarray:
    """Evaluate a value, (2, count, 1, *shape), from the values of its inputs."""
    known = dict(known)
    for n in graph.nodes([v]):
        types = [None if x is None else x.type for x in n.inputs]
        given = [None if x is None else known[x] for x in n.inputs]
        for out, value in zip(
            graph.results(n), evaluate_batch(n.op, types, n.attrs, given, seed), strict=True
        ):
            known[out] = value
    return known[v]


def _keep_new(
    bank: _Bank,
    place: _GroupKey,
    terms: Sequence[Candidate],
    values: np.ndarray,
    counts: np.ndarray,
) -> None:
    """Keep tensors that are new, have fewer products, or, for a program of one product, use another
    product operator."""
    fresh = []
    for n in range(len(terms)):
        by = terms[n].outermost_product if bank.hints.products == 1 else 0
        mark = (place[:2], by, hash(values[0, n].tobytes()))
        products = int(counts[n, -3])
        if products < bank.fewest_products.get(mark, products + 1):
            bank.fewest_products[mark] = products
            fresh.append(n)
    if not fresh:
        return
    new = _TensorGroup([terms[n] for n in fresh], values[:, fresh].astype(np.int32), counts[fresh])
    old = bank.groups.get(place)
    if old is not None:
        new = _TensorGroup(
            old.terms + new.terms,
            np.concatenate([old.values, new.values], axis=1),
            np.concatenate([old.counts, new.counts]),
        )
    bank.groups[place] = new


def instantiate(t: Candidate, p: Program, hints: ProgramHints | None = None) -> graph.Value | None:
    """Instantiate a term at the sizes of a program; None if an operator does not fit."""
    hints = hints or program_hints(p)
    if t.operator < 0:
        return next(i for i in p.inputs if i.name == t.name)
    operands = [instantiate(o, p, hints) for o in t.operands]
    if any(v is None for v in operands):
        return None
    some = [v for v in operands if v is not None]
    for name, make in OPERATORS[t.operator].apply(hints, *some):
        if name == t.name:
            try:
                return make()
            except InferError:
                return None
    return None
