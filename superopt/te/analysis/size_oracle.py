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

from superopt.te.expr.node import Dim, Expr


class SizeOracle(Protocol):
    """Decides comparisons of sizes that differ as expressions; a method may raise to restart."""

    def are_equal(self, a: Dim, b: Dim) -> bool:
        """True if the sizes are to be equal. At least one of them is symbolic."""

    def is_at_most(self, a: Dim, b: Dim) -> bool:
        """True if a <= b is assumed where the ranges do not decide it. False may mean unknown."""

    def is_broadcast_equal(self, a: Dim, b: Dim) -> bool:
        """Broadcast a with b, neither known to be 1: true if they are to be equal."""

    def compare(self, fn: str, a: Dim, b: Dim) -> bool | None:
        """Return whether a == b ("eq"), a < b ("lt") or a <= b ("le") where the ranges do not
        decide it; None if unknown."""


_SIZE_ORACLE: ContextVar[SizeOracle | None] = ContextVar("judge of sizes", default=None)


@contextmanager
def use_size_oracle(oracle: SizeOracle) -> Iterator[None]:
    """Compare sizes by `oracle` inside this context."""
    token = _SIZE_ORACLE.set(oracle)
    try:
        yield
    finally:
        _SIZE_ORACLE.reset(token)


def has_size_oracle() -> bool:
    """True if a size oracle is installed."""
    return _SIZE_ORACLE.get() is not None


def are_sizes_equal(a: Dim, b: Dim) -> bool:
    """True if two sizes are equal."""
    if a == b:
        return True
    judge = _SIZE_ORACLE.get()
    if judge is None or not (isinstance(a, Expr) or isinstance(b, Expr)):
        return False
    return judge.are_equal(a, b)


def is_assumed_at_most(a: Dim, b: Dim) -> bool:
    """True if a <= b is assumed where the ranges do not decide it."""
    judge = _SIZE_ORACLE.get()
    return judge is not None and judge.is_at_most(a, b)


def compare_by_oracle(fn: str, a: Dim, b: Dim) -> bool | None:
    """Return whether a == b ("eq"), a < b ("lt") or a <= b ("le") where the ranges do not decide
    it; None if unknown."""
    judge = _SIZE_ORACLE.get()
    return None if judge is None else judge.compare(fn, a, b)


def are_shapes_equal(a: Sequence[Dim], b: Sequence[Dim]) -> bool:
    """True if two shapes are equal."""
    return len(a) == len(b) and all(are_sizes_equal(x, y) for x, y in zip(a, b, strict=True))


def are_sizes_broadcast_equal(a: Dim, b: Dim) -> bool:
    """True if two sizes that are broadcast, neither of them the literal 1, are equal."""
    if a == b:
        return True
    judge = _SIZE_ORACLE.get()
    if judge is None or not (isinstance(a, Expr) or isinstance(b, Expr)):
        return False
    return judge.is_broadcast_equal(a, b)
