"""The schedule language: how the loops of a tensor's computation are split, ordered and run. Data,
which prints as text that parses back:

    split(i0, 6); split(i1, 64); reorder(i1.o, i0.o, k0, i0.i, i1.i); unroll(i0.i); vectorize(i1.i)

Axes are named as in the tensor's expression: i0, i1, ... of its elements, k0, ... of its reduction.
The function of a primitive's name documents it: `loop_transforms.py` has those that change loops,
`loop_annotations.py` those that say how a loop runs, `staging.py` and `compute_at.py` those that
say where a tensor is computed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields


class _PrintableCall:
    """A primitive, which prints as a call of its class with its fields."""

    __slots__ = ()

    def __str__(self) -> str:
        given = (getattr(self, name) for name in self.__match_args__)  # type: ignore[attr-defined]
        words = (", ".join(g) if isinstance(g, tuple) else str(g) for g in given)
        return f"{_primitive_name(type(self))}({', '.join(words)})"


def _primitive_name(primitive: type) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", primitive.__name__).lower()


@dataclass(frozen=True, slots=True)
class Split(_PrintableCall):
    axis: str
    factor: int


@dataclass(frozen=True, slots=True)
class Cover(_PrintableCall):
    axis: str
    factor: int


@dataclass(frozen=True, slots=True)
class Fuse(_PrintableCall):
    outer: str
    inner: str


@dataclass(frozen=True, slots=True)
class Reorder(_PrintableCall):
    axes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tile(_PrintableCall):
    rows: str
    columns: str
    row_factor: int
    column_factor: int


@dataclass(frozen=True, slots=True)
class Unroll(_PrintableCall):
    axis: str


@dataclass(frozen=True, slots=True)
class Vectorize(_PrintableCall):
    axis: str


@dataclass(frozen=True, slots=True)
class Parallel(_PrintableCall):
    axis: str


@dataclass(frozen=True, slots=True)
class CacheRead(_PrintableCall):
    """source: the name of a tensor that is read."""

    source: str
    axis: str


@dataclass(frozen=True, slots=True)
class ComputeAt(_PrintableCall):
    """tensor: the name of a reader of this tensor."""

    tensor: str
    axis: str


@dataclass(frozen=True, slots=True)
class Inline(_PrintableCall):
    pass


Primitive = (
    Split | Cover | Fuse | Reorder | Tile | Unroll | Vectorize | Parallel | CacheRead | ComputeAt
    | Inline
)  # fmt: skip
Schedule = tuple[Primitive, ...]
PRIMITIVES: dict[str, Callable[..., Primitive]] = {
    _primitive_name(p): p
    for p in (
        Split, Cover, Fuse, Reorder, Tile, Unroll, Vectorize, Parallel, CacheRead, ComputeAt,
        Inline,
    )
}  # fmt: skip


class IllegalSchedule(ValueError):
    """A primitive that is not applicable, with the reason."""


def schedule_text(schedule: Schedule) -> str:
    return "; ".join(map(str, schedule))


def parse_schedule(source: str) -> Schedule:
    """Parse a schedule. Raises IllegalSchedule for other text."""
    return tuple(_parse_primitive(part.strip()) for part in source.split(";") if part.strip())


def _parse_primitive(part: str) -> Primitive:
    try:
        match ast.parse(part, mode="eval").body:
            case ast.Call(ast.Name(word), args, []) if word in PRIMITIVES:
                given = _parse_arguments(PRIMITIVES[word], args)
                if given is not None:
                    return PRIMITIVES[word](*given)
    except SyntaxError:
        pass
    raise IllegalSchedule(f"{part} is not a primitive, such as split(i0, 8)")


def _parse_arguments(
    primitive: Callable[..., Primitive], args: Sequence[ast.expr]
) -> list[object] | None:
    """Return a primitive's fields, each of its type; None if they do not match."""
    wanted = fields(primitive)  # type: ignore[arg-type]  # a class, which is called
    if wanted and wanted[0].type == "tuple[str, ...]":
        return [tuple(map(_axis_name, args))] if args else None
    if len(args) != len(wanted):
        return None
    out: list[object] = []
    for f, e in zip(wanted, args, strict=True):
        match e:
            case ast.Constant(int() as number) if f.type == "int" and type(number) is int:
                out.append(number)
            case _ if f.type == "str":
                out.append(_axis_name(e))
            case _:
                return None
    return out


def _axis_name(e: ast.expr) -> str:
    """Return an axis as written: i0, i0.o, i0.o.i."""
    match e:
        case ast.Name(n):
            return n
        case ast.Attribute(of, n):
            return f"{_axis_name(of)}.{n}"
    raise IllegalSchedule(f"{ast.unparse(e)} is not an axis")
