"""The syntax of rules: terms (graphs with variables) and formulas (over sizes and attributes).

    term     Mul(x, 2)   Split(x, axis=k, split=(a, b))[0]   Concat(*[Relu(x) for x in xs], axis=k)
    formula  rank(x) == 4   (*s[:-1], n * m)   permute(shape(x), p)   size(MatMul(x, w), -1)

Both are data: frozen, compared by structure, printed in Python's syntax so that they parse back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from dataclasses import replace as with_fields
from typing import TypeVar, cast, get_args

from superopt.ir.op import Op
from superopt.te.expr.dtype import DType

# --- formulas -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lit:
    """A number, string, bool, None or element type as written."""

    value: int | float | str | bool | DType | None


@dataclass(frozen=True, slots=True)
class Name:
    """A parameter, size, attribute variable, or the variable of a comprehension."""

    id: str


@dataclass(frozen=True, slots=True)
class TermValue:
    """The value that a subterm of the left side matched, as in `size(MatMul(x, w), -1)`."""

    term: Term


@dataclass(frozen=True, slots=True)
class Seq:
    """A tuple; `Spread` items are spliced in."""

    items: tuple[Formula, ...]


@dataclass(frozen=True, slots=True)
class Spread:
    """`*value` inside a tuple or among arguments."""

    value: Formula


@dataclass(frozen=True, slots=True)
class Call:
    """A function of the closed set."""

    fn: str
    args: tuple[Formula, ...]


@dataclass(frozen=True, slots=True)
class Unary:
    """op is '-' or 'not'."""

    op: str
    value: Formula


@dataclass(frozen=True, slots=True)
class Binary:
    """op is one of + - * / // % **."""

    op: str
    left: Formula
    right: Formula


@dataclass(frozen=True, slots=True)
class Compare:
    """A chain: `first op1 a op2 b ...`; an op is one of == != < <= > >= in, not in."""

    first: Formula
    rest: tuple[tuple[str, Formula], ...]


@dataclass(frozen=True, slots=True)
class Logic:
    """op is 'and' or 'or'."""

    op: str
    parts: tuple[Formula, ...]


@dataclass(frozen=True, slots=True)
class If:
    """`yes if test else no`."""

    test: Formula
    yes: Formula
    no: Formula


@dataclass(frozen=True, slots=True)
class Subscript:
    """`value[index]`."""

    value: Formula
    index: Formula


@dataclass(frozen=True, slots=True)
class Slice:
    """`value[start:stop:step]`."""

    value: Formula
    start: Formula | None
    stop: Formula | None
    step: Formula | None


@dataclass(frozen=True, slots=True)
class Comprehension:
    """`body for names in over if test`: a tuple. Several names unpack the items."""

    body: Formula
    names: tuple[str, ...]
    over: Formula
    test: Formula | None = None


Formula = (
    Lit
    | Name
    | TermValue
    | Seq
    | Spread
    | Call
    | Unary
    | Binary
    | Compare
    | Logic
    | If
    | Subscript
    | Slice
    | Comprehension
)

# --- terms ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Var:
    """A parameter: any value of its type."""

    name: str


@dataclass(frozen=True, slots=True)
class OperandRun:
    """`*xs`: a run of operands."""

    name: str


@dataclass(frozen=True, slots=True)
class Number:
    """Left: a constant all of whose elements equal it. Right: a scalar of the siblings' dtype."""

    value: int | float


@dataclass(frozen=True, slots=True)
class Scalar:
    """`lit(formula)`: a Number given by a formula; on the left an unbound name is bound."""

    value: Formula


@dataclass(frozen=True, slots=True)
class Fill:
    """A constant tensor: zeros(shape), ones(shape), full(shape, number), and the
    kinds of `superopt.rules.lang.fills`."""

    kind: str
    args: tuple[Formula, ...]


@dataclass(frozen=True, slots=True)
class Absent:
    """`None`: an optional operand that is not there."""


@dataclass(frozen=True, slots=True)
class App:
    """An operator applied to terms; `rest` is the name in `**rest`."""

    op: Op
    operands: tuple[Term, ...]
    attrs: tuple[tuple[str, Formula], ...] = ()
    rest: str | None = None
    _hash: int = field(default=0, init=False, compare=False, repr=False)  # cached: terms are deep

    def __hash__(self) -> int:
        if not self._hash:
            made = hash((self.op, self.operands, self.attrs, self.rest))
            object.__setattr__(self, "_hash", made or 1)
        return self._hash


@dataclass(frozen=True, slots=True)
class Pick:
    """`App(...)[index]`: one of several results."""

    term: App
    index: int


@dataclass(frozen=True, slots=True)
class AllResults:
    """`*App(...)`: all the results of an operator, as a run of operands."""

    term: App


@dataclass(frozen=True, slots=True)
class MapTerms:
    """`*[body for names in over]`: a run of operands; at the root of a side, its results."""

    body: Term
    names: tuple[str, ...]
    over: Formula | App


Term = Var | OperandRun | Number | Scalar | Fill | Absent | App | Pick | AllResults | MapTerms
SHAPED_FILLS = ("zeros", "ones", "eye", "dirac", "means", "table")
FILL_ARITIES = {**dict.fromkeys(SHAPED_FILLS, (1, 2)), "full": (2, 3)}  # least and most arguments

Part = Term | Formula
P = TypeVar("P", bound=Part)

# --- walking --------------------------------------------------------------------------------------


# Field names by class, and those that hold terms and formulas, the last one first.
FIELDS = {kind: tuple(f.name for f in fields(kind) if f.init) for kind in get_args(Part)}
_INNER_FIELDS = {
    kind: tuple(f.name for f in fields(kind)[::-1] if re.search("Term|Formula|App", str(f.type)))
    for kind in FIELDS
}


def children(p: Part) -> Iterator[Part]:
    """Yield the terms and formulas directly inside `p`."""
    left = [getattr(p, name) for name in _INNER_FIELDS[type(p)]]
    while left:
        if type(v := left.pop()) is tuple:
            left += reversed(v)
        elif type(v) in FIELDS:
            yield v


def walk(p: Part) -> Iterator[Part]:
    """Yield `p` and everything inside, outermost first."""
    left: list[object] = [p]
    while left:
        q = left.pop()
        if type(q) is tuple:
            left += reversed(q)
        elif (inner := _INNER_FIELDS.get(type(q))) is not None:
            yield q  # type: ignore[misc]
            for name in inner:
                left.append(getattr(q, name))


def free_names(p: Part | None) -> frozenset[str]:
    """Return the names that `p` uses, without the variables of its own comprehensions."""
    found: set[str] = set()
    left: list[object] = [p]
    while left:
        match q := left.pop():
            case tuple():
                left += q
            case Name(n) | Var(n) | OperandRun(n):
                found.add(n)
            case Comprehension(body, own, over, test):
                found |= free_names(over) | ((free_names(body) | free_names(test)) - frozenset(own))
            case MapTerms(body, own, over):
                found |= free_names(over) | (free_names(body) - frozenset(own))
            case _:
                found |= {q.rest} if type(q) is App and q.rest is not None else set()
                left += [getattr(q, name) for name in _INNER_FIELDS.get(type(q), ())]
    return frozenset(found)


def rebuild(p: P, change: Callable[[Part], Part | None]) -> P:
    """Return `p` with every part that `change` maps to a result replaced by it, outermost first."""
    new = change(p)
    if new is not None:
        return cast(P, new)
    values = {name: _rebuild_value(getattr(p, name), change) for name in FIELDS[type(p)]}
    return type(p)(**values)  # type: ignore[arg-type]


def _rebuild_value(v: object, change: Callable[[Part], Part | None]) -> object:
    if type(v) is tuple:
        return tuple(_rebuild_value(item, change) for item in v)
    if type(v) in FIELDS:
        return rebuild(cast(Part, v), change)
    return v


def rename(p: P, renaming: Mapping[str, str]) -> P:
    """Return `p` with free names replaced."""

    def change(q: Part) -> Part | None:
        match q:
            case Name(n):
                return Name(renaming.get(n, n))
            case Var(n):
                return Var(renaming.get(n, n))
            case OperandRun(n):
                return OperandRun(renaming.get(n, n))
            case App(op, operands, attrs, str(rest)) if rest in renaming:
                plain = App(op, operands, attrs)
                return with_fields(rebuild(plain, change), rest=renaming[rest])
            case _:
                return None

    return rebuild(p, change)
