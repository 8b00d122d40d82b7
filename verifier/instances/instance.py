"""Instances of a rule with symbolic sizes: both sides as tensors, for each way its operands fit.

The operators decide what fits (`superopt.te.analysis.size_oracle`): an attempt starts with a symbol
for every size. When an operator compares two sizes, the attempt forks. So instances are found, not
listed, and no shape rule is written twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from superopt.rules.lang.functions import NotKnown, Result, as_tuple
from superopt.rules.lang.rule import Rule
from superopt.rules.lang.term import (
    Absent,
    AllResults,
    App,
    Fill,
    Formula,
    MapTerms,
    Number,
    OperandRun,
    Pick,
    Scalar,
    Term,
    Var,
    walk,
)
from superopt.te.analysis.size_oracle import use_size_oracle
from superopt.te.expr.dtype import F32, DType
from superopt.te.expr.node import Expr
from superopt.te.expr.tensor import Tensor
from superopt.verifier.context import ProofContext
from superopt.verifier.instances.choices import NUMBER_TYPES, Ranks
from superopt.verifier.instances.operator_results import OperatorResults
from superopt.verifier.instances.scope import broadcast_only_operands, is_broadcasting
from superopt.verifier.instances.size_equations import mentioned_differences
from superopt.verifier.instances.sizes import Fork, RejectedChoice, State, implied_states

# Messages of formulas that are invalid at every size: then there is no such instance.
INVALID_FORMULA_TEXTS = (" is not in [", " is not a permutation", " items, not ", " of nothing")


@dataclass(frozen=True, slots=True)
class Instance:
    """Both sides over the same inputs, and the state that led there.

    lhs_tensors, rhs_tensors: every tensor that an operator of the side gives. names: what the
    rule's names stand for; a tensor as an input. size_roots: sizes n by the names of 1 / sqrt(n).
    """

    inputs: tuple[Tensor, ...]
    lhs: tuple[Tensor, ...]
    rhs: tuple[Tensor, ...]
    lhs_tensors: tuple[Tensor, ...]
    rhs_tensors: tuple[Tensor, ...]
    state: State
    names: Mapping[str, Result]
    size_roots: Mapping[str, Expr]

    def __str__(self) -> str:
        shown = [f"{t.name}: {t.type}" for t in self.inputs]
        shown += [f"{k} = {_show_value(v)}" for k, v in self.state.choices.items() if " " not in k]
        shown += [str(h) for h in self.state.hypotheses]
        return ", ".join(shown)


def _show_value(v: object) -> str:
    return f"({', '.join(map(_show_value, v))})" if isinstance(v, tuple) else str(v)


# Chosen sizes for each unit of work: attempts with more take longer, endless ones have hundreds.
SIZES_PER_WORK_UNIT = 10


def instances(
    context: ProofContext,
    rule: Rule,
    ranks: Ranks,
    number_types: Sequence[DType] = NUMBER_TYPES,
    include_covered: bool = False,
    results: dict[object, object] | None = None,
) -> Iterator[Instance]:
    """Yield every instance at these ranks, lower ranks first. number_types: element types tried for
    `num`. include_covered: also instances that the proof of another one covers. results: what
    operators gave in earlier calls, for a similar rule; it is extended."""
    count = 0
    pending = [(0, count, State({}, {}, mentioned_differences=mentioned_differences(rule)))]
    memo: dict[object, object] = {"stretched": set()} if include_covered else {}
    results = {} if results is None else results
    while pending:
        context.check_budget()
        _, _, state = heappop(pending)
        context.attempt_units += 1 + len(state.sizes) // SIZES_PER_WORK_UNIT
        try:
            attempt = _Attempt(
                context, state, rule, ranks, number_types, memo=memo, results=results
            )
            yield attempt.build_instance()
        except Fork as fork:
            for one in reversed(fork.states):
                count -= 1
                heappush(pending, (one.level, count, one))
        except RejectedChoice:
            continue
        except NotKnown as e:
            # a concrete size would decide: the instance is unknown
            if not any(words in str(e) for words in INVALID_FORMULA_TEXTS):
                raise


def instance_of_state(
    context: ProofContext, rule: Rule, state: State, ranks: Ranks, number_types: Sequence[DType]
) -> Instance:
    """Return the instance of `rule` in a state. Raises Fork or RejectedChoice."""
    attempt = _Attempt(context, state, rule, ranks, number_types, memo={"stretched": set()})
    return attempt.build_instance()


@dataclass(slots=True)
class _Attempt(OperatorResults):
    """One attempt, determined by its state."""

    tensors_made: list[Tensor] = field(default_factory=list)

    def build_instance(self) -> Instance:
        with use_size_oracle(self):
            lhs = self.build_side(self.rule.lhs)
            for condition in self.rule.where:
                if condition not in self.satisfied:
                    self.require_condition(condition)
            for op, types, full, key, f in self.deferred:
                self.require_formula(op, types, full, key, f)
            left = tuple(self.tensors_made)
            self.tensors_made = []
            self.results_by_term = {}
            self.is_right_side = True
            rhs = self.build_side(self.rule.rhs)
            if len(lhs) != len(rhs):
                raise RejectedChoice
            for a, b in zip(lhs, rhs, strict=True):
                if a.dtype != b.dtype or a.rank != b.rank:
                    raise RejectedChoice
                for x, y in zip(a.shape, b.shape, strict=True):
                    if x != y and not self.are_equal(x, y):
                        raise RejectedChoice
        more = implied_states(self.state)
        if more is not None:
            raise Fork([s for s in more if s is not None])
        made = tuple(self.tensors_made)
        return Instance(
            tuple(self.inputs), lhs, rhs, left, made, self.state, self.names, self.size_roots
        )

    # --- sides ------------------------------------------------------------------------------------

    def build_side(self, terms: tuple[Term, ...]) -> tuple[Tensor, ...]:
        match terms:
            case (App() as only,):
                return self.build_app(only)
            case _:
                return tuple(v for t in terms for v in self.term_tensors(t))

    def term_tensors(self, t: Term) -> list[Tensor]:
        """Return the tensors of a term whose siblings do not determine its type."""
        match t:
            case Var(name):
                if name not in self.names:
                    self.bind_parameter(name)
                return [self.tensor(self.names[name])]
            case OperandRun(name):
                return [self.tensor(v) for v in as_tuple(self.operand_run(name))]
            case AllResults(app):
                return [*self.build_app(app)]
            case Pick(app, n):
                found = self.build_app(app)
                if n >= len(found):
                    raise RejectedChoice
                if t in self.subterms_in_formulas():
                    self.terms.setdefault(t, self.stand_in(found[n]))
                return [found[n]]
            case App():
                return [*self.build_app(t)]
            case MapTerms(body, own, over):
                return self.expand_map(body, own, over)
            case Number() | Scalar() | Fill():
                return [self.constant(t, F32)]
            case _:
                raise RejectedChoice

    def expand_map(
        self, body: Term, variables: tuple[str, ...], over: Formula | App
    ) -> list[Tensor]:
        items: Sequence[Result]
        if isinstance(over, App):
            items = [self.stand_in(t) for t in self.build_app(over)]
        else:
            items = as_tuple(self.formula_value(over))
        out: list[Tensor] = []
        before, many = dict(self.names), self.results_by_term
        for one in items:
            parts = (one,) if len(variables) == 1 else as_tuple(one)
            self.names.update(zip(variables, parts, strict=True))
            self.results_by_term = {}
            out += self.term_tensors(body)
        self.names, self.results_by_term = before, many
        return out

    def build_app(self, t: App) -> tuple[Tensor, ...]:
        place = self.term_id(t)
        if place in self.results_by_term:
            return self.results_by_term[place]
        operands = self.operands(t)
        if not self.is_right_side:
            self.require_ready_conditions()
        attrs, pending = self.attributes(t, operands)
        full, found = self.checked_result(t.op, operands, attrs, picked := self.picked_results(t))
        if not self.is_right_side:
            self.bind(t, tuple(None if o is None else o.type for o in operands), full, pending)
        self.results_by_term[place] = found
        if not self.is_right_side:
            self.require_full_shape(t, place, operands, found[0])
        if len(found) == 1 and self.subterms_in_formulas() and t in self.subterms_in_formulas():
            self.terms.setdefault(t, self.stand_in(found[0]))
        self.tensors_made.extend(v for k, v in enumerate(found) if k in picked or not picked)
        return found

    def picked_results(self, t: App) -> frozenset[int]:
        """Return which results the left side picks, none for all: another one may be empty."""
        if "picks" not in self.memo:
            self.memo["picks"] = [p for s in self.rule.lhs for p in walk(s) if isinstance(p, Pick)]
        picks: Any = () if self.is_right_side else self.memo["picks"]
        if not picks:
            return frozenset()
        return frozenset(p.index for p in picks if p.term == t)

    def require_full_shape(
        self, t: App, place: int, operands: Sequence[Tensor | None], result: Tensor
    ) -> None:
        """Require the full shape for operands that are only broadcast to one shape."""
        full = self.memo.get("stretched")
        if full is None:
            full = self.memo["stretched"] = {
                (name, self.term_id(app))
                for name, app in broadcast_only_operands(self.rule).items()
            }
        assert isinstance(full, set)
        if is_broadcasting(t):
            plain = [x for o, x in zip(t.operands, operands, strict=False) if not _is_number(o)]
            if any(x is not None and x.shape == result.shape for x in plain):
                for o, x in zip(t.operands, operands, strict=False):
                    if _is_number(o) and x is not None and x.rank:
                        raise RejectedChoice  # same as the number without axes
        if not full or result.rank > self.state.level:
            return
        for o, x in zip(t.operands, operands, strict=False):
            if isinstance(o, Var) and x is not None and (o.name, place) in full:
                short = x.rank < result.rank
                if short or any(a == 1 != b for a, b in zip(x.shape, result.shape, strict=True)):
                    raise RejectedChoice

    def term_id(self, t: App) -> int:
        """Return an integer for equal terms: hashing a term is slow."""
        found = self.memo.get(id(t))
        if found is None:
            found = self.memo[id(t)] = self.memo.setdefault(t, len(self.memo))
        assert isinstance(found, int)
        return found

    def operands(self, t: App) -> list[Tensor | None]:
        later = [o for o in t.operands if isinstance(o, (Number, Scalar, Fill))]
        found: dict[int, list[Tensor | None]] = {}
        kind: DType | None = None
        for n, o in enumerate(t.operands):
            if isinstance(o, Absent):
                found[n] = [None]
            elif o not in later:
                found[n] = [*self.term_tensors(o)]
                for v in found[n]:
                    kind = kind or (None if v is None else v.dtype)
        for n, o in enumerate(t.operands):
            if n not in found:
                found[n] = [self.constant(o, kind or F32, f"{self.term_id(t)}.{n}")]
        return [v for n in range(len(t.operands)) for v in found[n]]


def _is_number(t: Term) -> bool:
    return isinstance(t, (Number, Scalar))


__all__ = ["Instance", "Ranks", "instances"]
