"""Attributes in one attempt at an instance: given, chosen, and bound to the names of a rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product

from superopt.ir.graph import Input
from superopt.ir.op import Attr, InferError, Op, Types, _canonical_attrs
from superopt.ops.movement.slicing import PAST_START
from superopt.rules.lang.functions import NotKnown, Result, as_tuple
from superopt.rules.lang.syntax import AttrParam, Param
from superopt.rules.lang.term import (
    App,
    Compare,
    Formula,
    Lit,
    Name,
    Seq,
    Spread,
    Subscript,
    Var,
    free_names,
    walk,
)
from superopt.te.expr import index
from superopt.te.expr.node import Expr
from superopt.te.expr.tensor import Dim, Tensor
from superopt.verifier.instances.attributes import (
    NATURALS_NOTE,
    OpenAttribute,
    Unsupported,
    attribute_options,
    option_ranks,
    scope_limits,
)
from superopt.verifier.instances.conditions import Conditions
from superopt.verifier.instances.size_orders import nonnegative_states
from superopt.verifier.instances.sizes import Fork, RejectedChoice

_SLICE_ATTRIBUTE_ORDER = {"steps": 1, "starts": 2, "ends": 3}


def _as_attribute(r: Result) -> Attr:
    if isinstance(r, Input):
        raise NotKnown("a value is not an attribute")
    if isinstance(r, tuple):
        return tuple(_as_attribute(v) for v in r)
    return r  # type: ignore[return-value]


@dataclass(slots=True)
class Bindings(Conditions):
    """Attributes of the operators of one attempt. deferred: formulas that cannot be checked yet."""

    results_by_term: dict[int, tuple[Tensor, ...]] = field(default_factory=dict)
    deferred: list[tuple[Op, Types, dict[str, Attr], str, Formula]] = field(default_factory=list)

    def attributes(
        self, t: App, operands: Sequence[Tensor | None]
    ) -> tuple[dict[str, Attr], list[tuple[str, Formula]]]:
        known: dict[str, Attr] = {}
        open_: list[tuple[str, str]] = []
        pending: list[tuple[str, Formula]] = []
        if t.rest is not None:
            bound = self.names.get(t.rest)
            own = {key for key, _ in t.attrs}
            if bound is not None:
                for pair in as_tuple(bound):
                    key, value = as_tuple(pair)
                    if key not in own:
                        known[str(key)] = value  # type: ignore[assignment]
            elif self.is_right_side:
                raise NotKnown(t.rest)
            else:
                open_ += [(key, f"{t.rest}.{key}") for key in t.op.attrs if key not in own]
        for key, f in t.attrs:
            try:
                known[key] = _as_attribute(self.formula_value(f))
            except NotKnown:
                if self.is_right_side:
                    raise
                open_.append((key, f.id if isinstance(f, Name) else f"{t.op.name}.{key}"))
                if not isinstance(f, Name):
                    pending.append((key, f))
        ranks = [o.rank for o in operands if o is not None]
        open_.sort(key=lambda one: _SLICE_ATTRIBUTE_ORDER.get(one[0], 0))
        for key, name in open_:
            if any(k == key for k, _ in pending):
                name = f"{name} {len(self.results_by_term)}"
            if key not in known:
                known[key] = self.choose_attribute(t.op, key, name, ranks, known, operands)
        if t.op.name == "Slice" and not self.is_right_side and not pending:
            bounds = [f for key, f in t.attrs if key in ("starts", "ends")]
            opened = any(key in ("starts", "ends") for key, _ in open_)
            if not opened and all(isinstance(f, Name) for f in bounds):
                self.require_in_bounds(operands[0], known)
        return known, pending

    def choose_attribute(
        self,
        op: Op,
        key: str,
        name: str,
        ranks: list[int],
        known_attrs: dict[str, Attr],
        operands: Sequence[Tensor | None] = (),
    ) -> Attr:
        suggested = self.suggested_values(name)
        if suggested is not None:
            return self.choose(name, suggested)  # type: ignore[return-value]
        listed = self.listed_values(name, key, ranks)
        if listed is not None:
            return self.choose(name, listed)  # type: ignore[return-value]
        if key == "perm" and ranks[0] not in self.permuted_ranks(name, ranks[0]):
            raise RejectedChoice
        self.context.scope_notes.update(scope_limits(op, key))
        options = attribute_options(
            OpenAttribute(self.context, op, key, name, ranks, known_attrs, self.ranks.max_rank)
        )
        if not options:
            raise RejectedChoice
        levels = option_ranks(op, key, ranks, options)
        n = self.choose(f"{name} of {len(options)}", range(len(options)), levels)
        assert isinstance(n, int)
        if op.name == "Slice" and key == "starts" and operands:
            return self.choose_starts(name, operands[0], known_attrs)
        if op.name == "Slice" and key == "ends" and operands:
            return self.choose_ends(name, operands[0], known_attrs)
        return options[n](lambda part: self.fresh_size(f"{name}.{part}"))

    def choose_starts(self, name: str, x: Tensor | None, known_attrs: dict[str, Attr]) -> Attr:
        """Choose bounds of slices inside their axes: each axis is a head, the kept part, and a
        tail."""
        axes, steps = known_attrs.get("axes"), known_attrs.get("steps")
        assert x is not None
        assert isinstance(axes, tuple)
        if isinstance(steps, tuple) and len(steps) != len(axes):
            raise RejectedChoice
        out: list[Dim] = []
        ends: list[Dim] = []
        for k, axis in enumerate(axes):
            assert isinstance(axis, int)
            if not -x.rank <= axis < x.rank:
                raise RejectedChoice
            begin = index.dim(index.as_index(self.fresh_size(f"{name}.s{k}")) - 1)
            end = index.dim(index.as_index(begin) + self.fresh_size(f"{name}.l{k}"))
            whole = index.dim(index.as_index(end) + self.fresh_size(f"{name}.r{k}") - 1)
            if not self.are_equal(x.shape[axis], whole):
                raise RejectedChoice
            if isinstance(steps, tuple) and steps[k] == -1:
                begin, end = self.reversed_bounds(f"{name}.{k}", begin, end)
            out.append(begin)
            ends.append(end)
        known_attrs["ends"] = tuple(ends)
        return tuple(out)

    def require_in_bounds(self, x: Tensor | None, known_attrs: dict[str, Attr]) -> None:
        """Require that bounds which an earlier operator made canonical do not exceed the end
        here."""
        some = [known_attrs.get(key) for key in ("axes", "starts", "ends", "steps")]
        axes, starts, ends, steps = some
        if x is None or not isinstance(axes, tuple) or not isinstance(starts, tuple):
            return
        if not isinstance(ends, tuple) or len(axes) != len(starts):
            return
        for k, (axis, begin, end) in enumerate(zip(axes, starts, ends, strict=True)):
            if not isinstance(axis, int) or not -x.rank <= axis < x.rank:
                raise RejectedChoice
            back = isinstance(steps, tuple) and steps[k] == -1
            last = index.as_index(begin) + 1 if back else end  # type: ignore[arg-type]
            if isinstance(last, Expr) and last != x.shape[axis]:
                beyond = self.fresh_size(f"inside {len(self.results_by_term)}.{k}")
                if not self.are_equal(x.shape[axis], index.dim(index.as_index(last + beyond) - 1)):
                    raise RejectedChoice

    def reversed_bounds(self, name: str, begin: Dim, end: Dim) -> tuple[Dim, Dim]:
        """Return the bounds of a reversed slice, which ends at the first element or earlier."""
        first = index.dim(index.as_index(end) - 1)
        if self.choose(f"first {name}", (True, False)):
            if not self.are_equal(begin, 0):
                raise RejectedChoice
            return first, PAST_START
        low, high = index.bounds(index.as_index(begin))
        if high is not None and high < 1:
            raise RejectedChoice
        if low is None or low < 1:
            cases = nonnegative_states(
                self.state, index.polynomial(index.as_index(index.as_index(begin) - 1)), ""
            )
            if cases is None:
                raise Unsupported(f"is {begin} at least 1?")
            raise Fork(cases)
        return first, index.dim(index.as_index(begin) - 1)

    def choose_ends(self, name: str, x: Tensor | None, known_attrs: dict[str, Attr]) -> Attr:
        """Choose ends after the given starts."""
        starts, axes = known_attrs.get("starts"), known_attrs.get("axes")
        if x is None or not isinstance(starts, tuple) or not isinstance(axes, tuple):
            raise Unsupported("Slice with open ends and no starts")
        if len(starts) != len(axes):
            raise RejectedChoice
        out: list[Dim] = []
        for k, (axis, begin) in enumerate(zip(axes, starts, strict=True)):
            if not isinstance(axis, int) or not -x.rank <= axis < x.rank:
                raise RejectedChoice
            assert isinstance(begin, (int, Expr))
            end = index.dim(index.as_index(begin) + self.fresh_size(f"{name}.l{k}"))
            whole = index.dim(index.as_index(end) + self.fresh_size(f"{name}.r{k}") - 1)
            if not self.are_equal(x.shape[axis], whole):
                raise RejectedChoice
            out.append(end)
        return tuple(out)

    def suggested_values(self, name: str) -> list[object] | None:
        """Return the values 1, 2 and 3 for a `nat` attribute; the scope of the proof lists that."""
        for p in self.rule.params:
            if isinstance(p, AttrParam) and p.name == name and p.kind == Name("nat"):
                self.context.scope_notes.add(NATURALS_NOTE)
                return [1, 2, 3]
        return None

    def permuted_ranks(self, name: str, rank: int) -> set[int]:
        """Return the ranks that the rule declares for the operands that this name permutes, else
        this rank."""
        own = {p.name: p.shape for p in self.rule.params if isinstance(p, Param)}
        found: set[int] = set()
        for t in (t for side in (*self.rule.lhs, *self.rule.rhs) for t in walk(side)):
            if isinstance(t, App) and ("perm", Name(name)) in t.attrs:
                x = t.operands[0]
                shape = own.get(x.name) if isinstance(x, Var) else None
                if shape is not None and not any(isinstance(f, Spread) for f in shape):
                    found.add(len(shape))
        return found or {rank}

    def listed_values(self, name: str, key: str, ranks: list[int]) -> list[Attr] | None:
        """Return the values that conditions list for an attribute, or for each of the scales of an
        operand; None if they do not."""
        items: dict[int, list[Attr]] = {}
        for f in self.rule.where:
            if not isinstance(f, Compare) or len(f.rest) != 1 or f.rest[0][0] not in ("==", "in"):
                continue
            if name not in free_names(f.first):
                continue
            ((op, g),) = f.rest
            try:
                values = as_tuple(self.formula_value(g)) if op == "in" else (self.formula_value(g),)
            except NotKnown:
                continue
            match f.first:
                case Name(n) if n == name:
                    return [_as_attribute(v) for v in values]
                case Subscript(Name(n), Lit(int(k))) if n == name and key == "scales":
                    items[k] = [_as_attribute(v) for v in values]
                case _:
                    pass
        if not items or sorted(items) != list(range(ranks[0])):
            return None
        return list(product(*(items[k] for k in range(ranks[0]))))

    def bind(
        self, t: App, types: Types, full: dict[str, Attr], pending: list[tuple[str, Formula]]
    ) -> None:
        """Give attribute variables the values that a match would give them."""
        mentioned = set()
        for key, f in t.attrs:
            mentioned.add(key)
            if isinstance(f, Name):
                if f.id not in self.names:
                    self.names[f.id] = full[key]  # type: ignore[assignment]
                else:
                    self.require_equal(self.names[f.id], full[key])
        for key, f in pending:
            self.bind_items(f, full[key])
            try:
                self.require_formula(t.op, types, full, key, f)
            except NotKnown:  # a name that is bound outside, or by a condition
                self.deferred.append((t.op, types, full, key, f))
        if t.rest is not None and t.rest not in self.names:
            rest = tuple((k, v) for k, v in sorted(full.items()) if k not in mentioned)
            self.names[t.rest] = rest  # type: ignore[assignment]

    def bind_items(self, f: Formula, value: Attr) -> None:
        """Bind the names that are items of a tuple."""
        match f:
            case Name(n) if n not in self.names:
                self.names[n] = value  # type: ignore[assignment]
            case Seq(items) if isinstance(value, tuple) and len(items) == len(value):
                if not any(isinstance(one, Spread) for one in items):
                    for one, v in zip(items, value, strict=True):
                        self.bind_items(one, v)
            case _:
                pass

    def require_formula(
        self, op: Op, types: Types, full: dict[str, Attr], key: str, f: Formula
    ) -> None:
        """Require that a canonical attribute equals a formula."""
        wanted = {**full, key: _as_attribute(self.formula_value(f))}
        try:
            found = dict(_canonical_attrs.__wrapped__(op, types, tuple(wanted.items())))
        except (InferError, ValueError, TypeError, IndexError) as e:
            raise RejectedChoice from e
        self.require_equal(found[key], full[key])
