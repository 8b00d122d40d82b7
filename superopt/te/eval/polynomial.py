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

from superopt.te.eval.domain import Reals
from superopt.te.expr.dtype import F64, DType, is_widening
from superopt.te.expr.functions import identity_element
from superopt.te.expr.node import Number
from superopt.te.expr.tensor import TensorType

Monomial = tuple[tuple[int, int], ...]  # (atom number, power) pairs
MAX_MONOMIALS = 1 << 14  # monomials of one polynomial
_MAX_EXPANDED_EXPONENT = 8
_MAX_DENOMINATOR = 4096  # denominators of fractions that a float is rounded to
_INTEGER_DOMAIN = Reals(F64)


class NotPolynomial(Exception):
    """Not representable by a polynomial, or too many monomials."""


@dataclass(frozen=True, slots=True)
class Polynomial:
    """A nonzero coefficient for each monomial."""

    terms: dict[Monomial, Fraction]
    key: frozenset[tuple[Monomial, Fraction]] = field(init=False, compare=True)

    def __post_init__(self) -> None:
        if len(self.terms) > MAX_MONOMIALS:
            raise NotPolynomial(f"a polynomial of more than {MAX_MONOMIALS} terms")
        object.__setattr__(self, "key", frozenset(self.terms.items()))

    def __hash__(self) -> int:
        return hash(self.key)

    def __add__(self, other: Polynomial) -> Polynomial:
        return sum_polynomials((self, other))

    def __neg__(self) -> Polynomial:
        return Polynomial({m: -c for m, c in self.terms.items()})

    def __sub__(self, other: Polynomial) -> Polynomial:
        return self + -other

    def __mul__(self, other: Polynomial) -> Polynomial:
        out: dict[Monomial, Fraction] = {}
        for m, c in self.terms.items():
            for n, d in other.terms.items():
                _add_term(out, _multiply_monomials(m, n), c * d)
        return Polynomial(out)

    @property
    def constant_value(self) -> Fraction | None:
        """Return the number that a constant polynomial is, else None."""
        if not self.terms:
            return Fraction(0)
        return self.terms.get(()) if len(self.terms) == 1 else None


def sum_polynomials(polynomials: Iterable[Polynomial]) -> Polynomial:
    """Return the sum of polynomials."""
    out: dict[Monomial, Fraction] = {}
    for p in polynomials:
        for m, c in p.terms.items():
            _add_term(out, m, c)
    return Polynomial(out)


def _add_term(terms: dict[Monomial, Fraction], m: Monomial, c: Fraction) -> None:
    sum_ = terms.get(m, 0) + c
    if sum_:
        terms[m] = Fraction(sum_)
    else:
        del terms[m]


def _multiply_monomials(m: Monomial, n: Monomial) -> Monomial:
    powers = dict(m)
    for atom, power in n:
        powers[atom] = powers.get(atom, 0) + power
    return tuple(sorted((a, p) for a, p in powers.items() if p))


def constant_polynomial(value: int | Fraction) -> Polynomial:
    return Polynomial({(): Fraction(value)} if value else {})


@dataclass(frozen=True, slots=True)
class PolynomialDomain:
    """The domain, with the number of each atom. A float that is the nearest one to a simple
    fraction is read as that fraction, which is recorded in `rationalized`."""

    atoms: dict[object, int] = field(default_factory=dict)
    rationalized: set[Fraction] = field(default_factory=set)

    def storage_dtype(self, dtype: DType) -> np.dtype:
        return np.dtype(object) if dtype.is_float else _INTEGER_DOMAIN.storage_dtype(dtype)

    def component_shape(self, dtype: DType) -> tuple[int, ...]:
        return ()

    def load(self, array: np.ndarray, type: TensorType) -> np.ndarray:
        assert type.dtype is not None
        if array.dtype == object or not type.dtype.is_float:
            return array
        return _map_elements(lambda v: constant_polynomial(self.to_fraction(float(v))), array)

    def atom(self, identity: object) -> Polynomial:
        """Return the polynomial that is one atom."""
        return Polynomial({((self.atoms.setdefault(identity, len(self.atoms)), 1),): Fraction(1)})

    def to_fraction(self, value: float | Fraction) -> Fraction:
        """Return the number that a float stands for."""
        if value - value != 0:
            raise NotPolynomial(f"the number {value}")
        near = Fraction(value).limit_denominator(_MAX_DENOMINATOR)
        if near == value or value not in (float(near), float(np.float32(float(near)))):
            return Fraction(value)
        self.rationalized.add(near)
        return near

    def symbolic_input(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Return an input each of whose elements is an atom."""
        out = np.empty(shape, object)
        for at in np.ndindex(*shape):
            out[at] = self.atom((name, at))
        return out

    def const(self, value: Number, dtype: DType) -> np.ndarray:
        if not dtype.is_float:
            return _INTEGER_DOMAIN.const(value, dtype)
        return _object_scalar(
            constant_polynomial(value if isinstance(value, int) else self.to_fraction(value))
        )

    def apply(
        self, fn: str, args: Sequence[np.ndarray], kinds: Sequence[DType], dtype: DType
    ) -> np.ndarray:
        if fn == "select":
            return np.where(args[0], args[1], args[2])
        if not dtype.is_float and not any(k.is_float for k in kinds):
            return _INTEGER_DOMAIN.apply(fn, args, kinds, dtype)
        if not dtype.is_float:
            raise NotPolynomial(f"{fn} of floats with a result that is not a float")
        if fn == "cast":
            if not kinds[0].is_float:
                return _map_elements(lambda v: constant_polynomial(int(v)), args[0])
            if is_widening(kinds[0], dtype):
                return args[0]
            return _map_elements(lambda v: self.atom((f"round to {dtype}", v.key)), args[0])
        return _map_elements(lambda *values: self._apply_function(fn, values), *args)

    def accumulation_dtype(self, dtype: DType) -> DType:
        return dtype

    def reduce(self, fn: str, x: np.ndarray, axes: tuple[int, ...], dtype: DType) -> np.ndarray:
        if not dtype.is_float:
            return _INTEGER_DOMAIN.reduce(fn, x, axes, dtype)
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
            nothing = identity_element(fn, dtype)
            return constant_polynomial(
                self.to_fraction(nothing) if isinstance(nothing, float) else nothing
            )
        if fn == "sum":
            return sum_polynomials(some)
        own = "mul" if fn == "prod" else fn
        out = some[0]
        for v in some[1:]:
            out = self._apply_function(own, (out, v))
        return out

    def matmul(self, a: np.ndarray, b: np.ndarray, dtype: DType) -> np.ndarray:
        if not dtype.is_float:
            return _INTEGER_DOMAIN.matmul(a, b, dtype)
        products = self.apply("mul", (a[..., :, :, None], b[..., None, :, :]), (dtype,) * 2, dtype)
        return self.reduce("sum", products, (-2,), dtype)[..., 0, :]

    def random(self, type: TensorType, seed: int) -> np.ndarray:
        raise NotPolynomial("random numbers")

    def _apply_function(self, fn: str, args: Sequence[Polynomial]) -> Polynomial:
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
            case "pow" if (power := args[1].constant_value) is not None and power.denominator == 1:
                return self._power(args[0], int(power))
            case "max" | "min":
                return self._extremum(fn, args)
            case _:
                return self.atom((fn, *(a.key for a in args)))

    def _inverse(self, p: Polynomial) -> Polynomial:
        if not p.terms:
            raise NotPolynomial("a division by 0")
        if len(p.terms) == 1:
            ((m, c),) = p.terms.items()
            return Polynomial({tuple((a, -k) for a, k in m): 1 / c})
        first = p.terms[min(p.terms)]
        whole = Polynomial({m: c / first for m, c in p.terms.items()})
        return constant_polynomial(1 / first) * self.atom(("inverse", whole.key))

    def _power(self, p: Polynomial, power: int) -> Polynomial:
        if abs(power) > _MAX_EXPANDED_EXPONENT:
            return self.atom(("pow", p.key, power))
        base = p if power >= 0 else self._inverse(p)
        out = constant_polynomial(1)
        for _ in range(abs(power)):
            out = out * base
        return out

    def _extremum(self, fn: str, args: Sequence[Polynomial]) -> Polynomial:
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


def _object_scalar(value: object) -> np.ndarray:
    out = np.empty((), object)
    out[()] = value
    return out


def _map_elements(make: Callable[..., Any], *args: np.ndarray) -> np.ndarray:
    return np.asarray(np.frompyfunc(make, len(args), 1)(*args), object)
