"""Instances of a rule with symbolic sizes: both sides as tensors, for each way its operands fit.

The operators decide what fits (`superopt.te.assume`): an attempt starts with a symbol for every
size. When an operator compares two sizes, the attempt forks. So instances are found, not listed,
and no shape rule is written twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Any

from superopt.ir.op import Attr, InferError, Op, _canonical_attrs
from superopt.rules.functions import NotKnown, Result, sequence
from superopt.rules.rule import Rule
from superopt.rules.term import (
    Absent,
    All,
    App,
    Filled,
    Formula,
    Map,
    Number,
    Pick,
    Run,
    Scalar,
    Term,
    Var,
    walk,
)
from superopt.te.assume import judged_by
from superopt.te.dtype import F32, DType
from superopt.te.expr import Tensor, TensorType
from superopt.te.node import Expr, Size
from superopt.verifier import guard as G
from superopt.verifier.attributes import Unsupported
from superopt.verifier.bindings import Bindings
from superopt.verifier.cases import either, there
from superopt.verifier.choices import NUMBERS, Ranks
from superopt.verifier.facts import in_time
from superopt.verifier.products import differences
from superopt.verifier.refusal import accepted
from superopt.verifier.scope import broadcasts, stretched
from superopt.verifier.sizes import Fork, Misfit, State, decided, is_wide, ordered, settled

# Messages of formulas that are invalid at every size: then there is no such instance.
NO_INSTANCE = (" is not in [", " is no permutation", " items, not ", " of nothing")
POOLS = frozenset(("AveragePool", "MaxPool", "LpPool"))


@dataclass(frozen=True, slots=True)
class Instance:
    """Both sides over the same inputs, and the state that led there.

    lhs_tensors, rhs_tensors: every tensor that an operator of the side gives. names: what the
    rule's names stand for; a tensor as an input. size_roots: sizes n by the names of 1 / sqrt(n).
    """

    inputs: tuple[Tensor, ...]
    lhs: tuple[Tensor, ...]
    rhs: tuple[Tensor, ...]
    left: tuple[Tensor, ...]
    right: tuple[Tensor, ...]
    state: State
    names: Mapping[str, Result]
    roots: Mapping[str, Expr]

    def __str__(self) -> str:
        shown = [f"{t.name}: {t.type}" for t in self.inputs]
        shown += [f"{k} = {_text(v)}" for k, v in self.state.choices.items() if " " not in k]
        shown += [str(h) for h in self.state.hypotheses]
        return ", ".join(shown)


def _text(v: object) -> str:
    return f"({', '.join(map(_text, v))})" if isinstance(v, tuple) else str(v)


# Chosen sizes for each unit of work: attempts with more take longer, endless ones have hundreds.
MANY_SIZES = 10


def instances(
    rule: Rule, ranks: Ranks, numbers: Sequence[DType] = NUMBERS, every: bool = False
) -> Iterator[Instance]:
    """Yield every instance at these ranks, lower ranks first. number_types: element types tried for
    `num`. include_covered: also instances that the proof of another one covers."""
    count = 0
    pending = [(0, count, State({}, {}, spoken=differences(rule)))]
    memo: dict[object, object] = {"stretched": set()} if every else {}
    while pending:
        in_time()
        _, _, state = heappop(pending)
        G.TALLY.attempts += 1 + len(state.sizes) // MANY_SIZES
        try:
            yield _Attempt(rule, state, ranks, numbers, memo=memo).instance()
        except Fork as fork:
            for one in reversed(fork.states):
                count -= 1
                heappush(pending, (one.level, count, one))
        except Misfit:
            continue
        except NotKnown as e:
            # a concrete size would decide: the instance is unknown
            if not any(words in str(e) for words in NO_INSTANCE):
                raise


def attempted(rule: Rule, state: State, ranks: Ranks, numbers: Sequence[DType]) -> Instance:
    """Return the instance of `rule` in a state. Raises Fork or Misfit."""
    return _Attempt(rule, state, ranks, numbers, memo={"stretched": set()}).instance()


_Applied = tuple[dict[str, Attr], tuple[Tensor, ...]]


@dataclass(frozen=True, slots=True)
class _Remembered:
    """The cached result of an operator for operands with these identities; None: they do not
    fit."""

    found: _Applied | None
    operands: tuple[Tensor | None, ...]


@dataclass(slots=True)
class _Attempt(Bindings):
    """One attempt, determined by its state."""

    made: list[Tensor] = field(default_factory=list)

    def instance(self) -> Instance:
        with judged_by(self):
            lhs = self.side(self.rule.lhs)
            for condition in self.rule.where:
                if condition not in self.met:
                    self.condition(condition)
            for op, types, full, key, f in self.later:
                self.fits(op, types, full, key, f)
            left = tuple(self.made)
            self.made = []
            self.many = {}
            self.on_right = True
            rhs = self.side(self.rule.rhs)
            if len(lhs) != len(rhs):
                raise Misfit
            for a, b in zip(lhs, rhs, strict=True):
                if a.dtype != b.dtype or a.rank != b.rank:
                    raise Misfit
                for x, y in zip(a.shape, b.shape, strict=True):
                    if x != y and not self.same(x, y):
                        raise Misfit
        more = settled(self.state)
        if more is not None:
            raise Fork([s for s in more if s is not None])
        made = tuple(self.made)
        return Instance(
            tuple(self.inputs), lhs, rhs, left, made, self.state, self.names, self.roots
        )

    # --- sides ------------------------------------------------------------------------------------

    def side(self, terms: tuple[Term, ...]) -> tuple[Tensor, ...]:
        match terms:
            case (App() as only,):
                return self.app(only)
            case _:
                return tuple(v for t in terms for v in self.values(t))

    def values(self, t: Term) -> list[Tensor]:
        """Return the tensors of a term whose siblings do not determine its type."""
        match t:
            case Var(name):
                if name not in self.names:
                    self.parameter(name)
                return [self.tensor(self.names[name])]
            case Run(name):
                return [self.tensor(v) for v in sequence(self.run(name))]
            case All(app):
                return [*self.app(app)]
            case Pick(app, n):
                found = self.app(app)
                if n >= len(found):
                    raise Misfit
                if t in self.asked():
                    self.terms.setdefault(t, self.stand_in(found[n]))
                return [found[n]]
            case App():
                return [*self.app(t)]
            case Map(body, own, over):
                return self.mapped(body, own, over)
            case Number() | Scalar() | Filled():
                return [self.constant(t, F32)]
            case _:
                raise Misfit

    def mapped(self, body: Term, own: tuple[str, ...], over: Formula | App) -> list[Tensor]:
        items: Sequence[Result]
        if isinstance(over, App):
            items = [self.stand_in(t) for t in self.app(over)]
        else:
            items = sequence(self.formula(over))
        out: list[Tensor] = []
        before, many = dict(self.names), self.many
        for one in items:
            parts = (one,) if len(own) == 1 else sequence(one)
            self.names.update(zip(own, parts, strict=True))
            self.many = {}
            out += self.values(body)
        self.names, self.many = before, many
        return out

    def app(self, t: App) -> tuple[Tensor, ...]:
        place = self.place(t)
        if place in self.many:
            return self.many[place]
        operands = self.operands(t)
        if not self.on_right:
            self.early()
        attrs, pending = self.attributes(t, operands)
        full, found = self.applied(t.op, operands, attrs, picked := self.picked(t))
        if not self.on_right:
            self.bind(t, tuple(None if o is None else o.type for o in operands), full, pending)
        self.many[place] = found
        if not self.on_right:
            self.widest(t, place, operands, found[0])
        if len(found) == 1 and self.asked() and t in self.asked():
            self.terms.setdefault(t, self.stand_in(found[0]))
        self.made.extend(v for k, v in enumerate(found) if k in picked or not picked)
        return found

    def picked(self, t: App) -> frozenset[int]:
        """Return which results the left side picks, none for all: another one may be empty."""
        if "picks" not in self.memo:
            self.memo["picks"] = [p for s in self.rule.lhs for p in walk(s) if isinstance(p, Pick)]
        picks: Any = () if self.on_right else self.memo["picks"]
        return frozenset(p.index for p in picks if p.term == t)

    def widest(self, t: App, place: int, operands: Sequence[Tensor | None], made: Tensor) -> None:
        """Require the full shape for operands that are only broadcast to one shape."""
        full = self.memo.get("stretched")
        if full is None:
            full = self.memo["stretched"] = {
                (name, self.place(app)) for name, app in stretched(self.rule).items()
            }
        assert isinstance(full, set)
        if broadcasts(t):
            plain = [x for o, x in zip(t.operands, operands, strict=False) if not _number(o)]
            if any(x is not None and x.shape == made.shape for x in plain):
                for o, x in zip(t.operands, operands, strict=False):
                    if _number(o) and x is not None and x.rank:
                        raise Misfit  # same as the number without axes
        if not full or made.rank > self.state.level:
            return
        for o, x in zip(t.operands, operands, strict=False):
            if isinstance(o, Var) and x is not None and (o.name, place) in full:
                short = x.rank < made.rank
                if short or any(a == 1 != b for a, b in zip(x.shape, made.shape, strict=True)):
                    raise Misfit

    def place(self, t: App) -> int:
        """Return an integer for equal terms: hashing a term is slow."""
        found = self.memo.get(id(t))
        if found is None:
            found = self.memo[id(t)] = self.memo.setdefault(t, len(self.memo))
        assert isinstance(found, int)
        return found

    def applied(
        self,
        op: Op,
        operands: Sequence[Tensor | None],
        attrs: Mapping[str, Attr],
        picked: frozenset[int],
    ) -> tuple[dict[str, Attr], tuple[Tensor, ...]]:
        full, found = self.expression(op, operands, attrs)
        if self.state.units:
            found = tuple(map(self.of_units, found))
        if op.name in POOLS and not self.on_right:
            image = operands[0]
            assert image is not None
            self.sees(full, image.shape[2:])
        for k, t in enumerate(found):
            filled = not self.on_right and (k in picked or not picked)
            for d in t.shape:
                cases = decided(self.state, d)
                if cases is None and filled:
                    cases = there(self.state, d)
                if cases is not None:
                    raise Fork(cases)
                if isinstance(d, int) and d < 1 and filled:
                    raise Misfit
        return full, found

    def of_units(self, t: Tensor) -> Tensor:
        """Replace the sizes assumed to be 1 in this attempt."""
        shape = tuple(1 if d in self.state.units else d for d in t.shape)
        if shape == t.shape:
            return t
        key = ("units", id(t), shape)
        found = self.memo.setdefault(key, (t, replace(t, shape=shape)))  # t keeps its identity
        assert isinstance(found, tuple)
        assert isinstance(found[1], Tensor)
        return found[1]

    def expression(
        self, op: Op, operands: Sequence[Tensor | None], attrs: Mapping[str, Attr]
    ) -> _Applied:
        """Return the canonical attributes and the results; cached if the operator asked nothing."""
        given = tuple(sorted(attrs.items()))
        key = (op.name, tuple(map(id, operands)), given, *(type(v) for _, v in given))
        known = self.memo.get(key)
        if known is not None:
            assert isinstance(known, _Remembered)
            if known.found is None:
                raise Misfit
            return known.found
        asked = self.questions
        try:
            found = self.computed(op, operands, given)
        except Misfit:
            if self.questions == asked:
                self.memo[key] = _Remembered(None, tuple(operands))
            raise
        if self.questions == asked:
            self.memo[key] = _Remembered(found, tuple(operands))
        return found

    def computed(
        self, op: Op, operands: Sequence[Tensor | None], given: tuple[tuple[str, Attr], ...]
    ) -> _Applied:
        types = tuple(None if o is None else o.type for o in operands)
        self.open_orders = []
        try:
            # not cached: a cached call would ask nothing
            full = dict(_canonical_attrs.__wrapped__(op, types, given))
            assert op.compute is not None
            out = op.compute(*operands, **full)
        except InferError as e:
            if "symbolic" in str(e):
                raise Unsupported(str(e)) from e
            for a, b in self.open_orders:
                raise Fork(ordered(self.state, a, b, "right" if self.on_right else "")) from e
            self.refused(op, operands, given, e)
            raise Misfit from e
        except (
            ValueError,
            TypeError,
            IndexError,
            KeyError,
            ZeroDivisionError,
            AssertionError,
        ) as e:
            self.refused(op, operands, given, e)
            raise Misfit from e
        return full, out if isinstance(out, tuple) else (out,)

    def refused(
        self,
        op: Op,
        operands: Sequence[Tensor | None],
        given: tuple[tuple[str, Attr], ...],
        why: Exception,
    ) -> None:
        """Raise Unsupported if the operator accepts the same operands at some sizes, which would be
        left out. That applies to the right side, too: a match at such sizes is not refused. If an
        operand has size 1 there, fork on that size instead."""
        known = (*self.state.hypotheses, *map(is_wide, sorted(self.state.wide)))
        sizes = accepted(op, operands, given, known)
        if sizes is None:
            return
        for d in (d for o in operands if o is not None for d in o.shape):
            if isinstance(d, Size) and sizes.get(d.name) == 1 and d.name not in self.state.wide:
                raise Fork(either(self.state, "eq", d, 1))
        raise Unsupported(f"{op.name} at sizes like {sizes}: {why}")

    def operands(self, t: App) -> list[Tensor | None]:
        later = [o for o in t.operands if isinstance(o, (Number, Scalar, Filled))]
        found: dict[int, list[Tensor | None]] = {}
        kind: DType | None = None
        for n, o in enumerate(t.operands):
            if isinstance(o, Absent):
                found[n] = [None]
            elif o not in later:
                found[n] = [*self.values(o)]
                for v in found[n]:
                    kind = kind or (None if v is None else v.dtype)
        for n, o in enumerate(t.operands):
            if n not in found:
                found[n] = [self.constant(o, kind or F32, f"{self.place(t)}.{n}")]
        return [v for n in range(len(t.operands)) for v in found[n]]


def _number(t: Term) -> bool:
    return isinstance(t, (Number, Scalar))


__all__ = ["Instance", "Ranks", "TensorType", "instances"]
