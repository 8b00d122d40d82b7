"""The inputs of a trial: numbers of several kinds for every input of an instance."""

from __future__ import annotations

import zlib

import numpy as np

from superopt.ir.graph import Input
from superopt.rules.instances import Instance
from superopt.rules.rule import Rule
from superopt.rules.term import Number, walk
from superopt.te.dtype import BOOL, to_numpy

DRAWS = ("normal", "positive", "whole")
# Of which exp is infinite, even behind a small factor, and nothing else is: what a rule may lose or
# win there is told.
LARGE = {"large": 1e3, "larger": 1e5, "huge": 1e8}
# Infinities, zeros and what is no number, in many combinations; and each tensor full of one.
FLAT = ("flat", "even")
EXCEPTIONAL = ("exceptional", "odd", "strange", "singular", *FLAT)


def real_feeds(one: Instance, draw: str, seed: int) -> dict[str, np.ndarray]:
    """Real inputs: normal, positive, small whole numbers, or exceptional ones among them."""
    return {i.name: real(i, one.limits.get(i), draw, seed) for i in one.inputs}


def with_numbers_of(rule: Rule, feeds: dict[str, np.ndarray], seed: int) -> None:
    """Put numbers that a rule names, and what is beyond them, among the elements: it may divide by
    what is 0 at 7, or take a root of what is below 0 beyond -5."""
    terms = [t for side in (*rule.lhs, *rule.rhs) for t in walk(side)]
    said = {abs(float(t.value)) for t in terms if isinstance(t, Number) and abs(t.value) > 2}
    some = sorted(s * n for n in said if n < 1e4 for s in (1.0, -1.0, 1.5, -1.5))
    for name, x in feeds.items():
        if some and x.dtype.kind == "f" and x.size:
            rng = generator(f"{name} numbers", seed)
            there = rng.random(x.shape) < 0.5
            feeds[name] = np.where(there, np.array(some)[rng.integers(0, len(some), x.shape)], x)
            feeds[name] = feeds[name].astype(x.dtype)


def generator(name: str, seed: int) -> np.random.Generator:
    """Random numbers of their own for each name."""
    return np.random.default_rng((zlib.crc32(name.encode()), seed))


def real(i: Input, limit: int | None, draw: str, seed: int) -> np.ndarray:
    """An array of the type of `i`. limit: the extent that it indexes, where it is an index."""
    dtype, shape = i.type.dtype, tuple(int(d) for d in i.type.shape or () if isinstance(d, int))
    assert dtype is not None
    rng = generator(f"{i.name} {draw}", seed)
    stored = to_numpy(dtype)
    if dtype == BOOL:
        return rng.integers(0, 2, shape).astype(stored)
    if dtype.is_int:
        return _integers(rng, dtype.kind == "u", limit, draw, shape).astype(stored)
    match draw:
        case "positive":
            x = rng.uniform(0.25, 2.0, shape)
        case "whole":
            x = rng.integers(-2, 3, shape).astype(np.float64)
        case _ if draw in LARGE:
            x = rng.standard_normal(shape) * LARGE[draw]
        case _ if draw in FLAT:  # as a maximum of infinities only, times 0
            x = np.full(shape, rng.choice((np.inf, -np.inf, np.nan, 0.0, -1.0)))
        case _ if draw in EXCEPTIONAL:
            x = rng.standard_normal(shape)
            odd = np.array([np.inf, -np.inf, np.nan, 0.0])
            x = np.where(rng.random(shape) < 0.25, odd[rng.integers(0, 4, shape)], x)
        case _:
            x = rng.standard_normal(shape)
    return x.astype(stored)


def _integers(
    rng: np.random.Generator, unsigned: bool, limit: int | None, draw: str, shape: tuple[int, ...]
) -> np.ndarray:
    if limit is not None:  # an index; negative ones count from the end
        return rng.integers(0 if draw == "positive" else -limit, limit, shape)
    low = 1 if draw == "positive" else 0 if unsigned else -9
    return rng.integers(low, 10, shape)
