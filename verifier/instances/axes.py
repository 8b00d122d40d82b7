"""Axes that no operator of a rule names: the proof can leave them out.

On an axis that it does not name, an elementwise operator, a Concat, a Split, a Slice, a Softmax, a
normalization or a reduction that keeps its axes reads each operand at a single index: the index of
its result, or 0 if the operand is broadcast. So does every term of such operators. At each index of
that axis, both sides are the sides of the same rule for operands with one axis less, and both are
defined if these are. So a rule whose named axes all count from the end holds at all ranks if it
holds without the other axes, and its named axes may be renumbered to -1, -2, and so on.

    Concat(Add(x, y), Add(z, w), axis=-3) => Add(Concat(x, z, axis=-3), Concat(y, w, axis=-3))
    Concat(Add(x, y), Add(z, w), axis=-1) => Add(Concat(x, z, axis=-1), Concat(y, w, axis=-1))

are equivalent, and both hold if the second holds for operands of ranks 0 and 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from superopt.ir.op import Op
from superopt.rules.lang.rule import Rule
from superopt.rules.lang.syntax import Param
from superopt.rules.lang.term import (
    Absent,
    App,
    Binary,
    Call,
    Compare,
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
    Term,
    Unary,
    Var,
    free_names,
    rebuild,
    walk,
)

# By operator: the attribute that names axes, and the attributes that only describe these axes.
AXIS_ATTRIBUTES = {
    "Concat": ("axis", ()),
    "Split": ("axis", ("split",)),
    "Softmax": ("axis", ()),
    "LogSoftmax": ("axis", ()),
    "Slice": ("axes", ("starts", "ends", "steps")),
    **{
        f"Reduce{kind}": ("axes", ("keepdims",))
        for kind in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSumExp")
    },
}
# These operators name all axes from one axis to the last.
TRAILING_AXES_OPS = {
    "LayerNormalization": ("epsilon", "stash_type"),
    "RMSNormalization": ("epsilon",),
}
UNIFORM_FILLS = frozenset(("zeros", "ones"))
P = TypeVar("P", bound=Part)


class _Unclear(Exception):
    """The rule may refer to any axis."""


def with_named_axes_only(rule: Rule) -> tuple[Rule, int] | None:
    """Return the rule with its named axes renumbered as the last axes, and their number, at least
    1. None if the rule may refer to any axis, or to an axis that is not counted from the end."""
    given = [p for p in rule.params if isinstance(p, Param)]
    if any(p.is_run or not _has_open_rank(p) for p in given):
        return None
    runs = {n for p in given for f in p.shape or () for n in free_names(f)}
    sides = (*rule.lhs, *rule.rhs)
    if any(isinstance(q, Name) and q.id in runs for s in (*sides, *rule.where) for q in walk(s)):
        return None
    try:
        found = {axis for side in sides for axis in _term_axes(side)}
        found.update(axis for f in rule.where for axis in _formula_axes(f))
    except _Unclear:
        return None
    to = {axis: -n for n, axis in enumerate(sorted(found, reverse=True), 1)}
    return (
        replace(
            rule,
            lhs=tuple(_renumber_axes(t, to) for t in rule.lhs),
            rhs=tuple(_renumber_axes(t, to) for t in rule.rhs),
            where=tuple(_renumber_axes(f, to) for f in rule.where),
        ),
        max(len(found), 1),
    )


def _has_open_rank(p: Param) -> bool:
    """True if the parameter has any shape, no axes, or only axes of a run."""
    return p.shape is None or all(isinstance(f, Spread) for f in p.shape)


def _term_axes(t: Term) -> Iterator[int]:
    """Yield the axes that a term names."""
    match t:
        case Var() | Number() | Absent():
            return
        case Scalar(f):
            yield from _formula_axes(f)
        case Fill(kind, (Call("shape", (Name(),)),)) if kind in UNIFORM_FILLS:
            return
        case Fill(kind, (Call("shape", (value,)),)) if kind in UNIFORM_FILLS:
            for p in walk(value):
                if isinstance(p, App):
                    yield from _term_axes(p)
        case Pick(app):
            yield from _term_axes(app)
        case App(op, operands, attrs, None):
            for o in operands:
                yield from _term_axes(o)
            yield from _operator_axes(op, dict(attrs))
        case _:
            raise _Unclear


def _operator_axes(op: Op, attrs: dict[str, Formula]) -> Iterator[int]:
    """Yield the axes that the attributes of an operator name."""
    if "elementwise" in op.laws:
        for f in attrs.values():
            yield from _formula_axes(f)
        return
    if op.name in TRAILING_AXES_OPS and set(attrs) <= {"axis", *TRAILING_AXES_OPS[op.name]}:
        (first,) = _literal_axes(attrs.get("axis", Lit(-1)))
        yield from range(first, 0)
        return
    key, others = AXIS_ATTRIBUTES.get(op.name, ("", ()))
    if not key or not set(attrs) <= {key, *others}:
        raise _Unclear
    yield from _literal_axes(attrs.get(key))
    for name in others:
        if name == "keepdims" and attrs.get(name) != Lit(1):
            raise _Unclear
        if name in attrs:
            yield from _formula_axes(attrs[name])


def _literal_axes(f: Formula | None) -> Iterator[int]:
    """Yield literal axes, counted from the end."""
    for one in f.items if isinstance(f, Seq) else (f,):
        if not isinstance(one, Lit) or not isinstance(one.value, int) or one.value >= 0:
            raise _Unclear
        yield one.value


def _formula_axes(f: Part) -> Iterator[int]:
    """Yield the axes that a formula names. It may use sizes of axes, but no other property of
    shapes."""
    match f:
        case Lit() | Name():
            return
        case Call("size", (Name(), axis)):
            yield from _literal_axes(axis)
        case Call("len", (Name(),)) | Call("const", (Name(),)):
            return
        case Seq(items):
            for one in items:
                yield from _formula_axes(one)
        case Binary(_, a, b):
            yield from _formula_axes(a)
            yield from _formula_axes(b)
        case Unary(_, a):
            yield from _formula_axes(a)
        case Compare(first, rest):
            yield from _formula_axes(first)
            for _, one in rest:
                yield from _formula_axes(one)
        case _:
            raise _Unclear


def _renumber_axes(p: P, new_axes: Mapping[int, int]) -> P:
    """Return `p` with its axes renumbered."""

    def axes(f: Formula) -> Formula:
        if isinstance(f, Seq):
            return Seq(tuple(map(axes, f.items)))
        assert isinstance(f, Lit)
        assert isinstance(f.value, int)
        return Lit(new_axes[f.value])

    def change(q: Part) -> Part | None:
        match q:
            case Call("size", (value, axis)):
                return Call("size", (value, axes(axis)))
            case App(op, operands, attrs, rest) if op.name in AXIS_ATTRIBUTES:
                key, _ = AXIS_ATTRIBUTES[op.name]
                inside = tuple(rebuild(o, change) for o in operands)
                given = tuple((k, axes(f) if k == key else rebuild(f, change)) for k, f in attrs)
                return App(op, inside, given, rest)
            case _:
                return None

    return rebuild(p, change)
