"""Questions that operators ask about sizes, and who answers them while sizes are unknown.

An operator compares sizes to see whether its operands fit. Equal expressions are equal sizes. When
a rule is instantiated with symbolic sizes, two different expressions may still be meant to be
equal: then whoever instantiates answers, by taking them to be so or by trying again with others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from superopt.te.node import Dim, Expr


class Judge(Protocol):
    """Answers for sizes that differ as expressions; may raise instead, to start over."""

    def same(self, a: Dim, b: Dim) -> bool:
        """Are they to be equal? At least one is symbolic."""

    def undecided(self, a: Dim, b: Dim) -> bool:
        """Is a <= b, which the ranges do not say? Where it is not taken to be, what is refused for
        it is not known to be wrong."""

    def stretched(self, a: Dim, b: Dim) -> bool:
        """Broadcast a with b, neither of which is known to be 1: are they to be equal?"""

    def decided(self, fn: str, a: Dim, b: Dim) -> bool | None:
        """Is a == b ("eq"), a < b ("lt") or a <= b ("le"), which the ranges do not say? None: not
        known."""


_JUDGE: ContextVar[Judge | None] = ContextVar("judge of sizes", default=None)


@contextmanager
def judged_by(judge: Judge) -> Iterator[None]:
    """Sizes are compared by `judge` inside."""
    token = _JUDGE.set(judge)
    try:
        yield
    finally:
        _JUDGE.reset(token)


def judged() -> bool:
    """Is there somebody who answers?"""
    return _JUDGE.get() is not None


def same(a: Dim, b: Dim) -> bool:
    """Are two sizes equal?"""
    if a == b:
        return True
    judge = _JUDGE.get()
    if judge is None or not (isinstance(a, Expr) or isinstance(b, Expr)):
        return False
    return judge.same(a, b)


def undecided(a: Dim, b: Dim) -> bool:
    """Is a <= b taken to be so, where the ranges do not say?"""
    judge = _JUDGE.get()
    return judge is not None and judge.undecided(a, b)


def decided(fn: str, a: Dim, b: Dim) -> bool | None:
    """Is a == b ("eq"), a < b ("lt") or a <= b ("le"), where the ranges do not say? None: not
    known."""
    judge = _JUDGE.get()
    return None if judge is None else judge.decided(fn, a, b)


def alike(a: Sequence[Dim], b: Sequence[Dim]) -> bool:
    """Are two shapes equal?"""
    return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))


def stretches(a: Dim, b: Dim) -> bool:
    """Are two sizes that are broadcast, neither of them the number 1, equal?"""
    if a == b:
        return True
    judge = _JUDGE.get()
    if judge is None or not (isinstance(a, Expr) or isinstance(b, Expr)):
        return False
    return judge.stretched(a, b)
