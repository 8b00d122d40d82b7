"""The proof of a rule for all sizes: every instance with symbolic sizes, element by element."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from superopt.rules.lang.functions import NotKnown
from superopt.rules.lang.rule import Rule
from superopt.rules.lang.syntax import Param
from superopt.rules.library.records import Scope
from superopt.te.expr import index
from superopt.te.expr.dtype import DType
from superopt.te.expr.node import Apply, Expr
from superopt.te.expr.tensor import Tensor
from superopt.verifier.context import OutOfTime, ProofContext
from superopt.verifier.elements import normal
from superopt.verifier.elements.algebra import Undefined
from superopt.verifier.elements.reader import Reader, Unreadable
from superopt.verifier.elements.scalars import number_of
from superopt.verifier.equality.element_equality import are_equal_elements, are_equal_where_defined
from superopt.verifier.equality.skeleton import skeleton
from superopt.verifier.instances.attributes import Unsupported
from superopt.verifier.instances.axes import with_named_axes_only
from superopt.verifier.instances.choices import NUMBER_TYPES, Ranks
from superopt.verifier.instances.element_types import (
    SEPARATE_TYPES_NOTE,
    representative_types,
    rules_by_type,
)
from superopt.verifier.instances.instance import Instance, instances
from superopt.verifier.instances.scope import SEVERAL_TYPES, rank_scope, show_ranks, unclear_reason
from superopt.verifier.poly.bounds import is_nonnegative
from superopt.verifier.poly.facts import Facts, Guard, eq, ge
from superopt.verifier.poly.polynomial import Min, Poly, atom_poly, const, fresh_var
from superopt.verifier.refute import counterexample
from superopt.verifier.verdict import Proved, Refuted, Unknown, Verdict

MAX_FIRST_RANK = 6  # tried if there is no instance at the ranks of `rank_scope`
ASSUMPTIONS = (
    "sizes from 1",
    "floats as real numbers, sizes without overflow",
    "values where both sides are defined",
)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for one rule: seconds of the thread's CPU time; number of instances; and work, which
    is the same on every machine: polynomials created and attempts at instances. work_beyond: work
    for ranks above the first ones, which are more numerous and less informative. has_exact_casts:
    integers become floats without rounding, which is bounded elsewhere (verifier/rounding)."""

    seconds: float = 20.0
    instances: int = 5000
    work: float = float("inf")
    work_beyond: float = float("inf")
    has_exact_casts: bool = False


def prove(
    rule: Rule,
    limits: Limits | None = None,
    ranks: Ranks | None = None,
    known_rank: int = -1,
    results: dict[object, object] | None = None,
) -> Verdict:
    """Prove that the sides of `rule` are equal wherever both are well-formed.

    Without `ranks`, ranks are tried in ascending order within the limits; the scope says how far
    that went. known_rank: instances up to this rank are skipped, because they were proved for the
    same rule with fewer conditions. results: what operators gave in earlier proofs, of similar
    rules; it is extended. It changes no verdict: the proof asks for the same sizes again.
    """
    limit = limits or Limits()
    results = {} if results is None else results
    begin = time.thread_time()
    vague = unclear_reason(rule)
    if vague == SEVERAL_TYPES:
        return _prove_each_type(rule, vague, limit, ranks, begin)
    if vague:
        return Unknown(vague, time.thread_time() - begin)
    with closing(ProofContext.with_limits(limit.seconds, limit.work)) as context:
        context.has_exact_casts = limit.has_exact_casts
        return _prove_in_context(context, rule, limit, ranks, known_rank, begin, results)


def _prove_in_context(
    context: ProofContext,
    rule: Rule,
    limit: Limits,
    ranks: Ranks | None,
    known_rank: int,
    begin: float,
    results: dict[object, object],
) -> Verdict:
    def at_ranks(one: Rule, scope: Ranks, known_rank: int) -> Verdict:
        return _prove_at_ranks(context, one, scope, limit, begin, known_rank, results)

    if ranks is not None:
        return at_ranks(rule, ranks, known_rank)
    less = with_named_axes_only(rule)
    if less is not None:
        named, most = less
        found = at_ranks(named, Ranks(0, most), -1)
        if isinstance(found, Proved) and found.is_complete:
            return replace(found, scope=replace(found.scope, ranks=f"{SEPARATE_AXES} {most})"))
    widest = rank_scope(rule)
    found = at_ranks(rule, widest, known_rank)
    if isinstance(found, Unknown) and found.reason.startswith(NO_INSTANCE):
        return at_ranks(rule, Ranks(widest.min_rank, MAX_FIRST_RANK), known_rank)
    return found


def _prove_each_type(
    rule: Rule, reason: str, limit: Limits, ranks: Ranks | None, begin: float
) -> Verdict:
    """Prove the rule for each element type separately, if they are few."""

    def since() -> float:
        return time.thread_time() - begin

    best: Proved | None = None
    assumes: dict[str, None] = {}  # of the proofs of all types
    for one in rules_by_type(rule):
        found = prove(one, replace(limit, seconds=max(limit.seconds - since(), 0.0)), ranks)
        if isinstance(found, Unknown) and found.reason.startswith(NO_INSTANCE):
            continue
        if not isinstance(found, Proved) or not found.is_complete:
            inner = f"{reason}; {found.reason}" if isinstance(found, Unknown) else reason
            return found if isinstance(found, Refuted) else Unknown(inner, since())
        best = found
        assumes |= dict.fromkeys(found.scope.assumes)
    if best is None:
        return Unknown(reason, since())
    scope = replace(best.scope, assumes=(*assumes, SEPARATE_TYPES_NOTE))
    return replace(best, scope=scope, seconds=since())


SEPARATE_AXES = "any rank, each axis that no operator names by itself (from ranks 0 to"
MAX_WORK_GROWTH = 8.0  # of work, from rank to rank
MIN_PROVED_RANK = 2  # ranks up to this must be proved; higher ones as far as time allows
NO_INSTANCE = "no instance"


def _prove_at_ranks(
    context: ProofContext,
    rule: Rule,
    scope: Ranks,
    limit: Limits,
    begin: float,
    known_rank: int,
    results: dict[object, object],
) -> Verdict:
    """Prove with one number type first, which covers all types if nothing depends on the type."""
    try:
        return _RuleProof(
            context, rule, scope, limit, begin, NUMBER_TYPES[:1], known_rank, results
        ).verdict()
    except _TypeDependent:  # of the other types nothing is known
        return _RuleProof(context, rule, scope, limit, begin, NUMBER_TYPES, -1, results).verdict()


class _TypeDependent(Exception):
    """The meaning of a rule depends on its number type."""


@dataclass(slots=True)
class _RuleProof:
    """The proof of a rule at a range of ranks.

    seen: instances that exist; checked: reads shown to be in bounds, and outputs shown to be equal;
    derived: conditions that the right side needs; shown: equalities proved for any index. level:
    the present rank; best: the proof of lower ranks; level_work: the work at the end of the last
    two levels.
    """

    context: ProofContext
    rule: Rule
    scope: Ranks
    limit: Limits
    begin: float
    number_types: Sequence[DType]
    known_rank: int
    results: dict[object, object]
    seen: int = 0
    checked: int = 0
    derived: dict[str, None] = field(default_factory=dict)
    shown: set[object] = field(default_factory=set)
    level: int = 0
    best: Proved | None = None
    level_work: tuple[int, int] = (0, 0)
    representatives: frozenset[DType] = field(init=False)  # types that stand for others
    is_type_open: bool = field(init=False)  # True if other number types were not tried

    def __post_init__(self) -> None:
        self.representatives = representative_types(self.rule)
        self.is_type_open = len(self.number_types) < len(NUMBER_TYPES) and any(
            isinstance(p, Param) and p.kind == "num" for p in self.rule.params
        )

    def verdict(self) -> Verdict:
        self.context.steps.clear()
        self.context.scope_notes.clear()
        self.level = self.scope.min_rank
        count = 0
        pending: Instance | None = None  # being proved when time ran out
        every = instances(
            self.context, self.rule, self.scope, self.number_types, results=self.results
        )
        try:
            for count, one in enumerate(every, 1):
                if one.state.level > self.level and self.is_enough_before(one.state.level):
                    assert self.best is not None
                    return self.best
                if count > self.limit.instances:
                    reason = f"more than {self.limit.instances} ways for operands to fit"
                    return self.best or Unknown(reason, self.seconds())
                if one.state.level <= self.known_rank:
                    self.seen += 1
                    continue
                pending = one
                outcome = self.prove_instance(one)
                pending = None
                if outcome is None:
                    continue
                self.seen += 1
                if isinstance(outcome, str):
                    return self.refuted_or(Unknown(f"{outcome} for {one}", self.seconds()), one)
                self.checked += outcome
                self.context.check_budget()
        except OutOfTime:
            late = Unknown(f"{self.limit_reason()} after {count} cases", self.seconds())
            return self.refuted_or(self.best or late, pending)
        except (Unsupported, Unreadable, Undefined, NotKnown) as e:
            return Unknown(f"{type(e).__name__}: {e}", self.seconds())
        except RecursionError:
            return Unknown("nested too deep", self.seconds())
        if not self.seen:
            ranks = f"{self.scope.min_rank} to {self.scope.max_rank}"
            return Unknown(f"{NO_INSTANCE} at ranks {ranks}", self.seconds())
        return self.proved(self.scope.max_rank)

    def seconds(self) -> float:
        return time.thread_time() - self.begin

    def proved(self, max_rank: int) -> Proved:
        return Proved(
            Scope(
                show_ranks(self.rule, Ranks(self.scope.min_rank, max_rank)),
                self.seen,
                (*ASSUMPTIONS, *sorted(self.context.scope_notes)),
            ),
            tuple(self.derived),
            tuple(sorted(self.context.steps)),
            self.checked + self.context.matched_sums,
            self.context.queries,
            self.seconds(),
            max_rank,
        )

    def refuted_or(self, otherwise: Verdict, one: Instance | None) -> Verdict:
        """Return a counterexample at an instance, or else another verdict."""
        found = None if one is None else counterexample(one)
        return otherwise if found is None else Refuted(*found, self.seconds())

    def limit_reason(self) -> str:
        if self.context.work_done() > self.context.max_work:
            return f"{self.limit.work:,.0f} units of work are done"
        return f"{self.limit.seconds} seconds are over"

    def is_enough_before(self, level: int) -> bool:
        """Enter a higher rank. True if the proof of the lower ranks is the result, because this one
        would not finish: half a level proves nothing."""
        context, needed = self.context, min(MIN_PROVED_RANK, self.scope.max_rank)
        was_needed, self.level = self.level <= needed, level
        if level > needed and self.seen:
            self.best = replace(self.proved(level - 1), is_complete=False)
        if was_needed and level > needed:
            quarter = time.thread_time() + self.limit.seconds / 4
            context.cpu_deadline = min(context.cpu_deadline, quarter)
            context.max_work = context.work_done() + self.limit.work_beyond
            context.next_clock_check = 0.0
        work = context.work_done()
        before, last = self.level_work
        self.level_work = last, work
        ahead = 0.0
        if level > MIN_PROVED_RANK + 1:
            ahead = _next_level_work(work - last, last - before)
        return self.best is not None and ahead > context.max_work - work

    def prove_instance(self, one: Instance) -> int | str | None:
        """Return how many reads are shown to be in bounds and outputs to be equal, a text on what
        was not shown, or None if the instance does not exist. Raise _TypeDependent if a number type
        matters and not all are tried."""
        reader = Reader(
            self.context,
            {},
            representative_types=self.representatives,
            size_roots=one.size_roots,
        )
        known = Facts(self.context)
        for h in sorted(one.state.hypotheses, key=_is_equation):  # equations may divide by sizes
            known = known.with_guards(_guard(reader, h, known))
        for low, strictly, high in one.state.number_orders:
            known = known.with_order(
                normal.subtract(number_of(self.context, high), number_of(self.context, low)),
                strictly,
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
        self.derived.update(dict.fromkeys(one.state.derived) | extra)
        reader.size_facts = known
        for n, (a, b) in enumerate(zip(one.lhs, one.rhs, strict=True)):
            place = tuple(_axis_index(reader.dim(d), known) for d in a.shape)
            left = reader.element(a, place, known)
            if reader.out_of_bounds:
                return f"the left side may read outside: {reader.out_of_bounds[0]}"
            right = reader.element(b, place, known)
            if reader.out_of_bounds:
                return f"the right side may read outside: {reader.out_of_bounds[0]}"
            if self.is_type_open and reader.is_type_dependent:
                raise _TypeDependent
            plain = None if known.nonneg else skeleton((left, right))
            key = (plain, a.dtype, tuple((t.name, t.dtype) for t in one.inputs))
            if plain is not None and key in self.shown:
                continue
            kind = reader.types.integer_type(a.dtype)
            equal = are_equal_elements(left, right, kind, known)
            if not (equal or are_equal_where_defined(left, right, known)):
                return f"output {n} not shown equal"
            if plain is not None:
                self.shown.add(key)
        return reader.reads_checked + len(one.lhs)


def _next_level_work(last: int, before: int) -> float:
    """Estimate the work of the next level, which grows faster than the last one, up to a limit. A
    level that would not finish is not started: half a level proves nothing."""
    return last * min(1.25 * last / before if before > 0 else 6.0, MAX_WORK_GROWTH)


def _axis_index(extent: Poly, known_facts: Facts) -> Poly:
    """Return any index of an axis of this extent; 0 if the extent is 1."""
    if known_facts.holds(eq(extent - 1)):
        return const(extent.context, 0)
    return atom_poly(fresh_var(extent, "i"))


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
