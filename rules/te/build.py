"""Build expressions from terms, with the values that a match bound to their names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from superopt.rules.te.term import (
    AxisTerm,
    Call,
    Element,
    Fold,
    Lit,
    Rest,
    Run,
    Store,
    Term,
    Tuple,
    Var,
)
from superopt.te.analysis.affine import free_axes
from superopt.te.analysis.inline import substitute_axes
from superopt.te.expr.dtype import DTYPES, INDEX, DType
from superopt.te.expr.functions import identity_element
from superopt.te.expr.index import as_index
from superopt.te.expr.node import Axis, Dim, Expr, Number, Reduce
from superopt.te.expr.symbolic_int import is_symbolic
from superopt.te.expr.tensor import (
    Tensor,
    apply,
    cast,
    compare,
    conjunction,
    const,
    product,
    ravel,
    select,
    unravel,
)


@dataclass(frozen=True, slots=True)
class Lambda:
    """An expression, and those of its axes that a rule may replace."""

    axes: tuple[Axis, ...]
    body: Expr

    def __call__(self, args: Sequence[Value]) -> Expr:
        env = {a: as_dim(v) for a, v in zip(self.axes, args, strict=True)}
        if all(a is i for a, i in env.items()):
            return self.body
        return substitute_axes(self.body, {a: as_index(i) for a, i in env.items()})


Value: TypeAlias = "Expr | Number | Tensor | Lambda | tuple[Value, ...]"
Env: TypeAlias = Mapping[str, Value]


def as_dim(v: Value) -> Dim:
    if is_symbolic(v):
        return as_index(v)  # type: ignore[arg-type]
    assert isinstance(v, Expr | int)
    return v


def as_axis(v: Value) -> Axis:
    assert isinstance(v, Axis)
    return v


def as_tuple(v: Value) -> tuple[Value, ...]:
    return v if isinstance(v, tuple) else (v,)


@dataclass(slots=True)
class Builder:
    """Builds terms. env: the values of names. axes: those of the tensor that is rewritten. dtype:
    the element type of numbers. stored: the tensors that were made. number: the value of an
    expression without loads and axes."""

    env: dict[str, Value]
    axes: tuple[Axis, ...]
    number: Callable[[Expr], Number | Expr]
    dtype: DType = INDEX
    stored: list[Tensor] = field(default_factory=list)
    is_left_side: bool = False  # where a `store` is its element

    def expr(self, t: Term) -> Expr:
        """Return the expression of a term; a number becomes a constant."""
        v = self.value(t)
        if isinstance(v, Lambda):
            return v.body
        if isinstance(v, Expr):
            return v
        assert not isinstance(v, Tensor | tuple)
        if is_symbolic(v):
            return cast(as_index(v), self.dtype)  # type: ignore[arg-type]
        return const(v, self.dtype)

    def value(self, t: Term) -> Value:
        match t:
            case Lit(v):
                return v
            case Var(name, None):
                found = self.env[name]
                return found.body if isinstance(found, Lambda) and not found.axes else found
            case Var(name, args):
                found = self.env[name]
                assert isinstance(found, Lambda)
                assert args is not None
                return found(self.items(args))
            case Tuple(items):
                return tuple(map(self.value, items))
            case Call(fn, args):
                return self.call(fn, args)
            case Element(name, index):
                of = self.env[name]
                assert isinstance(of, Tensor)
                return of[tuple(map(as_dim, self.items(index)))]
            case Fold(fn, axes, body):
                own = self.new_axes(axes)
                inner = self.expr(body)
                return Reduce(fn, own, inner, inner.dtype) if own else inner
            case Store():
                return self.store(t)
        raise TypeError(f"{t} is not a value")

    def items(self, terms: Sequence[Term]) -> list[Value]:
        """Return the values of arguments or indices, with runs spliced in."""
        out: list[Value] = []
        for t in terms:
            match t:
                case Rest():
                    out += self.axes
                case Run(name):
                    out += as_tuple(self.env[name])
                case _:
                    out += as_tuple(self.value(t))
        return out

    def new_axes(self, axes: Sequence[AxisTerm | Rest]) -> tuple[Axis, ...]:
        """Return the axes of a reduction or tensor; those that are new are bound."""
        out: list[Axis] = []
        for a in axes:
            if isinstance(a, Rest):
                out += self.axes
                continue
            if a.name not in self.env:
                assert a.extent is not None
                base, _, suffix = a.name.partition(".")
                extents = as_tuple(self.value(a.extent))
                named = zip(self.run_names(base, suffix, len(extents)), extents, strict=True)
                new = tuple(Axis(name, as_dim(n)) for name, n in named)
                self.env[a.name] = new if a.is_run else new[0]
            out += map(as_axis, as_tuple(self.env[a.name]))
        return tuple(out)

    def run_names(self, base: str, suffix: str, count: int) -> list[str]:
        """Return the names of new axes. `k.r` is named after the axis `k`, and `k.new` as `k`
        itself; several that are made of one axis are numbered from the last one, as digits are."""
        if not suffix:
            return [base] if count == 1 else [f"{base}{n}" for n in range(count)]
        old = [as_axis(a).name for a in as_tuple(self.env[base])]
        if len(old) == count:
            return [name if suffix == "new" else f"{name}{suffix}" for name in old]
        return [f"{old[0]}.{count - 1 - n}" for n in range(count)]

    def store(self, t: Store) -> Expr:
        if self.is_left_side:
            return self.expr(t.body)
        axes = self.new_axes(t.axes)
        body = self.expr(t.body)
        if missing := free_axes(body) - {*axes}:
            raise ValueError(f"store of {body} without its axes {missing}")
        made = Tensor(t.name, body.dtype, tuple(a.extent for a in axes), axes, body)
        self.stored.append(made)
        if t.index is None:
            return made[axes]
        return made[tuple(map(as_dim, self.items(t.index)))]

    def call(self, fn: str, args: Sequence[Term]) -> Value:
        if fn in ("prod", "unravel", "ravel", "count", "all", "value"):
            return self.size_function(fn, self.items(args))
        if fn == "identity":
            of = self.expr(args[1])
            assert isinstance(args[0], Var)
            return const(identity_element(args[0].name, of.dtype), of.dtype)
        if fn == "select":
            guard, yes, no = self.scalars(map(self.value, args))
            assert isinstance(guard, Expr | bool)
            if not isinstance(yes, Expr) and not isinstance(no, Expr):
                yes = const(yes, self.dtype)
            return select(guard, yes, no)
        values = [v.body if isinstance(v, Lambda) else v for v in map(self.value, args)]
        if fn in DTYPES:
            (x,) = values
            assert isinstance(x, Expr)
            return cast(x, DTYPES[fn])
        if any(isinstance(v, tuple) for v in values):
            count = max(len(v) for v in values if isinstance(v, tuple))
            rows = (v if isinstance(v, tuple) else (v,) * count for v in values)
            return tuple(self.scalar(fn, row) for row in zip(*rows, strict=True))
        return self.scalar(fn, values)

    def scalars(self, values: Iterable[Value]) -> list[Expr | Number]:
        out = [v.body if isinstance(v, Lambda) else v for v in values]
        return [v for v in out if not isinstance(v, Tensor | tuple)]

    def scalar(self, fn: str, values: Sequence[Value]) -> Value:
        """Return a scalar function of expressions and numbers."""
        if any(isinstance(v, Expr) for v in values):
            values = [as_dim(v) if is_symbolic(v) else v for v in values]
            given = [v for v in values if isinstance(v, Expr | int | float)]
            if fn == "and":
                return conjunction(*(v for v in given if isinstance(v, Expr | bool)))
            if fn in ("lt", "le", "eq", "ne"):
                return compare(fn, given[0], given[1])
            return apply(fn, *given)
        return _NUMBERS[fn](*values)

    def size_function(self, fn: str, values: list[Value]) -> Value:
        match fn:
            case "prod":
                return product(map(as_dim, values))
            case "unravel":  # unravel(position, *sizes)
                position, *sizes = map(as_dim, values)
                return unravel(as_index(position), sizes)
            case "ravel":  # ravel(*index, *sizes)
                half = len(values) // 2
                return ravel([*map(as_dim, values[:half])], [*map(as_dim, values[half:])])
            case "count":
                return len(values)
            case "all":
                return conjunction(*(v for v in values if isinstance(v, Expr | bool)))
        (x,) = values
        return self.number(x) if isinstance(x, Expr) else x


_NUMBERS: Mapping[str, Callable[..., Number]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "pow": lambda a, b: a**b,
    "neg": lambda a: -a,
    "abs": abs,
    "min": min,
    "max": max,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
    "not": lambda a: not a,
}
