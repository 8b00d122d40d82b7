"""A chain of rewrites by given axioms: the readable form of a proof.

The search runs from both sides, with the axioms of the proof only. A step applies where an axiom's
left side occurs in a term and Z3 proves its conditions. Operands of commutative operators (if that
is an axiom) are kept in order without a step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from superopt.verifier.axiom.logic import (
    TRUTH_SORT,
    VALUE_SORT,
    Clause,
    FoTerm,
    fo,
    is_variable,
    substitute,
    subterms,
)

MAX_GROWTH = 14  # more nodes than the larger side has
Holds = Callable[[FoTerm], bool]


@dataclass(frozen=True, slots=True)
class Step:
    """A term, and the axiom that produced it from the previous one; "" for the first."""

    term: FoTerm
    axiom: str


def find_chain(
    left: FoTerm,
    right: FoTerm,
    axioms: Sequence[Clause],
    holds: Holds,
    seconds: float = 2.0,
    max_terms: int = 4000,
) -> tuple[Step, ...] | None:
    """Return steps from `left` to `right`; None if none are found in time.

    holds: True if a condition is known. A step backwards from `right` reads forwards in reverse:
    all terms of the chain have types.
    """
    end = time.monotonic() + seconds
    swapped = frozenset(a.sides[0][0].fn for a in axioms if is_commutativity(a))
    axioms = [a for a in axioms if not is_commutativity(a)]
    left, right = order_operands(left, swapped), order_operands(right, swapped)
    room = max(term_size(left), term_size(right)) + MAX_GROWTH
    came: tuple[dict[FoTerm, tuple[FoTerm, str]], ...] = ({left: (left, "")}, {right: (right, "")})
    queues: tuple[list[tuple[int, int, FoTerm]], ...] = ([(0, 0, left)], [(0, 0, right)])
    count = 0
    depth = ({left: 0}, {right: 0})
    if left is right:
        return (Step(left, ""),)
    while any(queues) and count < max_terms and time.monotonic() < end:
        side = 0 if queues[0] and (not queues[1] or len(came[0]) <= len(came[1])) else 1
        _, _, t = heappop(queues[side])
        for new, axiom in rewrites(t, axioms, holds, swapped):
            if new in came[side] or term_size(new) > room:
                continue
            came[side][new] = (t, axiom)
            depth[side][new] = depth[side][t] + 1
            count += 1
            if new in came[1 - side]:
                return _join_chains(new, came)
            heappush(queues[side], (3 * depth[side][new] + term_size(new), count, new))
    return None


def _join_chains(
    middle: FoTerm, came: tuple[dict[FoTerm, tuple[FoTerm, str]], ...]
) -> tuple[Step, ...]:
    first: list[Step] = []
    t = middle
    while True:
        before, axiom = came[0][t]
        first.append(Step(t, axiom))
        if before is t:
            break
        t = before
    first.reverse()
    t = middle
    while came[1][t][0] is not t:
        t, axiom = came[1][t]
        first.append(Step(t, axiom))
    return tuple(first)


def term_size(t: FoTerm) -> int:
    """Return the number of operators and operands of a term."""
    return sum(p.sort not in (VALUE_SORT, TRUTH_SORT) for p in subterms(t))


def is_commutativity(a: Clause) -> bool:
    """True for a law of commutativity."""
    ((left, right),) = a.sides[:1]
    return (
        len(a.sides) == 1
        and not a.conditions
        and left.fn == right.fn
        and len(left.args) == 2
        and all(map(is_variable, left.args))
        and right.args == left.args[::-1]
    )


def order_operands(t: FoTerm, commutative: frozenset[str]) -> FoTerm:
    """Order the operands of these operators by their text."""
    if not t.args or t.sort in (VALUE_SORT, TRUTH_SORT):
        return t
    args = tuple(order_operands(a, commutative) for a in t.args)
    if t.fn in commutative and len(args) == 2:
        args = tuple(sorted(args, key=repr))
    return fo(t.fn, args, t.sort)


def rewrites(
    t: FoTerm, axioms: Sequence[Clause], holds: Holds, commutative: frozenset[str]
) -> Iterator[tuple[FoTerm, str]]:
    """Yield the results of one step anywhere in `t`."""
    for a in axioms:
        for left, right in a.sides:
            if left.args:
                for new in _rewrites_inside(t, a, left, right, holds, commutative):
                    yield order_operands(new, commutative), a.name


def _rewrites_inside(
    t: FoTerm, a: Clause, left: FoTerm, right: FoTerm, holds: Holds, commutative: frozenset[str]
) -> Iterator[FoTerm]:
    if t.sort in (VALUE_SORT, TRUTH_SORT):
        return
    for bound, pending in matches(left, t, commutative):
        if all(p is v or holds(fo("==", (p, v), TRUTH_SORT)) for p, v in pending(bound)) and all(
            holds(substitute(c, bound)) for c in a.conditions
        ):
            yield substitute(right, bound)
    for i, part in enumerate(t.args):
        for new in _rewrites_inside(part, a, left, right, holds, commutative):
            yield fo(t.fn, (*t.args[:i], new, *t.args[i + 1 :]), t.sort)


PendingEqualities = Callable[[dict[FoTerm, FoTerm]], list[tuple[FoTerm, FoTerm]]]


def matches(
    pattern: FoTerm, t: FoTerm, commutative: frozenset[str]
) -> Iterator[tuple[dict[FoTerm, FoTerm], PendingEqualities]]:
    """Yield the matches of `pattern` with `t`: its bindings, and the computed attributes that must
    be equal."""
    for found in _match([(pattern, t)], (), (), commutative):
        bound, pairs = dict(found[0]), found[1]

        def asked(
            values: dict[FoTerm, FoTerm], pairs: tuple[tuple[FoTerm, FoTerm], ...] = pairs
        ) -> list[tuple[FoTerm, FoTerm]]:
            return [(substitute(p, values), v) for p, v in pairs]

        yield bound, asked


_Bound = tuple[tuple[FoTerm, FoTerm], ...]


def _match(
    pending: list[tuple[FoTerm, FoTerm]],
    bound: _Bound,
    equalities: _Bound,
    commutative: frozenset[str],
) -> Iterator[tuple[_Bound, _Bound]]:
    if not pending:
        yield bound, equalities
        return
    (pattern, t), rest = pending[0], pending[1:]
    if is_variable(pattern):
        if pattern.sort != t.sort:
            return
        found = next((v for k, v in bound if k is pattern), None)
        if found is None:
            yield from _match(rest, (*bound, (pattern, t)), equalities, commutative)
        elif found is t:
            yield from _match(rest, bound, equalities, commutative)
        elif t.sort == VALUE_SORT:
            yield from _match(rest, bound, (*equalities, (pattern, t)), commutative)
        return
    if pattern is t:
        yield from _match(rest, bound, equalities, commutative)
        return
    if pattern.sort == VALUE_SORT:
        if pattern.fn == t.fn == "tuple" and len(pattern.args) == len(t.args):
            more = list(zip(pattern.args, t.args, strict=True))
            yield from _match(more + rest, bound, equalities, commutative)
        else:
            yield from _match(rest, bound, (*equalities, (pattern, t)), commutative)
        return
    if (pattern.fn, pattern.sort, len(pattern.args)) != (t.fn, t.sort, len(t.args)):
        return
    ways = [t.args]
    if t.fn in commutative and len(t.args) == 2 and t.args[0] is not t.args[1]:
        ways.append(t.args[::-1])
    for args in ways:
        more = list(zip(pattern.args, args, strict=True))
        yield from _match(more + rest, bound, equalities, commutative)
