"""Seeded choices for instances of rules, and shapes of which only some sizes are known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

T = TypeVar("T")
Shape = tuple[int, ...]
# What is known of a shape: None is a size to be chosen; None as a whole, even the rank.
Hole = tuple[int | None, ...] | None


class Misfit(Exception):
    """No choice fits here; another attempt may."""


@dataclass(frozen=True, slots=True)
class Style:
    """How an instance is drawn. ones: the share of sizes that are 1; equal: all sizes are alike;
    most: the largest size, where nothing asks for a larger one."""

    ones: float = 0.0
    equal: bool = False
    rank: int | None = None
    most: int = 7


@dataclass(frozen=True, slots=True)
class Draw:
    """Choices from one seed."""

    rng: Random
    style: Style

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def pick(self, items: Sequence[T]) -> T:
        return items[self.rng.randrange(len(items))]

    def below(self, n: int) -> int:
        """A number in [0, n); Misfit when there is none."""
        if n < 1:
            raise Misfit(f"no number below {n}")
        return self.rng.randrange(n)

    def size(self, least: int = 1, most: int = 7) -> int:
        """The extent of an axis."""
        if self.style.equal:
            return max(least, min(3, self.style.most))
        if least <= 1 and self.chance(self.style.ones):
            return 1
        return self.rng.randint(max(2, least), max(min(most, self.style.most), least, 2))

    def rank(self, least: int = 0, most: int = 4) -> int:
        wanted = self.style.rank
        if wanted is not None and least <= wanted <= most:
            return wanted
        return self.rng.randint(max(least, min(1, most)), most)

    def shape(self, rank: int, most: int = 7) -> Shape:
        return tuple(self.size(most=most) for _ in range(rank))

    def part(self, n: int) -> tuple[int, int]:
        """(start, end) of a part of n elements; often at the beginning or the end."""
        start = 0 if self.chance(0.4) else self.below(n)
        end = n if self.chance(0.4) else self.rng.randint(start + 1, n)
        return start, end


def full(h: Hole) -> Shape | None:
    """The shape, if nothing of it is to be chosen."""
    if h is None:
        return None
    sizes = [d for d in h if d is not None]
    return tuple(sizes) if len(sizes) == len(h) else None


def known_rank(*holes: Hole) -> int | None:
    """The first rank that is known."""
    return next((len(h) for h in holes if h is not None), None)


def filled(h: Hole, like: Sequence[int], draw: Draw) -> Shape:
    """`h` with what is unknown taken from `like`, axes aligned at the end; the rest is drawn."""
    if h is None:
        return tuple(like)
    lead = len(h) - len(like)
    return tuple(
        d if d is not None else like[n - lead] if n >= lead else draw.size()
        for n, d in enumerate(h)
    )


def drawn(h: Hole, draw: Draw, rank: int, least: int = 1, most: int = 7) -> Shape:
    """`h` with what is unknown drawn; `rank` where even that is unknown."""
    dims: Sequence[int | None] = (None,) * rank if h is None else h
    return tuple(draw.size(least, most) if d is None else d for d in dims)


MANY = 1 << 32  # elements; no tensor of so many is tried


def divisors(n: int) -> list[int]:
    """In ascending order; Misfit where there are too many to look at."""
    if n > MANY:
        raise Misfit(f"{n} elements")
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return small + [n // d for d in reversed(small) if d * d != n]


def refactored(count: int, rank: int, draw: Draw) -> Shape:
    """`rank` sizes with the product `count`."""
    if rank == 0:
        if count != 1:
            raise Misfit(f"{count} elements in no axis")
        return ()
    out: list[int] = []
    for _ in range(rank - 1):
        d = draw.pick(divisors(count)) if count else 0
        out.append(d)
        count = count // d if d else 0
    out.append(count)
    draw.rng.shuffle(out)
    return tuple(out)
