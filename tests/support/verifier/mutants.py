"""Rules with one thing changed: most of them are wrong. For tests, and scripts/verify_rules.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from superopt.ops import OPS
from superopt.rules.lang.rule import Rule
from superopt.rules.lang.syntax import Param
from superopt.rules.lang.term import (
    App,
    Binary,
    Call,
    Fill,
    Formula,
    Lit,
    Name,
    Number,
    Part,
    Pick,
    Scalar,
    Seq,
    Spread,
    Subscript,
    Term,
    Var,
    rebuild,
    walk,
)

KINDS = ("attribute", "operand", "operator", "axis", "size", "condition")
AXES = ("axis", "axes", "perm")
SIZES = ("shape", "split", "starts", "ends", "kernel_shape", "repeats", "scales", "blocksize")
KIN = (
    ("Add", "Sub", "Mul", "Div", "Max", "Min"),
    ("Relu", "Tanh", "Sigmoid", "Exp", "Neg", "Erf", "Sqrt", "Abs", "Identity"),
    ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1"),
    ("GlobalAveragePool", "GlobalMaxPool"),
    ("MaxPool", "AveragePool"),
    ("Softmax", "LogSoftmax"),
    ("Less", "LessOrEqual", "Greater", "GreaterOrEqual"),
    ("And", "Or", "Xor"),
)
FILLS = ("zeros", "ones", "eye")
LITERALS: dict[str, tuple[tuple[int, ...], ...]] = {
    "axes": ((0,), (1,), (-1,)),
    "perm": ((1, 0), (0, 2, 1), (2, 0, 1)),
    "split": ((1, 1),),
    "shape": ((-1,), (1, -1)),
    "starts": ((0,), (1,)),
    "ends": ((1,), (2,)),
    "steps": ((1,), (2,), (-1,)),
}


def mutants(rule: Rule) -> Iterator[Rule]:
    """Each with one operator, operand, operand order, attribute, size or number of the right side
    changed, or without one of its conditions."""
    for _, mutant in by_kind(rule):
        yield mutant


def by_kind(rule: Rule) -> Iterator[tuple[str, Rule]]:
    """The mutants of a rule, each with what is changed in it: one of KINDS."""
    seen = {rule.rhs}
    for n, side in enumerate(rule.rhs):
        for part in dict.fromkeys(walk(side)):
            for kind, other in _changed(part, rule):
                new = tuple(_once(t, part, other) if k == n else t for k, t in enumerate(rule.rhs))
                if new not in seen:
                    seen.add(new)
                    name = f"{rule.name}!{len(seen) - 1}"
                    yield kind, replace(rule, name=name, rhs=new, float_class="E3", text="")
    for n in range(len(rule.where)):
        fewer = rule.where[:n] + rule.where[n + 1 :]
        name = f"{rule.name}!{len(seen) + n}"
        yield "condition", replace(rule, name=name, where=fewer, float_class="E3", text="")


def _once(side: Term, part: Part, other: Part) -> Term:
    """`side` with the first occurrence of a part replaced."""
    done = False

    def change(p: Part) -> Part | None:
        nonlocal done
        if not done and p == part:
            done = True
            return other
        return None

    return rebuild(side, change)


def _changed(part: Part, rule: Rule) -> Iterator[tuple[str, Part]]:
    match part:
        case App():
            yield from _changed_app(part, rule)
        case Pick(app, index):
            yield "operand", Pick(app, 1 - index)
        case Var(name):
            yield "operator", App(OPS["Neg"], (part,), (), None)
            for p in rule.params:
                if isinstance(p, Param) and p.name != name and not p.is_run:
                    yield "operand", Var(p.name)
        case Number(v):
            yield "operand", Number(v + 1)
        case Scalar(f):
            yield "operand", Scalar(Binary("+", f, Lit(1)))
        case Fill(fill, args):
            for other in FILLS:
                if fill in FILLS and other != fill:
                    yield "operand", Fill(other, args)
            yield "size", Fill(fill, (_more(args[0]), *args[1:]))


def _changed_app(t: App, rule: Rule) -> Iterator[tuple[str, Part]]:
    for name in dict.fromkeys(n for kin in KIN if t.op.name in kin for n in kin):
        if name != t.op.name:
            yield "operator", App(OPS[name], t.operands, t.attrs, t.rest)
    if len(t.operands) == 2 and "commutative" not in t.op.laws:
        yield "operand", App(t.op, t.operands[::-1], t.attrs, t.rest)
    for o in t.operands:
        if isinstance(o, App):
            yield "operator", o
    for k, (key, f) in enumerate(t.attrs):
        kind = "axis" if key in AXES else "size" if key in SIZES else "attribute"
        for value in _values(key, f, rule):
            attrs = (*t.attrs[:k], (key, value), *t.attrs[k + 1 :])
            yield kind, App(t.op, t.operands, attrs, t.rest)


def _values(key: str, f: Formula, rule: Rule) -> Iterator[Formula]:
    """Other values of an attribute."""
    match f:
        case Lit(bool()):
            yield Lit(not f.value)
        case Lit(int() as n):
            yield Lit(n + 1)
            yield Lit(n - 1)
        case Lit(float() as x):
            yield Lit(x + 1.0)
        case Lit():
            return
        case Seq(items):
            if len(items) > 1:
                yield Seq((items[1], items[0], *items[2:]))
                yield Seq((*items[:-2], items[-1], items[-2]))
                yield Seq(items[1:])
            for k, one in enumerate(items):
                if not isinstance(one, Spread):
                    yield Seq((*items[:k], _more(one), *items[k + 1 :]))
        case _ if key in LITERALS or key == "pads":  # a sequence that has a name or is computed
            if key == "perm":
                yield Call("inverse", (f,))
            yield from sorted(_names(rule) - {f}, key=str)
            for numbers in LITERALS.get(key, ()):
                yield Seq(tuple(map(Lit, numbers)))
            yield Seq((_more(Subscript(f, Lit(0))), Spread(f)))
        case _:
            yield _more(f)
            for k in (0, 1, -1):
                yield Lit(k)


def _names(rule: Rule) -> set[Formula]:
    """What the attributes of the left side are called."""
    sides = (t for side in rule.lhs for t in walk(side) if isinstance(t, App))
    return {f for t in sides for _, f in t.attrs if isinstance(f, Name)}


def _more(f: Formula) -> Formula:
    """One more."""
    return (
        Lit(f.value + 1) if isinstance(f, Lit) and type(f.value) is int else Binary("+", f, Lit(1))
    )
