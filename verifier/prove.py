"""The proof of a rule for all sizes: every instance with symbolic sizes, element by element."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from superopt.rules.functions import NotKnown
from superopt.rules.rule import Rule
from superopt.rules.syntax import Param
from superopt.te import index as ix
from superopt.te.dtype import DType
from superopt.te.expr import Tensor
from superopt.te.node import Apply, Expr
from superopt.verifier import algebra, bounds, facts, guard, normal, simplify, solver
from superopt.verifier import normal as N
from superopt.verifier.algebra import Undefined
from superopt.verifier.attributes import Unsupported
from superopt.verifier.axes import only_named
from superopt.verifier.bounds import nonneg
from superopt.verifier.choices import NOTES, NUMBERS, Ranks
from superopt.verifier.equal import equal, equal_inside
from superopt.verifier.facts import Facts, Guard, OutOfTime, eq, ge, in_time
from superopt.verifier.guard import Tally
from superopt.verifier.instance import Instance, instances
from superopt.verifier.poly import Least, Poly, const, fresh, of
from superopt.verifier.reader import Reader, Unreadable
from superopt.verifier.refute import counterexample
from superopt.verifier.scalars import number_of
from superopt.verifier.scope import SEVERAL_TYPES, scope_of, unclear, words
from superopt.verifier.skeleton import skeleton
from superopt.verifier.types import SEPARATE as TYPES_APART
from superopt.verifier.types import of_each_type, stand_ins
from superopt.verifier.verdict import Proved, Refuted, Scope, Unknown, Verdict

TABLES = (bounds, guard, normal, simplify, solver)
DEEPEST = 6
ASSUMES = (
    "sizes from 1",
    "floats as real numbers, integers without overflow",
    "values where both sides are defined",
)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for one rule: seconds of the thread's CPU time; number of instances; and work, which
    is the same on every machine: polynomials created and attempts at instances. work_beyond: work
    for ranks above the first ones, which are more numerous and less informative."""

    seconds: float = 20.0
    instances: int = 5000
    work: float = float("inf")
    beyond: float = float("inf")


def prove(
    rule: Rule, limits: Limits | None = None, ranks: Ranks | None = None, known: int = -1
) -> Verdict:
    """Prove that the sides of `rule` are equal wherever both are well-formed.

    Without `ranks`, ranks are tried in ascending order within the limits; the scope says how far
    that went. known_rank: instances up to this rank are skipped, because they were proved for the
    same rule with fewer conditions.
    """
    limit = limits or Limits()
    begin = time.thread_time()
    for table in TABLES:  # a verdict depends on no earlier proof
        table.forget()
    tally = facts.start(limit.seconds, limit.work)
    vague = unclear(rule)
    if vague == SEVERAL_TYPES:
        return _of_each_type(rule, vague, limit, ranks, begin)
    if vague:
        return Unknown(vague, time.thread_time() - begin)
    if ranks is not None:
        return _at_ranks(rule, ranks, limit, tally, begin, known)
    less = only_named(rule)
    if less is not None:
        named, most = less
        found = _at_ranks(named, Ranks(0, most), limit, tally, begin)
        if isinstance(found, Proved) and found.whole:
            return replace(found, scope=replace(found.scope, ranks=f"{SEPARATE} {most})"))
    widest = scope_of(rule)
    found = _at_ranks(rule, widest, limit, tally, begin, known)
    if isinstance(found, Unknown) and found.reason.startswith(NO_INSTANCE):
        return _at_ranks(rule, Ranks(widest.least, DEEPEST), limit, tally, begin, known)
    return found


def _of_each_type(
    rule: Rule, vague: str, limit: Limits, ranks: Ranks | None, begin: float
) -> Verdict:
    """Prove the rule for each element type separately, if they are few."""
    best: Proved | None = None
    for one in of_each_type(rule):
        left = limit.seconds - (time.thread_time() - begin)
        found = prove(one, replace(limit, seconds=max(left, 0.0)), ranks)
        if isinstance(found, Unknown) and found.reason.startswith(NO_INSTANCE):
            continue
        if not isinstance(found, Proved) or not found.whole:
            return (
                found if isinstance(found, Refuted) else Unknown(vague, time.thread_time() - begin)
            )
        best = found
    if best is None:
        return Unknown(vague, time.thread_time() - begin)
    scope = replace(best.scope, assumes=(*best.scope.assumes, TYPES_APART))
    return replace(best, scope=scope, seconds=time.thread_time() - begin)


SEPARATE = "any rank, each axis that no operator names by itself (from ranks 0 to"
MOST_GROWTH = 8.0  # of work, from rank to rank
FIRST = 2  # ranks up to this must be proved; higher ones as far as time allows
NO_INSTANCE = "no instance"


def _at_ranks(
    rule: Rule, scope: Ranks, limit: Limits, tally: Tally, begin: float, known: int = -1
) -> Verdict:
    """Prove with one number type first, which covers all types if nothing depends on the type."""
    try:
        return _of_types(rule, scope, NUMBERS[:1], limit, tally, begin, known)
    except _Typed:
        return _of_types(rule, scope, NUMBERS, limit, tally, begin, -1)  # of these nothing is known


class _Typed(Exception):
    """The meaning of a rule depends on its number type."""


def _of_types(
    rule: Rule,
    scope: Ranks,
    numbers: Sequence[DType],
    limit: Limits,
    tally: Tally,
    begin: float,
    known: int,
) -> Verdict:
    of_any = len(numbers) < len(NUMBERS) and any(
        isinstance(p, Param) and p.kind == "num" for p in rule.params
    )
    stand = stand_ins(rule)
    algebra.STEPS.used.clear()
    NOTES.clear()
    count = seen = checked = 0
    derived: dict[str, None] = {}
    level = scope.least
    best: Proved | None = None  # at the ranks below `level`
    pending: Instance | None = None  # being proved when time ran out
    said: set[object] = set()
    done = [0, 0]  # work at the end of the last two levels

    def since() -> float:
        return time.thread_time() - begin

    def proved(most: int) -> Proved:
        return Proved(
            Scope(words(rule, Ranks(scope.least, most)), seen, (*ASSUMES, *sorted(NOTES))),
            tuple(derived),
            tuple(sorted(algebra.STEPS.used)),
            checked + tally.matched,
            tally.queries,
            since(),
            most,
        )

    try:
        for one in instances(rule, scope, numbers):
            if one.state.level > level:
                low = level <= min(FIRST, scope.most)
                level = one.state.level
                if level > min(FIRST, scope.most) and seen:
                    best = replace(proved(level - 1), whole=False)
                if low and level > min(FIRST, scope.most):
                    tally.deadline = min(tally.deadline, time.thread_time() + limit.seconds / 4)
                    tally.most = tally.work() + limit.beyond
                    tally.look = 0.0
                work = tally.work()
                ahead = _ahead(work - done[1], done[1] - done[0]) if level > FIRST + 1 else 0.0
                if best and ahead > tally.most - work:
                    return best
                done = [done[1], work]
            count += 1
            if count > limit.instances:
                reason = f"more than {limit.instances} ways for operands to fit"
                return best or Unknown(reason, since())
            if one.state.level <= known:
                seen += 1
                continue
            pending = one
            outcome = _proved(one, derived, said, of_any, stand)
            pending = None
            if outcome is None:
                continue
            seen += 1
            if isinstance(outcome, str):
                found = counterexample(one)
                if found is not None:
                    return Refuted(*found, since())
                return Unknown(f"{outcome} for {one}", since())
            checked += outcome
            in_time()
    except OutOfTime:
        found = None if pending is None else counterexample(pending)
        if found is not None:
            return Refuted(*found, since())
        return best or Unknown(f"{_over(limit, tally)} after {count} cases", since())
    except (Unsupported, Unreadable, Undefined, NotKnown) as e:
        return Unknown(f"{type(e).__name__}: {e}", since())
    except RecursionError:
        return Unknown("nested too deep", since())
    if not seen:
        return Unknown(f"{NO_INSTANCE} at ranks {scope.least} to {scope.most}", since())
    return proved(scope.most)


def _ahead(last: int, before: int) -> float:
    """Estimate the work of the next level, which grows faster than the last one, up to a limit. A
    level that would not finish is not started: half a level proves nothing."""
    return last * min(1.25 * last / before if before > 0 else 6.0, MOST_GROWTH)


def _over(limit: Limits, tally: Tally) -> str:
    if tally.work() > tally.most:
        return f"{limit.work:,.0f} units of work are done"
    return f"{limit.seconds} seconds are over"


def _proved(
    one: Instance,
    derived: dict[str, None],
    said: set[object],
    of_any: bool,
    stand: frozenset[DType],
) -> int | str | None:
    """Return how many reads are shown to be in bounds and outputs to be equal, a text on what was
    not shown, or None if the instance does not exist. shown: equalities proved for any index;
    extended here. type_independent: raise _TypeDependent if a number type matters. representatives:
    types that stand for others."""
    reader = Reader({}, stand_ins=stand, roots=one.roots)
    known = Facts()
    for h in sorted(one.state.hypotheses, key=_is_equation):  # equations may divide by sizes
        known = known.plus(_guard(reader, h, known))
    for low, strictly, high in one.state.orders:
        known = known.ordered(N.minus(number_of(high), number_of(low)), strictly)
    reader.known = known
    for t in (*one.inputs, *one.left):
        known = _at_least(1, reader, t, known)
    extra: dict[str, None] = {}
    for t in one.right:  # an operator refuses a negative extent
        more = _at_least(0, reader, t, known)
        new = set(more.hypotheses[len(known.hypotheses) :])
        for d in t.shape if new else ():
            if ge(reader.dim(d)) in new:
                extra[str(ge(reader.dim(ix.dim(one.state.said(ix.as_index(d))))))] = None
        known = more
    if known.contradictory():
        return None
    derived.update(dict.fromkeys(one.state.derived) | extra)
    reader.known = known
    for n, (a, b) in enumerate(zip(one.lhs, one.rhs, strict=True)):
        place = tuple(_place(reader.dim(d), known) for d in a.shape)
        left = reader.element(a, place, known)
        if reader.outside:
            return f"the left side may read outside: {reader.outside[0]}"
        right = reader.element(b, place, known)
        if reader.outside:
            return f"the right side may read outside: {reader.outside[0]}"
        if of_any and reader.typed:
            raise _Typed
        plain = None if known.orders else skeleton((left, right))
        what = (plain, tuple((t.name, t.dtype) for t in one.inputs))
        if plain is not None and what in said:
            continue
        if not (equal(left, right, known) or equal_inside(left, right, known)):
            return f"output {n} not shown equal"
        if plain is not None:
            said.add(what)
    return reader.checked + len(one.lhs)


def _place(extent: Poly, known: Facts) -> Poly:
    """Return any index of an axis of this extent; 0 if the extent is 1."""
    return const(0) if known.holds(eq(extent - 1)) else of(fresh(extent, "i"))


def _at_least(least: int, reader: Reader, t: Tensor, known: Facts) -> Facts:
    """Return the facts with every extent of `t` at least `low`."""
    for d in t.shape:
        if not isinstance(d, int):
            g = ge(reader.dim(d) - least)
            if not known.holds(g):
                known = known.plus(g)
    return known


def _is_equation(h: Expr) -> bool:
    return isinstance(h, Apply) and h.fn in ("eq", "ne")


def _guard(reader: Reader, h: Expr, known: Facts) -> Guard:
    if isinstance(h, Apply) and h.fn in ("lt", "le", "eq", "ne"):
        return as_order(reader.guard(h, {}, known))
    raise Unreadable(f"hypothesis {h}")


def as_order(g: Guard) -> Guard:
    """Replace min(p, q) == p by p <= q, and p >= 0 by p == 0 if p is never above 0."""
    if g.kind == "ge" and nonneg(-g.p):
        return eq(g.p)
    if g.kind == "eq":
        for a in {a for a in g.p.atoms() if isinstance(a, Least)}:
            for p, q in ((a.p, a.q), (a.q, a.p)):
                if g.p is of(a) - p or g.p is p - of(a):
                    return ge(q - p)
    return g


__all__ = ["Limits", "eq", "prove"]
