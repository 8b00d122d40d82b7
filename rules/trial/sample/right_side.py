"""The right side of a rule, built from the names and values of one attempt.

Independent of the matcher's builder, so that a test can compare the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from superopt.ir.graph import Constant, Input, Item, Node, Value, constant, node, results
from superopt.ir.op import Attr
from superopt.rules.lang.fills import ARRAY_FILLS, fill_array, shape_and_content, table_array
from superopt.rules.lang.functions import NotKnown, Result, as_integer, as_number, as_tuple
from superopt.rules.lang.rule import Rule
from superopt.rules.lang.term import (
    Absent,
    AllResults,
    App,
    Fill,
    Formula,
    MapTerms,
    Number,
    OperandRun,
    Pick,
    Scalar,
    Term,
    Var,
)
from superopt.rules.lang.value_facts import sibling_dtype
from superopt.rules.trial.sample.draw import RejectedChoice
from superopt.rules.trial.sample.formula_values import Names, Terms, formula_value
from superopt.te.expr.dtype import DType, to_numpy


def right_side(rule: Rule, names: Names, terms: Terms, dtype: DType) -> tuple[Value, ...]:
    """Return the results of the right side; `dtype` is that of numbers without siblings.

    Raises RejectedChoice, NotKnown or InferError if it cannot be built.
    """
    side = _Side(dict(names), terms, dtype)
    match rule.rhs:
        case (App() as only,):
            return side.build_app(only)
        case several:
            return tuple(v for t in several for v in side.values(t))


def fill_constant(t: Fill, args: Sequence[Result], dtype: DType) -> Value:
    """Return the constant of a fill: zeros, ones, full, eye... of `dtype`."""
    last = args[-1]
    if isinstance(last, DType):
        args, dtype = args[:-1], last
    dims, content = shape_and_content(t.kind, args)
    if isinstance(content, tuple):
        return constant(table_array(content, dtype))
    shape = [as_integer(d) for d in dims]
    if t.kind in ARRAY_FILLS:
        return constant(fill_array(t.kind, shape, dtype))
    return constant(np.full(shape, float(content), to_numpy(dtype)))


def scalar_constant(value: Result, dtype: DType) -> Value:
    """Return a number as a constant of `dtype`."""
    n = as_number(value)
    if not dtype.is_float and n != int(n):
        raise NotKnown(f"{n} is no {dtype}")  # as in a rewrite
    try:
        return constant(np.full((), float(n) if dtype.is_float else int(n), to_numpy(dtype)))
    except OverflowError as e:
        raise NotKnown(f"{n} is no {dtype}") from e


def as_attribute(value: Result) -> Attr:
    """Return a formula's value as an attribute."""
    if isinstance(value, Fraction):
        return float(value)
    if isinstance(value, (Input, Constant, Node, Item)):
        raise NotKnown(f"{value} is not an attribute")
    if isinstance(value, tuple):
        return tuple(as_attribute(v) for v in value)
    return value


@dataclass(frozen=True, slots=True)
class _Side:
    names: dict[str, Result]
    terms: Terms
    dtype: DType

    def formula_value(self, f: Formula) -> Result:
        return formula_value(f, self.names, self.terms)

    def build_app(self, t: App) -> tuple[Value, ...]:
        """Return the results of an operator."""
        parts = [v for o in t.operands for v in self.operand(o)]
        some = [v for v in parts if isinstance(v, (Input, Constant, Node, Item))]
        dtype = sibling_dtype(v.type.dtype for v in some)
        operands = [self.number(v, dtype or self.dtype) for v in parts]
        attrs: dict[str, Attr] = {}
        if t.rest is not None:
            for pair in as_tuple(self.names[t.rest]):
                key, value = as_tuple(pair)
                attrs[str(key)] = as_attribute(value)
        for key, f in t.attrs:
            attrs[key] = as_attribute(self.formula_value(f))
        return results(node(t.op, operands, **attrs))

    def operand(self, t: Term) -> list[Term | Value]:
        """Return the values of an operand; numbers wait for their siblings' element type."""
        match t:
            case Number() | Scalar() | Fill() | Absent():
                return [t]
            case _:
                return [*self.values(t)]

    def number(self, v: Term | Value, dtype: DType) -> Value | None:
        match v:
            case Number(n):
                return scalar_constant(n, dtype)
            case Scalar(f):
                return scalar_constant(self.formula_value(f), dtype)
            case Fill(_, args):
                return fill_constant(v, [self.formula_value(a) for a in args], dtype)
            case Input() | Constant() | Node() | Item():
                return v
            case _:
                return None

    def values(self, t: Term) -> list[Value]:
        """Return the values of a term."""
        match t:
            case Var(name):
                return [_as_value(self.names[name])]
            case OperandRun(name):
                return [_as_value(v) for v in as_tuple(self.names[name])]
            case AllResults(app):
                return [*self.build_app(app)]
            case Pick(app, index):
                found = self.build_app(app)
                if index >= len(found):
                    raise RejectedChoice(f"no result {index}")
                return [found[index]]
            case App():
                found = self.build_app(t)
                if len(found) != 1:
                    raise RejectedChoice(f"{t.op.name} has {len(found)} results")
                return [found[0]]
            case MapTerms(body, own, over):
                items: Sequence[Result] = (
                    self.build_app(over)
                    if isinstance(over, App)
                    else as_tuple(self.formula_value(over))
                )
                return [v for one in items for v in self.inner_side(own, one).values(body)]
            case _:
                v = self.number(t, self.dtype)
                return [] if v is None else [v]

    def inner_side(self, variables: tuple[str, ...], one: Result) -> _Side:
        """Return the scope of a comprehension for one item."""
        parts = (one,) if len(variables) == 1 else as_tuple(one)
        return _Side(self.names | dict(zip(variables, parts, strict=True)), self.terms, self.dtype)


def _as_value(r: Result) -> Value:
    if isinstance(r, (Input, Constant, Node, Item)):
        return r
    raise NotKnown(f"{r} is not a value")
