"""Encode a rule as a first-order clause.

Every operator becomes a function of its operands and of all its attributes: absent ones with their
defaults, those behind `**a` as variables `a.pads` and so on. Axes count from the end, 1 is the
last, so that they agree for operands that broadcast. Runs of operands and comprehensions raise
NotExpressible.
"""

from __future__ import annotations

from dataclasses import dataclass

from superopt.ir.op import REQUIRED, Op
from superopt.rules.lang.printer import show
from superopt.rules.lang.rule import Rule
from superopt.rules.lang.syntax import Param
from superopt.rules.lang.term import (
    Absent,
    App,
    Fill,
    Formula,
    Lit,
    Name,
    Number,
    Pick,
    Scalar,
    Seq,
    Spread,
    Term,
    Unary,
    Var,
)
from superopt.verifier.axiom.formulas import (
    Formulas,
    NotExpressible,
    axes_from_end,
    comparison,
    literal,
)
from superopt.verifier.axiom.logic import (
    Clause,
    FoTerm,
    arithmetic,
    fo,
    make_tuple,
    number,
    shape,
    size_from_end,
)
from superopt.verifier.axiom.operators import (
    ATTRIBUTE_TYPED,
    AXIS_ATTRIBUTES,
    BOOLEAN_RESULTS,
    INTEGER_RESULTS,
)

MAIN_SORT, OTHER_SORT, INTEGER_SORT, BOOLEAN_SORT = "tensor", "other", "whole", "boolean"


@dataclass(slots=True)
class Encoder(Formulas):
    """The clause of one rule, encoded from left to right."""

    def encode(self) -> Clause:
        for p in self.rule.params:
            match p:
                case Param(_, _, _, True):
                    raise NotExpressible(f"a run of operands, *{p.name}")
                case Param():
                    self.named[p.name] = fo(f"?{p.name}", (), self.sort(p.kind))
        for p in self.rule.params:
            if isinstance(p, Param) and p.shape is not None:
                self.encode_shape(p)
        lhs = self.results(self.rule.lhs, len(self.rule.rhs))
        for c in self.rule.where:
            self.conditions += self.condition(c)
        rhs = self.results(self.rule.rhs, len(lhs))
        if len(lhs) != len(rhs):
            raise NotExpressible(f"{len(lhs)} results against {len(rhs)}")
        for a, b in zip(lhs, rhs, strict=True):
            if a.sort != b.sort:
                raise NotExpressible(f"{a.sort} against {b.sort}")
        return Clause(
            self.rule.name,
            tuple(c for c in self.conditions if c.fn != "true"),
            tuple(zip(lhs, rhs, strict=True)),
            tuple(self.axes.items()),
        )

    def tensor(self, t: Term) -> FoTerm:
        return self.term(t, MAIN_SORT)

    def sort(self, kind: str) -> str:
        if kind == self.main_kind:
            return MAIN_SORT
        if kind == "bool":
            return BOOLEAN_SORT
        if kind.startswith("i"):
            return INTEGER_SORT
        return OTHER_SORT + kind

    def encode_shape(self, p: Param) -> None:
        """Add the conditions and names that a parameter's declared shape implies."""
        assert p.shape is not None
        x, dims = self.named[p.name], p.shape
        s, n = shape(x), len(p.shape)
        if dims == (Seq(()),):
            dims, n = (), 0
        runs = [i for i, d in enumerate(dims) if isinstance(d, Spread)]
        if not runs:
            self.ranks[x] = n
            self.conditions.append(comparison("==", fo("len", (s,)), number(n)))
        elif n > 1:
            self.conditions.append(comparison("<=", number(n - 1), fo("len", (s,))))
        for i, d in enumerate(dims):
            if isinstance(d, Spread):
                assert isinstance(d.value, Name)
                has = s if n == 1 else fo("run", (s, number(i), number(n - 1 - i)))
                name: Formula = d.value
            else:
                front = runs and i < runs[0]
                end = arithmetic("-", fo("len", (s,)), number(i)) if front else number(n - i)
                has, name = size_from_end(s, end), d
            if isinstance(name, Name) and name.id not in self.named:
                self.named[name.id] = has
            else:
                self.conditions.append(comparison("==", has, self.formula(name)))

    def results(self, side: tuple[Term, ...], count: int) -> tuple[FoTerm, ...]:
        if len(side) == 1 and count > 1:
            whole = self.term(side[0], MAIN_SORT)
            return tuple(fo(f"[{i}]", (whole,), whole.sort) for i in range(count))
        return tuple(self.term(t, MAIN_SORT) for t in side)

    def term(self, t: Term, sort: str) -> FoTerm:
        """Encode `t`; `sort` is the sort of its siblings, for numbers."""
        match t:
            case Var(n):
                return self.named[n]
            case Number(v):
                return fo(f"#{v:g}" if v == int(v) else f"#{v!r}", (), sort)
            case Scalar(v):
                return fo("lit", (self.formula(v),), sort)
            case Fill("zeros" | "ones" as kind, (sizes, *_)):
                one = fo("#0" if kind == "zeros" else "#1", (), sort)
                return fo("Expand", (one, self.formula(sizes)), sort)
            case Fill(kind, args):
                return fo(kind, tuple(self.formula(a) for a in args), sort)
            case Absent():
                return fo("None", (), sort)
            case Pick(app, i):
                whole = self.term(app, sort)
                return fo(f"[{i}]", (whole,), whole.sort)
            case App(op, operands, attrs, rest):
                return self.app(op, operands, dict(attrs), rest, sort)
            case _:
                raise NotExpressible(f"a run of operands, {show(t)}")

    def app(
        self,
        op: Op,
        operands: tuple[Term, ...],
        attrs: dict[str, Formula],
        rest: str | None,
        sort: str,
    ) -> FoTerm:
        fixed = (Number, Scalar, Fill, Absent)
        plain = [self.term(t, sort) for t in operands if not isinstance(t, fixed)]
        common = next((p.sort for p in plain if p.sort != BOOLEAN_SORT), sort)
        given = tuple(self.term(t, common) for t in operands)
        values = []
        for name, default in op.attrs.items():
            if name in attrs:
                values.append(self.attribute(op, name, attrs[name], given))
            elif rest is not None:
                values.append(fo(f"?{rest}.{name}"))
            elif default is REQUIRED:
                raise NotExpressible(f"{op.name} without {name}")
            elif AXIS_ATTRIBUTES.get(op.name) == name and given and isinstance(default, int):
                values.append(self.axis_from_end(Lit(default), self.rank(given[0])))
            else:
                values.append(literal(default))
        return fo(op.name, (*given, *values), self.result_sort(op, given))

    def attribute(self, op: Op, name: str, f: Formula, given: tuple[FoTerm, ...]) -> FoTerm:
        """Encode an attribute; axes count from the end."""
        if AXIS_ATTRIBUTES.get(op.name) != name or not given:
            return self.formula(f)
        rank = self.rank(given[0])
        match f:
            case Lit(None):
                return self.formula(f)
            case Seq(items):
                if op.name == "Unsqueeze":
                    rank = arithmetic("+", rank, number(len(items)))
                return make_tuple(self.axis_from_end(i, rank) for i in items)
            case Name(n) if name == "axes":
                if op.name == "Unsqueeze":
                    rank = fo("unsqueezed", (rank, fo("?" + n)))
                found = self.named.get(n)
                if found is None:
                    found = self.named[n] = fo("front", (rank, fo("?" + n)))
                return axes_from_end(rank, found)
            case _ if name == "axes":
                return axes_from_end(rank, self.formula(f))
            case _:
                return self.axis_from_end(f, rank)

    def axis_from_end(self, f: Formula, rank: FoTerm) -> FoTerm:
        """Encode an axis, counted from the end."""
        match f:
            case Lit(int(v)) if v < 0:
                return number(-v)
            case Unary():
                raise NotExpressible(f"the axis {show(f)}")
            case Name(n) if n not in self.named:
                e = fo("?" + n)
                self.named[n] = arithmetic("-", rank, e)
                self.axes[e] = rank
                return e
            case _:
                return arithmetic("-", rank, self.formula(f))

    def result_sort(self, op: Op, given: tuple[FoTerm, ...]) -> str:
        if op.name in BOOLEAN_RESULTS:
            return BOOLEAN_SORT
        if op.name in INTEGER_RESULTS:
            return INTEGER_SORT
        if op.name in ATTRIBUTE_TYPED:
            raise NotExpressible(f"the type of {op.name}")
        if op.name == "Where":
            return given[1].sort
        return given[0].sort if given else MAIN_SORT


def encode_rule(rule: Rule) -> Clause:
    """Return `rule` as a clause. Raises NotExpressible."""
    kinds = [p.kind for p in rule.params if isinstance(p, Param)]
    main = next((k for k in kinds if not k.startswith(("i", "bool"))), "")
    if not main:
        main = next((k for k in kinds if k != "bool"), "f")
    return Encoder(rule, main).encode()
