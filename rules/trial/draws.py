"""The inputs of a trial: several distributions for every input of an instance."""

from __future__ import annotations

import zlib
from collections.abc import Container
from functools import lru_cache

import numpy as np

from superopt.ir.graph import Input
from superopt.rules.lang.rule import Rule
from superopt.rules.lang.term import Number, walk
from superopt.rules.trial.instances import Instance
from superopt.te.expr.dtype import BOOL, DType, to_numpy

# Multiples of 0.5 hit rounding boundaries and ties; small numbers are below what is added to them.
DRAWS = ("normal", "positive", "whole", "halves", "small")
# Large draws make exp infinite, even behind a small factor, and nothing else: the check covers what
# a rule loses or gains there.
LARGE_SCALES = {"large": 1e3, "larger": 1e5, "huge": 1e8}
# Tensors filled with an infinity, NaN, zero or -1: a partial fill makes an infinity meet its
# opposite only in a few of many elements.
CONSTANT_DRAWS = ("flat", "even")
# Numbers whose squares and reciprocals are infinite, zero or subnormal: bitwise equality must hold
# for them, too.
EXTREME_DRAWS = ("extreme", "outermost")
OVERFLOW_DRAW = "overflowing"  # integers of the whole range, half of them at its ends
EXCEPTIONAL_SHARES = {"exceptional": 0.25, "odd": 0.5, "strange": 0.5, "singular": 0.75}
EXCEPTIONAL_DRAWS = (*EXCEPTIONAL_SHARES, *CONSTANT_DRAWS, *EXTREME_DRAWS)
MAX_RULE_NUMBER = 1e12  # largest literal of a rule that is drawn
SMALL_FRACTIONS = (0.0, 0.5, -0.5, 1.0, -1.0, 2.0, -2.0, 4.0, -4.0)  # quotients are exact
EXCEPTIONAL_VALUES = np.array([np.inf, -np.inf, np.nan, 0.0])
EXTREME_VALUES = np.array(
    [s * n for n in (1e308, 1e200, 1e-160, 1e-308, 5e-324) for s in (1.0, -1.0)]
)


def overflow_draws(one: Instance) -> tuple[str, ...]:
    """Return the draw of integers that overflow, if an input has integers that are no indices."""
    kinds = (i.type.dtype for i in one.inputs if i not in one.limits)
    return (OVERFLOW_DRAW,) if any(d is not None and d.is_int for d in kinds) else ()


def real_feeds(one: Instance, draw: str, seed: int) -> dict[str, np.ndarray]:
    """Return real inputs of the given draw: ordinary or exceptional numbers."""
    return {i.name: draw_array(i, one.limits.get(i), draw, seed) for i in one.inputs}


def mix_in_rule_numbers(
    rule: Rule, feeds: dict[str, np.ndarray], seed: int, indices: Container[str] = ()
) -> None:
    """Mix the rule's literals and nearby numbers into the elements: the rule may divide by zero at
    7, or take a root of a negative number beyond -5. `indices` are left out."""
    terms = [t for side in (*rule.lhs, *rule.rhs) for t in walk(side)]
    said = {abs(float(t.value)) for t in terms if isinstance(t, Number)} - {0.0, 1.0, 2.0}
    near = sorted(s * n for n in said if n < MAX_RULE_NUMBER for s in (1.0, -1.0, 1.5, -1.5))
    for name, x in feeds.items():
        some = [v for v in near if x.dtype.kind == "f" or _is_representable(x.dtype, v)]
        if some and x.dtype.kind in "fiu" and x.size and name not in indices:
            rng = named_rng(f"{name} numbers", seed)
            there = rng.random(x.shape) < 0.5
            mixed = np.where(there, np.array(some)[rng.integers(0, len(some), x.shape)], x)
            feeds[name] = mixed.astype(x.dtype)


def _is_representable(dtype: np.dtype, value: float) -> bool:
    """True if the truncated number is in the range of these integers."""
    return dtype.kind in "iu" and np.iinfo(dtype).min <= value <= np.iinfo(dtype).max


def named_rng(name: str, seed: int) -> np.random.Generator:
    """Return a random generator of its own for each name."""
    return np.random.default_rng((zlib.crc32(name.encode()), seed))


def draw_array(i: Input, limit: int | None, draw: str, seed: int) -> np.ndarray:
    """Return an array of the type of `i`. limit: the extent that it indexes, if it is an index."""
    dtype, shape = i.type.dtype, tuple(int(d) for d in i.type.shape or () if isinstance(d, int))
    assert dtype is not None
    return _draw_array(i.name, dtype, shape, limit, draw, seed)


@lru_cache(maxsize=1 << 12)
def _draw_array(
    name: str, dtype: DType, shape: tuple[int, ...], limit: int | None, draw: str, seed: int
) -> np.ndarray:
    """Return the array of a draw: the readings of one law are tried on the same ones."""
    made = _make_array(named_rng(f"{name} {draw}", seed), dtype, shape, limit, draw)
    if isinstance(made, np.ndarray):  # else a scalar, which never is
        made.flags.writeable = False
    return made


def _make_array(
    rng: np.random.Generator, dtype: DType, shape: tuple[int, ...], limit: int | None, draw: str
) -> np.ndarray:
    stored = to_numpy(dtype)
    if dtype == BOOL:
        return rng.integers(0, 2, shape).astype(stored)
    if dtype.is_int:
        if draw == OVERFLOW_DRAW and limit is None:
            return draw_overflowing(rng, dtype, shape)
        return _draw_integers(rng, dtype.kind == "u", limit, draw, shape).astype(stored)
    match draw:
        case "positive":
            x = rng.uniform(0.25, 2.0, shape)
        case "whole":
            x = rng.integers(-2, 3, shape).astype(np.float64)
        case _ if draw in LARGE_SCALES:
            x = rng.standard_normal(shape) * LARGE_SCALES[draw]
        case "halves":
            x = rng.choice(SMALL_FRACTIONS, shape)
        case "small":
            x = rng.standard_normal(shape) * 1e-3
        case _ if draw in CONSTANT_DRAWS:  # as a maximum of infinities only, times 0
            x = np.full(shape, rng.choice((np.inf, -np.inf, np.nan, 0.0, -1.0)))
        case _ if draw in EXTREME_DRAWS:
            return _mix(rng, EXTREME_VALUES, 0.5, shape)  # float64, as the computation
        case _ if draw in EXCEPTIONAL_SHARES:
            x = _mix(rng, EXCEPTIONAL_VALUES, EXCEPTIONAL_SHARES[draw], shape)
        case _:
            x = rng.standard_normal(shape)
    return x.astype(stored)


def _mix(
    rng: np.random.Generator, values: np.ndarray, share: float, shape: tuple[int, ...]
) -> np.ndarray:
    """Return normal numbers, a share of them replaced by `values`."""
    x = rng.standard_normal(shape)
    return np.where(rng.random(shape) < share, values[rng.integers(0, len(values), shape)], x)


def _draw_integers(
    rng: np.random.Generator, unsigned: bool, limit: int | None, draw: str, shape: tuple[int, ...]
) -> np.ndarray:
    if limit is not None:  # an index; negative ones count from the end
        return rng.integers(0 if draw == "positive" else -limit, limit, shape)
    low = 1 if draw == "positive" else 0 if unsigned else -9
    return rng.integers(low, 10, shape)


def draw_overflowing(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    """Return integers whose sums and products overflow."""
    bits, half = dtype.bits, 1 << (dtype.bits - 1)
    low, high = (-half, half - 1) if dtype.kind == "i" else (0, 2 * half - 1)
    stored = to_numpy(dtype)
    ends = np.array([low, low, low, high, high, low + 1, high - 1, (low + high) // 2])
    every = rng.integers(low, high, shape, np.uint64 if bits == 64 and not low else np.int64, True)
    at_ends = ends.astype(stored)[rng.integers(0, len(ends), shape)]
    return np.where(rng.random(shape) < 0.5, at_ends, every.astype(stored))
