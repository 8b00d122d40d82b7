"""Schedules: how the loops of a tensor's computation are split, ordered and run. Data, which prints
as text that parses back:

    split(i0, 6); split(i1, 64); reorder(i1.o, i0.o, k0, i0.i, i1.i); unroll(i0.i); vectorize(i1.i)

Axes are named as in the tensor's expression: i0, i1, ... of its elements, k0, ... of its reduction.
What a primitive does, and when it may be used, is said at its function in `transform.py`.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass


class _Written:
    """A primitive is written as its class is called, with its fields."""

    __slots__ = ()

    def __str__(self) -> str:
        given = (getattr(self, name) for name in self.__match_args__)  # type: ignore[attr-defined]
        words = (", ".join(g) if isinstance(g, tuple) else str(g) for g in given)
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(self).__name__).lower()
        return f"{name}({', '.join(words)})"


@dataclass(frozen=True, slots=True)
class Split(_Written):
    axis: str
    factor: int


@dataclass(frozen=True, slots=True)
class Fuse(_Written):
    outer: str
    inner: str


@dataclass(frozen=True, slots=True)
class Reorder(_Written):
    axes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unroll(_Written):
    axis: str


@dataclass(frozen=True, slots=True)
class Vectorize(_Written):
    axis: str


@dataclass(frozen=True, slots=True)
class Parallel(_Written):
    axis: str


@dataclass(frozen=True, slots=True)
class ComputeAt(_Written):
    tensor: str
    axis: str


Primitive = Split | Fuse | Reorder | Unroll | Vectorize | Parallel | ComputeAt
Schedule = tuple[Primitive, ...]


class IllegalSchedule(ValueError):
    """A primitive that cannot be used where it is; says why."""


def tile(axes: tuple[str, str], factors: tuple[int, int]) -> Schedule:
    """Split two axes, and put what is within a tile inside."""
    (a, b), (m, n) = axes, factors
    within = Reorder((f"{a}.o", f"{b}.o", f"{a}.i", f"{b}.i"))
    return (Split(a, m), Split(b, n), within)


def text(schedule: Schedule) -> str:
    return "; ".join(map(str, schedule))


def parsed(source: str) -> Schedule:
    """A schedule from its text. Raises IllegalSchedule where it is none."""
    return tuple(_primitive(part.strip()) for part in source.split(";") if part.strip())


def _primitive(part: str) -> Primitive:
    try:
        match ast.parse(part, mode="eval").body:
            case ast.Call(ast.Name("split"), [axis, ast.Constant(int() as factor)], []):
                return Split(_name(axis), factor)
            case ast.Call(ast.Name("fuse"), [outer, inner], []):
                return Fuse(_name(outer), _name(inner))
            case ast.Call(ast.Name("reorder"), [_, *_] as axes, []):
                return Reorder(tuple(map(_name, axes)))
            case ast.Call(ast.Name("unroll"), [axis], []):
                return Unroll(_name(axis))
            case ast.Call(ast.Name("vectorize"), [axis], []):
                return Vectorize(_name(axis))
            case ast.Call(ast.Name("parallel"), [axis], []):
                return Parallel(_name(axis))
            case ast.Call(ast.Name("compute_at"), [ast.Name(tensor), axis], []):
                return ComputeAt(tensor, _name(axis))
    except SyntaxError:
        pass
    raise IllegalSchedule(f"{part} is no primitive, such as split(i0, 8)")


def _name(e: ast.expr) -> str:
    """An axis, as it is written: i0, i0.o, i0.o.i."""
    match e:
        case ast.Name(n):
            return n
        case ast.Attribute(of, n):
            return f"{_name(of)}.{n}"
    raise IllegalSchedule(f"{ast.unparse(e)} is no axis")
