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

from superopt.ir import graph as g
from superopt.ir.batch import batched
from superopt.ir.op import InferError
from superopt.partial.operators import OPERATORS, Operator
from superopt.partial.program import Program, Shape
from superopt.partial.restrict import shape_of
from superopt.partial.scene import Scene, scene
from superopt.te import residues as rs
from superopt.te.dtype import F32
from superopt.te.expr import TensorType

LEAST = 0.25  # of the elements of the small program, of which a border is a larger share
TRIED = 60_000  # candidates, at most
LARGER = 6  # times the largest tensor of the program
AT_ONCE = 1 << 20  # elements


@dataclass(frozen=True, slots=True)
class Term:
    """An input, by name; or an operator, by number and name, applied to terms."""

    name: str
    operator: int = -1
    operands: tuple[Term, ...] = ()

    @property
    def count(self) -> int:
        return (self.operator >= 0) + sum(t.count for t in self.operands)

    @property
    def product(self) -> int:
        """The number of the outermost product operator, or -1."""
        if self.operator >= 0 and OPERATORS[self.operator].product:
            return self.operator
        return max((t.product for t in self.operands), default=-1)

    def __str__(self) -> str:
        if self.operator < 0:
            return self.name
        own = OPERATORS[self.operator].name + (f" {self.name}" if self.name else "")
        return f"({own}: {', '.join(map(str, self.operands))})"


@dataclass(frozen=True, slots=True)
class Hit:
    """share: of the elements of the small program that are equal."""

    term: Term
    share: float


@dataclass(slots=True)
class _Held:
    """Tensors of one shape and kind, made by the same number of operators: terms, values (2, count,
    1, *shape), and counts: uses of each input, products, and permutations before and after a
    product."""

    terms: list[Term]
    values: np.ndarray
    counts: np.ndarray


_Place = tuple[Shape, bool, int]  # shape, is it a weight, operators


@dataclass(slots=True)
class _Bank:
    scene: Scene
    seed: int
    largest: int
    limits: np.ndarray  # of counts, but for what is moved after
    held: dict[_Place, _Held] = field(default_factory=dict)
    seen: dict[object, int] = field(default_factory=dict)  # products of what is equal, at least
    made: dict[object, list[tuple[str, g.Value, list[g.Input]]]] = field(default_factory=dict)
    useful: dict[tuple[Shape, bool], bool] = field(default_factory=dict)
    tried: int = 0


def hits(
    p: Program, most: int, seed: int = 0, stop: Callable[[], bool] = lambda: False
) -> list[Hit]:
    """Return terms of up to `max_operators` operators that agree with a program of small sizes on
    enough elements. Raises InferError if its results cannot be concatenated."""
    wanted = scene(p)
    limits = np.array([*(n for _, n in wanted.uses), wanted.products, most])
    largest = LARGER * max(prod(shape_of(v)) for v in (*p.inputs, p.whole))
    bank = _Bank(wanted, seed, largest, limits)
    known: dict[g.Value, np.ndarray] = {}
    rng = np.random.default_rng(seed)
    for i in p.inputs:
        shape = shape_of(i)
        drawn = np.stack([rng.integers(0, m, (1, 1, *shape), np.int64) for m in rs.MODULI])
        known[i] = drawn
        counts = np.array([[*(int(name == i.name) for name, _ in wanted.uses), 0, 0, 0]])
        _hold(bank, (shape, i.name in p.known, 0), [Term(i.name)], drawn, counts)
    target = _computed(p.whole, known, seed)[:, 0, 0]
    out: dict[Term, Hit] = {}
    for level in range(1, most + 1):
        for terms, values, counts, place in _grown(bank, level, most, stop):
            if place[0] == wanted.out and not place[1]:
                same = (values[:, :, 0] == target[:, None]).all(axis=0)
                shares = same.reshape(len(terms), -1).mean(axis=1)
                whole = (counts[:, : len(wanted.uses)] > 0).all(axis=1)  # nothing is left out
                for n in np.flatnonzero((shares >= LEAST) & whole):
                    if not _passes(terms[n], p.known):
                        out[terms[n]] = Hit(terms[n], float(shares[n]))
            if level < most:
                _hold(bank, place, terms, values, counts)
    return sorted(out.values(), key=lambda h: (-h.share, h.term.count))


def _passes(t: Term, known: Collection[str]) -> bool:
    """True if an activation reaches the term without a product, unlike in any program. Its part of
    the result is wrong, and copying half of a program would seem to halve its cost."""
    if t.operator < 0:
        return t.name not in known
    return not OPERATORS[t.operator].product and any(_passes(o, known) for o in t.operands)


def _grown(
    bank: _Bank, level: int, most: int, stop: Callable[[], bool]
) -> Iterator[tuple[list[Term], np.ndarray, np.ndarray, _Place]]:
    """Yield what one more operator makes; at the last level only tensors of the wanted shape."""
    last = level == most
    for number, op in enumerate(OPERATORS):
        if not op.when(bank.scene) or (last and op.known):
            continue
        places = [[q for q in bank.held if q[1] == kind] for kind in op.kinds]
        for chosen in product(*places):
            if sum(q[2] for q in chosen) != level - 1:
                continue
            if last and op.moves and prod(chosen[0][0]) != prod(bank.scene.out):
                continue
            if bank.tried >= TRIED or stop():
                return
            some = [bank.held[q] for q in chosen]
            rows, counts = _choices(bank, op, some)
            for name, made, given in _ways(bank, number, op, chosen) if len(rows) else ():
                shape = shape_of(made)
                if prod(shape) > bank.largest or (last and shape != bank.scene.out):
                    continue
                if level == most - 1 and not _useful(bank, (shape, op.known, level)):
                    continue
                for begin in range(0, len(rows), step := max(1, AT_ONCE // prod(shape))):
                    part = rows[begin : begin + step]
                    terms = [
                        Term(name, number, tuple(h.terms[n] for h, n in zip(some, r, strict=True)))
                        for r in part
                    ]
                    known: dict[g.Value, np.ndarray] = {
                        i: h.values[:, part[:, k]].astype(np.int64)
                        for k, (i, h) in enumerate(zip(given, some, strict=True))
                    }
                    bank.tried += len(part)
                    values = _computed(made, known, bank.seed)
                    yield terms, values, counts[begin : begin + step], (shape, op.known, level)


def _useful(bank: _Bank, place: _Place) -> bool:
    """True if one more operator on tensors of this shape and on inputs gives the wanted shape."""
    known = place[:2]
    if known not in bank.useful:
        given = [q for q in bank.held if q[2] == 0]
        found = place[0] == bank.scene.out or any(
            shape_of(made) == bank.scene.out
            for number, op in enumerate(OPERATORS)
            if op.when(bank.scene)
            and not op.known
            and not (op.moves and prod(place[0]) != prod(bank.scene.out))
            for k, kind in enumerate(op.kinds)
            if kind == place[1]
            for others in product(
                *([q for q in given if q[1] == c] for c in (*op.kinds[:k], *op.kinds[k + 1 :]))
            )
            for _, made, _ in _ways(bank, number, op, (*others[:k], place, *others[k:]))
        )
        bank.useful[known] = found
    return bank.useful[known]


def _ways(
    bank: _Bank, number: int, op: Operator, chosen: Sequence[_Place]
) -> list[tuple[str, g.Value, list[g.Input]]]:
    """Return the applications of an operator to any operands of these shapes."""
    key = (number, *(q[0] for q in chosen))
    if key not in bank.made:
        given = [
            g.Input(f"{'w' if weight else 'x'}{k}", TensorType(F32, shape))
            for k, (shape, weight, _) in enumerate(chosen)
        ]
        bank.made[key] = [(name, made, given) for name, made in named(bank.scene, op, given)]
    return bank.made[key]


def named(s: Scene, op: Operator, operands: Sequence[g.Value]) -> Iterator[tuple[str, g.Value]]:
    """Yield the applications of an operator to operands; nothing if they do not fit."""
    for name, make in op.made(s, *operands):
        with suppress(InferError):
            yield name, make()


def _choices(bank: _Bank, op: Operator, some: Sequence[_Held]) -> tuple[np.ndarray, np.ndarray]:
    """Return the operand choices within the limits, and their counts."""
    grid = np.meshgrid(*(np.arange(len(h.terms)) for h in some), indexing="ij")
    rows = np.stack(grid, -1).reshape(-1, len(some))
    for a, b in combinations(range(len(some)), 2):
        if some[a] is some[b]:  # nothing is joined with itself, or added to it
            rows = rows[rows[:, a] != rows[:, b] if op.ordered else rows[:, a] < rows[:, b]]
    counts = np.sum([h.counts[rows[:, k]] for k, h in enumerate(some)], axis=0)
    if op.product:
        counts[:, -3] += 1
    elif not op.known:  # of what is computed, or not yet
        counts[:, -2] += counts[:, -3] == 0
        counts[:, -1] += counts[:, -3] > 0
    fine = (counts[:, :-1] <= bank.limits).all(axis=1)
    fine &= counts[:, -1] <= counts[:, -2] + bank.scene.turns + (len(some) > 1)
    return rows[fine], counts[fine]


def _computed(v: g.Value, known: dict[g.Value, np.ndarray], seed: int) -> np.ndarray:
    """Evaluate a value, (2, count, 1, *shape), from the values of its inputs."""
    known = dict(known)
    for n in g.nodes([v]):
        types = [None if x is None else x.type for x in n.inputs]
        given = [None if x is None else known[x] for x in n.inputs]
        for out, value in zip(
            g.results(n), batched(n.op, types, n.attrs, given, seed), strict=True
        ):
            known[out] = value
    return known[v]


def _hold(
    bank: _Bank, place: _Place, terms: Sequence[Term], values: np.ndarray, counts: np.ndarray
) -> None:
    """Keep tensors that are new, have fewer products, or, for a program of one product, use another
    product operator."""
    fresh = []
    for n in range(len(terms)):
        by = terms[n].product if bank.scene.products == 1 else 0
        mark = (place[:2], by, hash(values[0, n].tobytes()))
        products = int(counts[n, -3])
        if products < bank.seen.get(mark, products + 1):
            bank.seen[mark] = products
            fresh.append(n)
    if not fresh:
        return
    new = _Held([terms[n] for n in fresh], values[:, fresh].astype(np.int32), counts[fresh])
    old = bank.held.get(place)
    if old is not None:
        new = _Held(
            old.terms + new.terms,
            np.concatenate([old.values, new.values], axis=1),
            np.concatenate([old.counts, new.counts]),
        )
    bank.held[place] = new


def made_again(t: Term, p: Program, s: Scene | None = None) -> g.Value | None:
    """Instantiate a term at the sizes of a program; None if an operator does not fit."""
    s = s or scene(p)
    if t.operator < 0:
        return next(i for i in p.inputs if i.name == t.name)
    operands = [made_again(o, p, s) for o in t.operands]
    if any(v is None for v in operands):
        return None
    some = [v for v in operands if v is not None]
    for name, make in OPERATORS[t.operator].made(s, *some):
        if name == t.name:
            try:
                return make()
            except InferError:
                return None
    return None
