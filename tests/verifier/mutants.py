"""Rules with one thing changed on the right side: most of them are wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from superopt.ops import OPS
from superopt.rules.rule import Rule
from superopt.rules.term import App, Lit, Name, Number, Part, Pick, Seq, Term, Var, rebuild, walk

KIN = (
    ("Add", "Sub", "Mul", "Div", "Max", "Min"),
    ("Relu", "Tanh", "Sigmoid", "Exp", "Neg", "Erf", "Sqrt", "Abs", "Identity"),
    ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1"),
    ("GlobalAveragePool", "GlobalMaxPool"),
)


def mutants(rule: Rule) -> Iterator[Rule]:
    """Each with one operator, operand, operand order, attribute or number changed."""
    seen = {rule.rhs}
    for n, side in enumerate(rule.rhs):
        for part in dict.fromkeys(walk(side)):
            for other in _changed(part, rule):
                new = tuple(_once(t, part, other) if k == n else t for k, t in enumerate(rule.rhs))
                if new not in seen:
                    seen.add(new)
                    name = f"{rule.name}!{len(seen) - 1}"
                    yield replace(rule, name=name, rhs=new, float_class="E3", text="")


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


def _changed(part: Part, rule: Rule) -> Iterator[Part]:
    match part:
        case App(op, operands, attrs, rest):
            for kin in KIN:
                if op.name in kin:
                    for name in kin:
                        if name != op.name:
                            yield App(OPS[name], operands, attrs, rest)
            if len(operands) == 2 and "commutative" not in op.laws:
                yield App(op, operands[::-1], attrs, rest)
            for o in operands:
                if isinstance(o, App):
                    yield o
            for k, (key, f) in enumerate(attrs):
                for value in _values(f):
                    yield App(op, operands, (*attrs[:k], (key, value), *attrs[k + 1 :]), rest)
        case Pick(app, index):
            yield Pick(app, 1 - index)
        case Var(name):
            for p in rule.params:
                if p.name != name and not hasattr(p, "run"):
                    continue
                if p.name != name and not getattr(p, "run", False):
                    yield Var(p.name)
        case Number(v):
            yield Number(v + 1)
        case _:
            return


def _values(f: Part) -> Iterator[Part]:
    match f:
        case Lit(bool()):
            return
        case Lit(int() as n):
            yield Lit(n + 1)
            yield Lit(n - 1)
        case Seq(items) if all(isinstance(i, Lit) for i in items):
            if len(items) > 1:
                yield Seq((items[1], items[0], *items[2:]))
                yield Seq((*items[:-2], items[-1], items[-2]))
            if items and isinstance(items[0].value, int):
                yield Seq((Lit(items[0].value + 1), *items[1:]))
        case Name(n):
            for k in (0, 1, -1):
                yield Lit(k)
        case _:
            return
