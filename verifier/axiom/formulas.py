"""Formulas of rules, sizes, attributes and conditions as first-order terms."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from superopt.rules.rule import Rule
from superopt.rules.term import (
    App,
    At,
    Binary,
    Call,
    Compare,
    Cut,
    Formula,
    If,
    Lit,
    Logic,
    Name,
    Of,
    Pick,
    Seq,
    Spread,
    Term,
    Unary,
    show,
)
from superopt.verifier.axiom.logic import (
    TRUTH,
    Fo,
    arithmetic,
    back,
    fo,
    is_number,
    joined,
    number,
    shape,
    tupled,
)
from superopt.verifier.axiom.operators import BROADCASTS, KEEPS_RANK, REDUCTIONS, SEQUENCES

# Conditions about when a rule is worth applying, which do not affect equality.
IDLE = frozenset(("const", "single_use"))


class Unsaid(Exception):
    """The rule is not expressible as a first-order clause."""


@dataclass(slots=True)
class Formulas:
    """The terms that a rule's names stand for. main_kind: the parameter kind of the main sort."""

    rule: Rule
    main: str
    known: dict[str, Fo] = field(default_factory=dict)
    ranks: dict[Fo, int] = field(default_factory=dict)
    conditions: list[Fo] = field(default_factory=list)
    axes: dict[Fo, Fo] = field(default_factory=dict)

    def tensor(self, t: Term) -> Fo:
        """Encode a term inside a formula."""
        raise NotImplementedError

    def rank(self, t: Fo) -> Fo:
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

    def formula(self, f: Formula) -> Fo:
        match f:
            case Lit(v):
                return literal(v)
            case Name(n):
                return self.known.setdefault(n, fo(f"?{n}"))
            case Of(t):
                return self.tensor(t)
            case Seq(items):
                return self.sequence(items)
            case Spread(v):
                return self.formula(v)
            case Call("size", (t, Lit(int(i)))) if i < 0:
                return back(shape(self.formula(t)), number(-i))
            case Call("size", (t, i)):
                x = self.formula(t)
                return back(shape(x), arithmetic("-", self.rank(x), self.formula(i)))
            case Call("shape", (t,)):
                x = self.formula(t)
                r = self.ranks.get(x)
                if r is None:
                    return shape(x)
                return tupled(back(shape(x), number(r - i)) for i in range(r))
            case Call("rank", (t,)):
                return self.rank(self.formula(t))
            case Call("len", (t,)):
                some = self.formula(t)
                some = some.args[1] if some.fn == "front" else some
                return number(len(some.args)) if some.fn == "tuple" else fo("len", (some,))
            case Call("numel", (t,)):
                return fo("prod", (shape(self.formula(t)),))
            case Call(fn, args):
                return fo(fn, tuple(self.formula(a) for a in args))
            case Unary("-", v):
                return arithmetic("-", number(0), self.formula(v))
            case Binary("+", a, b) if self.tuples(a) or self.tuples(b):
                return joined((self.formula(a), self.formula(b)))
            case Binary("*", a, b) if self.tuples(a) or self.tuples(b):
                return fo("repeat", (self.formula(a), self.formula(b)))
            case Binary(op, a, b):
                return arithmetic(op, self.formula(a), self.formula(b))
            case At(v, i):
                return item(self.formula(v), self.formula(i))
            case Cut(v, start, stop, step):
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
                raise Unsaid(f"the formula {show(f)}")

    def sequence(self, items: tuple[Formula, ...]) -> Fo:
        parts: list[Fo] = []
        one: list[Fo] = []
        for i in items:
            if isinstance(i, Spread):
                parts += [tupled(one), self.formula(i.value)]
                one = []
            else:
                one.append(self.formula(i))
        return joined((*parts, tupled(one)))

    def tuples(self, f: Formula) -> bool:
        """True if `f` is recognizably a tuple."""
        match f:
            case Seq() | Cut():
                return True
            case Name(n):
                t = self.known.get(n)
                return (
                    t is not None and t.fn in ("run", "shape", "front")
                ) or n in self.sequences()
            case Binary("+" | "*", a, b):
                return self.tuples(a) or self.tuples(b)
            case Call("shape" | "permute" | "inverse" | "range" | "drop" | "replace" | "insert", _):
                return True
            case _:
                return False

    def sequences(self) -> frozenset[str]:
        """Return the names that stand for tuples: tuple attributes."""
        found = set()
        left: list[Term] = [*self.rule.lhs, *self.rule.rhs]
        while left:
            match left.pop():
                case App(_, operands, attrs):
                    left += operands
                    found |= {v.id for k, v in attrs if isinstance(v, Name) and k in SEQUENCES}
                case Pick(app, _):
                    left.append(app)
                case _:
                    pass
        return frozenset(found)

    def condition(self, f: Formula) -> list[Fo]:
        match f:
            case Call(fn, _) if fn in IDLE:
                return []
            case Logic("and", parts):
                return [c for p in parts for c in self.condition(p)]
            case Logic("or", parts):
                some = [self.condition(p) for p in parts]
                return [fo("or", tuple(conjunction(s) for s in some), TRUTH)]
            case Unary("not", v):
                return [fo("not", (conjunction(self.condition(v)),), TRUTH)]
            case Compare(first, rest):
                out = []
                a = self.formula(first)
                for op, other in rest:
                    b = self.formula(other)
                    out.append(compared(op, a, b))
                    a = b
                return out
            case Call(fn, args):
                return [fo(fn + "?", tuple(self.formula(a) for a in args), TRUTH)]
            case _:
                raise Unsaid(f"the condition {show(f)}")


def item(some: Fo, place: Fo) -> Fo:
    """Return `some[index]`."""
    if some.fn == "tuple" and is_number(place) and 0 <= int(place.fn) < len(some.args):
        return some.args[int(place.fn)]
    if some.fn == "front":
        return arithmetic("-", some.args[0], fo("at", (some.args[1], place)))
    return fo("at", (some, place))


def turned(rank: Fo, axes: Fo) -> Fo:
    """Return axes counted from the end, given axes of a tensor of this rank counted from the
    front."""
    if axes.fn == "front" and axes.args[0] is rank:
        return axes.args[1]
    if axes.fn == "tuple":
        return tupled(arithmetic("-", rank, a) for a in axes.args)
    return fo("end", (rank, axes))


def conjunction(some: Iterable[Fo]) -> Fo:
    some = tuple(some)
    return some[0] if len(some) == 1 else fo("and", some, TRUTH)


def compared(op: str, a: Fo, b: Fo) -> Fo:
    """Return a comparison in canonical form."""
    match op:
        case ">":
            return compared("<", b, a)
        case ">=":
            return compared("<=", b, a)
        case "!=":
            return fo("not", (compared("==", a, b),), TRUTH)
        case "not in":
            return fo("not", (compared("in", a, b),), TRUTH)
        case "in" if b.fn == "tuple":
            return fo("or", tuple(compared("==", a, x) for x in b.args), TRUTH)
        case "in" if b.fn == "front":  # both from the end, of one tensor
            return fo("in", (arithmetic("-", b.args[0], a), b.args[1]), TRUTH)
        case _:
            return fo(op, (a, b), TRUTH)


def literal(v: object) -> Fo:
    """Return a literal value."""
    if isinstance(v, int):
        return number(int(v))
    if isinstance(v, (tuple, list)):
        return tupled(literal(i) for i in v)
    return fo(f"'{v}'")
