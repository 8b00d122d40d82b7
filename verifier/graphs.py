"""Are two values of graphs equal, whatever the inputs? Read off their nodes' tensor expressions.

Sizes are those of the graphs; symbolic ones stand for all from 1. Values that both share may be
taken as given, so that a large graph is proved piece by piece.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from superopt.ir.graph import Constant, Node, Value, producer, results
from superopt.te.dtype import BOOL, F32, INDEX, widens
from superopt.te.expr import Tensor, both, compare, compute, const, placeholder, select
from superopt.te.node import Expr
from superopt.verifier import bounds, facts, guard, normal, simplify
from superopt.verifier.algebra import Undefined
from superopt.verifier.choices import NOTES
from superopt.verifier.equal import equal
from superopt.verifier.facts import Facts, OutOfTime
from superopt.verifier.poly import fresh, of
from superopt.verifier.prove import ASSUMES, Limits
from superopt.verifier.reader import Reader, Unreadable
from superopt.verifier.verdict import Proved, Scope, Unknown

FEW = 24  # elements of a constant that are written out as cases


def proved_equal(
    a: Value, b: Value, given: Collection[Value] = (), limits: Limits | None = None
) -> Proved | Unknown:
    """Is b == a, element by element, for all inputs? given: values that both are computed from, and
    that may be anything."""
    limit = limits or Limits()
    begin = time.thread_time()
    for table in (bounds, guard, normal, simplify):
        table.forget()
    NOTES.clear()
    tally = facts.start(limit.seconds, limit.work)

    def since() -> float:
        return time.thread_time() - begin

    if a.type != b.type:
        return Unknown(f"{a.type} and {b.type}", since())
    try:
        known = _Tensors(frozenset(given))
        left, right = known.of(a), known.of(b)
        reader = Reader({}, exact_types=True)
        nothing = Facts()
        axes = tuple(fresh(reader.dim(d), "i") for d in left.shape)
        place = tuple(of(v) for v in axes)
        one = reader.element(left, place, nothing)
        two = reader.element(right, place, nothing)
        if reader.outside:
            return Unknown(f"may read outside: {reader.outside[0]}", since())
        if not equal(one, two, nothing):
            return Unknown("not shown equal", since())
    except OutOfTime:
        return Unknown(f"{limit.seconds} seconds, or the work, are over", since())
    except (Unreadable, Undefined) as e:
        return Unknown(f"{type(e).__name__}: {e}", since())
    except RecursionError:
        return Unknown("nested too deep", since())
    scope = Scope("these shapes", 1, (*ASSUMES, *sorted(NOTES)))
    return Proved(scope, (), (), reader.checked, tally.queries, since(), 0)


@dataclass(slots=True)
class _Tensors:
    """The tensor of each value, down to those that are given, inputs, and large constants."""

    given: frozenset[Value]
    known: dict[Value, Tensor] = field(default_factory=dict)

    def of(self, v: Value) -> Tensor:
        for n in self.nodes(v):
            operands = [None if x is None else self.leaf(x) for x in n.inputs]
            if n.op.compute is None:
                raise Unreadable(f"{n.op.name} has no tensor expression")
            if _narrows(n):
                raise Unreadable(f"{n.op.name} to {n.types[0].dtype} may round or wrap")
            found = n.op.compute(*operands, **dict(n.attrs))
            every = found if isinstance(found, tuple) else (found,)
            self.known.update(zip(results(n), every, strict=True))
        return self.leaf(v)

    def nodes(self, v: Value) -> Iterator[Node]:
        """The nodes between `v` and what is given, operands first."""
        stack: list[tuple[Node, bool]] = []
        seen: set[Node] = set()
        if v not in self.given and (p := producer(v)) is not None:
            stack.append((p, False))
        while stack:
            n, done = stack.pop()
            if done:
                yield n
                continue
            if n in seen:
                continue
            seen.add(n)
            stack.append((n, True))
            for x in n.inputs:
                if x is not None and x not in self.given and (p := producer(x)) is not None:
                    stack.append((p, False))

    def leaf(self, v: Value) -> Tensor:
        found = self.known.get(v)
        if found is None:
            found = self.known[v] = self.made(v)
        return found

    def made(self, v: Value) -> Tensor:
        if isinstance(v, Constant) and v not in self.given:
            return written(v, f"v{len(self.known)}")
        return placeholder(f"v{len(self.known)}", v.type)


def _narrows(n: Node) -> bool:
    """Is it a Cast to a type that has not all the values? To the reader a number is a number."""
    if n.op.name not in ("Cast", "CastLike"):
        return False
    assert n.inputs[0] is not None
    before, after = n.inputs[0].type.dtype, n.types[0].dtype
    assert before is not None
    assert after is not None
    alike = (before.is_int and after.is_int) or (before.is_float and after.is_float)
    return alike and not widens(before, after)


def written(c: Constant, name: str) -> Tensor:
    """A constant as numbers, where it has few; else any tensor."""
    assert c.type.dtype is not None
    if c.nbytes > 1 << 20:
        return placeholder(name, c.type)
    array = c.load()
    kind = c.type.dtype
    if not array.size or not (kind.is_float or kind.is_int or kind == BOOL):
        return placeholder(name, c.type)
    if kind.is_float and kind != F32 and any(_fine(v.item()) for v in array.flat[:FEW]):
        return placeholder(name, c.type)  # numbers are read as those of float32
    first = array.flat[0]
    if (array == first).all():
        return compute(array.shape, lambda *i: const(_number(first), kind), name=name)
    if array.size > FEW:
        return placeholder(name, c.type)

    def element(*index: Expr) -> Expr:
        """By cases of the index: the last element where no other one is meant."""
        every = list(np.ndindex(*array.shape))
        out: Expr = const(_number(array[every[-1]]), kind)
        for at in every[:-1]:
            here = both(
                *(compare("eq", i, const(k, INDEX)) for i, k in zip(index, at, strict=True))
            )
            out = select(here, const(_number(array[at]), kind), out)
        return out

    return compute(array.shape, element, name=name)


def _fine(v: float) -> bool:
    """Is it no simple fraction?"""
    return math.isfinite(v) and Fraction(v).denominator > 1 << 16


def _number(v: Any) -> int | float | bool:
    found = v.item()
    assert isinstance(found, (int, float, bool))
    return found
