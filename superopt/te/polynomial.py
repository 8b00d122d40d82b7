"""Elements that are rational functions with exact coefficients; equal elements are equal functions.

A polynomial is a sum of monomials in atoms. An atom is an element of an input or the result of an
uninterpreted function. Powers may be negative: a quotient by one monomial is exact, one by a sum
has an atom. Two equal rational functions may be unequal here (a quotient by a sum is not
cancelled); two that are equal here are equal wherever both are defined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from superopt.te.domain import Reals
from superopt.te.dtype import F64, DType, widens
from superopt.te.expr import TensorType
from superopt.te.fn import unit
from superopt.te.node import Number

Monomial = tuple[tuple[int, int], ...]  # (atom number, power) pairs
MOST = 1 << 14  # monomials of one polynomial
_WHOLE_POWER = 8
_SIMPLE = 4096  # denominators of fractions that a float is rounded to
_INTEGERS = Reals(F64)


class NoPolynomial(Exception):
    """Not representable by a polynomial, or too many monomials."""


@dataclass(frozen=True, slots=True)
class Polynomial:
    """A nonzero coefficient for each monomial."""

    terms: dict[Monomial, Fraction]
    key: frozenset[tuple[Monomial, Fraction]] = field(init=False, compare=True)

    def __post_init__(self) -> None:
        if len(self.terms) > MOST:
            raise NoPolynomial(f"a polynomial of more than {MOST} terms")
        object.__setattr__(self, "key", frozenset(self.terms.items()))

    def __hash__(self) -> int:
        return hash(self.key)

    def __add__(self, other: Polynomial) -> Polynomial:
        return total((self, other))

    def __neg__(self) -> Polynomial:
        return Polynomial({m: -c for m, c in self.terms.items()})

    def __sub__(self, other: Polynomial) -> Polynomial:
        return self + -other

    def __mul__(self, other: Polynomial) -> Polynomial:
        out: dict[Monomial, Fraction] = {}
        for m, c in self.terms.items():
            for n, d in other.terms.items():
                _plus(out, _times(m, n), c * d)
        return Polynomial(out)

    @property
    def number(self) -> Fraction | None:
        """Return the number that a constant polynomial is, else None."""
        if not self.terms:
            return Fraction(0)
        return self.terms.get(()) if len(self.terms) == 1 else None


def total(some: Iterable[Polynomial]) -> Polynomial:
    """Return the sum of polynomials."""
    out: dict[Monomial, Fraction] = {}
    for p in some:
        for m, c in p.terms.items():
            _plus(out, m, c)
    return Polynomial(out)


def _plus(terms: dict[Monomial, Fraction], m: Monomial, c: Fraction) -> None:
    sum_ = terms.get(m, 0) + c
    if sum_:
        terms[m] = Fraction(sum_)
    else:
        del terms[m]


def _times(m: Monomial, n: Monomial) -> Monomial:
    powers = dict(m)
    for atom, power in n:
        powers[atom] = powers.get(atom, 0) + power
    return tuple(sorted((a, p) for a, p in powers.items() if p))


def number(value: int | Fraction) -> Polynomial:
    return Polynomial({(): Fraction(value)} if value else {})


@dataclass(frozen=True, slots=True)
class Polynomials:
    """The domain, with the number of each atom. A float that is the nearest one to a simple
    fraction is read as that fraction, which is recorded in `rationalized`."""

    atoms: dict[object, int] = field(default_factory=dict)
    read: set[Fraction] = field(default_factory=set)

    def store(self, dtype: DType) -> np.dtype:
        return np.dtype(object) if dtype.is_float else _INTEGERS.store(dtype)

    def lead(self, dtype: DType) -> tuple[int, ...]:
        return ()

    def load(self, array: np.ndarray, type: TensorType) -> np.ndarray:
        assert type.dtype is not None
        if array.dtype == object or not type.dtype.is_float:
            return array
        return _each(lambda v: number(self.exact(float(v))), array)

    def atom(self, what: object) -> Polynomial:
        """Return the polynomial that is one atom."""
        return Polynomial({((self.atoms.setdefault(what, len(self.atoms)), 1),): Fraction(1)})

    def exact(self, value: float | Fraction) -> Fraction:
        """Return the number that a float stands for."""
        if value - value != 0:
            raise NoPolynomial(f"the number {value}")
        near = Fraction(value).limit_denominator(_SIMPLE)
        if near == value or value not in (float(near), float(np.float32(float(near)))):
            return Fraction(value)
        self.read.add(near)
        return near

    def input(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Return an input each of whose elements is an atom."""
        out = np.empty(shape, object)
        for at in np.ndindex(*shape):
            out[at] = self.atom((name, at))
        return out

    def const(self, value: Number, dtype: DType) -> np.ndarray:
        if not dtype.is_float:
            return _INTEGERS.const(value, dtype)
        return _scalar(number(value if isinstance(value, int) else self.exact(value)))

    def apply(
        self, fn: str, args: Sequence[np.ndarray], kinds: Sequence[DType], dtype: DType
    ) -> np.ndarray:
        if fn == "select":
            return np.where(args[0], args[1], args[2])
        if not dtype.is_float and not any(k.is_float for k in kinds):
            return _INTEGERS.apply(fn, args, kinds, dtype)
        if not dtype.is_float:
            raise NoPolynomial(f"{fn} of floats with a result that is not a float")
        if fn == "cast":
            if not kinds[0].is_float:
                return _each(lambda v: number(int(v)), args[0])
            if widens(kinds[0], dtype):
                return args[0]
            return _each(lambda v: self.atom((f"round to {dtype}", v.key)), args[0])
        return _each(lambda *values: self._called(fn, values), *args)

    def wide(self, dtype: DType) -> DType:
        return dtype

    def reduce(self, fn: str, x: np.ndarray, axes: tuple[int, ...], dtype: DType) -> np.ndarray:
        if not dtype.is_float:
            return _INTEGERS.reduce(fn, x, axes, dtype)
        kept = [a for a in range(-x.ndim, 0) if a not in axes]
        shape = [1 if a in axes else x.shape[a] for a in range(-x.ndim, 0)]
        flat = x.transpose(*kept, *axes).reshape(*(x.shape[a] for a in kept), -1)
        out = np.empty(flat.shape[:-1], object)
        for at in np.ndindex(*out.shape):
            out[at] = self._fold(fn, flat[at], dtype)
        return out.reshape(shape)

    def _fold(self, fn: str, values: Iterable[Polynomial], dtype: DType) -> Polynomial:
        some = list(values)
        if not some:
            nothing = unit(fn, dtype)
            return number(self.exact(nothing) if isinstance(nothing, float) else nothing)
        if fn == "sum":
            return total(some)
        own = "mul" if fn == "prod" else fn
        out = some[0]
        for v in some[1:]:
            out = self._called(own, (out, v))
        return out

    def matmul(self, a: np.ndarray, b: np.ndarray, dtype: DType) -> np.ndarray:
        if not dtype.is_float:
            return _INTEGERS.matmul(a, b, dtype)
        products = self.apply("mul", (a[..., :, :, None], b[..., None, :, :]), (dtype,) * 2, dtype)
        return self.reduce("sum", products, (-2,), dtype)[..., 0, :]

    def random(self, type: TensorType, seed: int) -> np.ndarray:
        raise NoPolynomial("random numbers")

    def _called(self, fn: str, args: Sequence[Polynomial]) -> Polynomial:
        match fn:
            case "add":
                return args[0] + args[1]
            case "sub":
                return args[0] - args[1]
            case "mul":
                return args[0] * args[1]
            case "neg":
                return -args[0]
            case "div":
                return args[0] * self._inverse(args[1])
            case "pow" if (power := args[1].number) is not None and power.denominator == 1:
                return self._power(args[0], int(power))
            case "max" | "min":
                return self._extreme(fn, args)
            case _:
                return self.atom((fn, *(a.key for a in args)))

    def _inverse(self, p: Polynomial) -> Polynomial:
        if not p.terms:
            raise NoPolynomial("a division by 0")
        if len(p.terms) == 1:
            ((m, c),) = p.terms.items()
            return Polynomial({tuple((a, -k) for a, k in m): 1 / c})
        first = p.terms[min(p.terms)]
        whole = Polynomial({m: c / first for m, c in p.terms.items()})
        return number(1 / first) * self.atom(("inverse", whole.key))

    def _power(self, p: Polynomial, power: int) -> Polynomial:
        if abs(power) > _WHOLE_POWER:
            return self.atom(("pow", p.key, power))
        base = p if power >= 0 else self._inverse(p)
        out = number(1)
        for _ in range(abs(power)):
            out = out * base
        return out

    def _extreme(self, fn: str, args: Sequence[Polynomial]) -> Polynomial:
        """Return one atom for an n-ary max or min, independent of the order of its operands."""
        known = {k: what for what, k in self.atoms.items()}
        every: set[object] = set()
        for a in args:
            single = next(iter(a.terms), ()) if list(a.terms.values()) == [1] else ()
            what = known[single[0][0]] if len(single) == 1 and single[0][1] == 1 else None
            if isinstance(what, tuple) and what[0] == fn and isinstance(what[1], frozenset):
                every |= what[1]
            else:
                every.add(a.key)
        return args[0] if len(every) == 1 else self.atom((fn, frozenset(every)))


def _scalar(value: object) -> np.ndarray:
    out = np.empty((), object)
    out[()] = value
    return out


def _each(make: Callable[..., Any], *args: np.ndarray) -> np.ndarray:
    return np.asarray(np.frompyfunc(make, len(args), 1)(*args), object)
