"""Bounds of the float32 rounding error of one value, from bounds of what it is computed from.

A computed value is a sum of terms, each of which is rounded at most N times:

    computed = sum(term * (1 + d1)^(+-1) * .. * (1 + dN)^(+-1)) + e,     |di| <= u = 2^-24

so that its error is at most gamma(N) * sum(|term|) + |e|, gamma(N) = N u / (1 - N u)
(N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition 2002, section 2.2 on the
model, lemma 3.1 and section 3.1 on products of such factors and on inner products). N counts the
additions of a sum once for each of its terms, as if one of them took part in all of them. So a
bound holds for every order of the additions, with fused multiply-adds or without, for factors
that are multiplied before or after a sum, and for constants folded in float32. It does not hold
for algorithms with other terms (Winograd, Strassen). e is what underflow adds, at most 2^-126 for
an operation, and what the operands' own e becomes.

Amounts are float64 numbers or arrays, or posynomials of symbolic sizes and scales. All of them are
nonnegative, and nothing is subtracted, so there is no cancellation: the rounding error of these
float64 computations is far below `SAFETY`, a factor of the final bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from superopt.verifier.rounding.posynomials import Posynomial, as_posynomial, upper_bound_of_both

Amount = float | np.ndarray | Posynomial

UNIT = 2.0**-24  # of float32: half the distance of 1 and the next number
UNDERFLOW = 2.0**-126  # the largest error of a result below the normal numbers, if flushed to 0
MAX_FLOAT = 2.0**126  # values up to it, and what rounding adds, do not overflow
MAX_ROUNDINGS = 2.0**18  # for which gamma(N) <= 64/63 N u
GAMMA_FACTOR = 64 / 63
SAFETY = 1 + 1e-6
ERROR_GROWTH = 1.02  # of an error by at most MAX_ROUNDINGS later roundings
EXACT_INTEGERS = 2.0**24  # float32 holds the integers up to it


class Unbounded(Exception):
    """No bound of an error is known; the message says of what."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of a value and of its error, at all indices or at each.

    size: of the sum of the terms' magnitudes, and so of the value's. count: of terms; roundings: of
    a term, without the additions of this sum. error: besides gamma(roundings + count - 1) * size.
    low, high: of the value; infinite if not known. least: of the value's magnitude; None if it may
    be 0. is_relative: the sum of the terms' magnitudes is the value's, as nothing cancels.
    """

    size: Amount
    count: Amount = 1.0
    roundings: Amount = 0.0
    error: Amount = 0.0
    low: float | np.ndarray = -np.inf
    high: float | np.ndarray = np.inf
    least: Amount | None = None
    is_relative: bool = False

    @property
    def all_roundings(self) -> Amount:
        """The number of roundings of a term, at most."""
        return add(self.roundings, add(self.count, -1.0) if _is_number(self.count) else self.count)

    @property
    def is_exact(self) -> bool:
        """True if the computed value is the value."""
        return is_zero(self.all_roundings) and is_zero(self.error)


@dataclass(slots=True)
class Limits:
    """What must hold for the bounds: each amount is at most its limit. has_unbounded_floats: True
    if floats of any size are computed with, which are assumed not to overflow."""

    amounts: list[tuple[Amount, float]] = field(default_factory=list)
    has_unbounded_floats: bool = False

    def require_finite(self, b: Bounds) -> Bounds:
        """Record that a float32 value must not overflow."""
        if is_infinite(b.size):
            self.has_unbounded_floats = True
        else:
            self.amounts.append((add(b.size, b.error), MAX_FLOAT))
        return b

    def underflow(self, least: Amount | None) -> Amount:
        """Return the largest error by underflow of a product or quotient. least: of its magnitude;
        symbolic ones are required to be normal numbers."""
        if least is None or is_infinite(least):
            return UNDERFLOW
        if isinstance(least, Posynomial):
            self.amounts.append((inverse(least), 1 / (2 * UNDERFLOW)))
            return 0.0
        return 0.0 if bool(np.all(least >= 2 * UNDERFLOW)) else UNDERFLOW

    def gamma(self, roundings: Amount) -> Amount:
        """Return the largest relative error of that many roundings."""
        if not is_zero(roundings):
            self.amounts.append((roundings, MAX_ROUNDINGS))
        return multiply(roundings, GAMMA_FACTOR * UNIT)

    def total_error(self, b: Bounds) -> Amount:
        """Return the largest error of a value."""
        return add(multiply(self.gamma(b.all_roundings), b.size), multiply(b.error, ERROR_GROWTH))


# --- amounts --------------------------------------------------------------------------------------


def _is_number(a: Amount) -> bool:
    return not isinstance(a, Posynomial)


def is_zero(a: Amount) -> bool:
    return not a.terms if isinstance(a, Posynomial) else bool(np.all(np.asarray(a) == 0))


def is_infinite(a: Amount) -> bool:
    """True if a number is infinite, of an array any."""
    if isinstance(a, Posynomial):
        return any(np.isinf(c) for c in a.terms.values())
    return bool(np.any(np.isinf(a)))


def add(a: Amount, b: Amount) -> Amount:
    if isinstance(a, Posynomial) or isinstance(b, Posynomial):
        return _posynomial(a) + _posynomial(b)
    return a + b


def multiply(a: Amount, b: Amount) -> Amount:
    """Return the product; 0 times infinity is 0."""
    if isinstance(a, Posynomial) or isinstance(b, Posynomial):
        return _posynomial(a) * _posynomial(b)
    with np.errstate(invalid="ignore"):
        out = np.asarray(a) * np.asarray(b)
    return np.where(np.isnan(out), 0.0, out) if np.isnan(out).any() else out


def larger(a: Amount, b: Amount) -> Amount:
    """Return an amount that is at least both."""
    if isinstance(a, Posynomial) or isinstance(b, Posynomial):
        return upper_bound_of_both(_posynomial(a), _posynomial(b))
    return np.maximum(a, b)


def inverse(a: Amount) -> Amount:
    """Return 1 / a. Raises Unbounded if that is not an amount."""
    if not isinstance(a, Posynomial):
        return 1.0 / np.asarray(a)
    found = a.inverse()
    if found is None:
        raise Unbounded(f"1 / ({a})")
    return found


def _posynomial(a: Amount) -> Posynomial:
    if isinstance(a, Posynomial):
        return a
    return as_posynomial(float(np.max(a)))


# --- leaves ---------------------------------------------------------------------------------------


def bounds_of_integers(low: float, high: float) -> Bounds:
    """Return the bounds of any integer of a range."""
    return Bounds(max(abs(low), abs(high)), low=low, high=high, is_relative=True)


def bounds_of_constant(values: np.ndarray, roundings: float) -> Bounds:
    """Return the bounds of constant elements. roundings: of each of them."""
    size = np.abs(values.astype(np.float64))
    low = high = values.astype(np.float64)
    least = size if size.size and size.all() else None
    return Bounds(size, 1.0, roundings, 0.0, low, high, least, True)


def any_float() -> Bounds:
    """Return the bounds of any float32 number."""
    return Bounds(np.inf, is_relative=True)


# --- operations in float32 ------------------------------------------------------------------------


def bounds_of_sum(a: Bounds, b: Bounds, limits: Limits) -> Bounds:
    """Return the bounds of a + b."""
    exact_zero = [x for x in (a, b) if is_zero(x.size) and x.is_exact]
    if exact_zero:
        return b if exact_zero[0] is a else a
    nonnegative = all(x.is_relative and np.all(np.asarray(x.low) >= 0) for x in (a, b))
    return limits.require_finite(
        Bounds(
            add(a.size, b.size),
            add(a.count, b.count),
            larger(a.roundings, b.roundings),
            add(add(a.error, b.error), UNDERFLOW),
            np.add(a.low, b.low),
            np.add(a.high, b.high),
            a.least if nonnegative and a.least is not None else b.least if nonnegative else None,
            nonnegative,
        )
    )


def bounds_of_product(a: Bounds, b: Bounds, limits: Limits) -> Bounds:
    """Return the bounds of a * b."""
    count, roundings = _factor_counts(a, b)
    least = None if a.least is None or b.least is None else multiply(a.least, b.least)
    return limits.require_finite(
        Bounds(
            multiply(a.size, b.size),
            count,
            add(roundings, 1.0),
            add(_product_error(a, b, limits), limits.underflow(least)),
            **_product_range(a, b),
            least=least,
            is_relative=a.is_relative and b.is_relative,
        )
    )


def _factor_counts(a: Bounds, b: Bounds) -> tuple[Amount, Amount]:
    """Return the number of terms of a product, and the roundings of one: a sum may be multiplied
    before or after its additions, two sums only after them."""
    for one, other in ((a, b), (b, a)):
        if _is_number(other.count) and other.count == 1:
            return one.count, add(one.roundings, other.roundings)
    return 1.0, add(a.all_roundings, b.all_roundings)


def _product_error(a: Bounds, b: Bounds, limits: Limits) -> Amount:
    """Return what the operands' errors besides their roundings add to a product."""
    total: Amount = 0.0
    for x, y in ((a, b), (b, a)):
        if not is_zero(y.error):
            total = add(total, multiply(add(x.size, limits.total_error(x)), y.error))
    return total


def _product_range(a: Bounds, b: Bounds) -> dict[str, float | np.ndarray]:
    """Return the range of a product of numbers that are known not to be negative."""
    known = all(np.all(np.asarray(x.low) >= 0) for x in (a, b))
    if not known:
        return {"low": -np.inf, "high": np.inf}
    low = np.asarray(a.low) * np.asarray(b.low)
    return {"low": low * (1 - 1e-12), "high": np.inf}


def bounds_of_quotient(a: Bounds, b: Bounds, limits: Limits) -> Bounds:
    """Return the bounds of a / b. Raises Unbounded if b may be 0, or cancels."""
    if b.least is None or not b.is_relative or not is_zero(b.error):
        raise Unbounded("a quotient whose divisor may be 0, or is a difference")
    by = inverse(b.least)
    limits.gamma(b.all_roundings)
    least = _least_of_quotient(a, b)
    return limits.require_finite(
        Bounds(
            multiply(a.size, by),
            a.count,
            add(add(a.roundings, b.all_roundings), 1.0),
            add(multiply(multiply(a.error, by), ERROR_GROWTH), limits.underflow(least)),
            least=least,
            is_relative=a.is_relative,
        )
    )


def _least_of_quotient(a: Bounds, b: Bounds) -> Amount | None:
    if a.least is None or (isinstance(b.size, Posynomial) and b.size.inverse() is None):
        return None
    return None if is_infinite(b.size) else multiply(a.least, inverse(b.size))


def bounds_of_square_root(a: Bounds, limits: Limits) -> Bounds:
    """Return the bounds of sqrt(a), of a number above 0 that is known."""
    if not _is_number(a.size) or a.least is None or not a.is_relative:
        raise Unbounded("a square root of what may be 0, or is a difference")
    low, size = np.asarray(a.least), np.asarray(a.size)
    # an error besides roundings is relative to the least number
    extra = np.max(np.asarray(a.error) / low / UNIT)
    roundings = add(a.all_roundings, 1.0 + 2 * float(extra))
    limits.gamma(roundings)
    root = np.sqrt(low)
    return Bounds(np.sqrt(size), 1.0, roundings, 0.0, root, np.inf, root, True)


def bounds_of_extremum(
    a: Bounds, b: Bounds, limits: Limits, pick: Callable[..., np.ndarray]
) -> Bounds:
    """Return the bounds of max(a, b) or min(a, b), whose error is at most the larger one of a and
    b: also relative to the result, as |max(a, b)| <= |a| where a < b and a < 0, and so on.
    pick: np.maximum or np.minimum."""
    whole = larger(a.all_roundings, b.all_roundings)
    low, high = pick(a.low, b.low), pick(a.high, b.high)
    size = larger(a.size, b.size)
    if not isinstance(size, Posynomial) and a.is_relative and b.is_relative:
        # else the terms are larger than the value, as they cancel
        size = np.minimum(size, np.maximum(np.abs(low), np.abs(high)))
    return Bounds(
        size,
        1.0,
        whole,
        larger(a.error, b.error),
        low,
        high,
        None,
        a.is_relative and b.is_relative,
    )


def bounds_of_either(a: Bounds, b: Bounds) -> Bounds:
    """Return the bounds of a value that is a or b."""
    least = None if a.least is None or b.least is None else _smaller(a.least, b.least)
    return Bounds(
        larger(a.size, b.size),
        larger(a.count, b.count),
        larger(a.roundings, b.roundings),
        larger(a.error, b.error),
        np.minimum(a.low, b.low),
        np.maximum(a.high, b.high),
        least,
        a.is_relative and b.is_relative,
    )


def _smaller(a: Amount, b: Amount) -> Amount | None:
    if isinstance(a, Posynomial) or isinstance(b, Posynomial):
        return a if a == b else None
    return np.minimum(a, b)


def bounds_of_negative(a: Bounds) -> Bounds:
    return replace(a, low=np.negative(a.high), high=np.negative(a.low))


def bounds_of_cast_integer(a: Bounds) -> Bounds:
    """Return the bounds of an integer as float32, which holds those up to 2^24 exactly."""
    is_small = _is_number(a.size) and bool(np.all(np.asarray(a.size) <= EXACT_INTEGERS))
    return a if is_small else replace(a, roundings=add(a.all_roundings, 1.0), count=1.0)


def limit_relative(a: Bounds, most: float) -> Bounds:
    """Return the bounds of a value limited to +-most, if its error is relative to it."""
    if not a.is_relative:
        return a
    return replace(a, size=most if isinstance(a.size, Posynomial) else np.minimum(a.size, most))
