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

from superopt.verifier.axiom.logic import TRUTH, VALUE, Clause, Fo, fo, inside, put, variable

LARGER = 14  # more nodes than the larger side has
Holds = Callable[[Fo], bool]


@dataclass(frozen=True, slots=True)
class Step:
    """A term, and the axiom that produced it from the previous one; "" for the first."""

    term: Fo
    axiom: str


def chain(
    left: Fo,
    right: Fo,
    axioms: Sequence[Clause],
    holds: Holds,
    seconds: float = 2.0,
    most: int = 4000,
) -> tuple[Step, ...] | None:
    """Return steps from `left` to `right`; None if none are found in time.

    holds: True if a condition is known. A step backwards from `right` reads forwards in reverse:
    all terms of the chain have types.
    """
    end = time.monotonic() + seconds
    swapped = frozenset(a.sides[0][0].fn for a in axioms if swaps(a))
    axioms = [a for a in axioms if not swaps(a)]
    left, right = ordered(left, swapped), ordered(right, swapped)
    room = max(parts(left), parts(right)) + LARGER
    came: tuple[dict[Fo, tuple[Fo, str]], ...] = ({left: (left, "")}, {right: (right, "")})
    queues: tuple[list[tuple[int, int, Fo]], ...] = ([(0, 0, left)], [(0, 0, right)])
    count = 0
    depth = ({left: 0}, {right: 0})
    if left is right:
        return (Step(left, ""),)
    while any(queues) and count < most and time.monotonic() < end:
        side = 0 if queues[0] and (not queues[1] or len(came[0]) <= len(came[1])) else 1
        _, _, t = heappop(queues[side])
        for new, axiom in rewritten(t, axioms, holds, swapped):
            if new in came[side] or parts(new) > room:
                continue
            came[side][new] = (t, axiom)
            depth[side][new] = depth[side][t] + 1
            count += 1
            if new in came[1 - side]:
                return _joined(new, came)
            heappush(queues[side], (3 * depth[side][new] + parts(new), count, new))
    return None


def _joined(middle: Fo, came: tuple[dict[Fo, tuple[Fo, str]], ...]) -> tuple[Step, ...]:
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


def parts(t: Fo) -> int:
    """Return the number of operators and operands of a term."""
    return sum(p.sort not in (VALUE, TRUTH) for p in inside(t))


def swaps(a: Clause) -> bool:
    """True for a law of commutativity."""
    ((left, right),) = a.sides[:1]
    return (
        len(a.sides) == 1
        and not a.conditions
        and left.fn == right.fn
        and len(left.args) == 2
        and all(map(variable, left.args))
        and right.args == left.args[::-1]
    )


def ordered(t: Fo, swapped: frozenset[str]) -> Fo:
    """Order the operands of these operators by their text."""
    if not t.args or t.sort in (VALUE, TRUTH):
        return t
    args = tuple(ordered(a, swapped) for a in t.args)
    if t.fn in swapped and len(args) == 2:
        args = tuple(sorted(args, key=repr))
    return fo(t.fn, args, t.sort)


def rewritten(
    t: Fo, axioms: Sequence[Clause], holds: Holds, swapped: frozenset[str]
) -> Iterator[tuple[Fo, str]]:
    """Yield the results of one step anywhere in `t`."""
    for a in axioms:
        for left, right in a.sides:
            if left.args:
                for new in _inside(t, a, left, right, holds, swapped):
                    yield ordered(new, swapped), a.name


def _inside(
    t: Fo, a: Clause, left: Fo, right: Fo, holds: Holds, swapped: frozenset[str]
) -> Iterator[Fo]:
    if t.sort in (VALUE, TRUTH):
        return
    for bound, asked in matches(left, t, swapped):
        if all(p is v or holds(fo("==", (p, v), TRUTH)) for p, v in asked(bound)) and all(
            holds(put(c, bound)) for c in a.conditions
        ):
            yield put(right, bound)
    for i, part in enumerate(t.args):
        for new in _inside(part, a, left, right, holds, swapped):
            yield fo(t.fn, (*t.args[:i], new, *t.args[i + 1 :]), t.sort)


Asked = Callable[[dict[Fo, Fo]], list[tuple[Fo, Fo]]]


def matches(pattern: Fo, t: Fo, swapped: frozenset[str]) -> Iterator[tuple[dict[Fo, Fo], Asked]]:
    """Yield the matches of `pattern` with `t`: its bindings, and the computed attributes that must
    be equal."""
    for found in _matched([(pattern, t)], (), (), swapped):
        bound, pairs = dict(found[0]), found[1]

        def asked(
            values: dict[Fo, Fo], pairs: tuple[tuple[Fo, Fo], ...] = pairs
        ) -> list[tuple[Fo, Fo]]:
            return [(put(p, values), v) for p, v in pairs]

        yield bound, asked


_Bound = tuple[tuple[Fo, Fo], ...]


def _matched(
    left: list[tuple[Fo, Fo]], bound: _Bound, asked: _Bound, swapped: frozenset[str]
) -> Iterator[tuple[_Bound, _Bound]]:
    if not left:
        yield bound, asked
        return
    (pattern, t), rest = left[0], left[1:]
    if variable(pattern):
        if pattern.sort != t.sort:
            return
        found = next((v for k, v in bound if k is pattern), None)
        if found is None:
            yield from _matched(rest, (*bound, (pattern, t)), asked, swapped)
        elif found is t:
            yield from _matched(rest, bound, asked, swapped)
        elif t.sort == VALUE:
            yield from _matched(rest, bound, (*asked, (pattern, t)), swapped)
        return
    if pattern is t:
        yield from _matched(rest, bound, asked, swapped)
        return
    if pattern.sort == VALUE:
        if pattern.fn == t.fn == "tuple" and len(pattern.args) == len(t.args):
            more = list(zip(pattern.args, t.args, strict=True))
            yield from _matched(more + rest, bound, asked, swapped)
        else:
            yield from _matched(rest, bound, (*asked, (pattern, t)), swapped)
        return
    if (pattern.fn, pattern.sort, len(pattern.args)) != (t.fn, t.sort, len(t.args)):
        return
    ways = [t.args]
    if t.fn in swapped and len(t.args) == 2 and t.args[0] is not t.args[1]:
        ways.append(t.args[::-1])
    for args in ways:
        more = list(zip(pattern.args, args, strict=True))
        yield from _matched(more + rest, bound, asked, swapped)
