"""Formulas of rules, sizes, attributes and conditions as first-order terms."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from superopt.rules.lang.printer import show
from superopt.rules.lang.rule import Rule
from superopt.rules.lang.term import (
    App,
    Binary,
    Call,
    Compare,
    Formula,
    If,
    Lit,
    Logic,
    Name,
    Pick,
    Seq,
    Slice,
    Spread,
    Subscript,
    Term,
    TermValue,
    Unary,
)
from superopt.verifier.axiom.logic import (
    TRUTH_SORT,
    FoTerm,
    arithmetic,
    fo,
    is_number,
    join_tuples,
    make_tuple,
    number,
    shape,
    size_from_end,
)
from superopt.verifier.axiom.operators import BROADCASTS, KEEPS_RANK, REDUCTIONS, TUPLE_ATTRIBUTES

# Conditions about when a rule is worth applying, which do not affect equality.
IGNORED_CONDITIONS = frozenset(("const", "single_use"))


class NotExpressible(Exception):
    """The rule is not expressible as a first-order clause."""


@dataclass(slots=True)
class Formulas:
    """The terms that a rule's names stand for. main_kind: the parameter kind of the main sort."""

    rule: Rule
    main_kind: str
    named: dict[str, FoTerm] = field(default_factory=dict)
    ranks: dict[FoTerm, int] = field(default_factory=dict)
    conditions: list[FoTerm] = field(default_factory=list)
    axes: dict[FoTerm, FoTerm] = field(default_factory=dict)

    def tensor(self, t: Term) -> FoTerm:
        """Encode a term inside a formula."""
        raise NotImplementedError

    def rank(self, t: FoTerm) -> FoTerm:
        """Return the rank of a term, simplified if its operator keeps the rank of its first
        operand."""
        while t.fn in KEEPS_RANK or t.fn.startswith("["):
            if t.fn == "Transpose" and t.args[1].fn == "tuple":
                return number(len(t.args[1].args))
            t = t.args[0]
        if t in self.ranks:
            return number(self.ranks[t])
        if t.fn.startswith("#") or t.fn == "lit":
            return number(0)
        if t.fn in BROADCASTS and len(t.args) >= 2:
            a, b = (self.rank(x) for x in t.args[:2])
            if a is b or b is number(0):
                return a
            if a is number(0):
                return b
            if is_number(a) and is_number(b):
                return a if int(a.fn) > int(b.fn) else b
        if t.fn in ("Expand", "Reshape") and t.args[1].fn == "tuple":
            n = len(t.args[1].args)
            if t.fn == "Reshape" or self.rank(t.args[0]) is number(0):
                return number(n)
        if t.fn in REDUCTIONS and t.args[2] is number(1):
            return self.rank(t.args[0])
        if t.fn == "Unsqueeze" and t.args[1].fn == "tuple":
            return arithmetic("+", self.rank(t.args[0]), number(len(t.args[1].args)))
        return fo("len", (shape(t),))

    def formula(self, f: Formula) -> FoTerm:
        match f:
            case Lit(v):
                return literal(v)
            case Name(n):
                return self.named.setdefault(n, fo(f"?{n}"))
            case TermValue(t):
                return self.tensor(t)
            case Seq(items):
                return self.sequence(items)
            case Spread(v):
                return self.formula(v)
            case Call(fn, args):
                return self.call(fn, args)
            case Unary("-", v):
                return arithmetic("-", number(0), self.formula(v))
            case Binary(op, a, b):
                return self.binary(op, a, b)
            case Subscript(v, i):
                return item(self.formula(v), self.formula(i))
            case Slice(v, start, stop, step):
                ends = [
                    literal(None) if e is None else self.formula(e) for e in (start, stop, step)
                ]
                return fo("cut", (self.formula(v), *ends))
            case If(test, yes, no):
                test_ = conjunction(self.condition(test))
                return fo("if", (test_, self.formula(yes), self.formula(no)))
            case Compare() | Logic() | Unary():
                return conjunction(self.condition(f))
            case _:
                raise NotExpressible(f"the formula {show(f)}")

    def call(self, fn: str, args: tuple[Formula, ...]) -> FoTerm:
        match fn, args:
            case "size", (t, Lit(int(i))) if i < 0:
                return size_from_end(shape(self.formula(t)), number(-i))
            case "size", (t, i):
                x = self.formula(t)
                return size_from_end(shape(x), arithmetic("-", self.rank(x), self.formula(i)))
            case "shape", (t,):
                x = self.formula(t)
                r = self.ranks.get(x)
                if r is None:
                    return shape(x)
                return make_tuple(size_from_end(shape(x), number(r - i)) for i in range(r))
            case "rank", (t,):
                return self.rank(self.formula(t))
            case "len", (t,):
                x = self.formula(t)
                x = x.args[1] if x.fn == "front" else x
                return number(len(x.args)) if x.fn == "tuple" else fo("len", (x,))
            case "numel", (t,):
                return fo("prod", (shape(self.formula(t)),))
            case _:
                return fo(fn, tuple(self.formula(a) for a in args))

    def binary(self, op: str, a: Formula, b: Formula) -> FoTerm:
        is_tuple = op in ("+", "*") and (self.is_tuple(a) or self.is_tuple(b))
        x, y = self.formula(a), self.formula(b)
        if not is_tuple:
            return arithmetic(op, x, y)
        return join_tuples((x, y)) if op == "+" else fo("repeat", (x, y))

    def sequence(self, items: tuple[Formula, ...]) -> FoTerm:
        parts: list[FoTerm] = []
        one: list[FoTerm] = []
        for i in items:
            if isinstance(i, Spread):
                parts += [make_tuple(one), self.formula(i.value)]
                one = []
            else:
                one.append(self.formula(i))
        return join_tuples((*parts, make_tuple(one)))

    def is_tuple(self, f: Formula) -> bool:
        """True if `f` is recognizably a tuple."""
        match f:
            case Seq() | Slice():
                return True
            case Name(n):
                t = self.named.get(n)
                return (
                    t is not None and t.fn in ("run", "shape", "front")
                ) or n in self.tuple_names()
            case Binary("+" | "*", a, b):
                return self.is_tuple(a) or self.is_tuple(b)
            case Call("shape" | "permute" | "inverse" | "range" | "drop" | "replace" | "insert", _):
                return True
            case _:
                return False

    def tuple_names(self) -> frozenset[str]:
        """Return the names that stand for tuples: tuple attributes."""
        found = set()
        left: list[Term] = [*self.rule.lhs, *self.rule.rhs]
        while left:
            match left.pop():
                case App(_, operands, attrs):
                    left += operands
                    found |= {
                        v.id for k, v in attrs if isinstance(v, Name) and k in TUPLE_ATTRIBUTES
                    }
                case Pick(app, _):
                    left.append(app)
                case _:
                    pass
        return frozenset(found)

    def condition(self, f: Formula) -> list[FoTerm]:
        match f:
            case Call(fn, _) if fn in IGNORED_CONDITIONS:
                return []
            case Logic("and", parts):
                return [c for p in parts for c in self.condition(p)]
            case Logic("or", parts):
                cases = [self.condition(p) for p in parts]
                return [fo("or", tuple(conjunction(s) for s in cases), TRUTH_SORT)]
            case Unary("not", v):
                return [fo("not", (conjunction(self.condition(v)),), TRUTH_SORT)]
            case Compare(first, rest):
                out = []
                a = self.formula(first)
                for op, other in rest:
                    b = self.formula(other)
                    out.append(comparison(op, a, b))
                    a = b
                return out
            case Call(fn, args):
                return [fo(fn + "?", tuple(self.formula(a) for a in args), TRUTH_SORT)]
            case _:
                raise NotExpressible(f"the condition {show(f)}")


def item(items: FoTerm, index: FoTerm) -> FoTerm:
    """Return `some[index]`."""
    if items.fn == "tuple" and is_number(index) and 0 <= int(index.fn) < len(items.args):
        return items.args[int(index.fn)]
    if items.fn == "front":
        return arithmetic("-", items.args[0], fo("at", (items.args[1], index)))
    return fo("at", (items, index))


def axes_from_end(rank: FoTerm, axes: FoTerm) -> FoTerm:
    """Return axes counted from the end, given axes of a tensor of this rank counted from the
    front."""
    if axes.fn == "front" and axes.args[0] is rank:
        return axes.args[1]
    if axes.fn == "tuple":
        return make_tuple(arithmetic("-", rank, a) for a in axes.args)
    return fo("end", (rank, axes))


def conjunction(terms: Iterable[FoTerm]) -> FoTerm:
    terms = tuple(terms)
    return terms[0] if len(terms) == 1 else fo("and", terms, TRUTH_SORT)


def comparison(op: str, a: FoTerm, b: FoTerm) -> FoTerm:
    """Return a comparison in canonical form."""
    match op:
        case ">":
            return comparison("<", b, a)
        case ">=":
            return comparison("<=", b, a)
        case "!=":
            return fo("not", (comparison("==", a, b),), TRUTH_SORT)
        case "not in":
            return fo("not", (comparison("in", a, b),), TRUTH_SORT)
        case "in" if b.fn == "tuple":
            return fo("or", tuple(comparison("==", a, x) for x in b.args), TRUTH_SORT)
        case "in" if b.fn == "front":  # both from the end, of one tensor
            return fo("in", (arithmetic("-", b.args[0], a), b.args[1]), TRUTH_SORT)
        case _:
            return fo(op, (a, b), TRUTH_SORT)


def literal(v: object) -> FoTerm:
    """Return a literal value."""
    if isinstance(v, int):
        return number(int(v))
    if isinstance(v, (tuple, list)):
        return make_tuple(literal(i) for i in v)
    return fo(f"'{v}'")
