"""Conversions of elements between types."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from superopt.te.expr.dtype import (
    BF16,
    BOOL,
    F16,
    F32,
    F64,
    INDEX,
    DType,
    dtype_named,
    is_widening,
    to_numpy,
)
from superopt.verifier.context import ProofContext
from superopt.verifier.elements import normal
from superopt.verifier.elements.algebra import hoist_guards, power, uninterpreted_function
from superopt.verifier.elements.intervals import (
    ANY_INTEGER,
    INTEGER_TYPES,
    IntegerType,
    function_name,
    interval,
    is_whole,
)
from superopt.verifier.elements.normal import NF
from superopt.verifier.elements.overflow import record_index, value_in_range
from superopt.verifier.poly.facts import Facts

# Floats hold all integers up to 2 to these powers.
SIGNIFICANT_BITS = {F64: 53, F32: 24, F16: 11, BF16: 8}


@dataclass(frozen=True, slots=True)
class ElementTypes:
    """The types of elements in a proof. representatives: types that stand for others; a cast to or
    from them is uninterpreted."""

    context: ProofContext
    representatives: frozenset[DType]

    def integer_type(self, kind: DType) -> IntegerType | None:
        """Return the integer type, None for other types."""
        if not kind.is_int:
            return None
        return ANY_INTEGER if kind in self.representatives else INTEGER_TYPES[kind]

    def record_input(self, name: str, kind: DType) -> None:
        """Record the type of the elements of an input."""
        found = self.integer_type(kind)
        self.context.element_types[name] = kind.name if found is None else found.name

    def value(self, element: NF, kind: DType, facts: Facts) -> NF:
        """Return the value of an element: of an integer that overflows, the one in range."""
        found = self.integer_type(kind)
        return element if found is None else value_in_range(element, found, facts)

    def convert(self, element: NF, source: DType, target: DType, facts: Facts) -> NF:
        """Return an element of type `source` as one of `target`, which is no bool."""
        if source in (BOOL, INDEX) and target.is_number:
            if source == INDEX and (kind := self.integer_type(target)) is not None:
                record_index(element, kind)
            return element
        if source.is_int:
            return self.convert_integer(element, source, target, facts)
        constant = element.constant
        if (
            (target.is_number and _is_zero_one(element))
            or self.is_widening_cast(source, target, element)
            or (constant is not None and _is_representable(target, constant))
        ):
            return element
        kind = self.integer_type(target)
        if kind is None:
            return uninterpreted_function(f"cast to {target}", [element], facts)

        def truncate(args: list[NF], more: Facts) -> NF:
            (a,) = args
            if kind.bits and kind.contains(interval(a)) and is_whole(a):
                return a
            return power(normal.fn(function_name("cast", kind), (a,)))

        return hoist_guards([element], facts, truncate)

    def convert_integer(self, element: NF, source: DType, target: DType, facts: Facts) -> NF:
        """Return an integer as an element of another type: modulo 2^bits of an integer type."""
        kinds = self.integer_type(source), self.integer_type(target)
        match kinds:
            case IntegerType(bits=old), IntegerType(bits=new) if old and new:
                return element if new <= old else self.value(element, source, facts)
            case _:
                pass
        found = self.value(element, source, facts)
        constant = found.constant
        if target.is_number and _is_zero_one(found):
            return found
        if constant is not None and _is_representable(target, constant):
            return found
        if target.is_float and self.context.has_exact_casts:
            return found
        if target.is_float:
            most = 0 if target in self.representatives else 1 << SIGNIFICANT_BITS.get(target, 0)

            def round_number(args: list[NF], more: Facts) -> NF:
                low, high = interval(args[0])
                if max(-low, high) <= most > 1:
                    return args[0]
                return power(normal.fn(f"cast of an integer to {target}", tuple(args)))

            return hoist_guards([found], facts, round_number)
        new_kind = kinds[1]
        name = f"cast to {target}" if new_kind is None else function_name("cast", new_kind)
        return uninterpreted_function(name, [found], facts)

    def is_widening_cast(self, kind: DType, target: DType, element: NF) -> bool:
        """True if a cast of a float changes nothing: it widens the type, or the type of the input
        element that it reads, which earlier casts may have widened."""
        if not self.representatives.isdisjoint((kind, target)):
            return False
        one = element.single_term
        plain = one.powers if one is not None and one.coefficient == 1 else ()
        first = None
        if len(plain) == 1 and plain[0][1] == 1 and isinstance(plain[0][0], normal.Read):
            name = self.context.element_types.get(plain[0][0].name)
            first = None if name is None or name == ANY_INTEGER.name else dtype_named(name)
        return is_widening(kind, target) or (
            first is not None and first not in self.representatives and is_widening(first, target)
        )


def _is_representable(kind: DType, c: Fraction) -> bool:
    """True if the type can represent this number."""
    if not kind.is_float:
        return kind.is_int and c.denominator == 1 and 0 <= c < 1 << (kind.bits - (kind.kind == "i"))
    with np.errstate(all="ignore"):
        rounded = float(np.asarray(float(c)).astype(to_numpy(kind)))
    return math.isfinite(rounded) and Fraction(rounded) == c


def _is_zero_one(element: NF) -> bool:
    """True for a product of indicators, which is 0 or 1 in every type."""
    if len(element.terms) != 1:
        return False
    (t,) = element.terms
    return (
        t.coefficient == 1 and not t.bound and all(isinstance(f, normal.Truth) for f, _ in t.powers)
    )
