"""First-order terms: the input of the axiom-level prover.

A tensor operator is a function of its operands and of all its attributes. Attributes and sizes are
integers, tuples of them opaque values. Variables are nullary functions whose names begin with `?`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

VALUE_SORT = "value"  # the sort of sizes, attributes and tuples of these
TRUTH_SORT = "truth"


@dataclass(frozen=True, slots=True, eq=False)
class FoTerm:
    """`fn(*args)`, interned: equal terms are identical."""

    fn: str
    args: tuple[FoTerm, ...]
    sort: str

    def __repr__(self) -> str:
        return f"{self.fn}({', '.join(map(repr, self.args))})" if self.args else self.fn


@cache
def fo(fn: str, args: tuple[FoTerm, ...] = (), sort: str = VALUE_SORT) -> FoTerm:
    """Return the unique term `fn(*args)` of this sort."""
    return FoTerm(fn, args, sort)


def number(n: int) -> FoTerm:
    return fo(str(n))


def is_number(t: FoTerm) -> bool:
    return not t.args and t.sort == VALUE_SORT and t.fn.lstrip("-").isdigit()


def is_variable(t: FoTerm) -> bool:
    return t.fn.startswith("?")


def subterms(t: FoTerm) -> Iterator[FoTerm]:
    """Yield `t` and its subterms, outermost first."""
    left = [t]
    while left:
        one = left.pop()
        yield one
        left += one.args


def substitute(t: FoTerm, values: Mapping[FoTerm, FoTerm]) -> FoTerm:
    """Return `t` with variables (or any subterms) replaced."""
    found = values.get(t)
    if found is not None:
        return found
    if not t.args:
        return t
    args = tuple(substitute(a, values) for a in t.args)
    if t.fn in ("+", "-", "*") and t.sort == VALUE_SORT:
        return arithmetic(t.fn, *args)
    return fo(t.fn, args, t.sort)


# --- sums of sizes --------------------------------------------------------------------------------


def _linear_sum(t: FoTerm) -> dict[FoTerm, int]:
    """Return `t` as a linear sum: the coefficient of each term; number(1) has the constant."""
    if is_number(t):
        return {number(1): int(t.fn)}
    if t.fn in ("+", "-") and len(t.args) == 2:
        out = dict(_linear_sum(t.args[0]))
        sign = 1 if t.fn == "+" else -1
        for k, c in _linear_sum(t.args[1]).items():
            out[k] = out.get(k, 0) + sign * c
        return out
    if t.fn == "*" and any(map(is_number, t.args)):
        a, b = t.args if is_number(t.args[0]) else t.args[::-1]
        return {k: c * int(a.fn) for k, c in _linear_sum(b).items()}
    return {t: 1}


def arithmetic(op: str, a: FoTerm, b: FoTerm) -> FoTerm:
    """Return `a op b`; sums are canonical: terms ordered by their text, then a number."""
    if op not in ("+", "-") and not (op == "*" and (is_number(a) or is_number(b))):
        return fo(op, (a, b))
    total = _linear_sum(fo(op, (a, b)))
    one = number(1)
    constant = total.pop(one, 0)
    out: FoTerm | None = None
    for t in sorted((t for t, c in total.items() if c), key=repr):
        c = total[t]
        part = t if abs(c) == 1 else fo("*", (number(abs(c)), t))
        if out is None:
            out = part if c > 0 else fo("-", (number(0), part))
        else:
            out = fo("+" if c > 0 else "-", (out, part))
    if out is None:
        return number(constant)
    if constant:
        out = fo("+" if constant > 0 else "-", (out, number(abs(constant))))
    return out


# --- types ----------------------------------------------------------------------------------------


def shape(x: FoTerm) -> FoTerm:
    return fo("shape", (x,))


def size_from_end(s: FoTerm, end: FoTerm) -> FoTerm:
    """Return the size of the axis `end` of shape `s`, counted from the end: 1 is the last one."""
    if s.fn == "tuple" and is_number(end) and 1 <= int(end.fn) <= len(s.args):
        return s.args[-int(end.fn)]
    return fo("back", (s, end))


def make_tuple(items: Iterable[FoTerm]) -> FoTerm:
    return fo("tuple", tuple(items))


def join_tuples(parts: Iterable[FoTerm]) -> FoTerm:
    """Concatenate tuples."""
    out: list[FoTerm] = []
    for p in parts:
        for q in p.args if p.fn == "join" else (p,):
            if q.fn == "tuple" and out and out[-1].fn == "tuple":
                out[-1] = make_tuple(out[-1].args + q.args)
            elif q.fn != "tuple" or q.args:
                out.append(q)
    if not out:
        return make_tuple(())
    return out[0] if len(out) == 1 else fo("join", tuple(out))


@dataclass(frozen=True, slots=True)
class Clause:
    """For all variables: if the conditions hold, each left side equals its right side.

    axes: variables for an axis counted from the end, and the rank that bounds them.
    """

    name: str
    conditions: tuple[FoTerm, ...]
    sides: tuple[tuple[FoTerm, FoTerm], ...]
    axes: tuple[tuple[FoTerm, FoTerm], ...] = ()

    @property
    def variables(self) -> tuple[FoTerm, ...]:
        seen: dict[FoTerm, None] = {}
        for t in (*self.conditions, *(s for pair in self.sides for s in pair)):
            for part in subterms(t):
                if is_variable(part):
                    seen[part] = None
        return tuple(seen)
