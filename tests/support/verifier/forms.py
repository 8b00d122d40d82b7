"""Elements, sums and sizes of one proof, written as Python expressions, with their values."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from superopt.verifier.elements import normal
from superopt.verifier.elements.algebra import power, reciprocal
from superopt.verifier.elements.comparisons import less_than_zero
from superopt.verifier.elements.normal import NF
from superopt.verifier.elements.scalars import apply_function
from superopt.verifier.elements.simplify import multiply, restrict, sum_over
from superopt.verifier.poly.facts import Facts, ge
from superopt.verifier.poly.polynomial import atom_poly, fresh_var
from tests.support.verifier.element_values import form_value
from tests.support.verifier.integers import Integers, Point, atom_of


class Form:
    """A normal form with operators."""

    def __init__(self, a: NF, facts: Facts) -> None:
        self.a, self.facts = a, facts

    def _other(self, b: object) -> NF:
        if isinstance(b, Form):
            return b.a
        assert isinstance(b, (int, Fraction))
        return normal.constant(self.a.context, b)

    def __add__(self, b: object) -> Form:
        return Form(normal.add(self.a, self._other(b)), self.facts)

    def __sub__(self, b: object) -> Form:
        return Form(normal.subtract(self.a, self._other(b)), self.facts)

    def __mul__(self, b: object) -> Form:
        return Form(multiply(self.a, self._other(b), self.facts), self.facts)

    __radd__, __rmul__ = __add__, __mul__


class Forms:
    """Elements x, y, z, a vector v, sizes and an index, of one proof."""

    def __init__(self, *, ordered: bool) -> None:
        self.own = own = Integers()
        read = {name: power(normal.read(own.context, name, ())) for name in "xyz"}
        self.facts = Facts(own.context)
        if ordered:  # x >= 0, y > 0
            self.facts = self.facts.with_order(read["x"], False).with_order(read["y"], True)
        k = fresh_var(own.n)
        each = power(normal.read(own.context, "v", (atom_poly(k),)))
        self.names: dict[str, object] = {
            **{name: self.form(a) for name, a in read.items()},
            "zero": self.form(normal.zero(own.context)),
            "half": Fraction(1, 2), "third": Fraction(1, 3), "quarter": Fraction(1, 4),
            "n": self.form(normal.from_poly(own.n)),
            "part": self.form(restrict(read["x"], ge(own.m - 1 - own.i), self.facts)),
            "total": self.form(sum_over(each, (k,), self.facts)),
            "neg": lambda a: self.form(normal.scale(a.a, -1)),
            "inverse": lambda a: self.form(reciprocal(a.a, self.facts)),
            "below": lambda a: self.form(less_than_zero(a.a, self.facts)),
            "fn": lambda f, *args: self.form(
                apply_function(f, [a.a for a in args], self.facts)
            ),
        }  # fmt: skip

    def form(self, a: NF) -> Form:
        return Form(a, self.facts)

    def read(self, text: str) -> NF:
        found = eval(text, dict(self.names))
        assert isinstance(found, Form)
        return found.a

    def points(self) -> Iterator[tuple[Point, dict[str, float]]]:
        """Sizes and numbers that satisfy the facts."""
        own = self.own
        positive = bool(self.facts.nonneg)
        for n, m, i in ((1, 1, 0), (3, 2, 1), (3, 1, 2)):
            sizes = {atom_of(p): v for p, v in ((own.n, n), (own.m, m), (own.i, i))}
            for x, y, z in ((0.6, 0.9, 2.5), (1.75, 0.25, -0.5), (-0.6, 1.5, 0.5), (-2.0, -0.3, 1)):
                if not positive or (x >= 0 and y > 0):
                    yield sizes, {"x": x, "y": y, "z": z}


def value(a: NF, point: Point, numbers: dict[str, float]) -> float | None:
    """The value at a point; None where it is not defined."""
    try:
        return form_value(
            a, point, lambda name, at: numbers[name] if name in numbers else 0.5 + 0.25 * at[0]
        )
    except (ValueError, ZeroDivisionError, OverflowError, TypeError):
        return None
