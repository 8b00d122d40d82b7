"""The proof of a rule for all sizes: every instance with symbolic sizes, element by element."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from superopt.rules.lang.functions import NotKnown
from superopt.rules.lang.rule import Rule
from superopt.rules.lang.syntax import Param
from superopt.te.expr import index
from superopt.te.expr.dtype import DType
from superopt.te.expr.node import Apply, Expr
from superopt.te.expr.tensor import Tensor
from superopt.verifier.elements import algebra, normal, quotients
from superopt.verifier.elements import normal as verifier_normal
from superopt.verifier.elements.algebra import Undefined
from superopt.verifier.elements.reader import Reader, Unreadable
from superopt.verifier.elements.scalars import number_of
from superopt.verifier.equality.element_equality import are_equal, are_equal_where_defined
from superopt.verifier.equality.skeleton import skeleton
from superopt.verifier.instances.attributes import Unsupported
from superopt.verifier.instances.axes import with_named_axes_only
from superopt.verifier.instances.choices import NUMBER_TYPES, Ranks
from superopt.verifier.instances.element_types import SEPARATE_TYPES_NOTE as TYPES_APART
from superopt.verifier.instances.element_types import representative_types, rules_by_type
from superopt.verifier.instances.instance import Instance, instances
from superopt.verifier.instances.scope import SEVERAL_TYPES, rank_scope, show_ranks, unclear_reason
from superopt.verifier.instances.size_questions import SCOPE_NOTES
from superopt.verifier.poly import bounds, facts, guards, solver
from superopt.verifier.poly.bounds import is_nonnegative
from superopt.verifier.poly.facts import Facts, Guard, OutOfTime, check_budget, eq, ge
from superopt.verifier.poly.guards import ProofBudget
from superopt.verifier.poly.polynomial import Min, Poly, atom_poly, const, fresh_var
from superopt.verifier.refute import counterexample
from superopt.verifier.verdict import Proved, Refuted, Scope, Unknown, Verdict

CACHES = (bounds, guards, normal, quotients, solver)
MAX_RANK = 6
ASSUMPTIONS = (
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
    work_beyond: float = float("inf")


def prove(
    rule: Rule, limits: Limits | None = None, ranks: Ranks | None = None, known_rank: int = -1
) -> Verdict:
    """Prove that the sides of `rule` are equal wherever both are well-formed.

    Without `ranks`, ranks are tried in ascending order within the limits; the scope says how far
    that went. known_rank: instances up to this rank are skipped, because they were proved for the
    same rule with fewer conditions.
    """
    limit = limits or Limits()
    begin = time.thread_time()
    for table in CACHES:  # a verdict depends on no earlier proof
        table.forget()
    tally = facts.start_budget(limit.seconds, limit.work)
    vague = unclear_reason(rule)
    if vague == SEVERAL_TYPES:
        return _prove_each_type(rule, vague, limit, ranks, begin)
    if vague:
        return Unknown(vague, time.thread_time() - begin)
    if ranks is not None:
        return _prove_at_ranks(rule, ranks, limit, tally, begin, known_rank)
    less = with_named_axes_only(rule)
    if less is not None:
        named, most = less
        found = _prove_at_ranks(named, Ranks(0, most), limit, tally, begin)
        if isinstance(found, Proved) and found.is_complete:
            return replace(found, scope=replace(found.scope, ranks=f"{SEPARATE_AXES} {most})"))
    widest = rank_scope(rule)
    found = _prove_at_ranks(rule, widest, limit, tally, begin, known_rank)
    if isinstance(found, Unknown) and found.reason.startswith(NO_INSTANCE):
        return _prove_at_ranks(
            rule, Ranks(widest.min_rank, MAX_RANK), limit, tally, begin, known_rank
        )
    return found


def _prove_each_type(
    rule: Rule, reason: str, limit: Limits, ranks: Ranks | None, begin: float
) -> Verdict:
    """Prove the rule for each element type separately, if they are few."""
    best: Proved | None = None
    for one in rules_by_type(rule):
        left = limit.seconds - (time.thread_time() - begin)
        found = prove(one, replace(limit, seconds=max(left, 0.0)), ranks)
        if isinstance(found, Unknown) and found.reason.startswith(NO_INSTANCE):
            continue
        if not isinstance(found, Proved) or not found.is_complete:
            return (
                found if isinstance(found, Refuted) else Unknown(reason, time.thread_time() - begin)
            )
        best = found
    if best is None:
        return Unknown(reason, time.thread_time() - begin)
    scope = replace(best.scope, assumes=(*best.scope.assumes, TYPES_APART))
    return replace(best, scope=scope, seconds=time.thread_time() - begin)


SEPARATE_AXES = "any rank, each axis that no operator names by itself (from ranks 0 to"
MAX_WORK_GROWTH = 8.0  # of work, from rank to rank
MIN_PROVED_RANK = 2  # ranks up to this must be proved; higher ones as far as time allows
NO_INSTANCE = "no instance"


def _prove_at_ranks(
    rule: Rule, scope: Ranks, limit: Limits, budget: ProofBudget, begin: float, known_rank: int = -1
) -> Verdict:
    """Prove with one number type first, which covers all types if nothing depends on the type."""
    try:
        return _prove_for_types(rule, scope, NUMBER_TYPES[:1], limit, budget, begin, known_rank)
    except _TypeDependent:
        return _prove_for_types(
            rule, scope, NUMBER_TYPES, limit, budget, begin, -1
        )  # of these nothing is known


class _TypeDependent(Exception):
    """The meaning of a rule depends on its number type."""


def _prove_for_types(
    rule: Rule,
    scope: Ranks,
    number_types: Sequence[DType],
    limit: Limits,
    budget: ProofBudget,
    begin: float,
    known_rank: int,
) -> Verdict:
    of_any = len(number_types) < len(NUMBER_TYPES) and any(
        isinstance(p, Param) and p.kind == "num" for p in rule.params
    )
    stand = representative_types(rule)
    algebra.STEPS.names.clear()
    SCOPE_NOTES.clear()
    count = seen = checked = 0
    derived: dict[str, None] = {}
    level = scope.min_rank
    best: Proved | None = None  # at the ranks below `level`
    pending: Instance | None = None  # being proved when time ran out
    said: set[object] = set()
    done = [0, 0]  # work at the end of the last two levels

    def since() -> float:
        return time.thread_time() - begin

    def proved(most: int) -> Proved:
        return Proved(
            Scope(
                show_ranks(rule, Ranks(scope.min_rank, most)),
                seen,
                (*ASSUMPTIONS, *sorted(SCOPE_NOTES)),
            ),
            tuple(derived),
            tuple(sorted(algebra.STEPS.names)),
            checked + budget.matched_sums,
            budget.queries,
            since(),
            most,
        )

    try:
        for one in instances(rule, scope, number_types):
            if one.state.level > level:
                low = level <= min(MIN_PROVED_RANK, scope.max_rank)
                level = one.state.level
                if level > min(MIN_PROVED_RANK, scope.max_rank) and seen:
                    best = replace(proved(level - 1), is_complete=False)
                if low and level > min(MIN_PROVED_RANK, scope.max_rank):
                    budget.cpu_deadline = min(
                        budget.cpu_deadline, time.thread_time() + limit.seconds / 4
                    )
                    budget.max_work = budget.work_done() + limit.work_beyond
                    budget.next_clock_check = 0.0
                work = budget.work_done()
                ahead = (
                    _next_level_work(work - done[1], done[1] - done[0])
                    if level > MIN_PROVED_RANK + 1
                    else 0.0
                )
                if best and ahead > budget.max_work - work:
                    return best
                done = [done[1], work]
            count += 1
            if count > limit.instances:
                reason = f"more than {limit.instances} ways for operands to fit"
                return best or Unknown(reason, since())
            if one.state.level <= known_rank:
                seen += 1
                continue
            pending = one
            outcome = _prove_instance(one, derived, said, of_any, stand)
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
            check_budget()
    except OutOfTime:
        found = None if pending is None else counterexample(pending)
        if found is not None:
            return Refuted(*found, since())
        return best or Unknown(f"{_limit_reason(limit, budget)} after {count} cases", since())
    except (Unsupported, Unreadable, Undefined, NotKnown) as e:
        return Unknown(f"{type(e).__name__}: {e}", since())
    except RecursionError:
        return Unknown("nested too deep", since())
    if not seen:
        return Unknown(f"{NO_INSTANCE} at ranks {scope.min_rank} to {scope.max_rank}", since())
    return proved(scope.max_rank)


def _next_level_work(last: int, before: int) -> float:
    """Estimate the work of the next level, which grows faster than the last one, up to a limit. A
    level that would not finish is not started: half a level proves nothing."""
    return last * min(1.25 * last / before if before > 0 else 6.0, MAX_WORK_GROWTH)


def _limit_reason(limit: Limits, budget: ProofBudget) -> str:
    if budget.work_done() > budget.max_work:
        return f"{limit.work:,.0f} units of work are done"
    return f"{limit.seconds} seconds are over"


def _prove_instance(
    one: Instance,
    derived: dict[str, None],
    shown: set[object],
    type_independent: bool,
    representatives: frozenset[DType],
) -> int | str | None:
    """Return how many reads are shown to be in bounds and outputs to be equal, a text on what was
    not shown, or None if the instance does not exist. shown: equalities proved for any index;
    extended here. type_independent: raise _TypeDependent if a number type matters. representatives:
    types that stand for others."""
    reader = Reader({}, representative_types=representatives, size_roots=one.size_roots)
    known = Facts()
    for h in sorted(one.state.hypotheses, key=_is_equation):  # equations may divide by sizes
        known = known.with_guards(_guard(reader, h, known))
    for low, strictly, high in one.state.number_orders:
        known = known.with_order(
            verifier_normal.subtract(number_of(high), number_of(low)), strictly
        )
    reader.size_facts = known
    for t in (*one.inputs, *one.lhs_tensors):
        known = _with_min_extent(1, reader, t, known)
    extra: dict[str, None] = {}
    for t in one.rhs_tensors:  # an operator refuses a negative extent
        more = _with_min_extent(0, reader, t, known)
        new = set(more.hypotheses[len(known.hypotheses) :])
        for d in t.shape if new else ():
            if ge(reader.dim(d)) in new:
                extra[
                    str(ge(reader.dim(index.dim(one.state.in_rule_sizes(index.as_index(d))))))
                ] = None
        known = more
    if known.is_contradictory():
        return None
    derived.update(dict.fromkeys(one.state.derived) | extra)
    reader.size_facts = known
    for n, (a, b) in enumerate(zip(one.lhs, one.rhs, strict=True)):
        place = tuple(_axis_index(reader.dim(d), known) for d in a.shape)
        left = reader.element(a, place, known)
        if reader.out_of_bounds:
            return f"the left side may read outside: {reader.out_of_bounds[0]}"
        right = reader.element(b, place, known)
        if reader.out_of_bounds:
            return f"the right side may read outside: {reader.out_of_bounds[0]}"
        if type_independent and reader.is_type_dependent:
            raise _TypeDependent
        plain = None if known.nonneg else skeleton((left, right))
        what = (plain, tuple((t.name, t.dtype) for t in one.inputs))
        if plain is not None and what in shown:
            continue
        if not (are_equal(left, right, known) or are_equal_where_defined(left, right, known)):
            return f"output {n} not shown equal"
        if plain is not None:
            shown.add(what)
    return reader.reads_checked + len(one.lhs)


def _axis_index(extent: Poly, known_facts: Facts) -> Poly:
    """Return any index of an axis of this extent; 0 if the extent is 1."""
    return const(0) if known_facts.holds(eq(extent - 1)) else atom_poly(fresh_var(extent, "i"))


def _with_min_extent(low: int, reader: Reader, t: Tensor, known_facts: Facts) -> Facts:
    """Return the facts with every extent of `t` at least `low`."""
    for d in t.shape:
        if not isinstance(d, int):
            g = ge(reader.dim(d) - low)
            if not known_facts.holds(g):
                known_facts = known_facts.with_guards(g)
    return known_facts


def _is_equation(hypothesis: Expr) -> bool:
    return isinstance(hypothesis, Apply) and hypothesis.fn in ("eq", "ne")


def _guard(reader: Reader, hypothesis: Expr, known_facts: Facts) -> Guard:
    if isinstance(hypothesis, Apply) and hypothesis.fn in ("lt", "le", "eq", "ne"):
        return as_inequality(reader.guard(hypothesis, {}, known_facts))
    raise Unreadable(f"hypothesis {hypothesis}")


def as_inequality(g: Guard) -> Guard:
    """Replace min(p, q) == p by p <= q, and p >= 0 by p == 0 if p is never above 0."""
    if g.kind == "ge" and is_nonnegative(-g.p):
        return eq(g.p)
    if g.kind == "eq":
        for a in {a for a in g.p.atoms() if isinstance(a, Min)}:
            for p, q in ((a.p, a.q), (a.q, a.p)):
                if g.p is atom_poly(a) - p or g.p is p - atom_poly(a):
                    return ge(q - p)
    return g


__all__ = ["Limits", "eq", "prove"]
