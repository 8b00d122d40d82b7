"""A rule as a first-order clause.

Every operator becomes a function of its operands and of ALL its attributes, those left out with
their default values, those behind `**a` as variables `a.pads` and so on. Axes are counted from the
end, 1 the last one: so they are the same for operands that broadcast. What cannot be said so (runs
of operands, comprehensions) raises Unsaid.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from superopt.ir.op import REQUIRED, Op
from superopt.rules.rule import Rule
from superopt.rules.syntax import AttrParam, Param
from superopt.rules.term import (
    Absent,
    App,
    At,
    Binary,
    Call,
    Compare,
    Cut,
    Filled,
    Formula,
    If,
    Lit,
    Logic,
    Name,
    Number,
    Of,
    Pick,
    Scalar,
    Seq,
    Spread,
    Term,
    Unary,
    Var,
    show,
)
from superopt.verifier.axiom.logic import (
    TRUTH,
    Clause,
    Fo,
    arithmetic,
    back,
    fo,
    is_number,
    joined,
    number,
    shape,
    tupled,
    variable,
)


class Unsaid(Exception):
    """The rule says something that first-order clauses here do not."""


MAIN, OTHER, WHOLE, BOOLEAN = "tensor", "other", "whole", "boolean"
BOOLEAN_RESULTS = frozenset(
    "Equal Less Greater LessOrEqual GreaterOrEqual And Or Not Xor IsNaN IsInf".split()
)
WHOLE_RESULTS = frozenset("ArgMax ArgMin Shape Size".split())
KEEPS_SHAPE = frozenset(
    "Relu Softplus Softsign Mish HardSwish LeakyRelu Elu Selu Celu ThresholdedRelu HardSigmoid Gelu "
    "Swish Shrink Abs Neg Sign Floor Ceil Round Sqrt Exp Log Sin Cos Tan Asin Acos Atan Sinh Cosh "
    "Tanh Asinh Acosh Atanh Erf Sigmoid Reciprocal Identity Dropout Not Softmax LogSoftmax "
    "LayerNormalization RMSNormalization BatchNormalization InstanceNormalization "
    "GroupNormalization MeanVarianceNormalization LpNormalization LRN CumSum CumProd Hardmax".split()
)
KEEPS_RANK = KEEPS_SHAPE | frozenset(
    "Transpose Concat Slice Pad Split Tile Conv ConvTranspose AveragePool MaxPool LpPool "
    "GlobalAveragePool GlobalMaxPool GlobalLpPool Trilu ReverseSequence".split()
)
BROADCASTS = frozenset(
    "Add Sub Mul Div Pow Equal Less LessOrEqual Greater GreaterOrEqual And Or Xor Mod "
    "Max Min".split()
)
REDUCTIONS = frozenset(
    "ReduceSum ReduceMean ReduceProd ReduceMax ReduceMin ReduceL1 ReduceL2 ReduceLogSum "
    "ReduceLogSumExp ReduceSumSquare".split()
)
UNTYPED = frozenset("Cast OneHot QuantizeLinear DequantizeLinear CastLike BitCast".split())
# Attributes that name axes of the first operand.
AXES = {
    op: name
    for name, ops in {
        "axis": "Concat Split Softmax LogSoftmax LayerNormalization RMSNormalization LpNormalization "
        "Gather GatherElements ScatterElements CumSum CumProd ArgMax ArgMin Hardmax Flatten",
        "axes": "Slice Squeeze Unsqueeze " + " ".join(sorted(REDUCTIONS)),
    }.items()
    for op in ops.split()
}
SEQUENCES = frozenset(
    "axes perm shape pads strides kernel_shape dilations split starts ends steps repeats "
    "sizes output_shape output_padding scales".split()
)
# What says when a rule is worth applying, and nothing of what is equal.
IDLE = frozenset(("const", "single_use"))


@dataclass(slots=True)
class Encoder:
    rule: Rule
    main: str  # the kind of parameter that is of the main sort
    known: dict[str, Fo] = field(default_factory=dict)
    ranks: dict[Fo, int] = field(default_factory=dict)
    conditions: list[Fo] = field(default_factory=list)
    axes: dict[Fo, Fo] = field(default_factory=dict)

    def clause(self) -> Clause:
        for p in self.rule.params:
            match p:
                case Param(_, _, _, True):
                    raise Unsaid(f"a run of operands, *{p.name}")
                case Param():
                    self.known[p.name] = fo(f"?{p.name}", (), self.sort(p.kind))
        for p in self.rule.params:
            if isinstance(p, Param) and p.shape is not None:
                self.shaped(p)
        lhs = self.results(self.rule.lhs, len(self.rule.rhs))
        for c in self.rule.where:
            self.conditions += self.condition(c)
        rhs = self.results(self.rule.rhs, len(lhs))
        if len(lhs) != len(rhs):
            raise Unsaid(f"{len(lhs)} results against {len(rhs)}")
        for a, b in zip(lhs, rhs, strict=True):
            if a.sort != b.sort:
                raise Unsaid(f"{a.sort} against {b.sort}")
        return Clause(
            self.rule.name,
            tuple(c for c in self.conditions if c.fn != "true"),
            tuple(zip(lhs, rhs, strict=True)),
            tuple(self.axes.items()),
        )

    def sort(self, kind: str) -> str:
        if kind == self.main:
            return MAIN
        if kind == "bool":
            return BOOLEAN
        if kind.startswith("i"):
            return WHOLE
        return OTHER + kind

    # --- parameters ---

    def shaped(self, p: Param) -> None:
        """What the sizes of a parameter say of its shape, and what they name."""
        assert p.shape is not None
        x, dims = self.known[p.name], p.shape
        s, n = shape(x), len(p.shape)
        if dims == (Seq(()),):
            dims, n = (), 0
        runs = [i for i, d in enumerate(dims) if isinstance(d, Spread)]
        if not runs:
            self.ranks[x] = n
            self.conditions.append(compared("==", fo("len", (s,)), number(n)))
        elif n > 1:
            self.conditions.append(compared("<=", number(n - 1), fo("len", (s,))))
        for i, d in enumerate(dims):
            if isinstance(d, Spread):
                assert isinstance(d.value, Name)
                has = s if n == 1 else fo("run", (s, number(i), number(n - 1 - i)))
                name: Formula = d.value
            else:
                front = runs and i < runs[0]
                end = arithmetic("-", fo("len", (s,)), number(i)) if front else number(n - i)
                has, name = back(s, end), d
            if isinstance(name, Name) and name.id not in self.known:
                self.known[name.id] = has
            else:
                self.conditions.append(compared("==", has, self.formula(name)))

    # --- terms ---

    def results(self, side: tuple[Term, ...], count: int) -> tuple[Fo, ...]:
        if len(side) == 1 and count > 1:
            whole = self.term(side[0], MAIN)
            return tuple(fo(f"[{i}]", (whole,), whole.sort) for i in range(count))
        return tuple(self.term(t, MAIN) for t in side)

    def term(self, t: Term, sort: str) -> Fo:
        """`t`; `sort` is that of its siblings, for numbers."""
        match t:
            case Var(n):
                return self.known[n]
            case Number(v):
                return fo(f"#{v:g}" if v == int(v) else f"#{v!r}", (), sort)
            case Scalar(v):
                return fo("lit", (self.formula(v),), sort)
            case Filled("zeros" | "ones" as kind, (sizes, *_)):
                one = fo("#0" if kind == "zeros" else "#1", (), sort)
                return fo("Expand", (one, self.formula(sizes)), sort)
            case Filled(kind, args):
                return fo(kind, tuple(self.formula(a) for a in args), sort)
            case Absent():
                return fo("None", (), sort)
            case Pick(app, i):
                whole = self.term(app, sort)
                return fo(f"[{i}]", (whole,), whole.sort)
            case App(op, operands, attrs, rest):
                return self.app(op, operands, dict(attrs), rest, sort)
            case _:
                raise Unsaid(f"a run of operands, {show(t)}")

    def app(
        self,
        op: Op,
        operands: tuple[Term, ...],
        attrs: dict[str, Formula],
        rest: str | None,
        sort: str,
    ) -> Fo:
        fixed = (Number, Scalar, Filled, Absent)
        plain = [self.term(t, sort) for t in operands if not isinstance(t, fixed)]
        common = next((p.sort for p in plain if p.sort != BOOLEAN), sort)
        given = tuple(self.term(t, common) for t in operands)
        values = []
        for name, default in op.attrs.items():
            if name in attrs:
                values.append(self.attribute(op, name, attrs[name], given))
            elif rest is not None:
                values.append(fo(f"?{rest}.{name}"))
            elif default is REQUIRED:
                raise Unsaid(f"{op.name} without {name}")
            else:
                values.append(self.attribute(op, name, Lit(default), given))
        return fo(op.name, (*given, *values), self.result(op, given))

    def attribute(self, op: Op, name: str, f: Formula, given: tuple[Fo, ...]) -> Fo:
        """An attribute; axes from the end."""
        if AXES.get(op.name) != name or not given:
            return self.formula(f)
        if isinstance(f, Lit) and isinstance(f.value, tuple):
            f = Seq(tuple(Lit(v) for v in f.value))
        rank = self.rank(given[0])
        match f:
            case Lit(None):
                return self.formula(f)
            case Seq(items):
                if op.name == "Unsqueeze":
                    rank = arithmetic("+", rank, number(len(items)))
                return tupled(self.end(i, rank) for i in items)
            case Name(n) if name == "axes":
                if op.name == "Unsqueeze":
                    rank = fo("unsqueezed", (rank, fo("?" + n)))
                found = self.known.get(n)
                if found is None:
                    found = self.known[n] = fo("front", (rank, fo("?" + n)))
                return turned(rank, found)
            case _ if name == "axes":
                return turned(rank, self.formula(f))
            case _:
                return self.end(f, rank)

    def end(self, f: Formula, rank: Fo) -> Fo:
        """An axis, counted from the end."""
        match f:
            case Lit(int(v)) if v < 0:
                return number(-v)
            case Unary():
                raise Unsaid(f"the axis {show(f)}")
            case Name(n) if n not in self.known:
                e = fo("?" + n)
                self.known[n] = arithmetic("-", rank, e)
                self.axes[e] = rank
                return e
            case _:
                return arithmetic("-", rank, self.formula(f))

    def rank(self, t: Fo) -> Fo:
        """The rank of a term, simplified where its operator keeps that of its first operand."""
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

    def result(self, op: Op, given: tuple[Fo, ...]) -> str:
        if op.name in BOOLEAN_RESULTS:
            return BOOLEAN
        if op.name in WHOLE_RESULTS:
            return WHOLE
        if op.name in UNTYPED:
            raise Unsaid(f"the type of {op.name}")
        if op.name == "Where":
            return given[1].sort
        return given[0].sort if given else MAIN

    # --- formulas ---

    def formula(self, f: Formula) -> Fo:
        match f:
            case Lit(v):
                return literal(v)
            case Name(n):
                return self.known.setdefault(n, fo(f"?{n}"))
            case Of(t):
                return self.term(t, MAIN)
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
                v = self.formula(t)
                v = v.args[1] if v.fn == "front" else v
                return number(len(v.args)) if v.fn == "tuple" else fo("len", (v,))
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
            case At(v, Lit(int(i))) if (t := self.formula(v)).fn == "tuple" and i < len(t.args):
                return t.args[i]
            case At(v, i):
                t = self.formula(v)
                if t.fn == "front":
                    there = fo("at", (t.args[1], self.formula(i)))
                    return arithmetic("-", t.args[0], there)
                return fo("at", (t, self.formula(i)))
            case Cut(v, start, stop, step):
                ends = [literal(None) if e is None else self.formula(e) for e in (start, stop, step)]
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
        """Is `f` a tuple, as far as can be seen?"""
        match f:
            case Seq() | Cut():
                return True
            case Name(n):
                t = self.known.get(n)
                return (t is not None and t.fn in ("run", "shape", "front")) or n in self.sequences()
            case Binary("+" | "*", a, b):
                return self.tuples(a) or self.tuples(b)
            case Call("shape" | "permute" | "inverse" | "range" | "drop" | "replace" | "insert", _):
                return True
            case _:
                return False

    def sequences(self) -> frozenset[str]:
        """Names that stand for tuples: attributes that are."""
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


def turned(rank: Fo, axes: Fo) -> Fo:
    """Axes of a tensor of this rank, counted from the end, of axes counted from the front."""
    if axes.fn == "front" and axes.args[0] is rank:
        return axes.args[1]
    if axes.fn == "tuple":
        return tupled(arithmetic("-", rank, a) for a in axes.args)
    return fo("end", (rank, axes))


def conjunction(some: Iterable[Fo]) -> Fo:
    some = tuple(some)
    return some[0] if len(some) == 1 else fo("and", some, TRUTH)


def compared(op: str, a: Fo, b: Fo) -> Fo:
    """A comparison, both sides without what they have in common."""
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
    """A value as written."""
    if isinstance(v, int):
        return number(int(v))
    if isinstance(v, (tuple, list)):
        return tupled(literal(i) for i in v)
    return fo(f"'{v}'")


def clause(rule: Rule) -> Clause:
    """`rule` as a clause. Raises Unsaid."""
    kinds = [p.kind for p in rule.params if isinstance(p, Param)]
    main = next((k for k in kinds if not k.startswith(("i", "bool"))), "")
    if not main:
        main = next((k for k in kinds if k != "bool"), "f")
    return Encoder(rule, main).clause()
