"""One attempt at an instance: the left side built from its leaves up, choosing what is free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from superopt.ir.graph import Constant, Input, Node, Value, node, results
from superopt.ir.op import Attr, canonical_attrs
from superopt.rules.lang.functions import NotKnown, are_equal
from superopt.rules.lang.interpreter import as_bool
from superopt.rules.lang.rule import definition
from superopt.rules.lang.term import (
    Absent,
    AllResults,
    App,
    Fill,
    Formula,
    MapTerms,
    Name,
    Number,
    OperandRun,
    Pick,
    Scalar,
    Term,
    Var,
)
from superopt.rules.trial.sample.draw import RejectedChoice
from superopt.rules.trial.sample.fit import fit
from superopt.rules.trial.sample.formula_values import (
    drop_const_conditions,
    formula_value,
    missing_names,
)
from superopt.rules.trial.sample.parameters import Parameters
from superopt.rules.trial.sample.request import FitRequest
from superopt.rules.trial.sample.right_side import fill_constant


class BoundLater(RejectedChoice):
    """A constant depends on a name that is bound after it: whatever is drawn, since the order in
    which names are bound does not depend on the draws."""


@dataclass(slots=True)
class LeftSideBuilder(Parameters):
    """Builds a left side. results_by_app: results of operators. deferred: attributes to compare at
    the end."""

    results_by_app: dict[App, tuple[Value, ...]] = field(default_factory=dict)
    deferred: list[tuple[Node, str, Formula]] = field(default_factory=list)

    def roots(self) -> tuple[Value, ...]:
        """Return the results of the left side. Raises RejectedChoice, NotKnown or InferError."""
        out: list[Value] = []
        for side in self.rule.lhs:
            match side:
                case App() if len(self.rule.lhs) == 1:
                    out.extend(self.build_app(side))
                case AllResults(app):
                    out.extend(self.build_app(app))
                case _:
                    out.append(self.build_value(side))
        for n, key, f in self.deferred:
            self.require_attribute(n, key, f)
        return tuple(out)

    def check_conditions(self) -> None:
        """Check the conditions, and bind the names that they define."""
        for condition in self.rule.where:
            found = definition(condition, frozenset(self.names))
            if found is not None:
                self.names[found[0]] = formula_value(found[1], self.names, self.terms)
            elif not as_bool(
                formula_value(drop_const_conditions(condition), self.names, self.terms)
            ):
                raise RejectedChoice("a condition does not hold")

    def require_attribute(self, n: Node, key: str, f: Formula) -> None:
        """Raise RejectedChoice unless attribute `key` of `n` equals the formula."""
        wanted = formula_value(f, self.names, self.terms)
        types = tuple(None if v is None else v.type for v in n.inputs)
        attrs = dict(n.attrs) | {key: wanted}
        if canonical_attrs(n.op, types, attrs) != n.attrs:  # type: ignore[arg-type]
            raise RejectedChoice(f"{key} is not {wanted}")

    # --- terms ------------------------------------------------------------------------------------

    def build_value(self, t: Term) -> Value:
        """Return the one result of a term that is not a parameter."""
        match t:
            case App():
                found = self.build_app(t)
                if len(found) != 1:
                    raise RejectedChoice(f"{t.op.name} has {len(found)} results")
                return found[0]
            case Pick(app, index):
                found = self.build_app(app)
                if index >= len(found):
                    raise RejectedChoice(f"no result {index}")
                self.terms[t] = found[index]
                return found[index]
            case Var(name):
                found_value = self.names.get(name)
                if not isinstance(found_value, (Input, Constant)):
                    raise RejectedChoice(f"{name} alone")
                return found_value
            case _:
                raise RejectedChoice("no value")

    def build_app(self, t: App) -> tuple[Value, ...]:
        """Return the results of an operator, and choose its free operands and attributes."""
        if t in self.results_by_app:
            return self.results_by_app[t]
        operands = [o for term in t.operands for o in self.operand(term)]
        attrs, free, pending = self.attributes(t)
        dtype = self.sibling_dtype(operands)
        # a constant may have the size of a later operand
        for place in sorted(range(len(operands)), key=lambda n: isinstance(operands[n], Fill)):
            one = operands[place]
            if isinstance(one, Var) and one.name in self.names:  # a second time, as in Mul(x, x)
                operands[place] = self.build_value(one)
            elif isinstance(one, (Var, Number, Scalar)):
                holes = tuple(self.partial_shape(o) for o in operands)
                holes = self.reuse_past_shape(holes, place)
                shapes, found = fit(FitRequest(t.op, holes, attrs, free, self.draw))
                attrs, free = attrs | found, frozenset()
                operands[place] = self.make_operand(one, tuple(shapes[place]), dtype)
            elif isinstance(one, Fill):
                if any(missing_names(a, self.names) for a in one.args):
                    raise BoundLater(f"{one} needs what a later operand binds")
                args = [formula_value(a, self.names, self.terms) for a in one.args]
                operands[place] = fill_constant(one, args, dtype)
        if free:
            holes = tuple(self.partial_shape(o) for o in operands)
            attrs = attrs | fit(FitRequest(t.op, holes, attrs, free, self.draw))[1]
        self.bind_runs(t)
        attrs |= self.late_attributes(t, pending)
        done = [None if isinstance(o, Absent) else o for o in operands]
        made_node = node(t.op, done, **attrs)  # type: ignore[arg-type]
        self.bind_attributes(t, made_node)
        self.deferred.extend((made_node, key, f) for key, f in pending)
        out = results(made_node)
        self.results_by_app[t] = out
        if len(out) == 1:
            self.terms[t] = out[0]
        return out

    def operand(self, t: Term) -> list[Term | Value]:
        """Return the values of an operand, and parameters still to be chosen."""
        match t:
            case Var(name) if name not in self.names:
                return [t]
            case Number() | Scalar() | Absent() | Fill():
                return [t]
            case OperandRun(name):
                return [*self.run_operands(name)]
            case AllResults(app):
                return [*self.build_app(app)]
            case MapTerms():
                raise RejectedChoice("a comprehension on the left side")
            case _:
                return [self.build_value(t)]

    def run_operands(self, name: str) -> Sequence[Term | Value]:
        """Return a run of parameters: `name.0`, `name.1`, ... until they are values."""
        found = self.names.get(name)
        if isinstance(found, tuple):
            return [v for v in found if isinstance(v, (Input, Constant, Node))]
        return [Var(f"{name}.{n}") for n in range(self.draw.pick((1, 2, 2, 3)))]

    def bind_runs(self, t: App) -> None:
        """Bind the runs among the operands of `t`."""
        for o in t.operands:
            if isinstance(o, OperandRun) and o.name not in self.names:
                own = [n for n in self.names if n.rpartition(".")[0] == o.name]
                self.names[o.name] = tuple(self.names.pop(n) for n in own)

    def late_attributes(self, t: App, pending: Sequence[tuple[str, Formula]]) -> dict[str, Attr]:
        """Return attributes that the operands determine now, or likely ones."""
        found: dict[str, Attr] = {}
        for key, f in pending:
            try:
                found[key] = formula_value(f, self.names, self.terms)  # type: ignore[assignment]
            except NotKnown:
                continue
        for key, f in t.attrs:
            if isinstance(f, Name) and f.id not in self.names:
                guess = self.likely_value(f.id)
                if guess is not None:
                    found[key] = guess  # type: ignore[assignment]
        return found

    def attributes(
        self, t: App
    ) -> tuple[dict[str, Attr], frozenset[str], list[tuple[str, Formula]]]:
        """Return known attributes, those to choose, and those to choose now and compare later."""
        known: dict[str, Attr] = {}
        free: set[str] = set()
        pending: list[tuple[str, Formula]] = []
        for key, f in t.attrs:
            try:
                known[key] = formula_value(f, self.names, self.terms)  # type: ignore[assignment]
            except NotKnown:
                free.add(key)
                if not isinstance(f, Name):
                    pending.append((key, f))
        mentioned = {key for key, _ in t.attrs}
        if t.rest is not None:
            bound = self.names.get(t.rest)
            if isinstance(bound, tuple):
                for pair in bound:
                    assert isinstance(pair, tuple)
                    if pair[0] not in mentioned:
                        known[str(pair[0])] = pair[1]  # type: ignore[assignment]
            else:
                free |= set(t.op.attrs) - mentioned
        return known, frozenset(free), pending

    def bind_attributes(self, t: App, n: Node) -> None:
        """Bind attribute variables as a match would."""
        mentioned = set()
        for key, f in t.attrs:
            mentioned.add(key)
            if isinstance(f, Name):
                got = n.attr(key)
                if f.id not in self.names:
                    self.names[f.id] = got  # type: ignore[assignment]
                elif not are_equal(self.names[f.id], got):  # type: ignore[arg-type]
                    raise RejectedChoice(f"{f.id} has two values")
        if t.rest is not None:
            rest = tuple((k, v) for k, v in n.attrs if k not in mentioned)
            if self.names.setdefault(t.rest, rest) != rest:  # type: ignore[arg-type]
                raise RejectedChoice(f"**{t.rest} has two values")
