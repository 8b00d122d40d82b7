"""Seeded choices for instances of rules, and partial shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

T = TypeVar("T")
Shape = tuple[int, ...]
# A partial shape: None is a size to be chosen; None as a whole, an unknown rank.
PartialShape = tuple[int | None, ...] | None


class RejectedChoice(Exception):
    """No choice fits here; another attempt may."""


@dataclass(frozen=True, slots=True)
class Style:
    """How an instance is drawn. ones_share: the share of sizes that are 1; equal_sizes: all sizes
    are equal; max_size: the largest size, unless more is required."""

    ones_share: float = 0.0
    equal_sizes: bool = False
    rank: int | None = None
    max_size: int = 7


@dataclass(frozen=True, slots=True)
class Draw:
    """Choices from one seed."""

    rng: Random
    style: Style

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def pick(self, items: Sequence[T]) -> T:
        return items[self.rng.randrange(len(items))]

    def integer_below(self, n: int) -> int:
        """Return a number in [0, n); raises RejectedChoice if there is none."""
        if n < 1:
            raise RejectedChoice(f"cannot draw an integer below {n}")
        return self.rng.randrange(n)

    def size(self, low: int = 1, high: int = 7) -> int:
        """Return the extent of an axis."""
        if self.style.equal_sizes:
            return max(low, min(3, self.style.max_size))
        if low <= 1 and self.chance(self.style.ones_share):
            return 1
        return self.rng.randint(max(2, low), max(min(high, self.style.max_size), low, 2))

    def rank(self, low: int = 0, high: int = 4) -> int:
        wanted = self.style.rank
        if wanted is not None and low <= wanted <= high:
            return wanted
        return self.rng.randint(max(low, min(1, high)), high)

    def shape(self, rank: int, max_size: int = 7) -> Shape:
        return tuple(self.size(high=max_size) for _ in range(rank))

    def subrange(self, n: int) -> tuple[int, int]:
        """Return (start, end) of a part of n elements; often at the beginning or the end."""
        start = 0 if self.chance(0.4) else self.integer_below(n)
        end = n if self.chance(0.4) else self.rng.randint(start + 1, n)
        return start, end


def full_shape(shape: PartialShape) -> Shape | None:
    """Return the shape if it is fully known, else None."""
    if shape is None:
        return None
    sizes = [d for d in shape if d is not None]
    return tuple(sizes) if len(sizes) == len(shape) else None


def known_rank(*shapes: PartialShape) -> int | None:
    """Return the first known rank, else None."""
    return next((len(h) for h in shapes if h is not None), None)


def least_rank(*axes: int) -> int:
    """Return the least rank, of at least 1, that has these axes."""
    return max((1, *(max(a + 1, -a) for a in axes)))


def complete_like(shape: PartialShape, like: Sequence[int], draw: Draw) -> Shape:
    """Complete `shape` from `like`, with axes aligned at the end; the rest is drawn."""
    if shape is None:
        return tuple(like)
    lead = len(shape) - len(like)
    return tuple(
        d if d is not None else like[n - lead] if n >= lead else draw.size()
        for n, d in enumerate(shape)
    )


def draw_shape(shape: PartialShape, draw: Draw, rank: int, low: int = 1, high: int = 7) -> Shape:
    """Complete `shape` by drawn sizes; `rank` is used if its rank is unknown."""
    dims: Sequence[int | None] = (None,) * rank if shape is None else shape
    return tuple(draw.size(low, high) if d is None else d for d in dims)


MAX_ELEMENTS = 1 << 32  # no tensor of so many elements is tried


def divisors(n: int) -> list[int]:
    """Return the divisors in ascending order; raises RejectedChoice if n is too large."""
    if n > MAX_ELEMENTS:
        raise RejectedChoice(f"{n} elements")
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return small + [n // d for d in reversed(small) if d * d != n]


def draw_factors(count: int, rank: int, draw: Draw) -> Shape:
    """Return `rank` sizes with the product `count`."""
    if rank == 0:
        if count != 1:
            raise RejectedChoice(f"{count} elements in no axis")
        return ()
    out: list[int] = []
    for _ in range(rank - 1):
        d = draw.pick(divisors(count)) if count else 0
        out.append(d)
        count = count // d if d else 0
    out.append(count)
    draw.rng.shuffle(out)
    return tuple(out)
