"""A rule with all names bound: its left side, its conditions, its right side.

Nothing is matched or searched. Both sides are built from the bindings; the caller compares the left
one with the graph. Only the written form of a node is tried in a few equivalent ways: operands of a
commutative operator in either order, a nested or flat Concat, floats with 32 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from superopt.ir.graph import Node, Value, node, producer, results
from superopt.ir.op import Attr, Op
from superopt.ir.syntax import show_attr
from superopt.rules.lang import printer, term
from superopt.rules.lang.fills import is_fill, is_number_constant
from superopt.rules.lang.functions import NotKnown, Result, are_equal, as_number, as_tuple
from superopt.rules.lang.interpreter import evaluate_formula
from superopt.rules.lang.rule import Rule
from superopt.rules.lang.syntax import LETTERS, Param, element_types
from superopt.rules.lang.value_facts import as_stored, uniform_value
from superopt.rules.match.node_builder import (
    NARY_OPS,
    as_attribute,
    fill_constant,
    make_node,
    scalar_constant,
)
from superopt.te.expr.dtype import BOOL, I64, DType

Literal = term.Number | term.Scalar | term.Fill
LocalBindings = Mapping[str, Result]  # the variables of comprehensions
NO_LOCALS: LocalBindings = MappingProxyType({})


@dataclass(slots=True)
class RuleInstance:
    """`rule` with each name bound to `bindings[name]`.

    constants: the numbers and fills of the left side, in order. node_priority: 2 for a node that
    the left side should give, 1 for a node of the graph, else 0. is_unread: true if only these
    nodes read a value. matched: the terms of the left side, once built.
    """

    rule: Rule
    bindings: Mapping[str, Result]
    constants: Sequence[Value]
    node_priority: Callable[[Node], int]
    is_unread: Callable[[Result, set[Node | None]], bool]
    matched: dict[term.Term, Value] = field(default_factory=dict)
    _constants_used: int = 0
    _graph_texts: dict[str, list[str]] = field(
        default_factory=dict
    )  # the texts of names in the graph

    def evaluate(self, f: term.Formula, local: LocalBindings = NO_LOCALS) -> Result:
        """Return the value of `f`. Raises NotKnown if it has none."""
        own = {producer(v) for v in self.matched.values()}
        given = {**self.bindings, **local}
        return evaluate_formula(f, given, self.matched, lambda v: self.is_unread(v, own))

    def condition_text(self, condition: term.Formula) -> str:
        """Return a condition as text, with the bound sizes and attributes."""
        operands = {p.name for p in self.rule.params if isinstance(p, Param)}

        def value(p: term.Part) -> term.Part | None:
            if not isinstance(p, term.Name) or p.id in operands or p.id not in self.bindings:
                return None
            return term.Lit(self.bindings[p.id])  # type: ignore[arg-type]

        loops = any(isinstance(p, term.Comprehension) for p in term.walk(condition))
        return printer.show(condition if loops else term.rebuild(condition, value))

    def has_declared_type(self, p: Param) -> bool:
        """True if the values of parameter `p` have its element type and shape."""
        alike = [q.name for q in self.rule.params if isinstance(q, Param) and q.kind == p.kind]
        if (
            p.kind in LETTERS
            and len({v.type.dtype for n in alike for v in self.operand_values(n)}) > 1
        ):
            return False
        allowed = element_types(p.kind)
        for v in self.operand_values(p.name):
            if p.kind != "any" and v.type.dtype not in allowed:
                return False
            if p.shape is not None and not are_equal(
                v.type.shape, self.evaluate(term.Seq(p.shape))
            ):
                return False
        return True

    def operand_values(self, name: str) -> tuple[Value, ...]:
        """Return the value, or the run of values, of a parameter."""
        v = self.bindings[name]
        return v if isinstance(v, tuple) else (v,)  # type: ignore[return-value]

    def left_values(self) -> list[Value]:
        """Return the values of the left side. Raises NotKnown if a constant is not the one it
        states."""
        out = [
            v for t in self.rule.lhs for v in self._root_values(t, len(self.rule.lhs), None, True)
        ]
        if self._constants_used != len(self.constants):
            raise NotKnown(
                f"its left side has {self._constants_used} constants, not {len(self.constants)}"
            )
        params = [
            p for p in self.rule.params if isinstance(p, Param) and self.operand_values(p.name)
        ]
        told = {
            n for p in params for d in p.shape or () for n in term.free_names(d)
        }  # see `has_declared_type`
        told |= {p.name for p in self.rule.params if isinstance(p, Param)}
        told |= {c.first.id for c in self.rule.where
                 if isinstance(c, term.Compare) and isinstance(c.first, term.Name)
                 and c.rest[0][0] == "=="}  # fmt: skip
        for name in self.bindings.keys() - told:
            said, held = show_attr(self.bindings[name]), self._graph_texts.get(name, [])  # type: ignore
            if said not in held:
                raise NotKnown(f"{name} is {' or '.join(held)} there, not {said}")
        return out  # type: ignore[return-value]

    def right_values(self, dtype: DType | None) -> list[Value]:
        """Return the values of the right side; numbers without operands beside them have type
        `dtype`."""
        count = len(self.rule.rhs)
        return [v for t in self.rule.rhs for v in self._root_values(t, count, dtype, False)]  # type: ignore

    def _root_values(
        self, t: term.Term, count: int, dtype: DType | None, left: bool
    ) -> Sequence[Value | None]:
        """Return all results of a lone operator; of one of several on the left side the first."""
        if isinstance(t, term.App) and (left or count == 1):
            t = term.AllResults(t) if count == 1 else term.Pick(t, 0)
        return self.term_values(t, dtype, {}, left)

    def term_values(
        self, t: term.Term, dtype: DType | None, local: LocalBindings, left: bool = False
    ) -> Sequence[Value | None]:
        """Return the values that the term adds to a list of operands or results."""
        match t:
            case term.Var(name):
                return (local.get(name, self.bindings.get(name)),)  # type: ignore[return-value]
            case term.OperandRun(name):
                return self.operand_values(name)
            case term.Absent():
                return (None,)
            case term.App():
                (only,) = results(self.build_node(t, dtype, local, left))
                return (only,)
            case term.Pick(app, k):
                found = results(self.build_node(app, dtype, local, left))[k]
                if left:
                    self.matched[t] = found
                return (found,)
            case term.AllResults(app):
                return results(self.build_node(app, dtype, local, left))
            case term.MapTerms(body, own, over):
                each: Sequence[Result] = (
                    self.term_values(term.AllResults(over), dtype, local)
                    if isinstance(over, term.App)
                    else as_tuple(self.evaluate(over, local))
                )
                many = [(one,) if len(own) == 1 else as_tuple(one) for one in each]
                inner = [{**local, **dict(zip(own, one, strict=True))} for one in many]
                return [v for names in inner for v in self.term_values(body, dtype, names)]
            case _ if left:
                return (self._next_constant(t),)
        assert dtype is not None
        match t:
            case term.Number(v):
                return (scalar_constant(v, dtype),)
            case term.Scalar(f):
                return (scalar_constant(as_number(self.evaluate(f, local)), dtype),)
            case term.Fill(kind, args):
                return (fill_constant(kind, [self.evaluate(a, local) for a in args], dtype),)

    def _next_constant(self, t: Literal) -> Value:
        """Return the next constant of the left side, after checking it against `t`."""
        if self._constants_used >= len(self.constants):
            raise NotKnown(f"no constant is given for {printer.show(t)}")
        v = self.constants[self._constants_used]
        self._constants_used += 1
        match t:
            case term.Fill(kind, args):
                fits = is_fill(kind, v, [self.evaluate(a) for a in args])
            case term.Number(wanted):
                fits = is_number_constant(v, wanted)
            case term.Scalar(f):
                fits = is_number_constant(v, self.evaluate(f))
                if isinstance(f, term.Name):
                    self._graph_texts.setdefault(f.id, []).append(show_attr(uniform_value(v)))
        if not fits:
            raise NotKnown(f"the constant given for {printer.show(t)} differs")
        return v

    def build_node(
        self, t: term.App, default: DType | None, local: LocalBindings, left: bool
    ) -> Node:
        """Build the operator of `t`; numbers take the element type of the other operands."""
        if left and t in self.matched:
            return self.matched[t]  # type: ignore[return-value]
        some = [
            None
            if isinstance(o, Literal) and not left
            else self.term_values(o, default, local, left)
            for o in t.operands
        ]
        kinds = [v.type.dtype for one in some for v in one or () if v is not None]
        beside = next((k for k in kinds if k != BOOL), kinds[0] if kinds else default)
        values: list[Value | None] = []
        for o, one in zip(t.operands, some, strict=True):
            index = t.op.name.startswith("Gather") and len(values) == 1
            values += self.term_values(o, I64 if index else beside, local) if one is None else one
        attrs: dict[str, Attr] = {} if t.rest is None else dict(self.bindings[t.rest])  # type: ignore
        attrs |= {k: as_attribute(self.evaluate(f, local)) for k, f in t.attrs}
        if not left:
            return make_node(t.op, values, attrs)
        self.matched[t] = found = self._as_in_graph(t.op, values, attrs)
        for k, f in t.attrs:
            if isinstance(f, term.Name):
                self._graph_texts.setdefault(f.id, []).append(show_attr(found.attr(k)))
        if t.rest is not None:
            own = [k for k, _ in t.attrs]
            others = tuple(pair for pair in found.attrs if pair[0] not in own)
            self._graph_texts.setdefault(t.rest, []).append(show_attr(others))
        return found

    def _as_in_graph(self, op: Op, values: list[Value | None], attrs: dict[str, Attr]) -> Node:
        """Build the operator in the form that the graph has."""
        swaps = "commutative" in op.laws and len(values) == 2
        ways: list[Node] = []
        for given in (values, values[::-1]) if swaps else (values,):
            for said in (attrs, {k: as_stored(v) for k, v in attrs.items()}):
                ways.append(node(op, given, **said))
                if op.name in NARY_OPS:
                    ways.append(make_node(op, given, said))
        return max(ways, key=self.node_priority)  # the first of equally good ones
