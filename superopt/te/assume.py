"""Comparisons of sizes, and the oracle that decides them while sizes are symbolic.

An operator compares sizes to check its operands. Equal expressions are equal sizes. If a rule is
instantiated with symbolic sizes, two different expressions may still denote equal sizes: the
instantiation installs an oracle, which assumes equality or retries with other sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from superopt.te.node import Dim, Expr


class Judge(Protocol):
    """Decides comparisons of sizes that differ as expressions; a method may raise to restart."""

    def same(self, a: Dim, b: Dim) -> bool:
        """True if the sizes are to be equal. At least one of them is symbolic."""

    def undecided(self, a: Dim, b: Dim) -> bool:
        """True if a <= b is assumed where the ranges do not decide it. A rejection that rests on
        False does not show that the rule is wrong."""

    def stretched(self, a: Dim, b: Dim) -> bool:
        """Broadcast a with b, neither known to be 1: true if they are to be equal."""

    def decided(self, fn: str, a: Dim, b: Dim) -> bool | None:
        """Return whether a == b ("eq"), a < b ("lt") or a <= b ("le") where the ranges do not
        decide it; None if unknown."""


_JUDGE: ContextVar[Judge | None] = ContextVar("judge of sizes", default=None)


@contextmanager
def judged_by(judge: Judge) -> Iterator[None]:
    """Compare sizes by `oracle` inside this context."""
    token = _JUDGE.set(judge)
    try:
        yield
    finally:
        _JUDGE.reset(token)


def judged() -> bool:
    """True if a size oracle is installed."""
    return _JUDGE.get() is not None


def same(a: Dim, b: Dim) -> bool:
    """True if two sizes are equal."""
    if a == b:
        return True
    judge = _JUDGE.get()
    if judge is None or not (isinstance(a, Expr) or isinstance(b, Expr)):
        return False
    return judge.same(a, b)


def undecided(a: Dim, b: Dim) -> bool:
    """True if a <= b is assumed where the ranges do not decide it."""
    judge = _JUDGE.get()
    return judge is not None and judge.undecided(a, b)


def decided(fn: str, a: Dim, b: Dim) -> bool | None:
    """Return whether a == b ("eq"), a < b ("lt") or a <= b ("le") where the ranges do not decide
    it; None if unknown."""
    judge = _JUDGE.get()
    return None if judge is None else judge.decided(fn, a, b)


def alike(a: Sequence[Dim], b: Sequence[Dim]) -> bool:
    """True if two shapes are equal."""
    return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))


def stretches(a: Dim, b: Dim) -> bool:
    """True if two sizes that are broadcast, neither of them the literal 1, are equal."""
    if a == b:
        return True
    judge = _JUDGE.get()
    if judge is None or not (isinstance(a, Expr) or isinstance(b, Expr)):
        return False
    return judge.stretched(a, b)
