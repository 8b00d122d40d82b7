"""Small models of hypotheses: a guard that fails in a model does not follow.

A guard decided by a model needs no Z3 call; models refute most guards that do not follow.
"""

from __future__ import annotations

from itertools import islice
from random import Random

from superopt.verifier.poly.polynomial import Atom, ElementIndex, Min, Poly, Quotient, Symbol, Var

SAMPLE_SIZES = (1, 2, 3, 4, 7)
MAX_MODELS = 8  # models kept
MAX_TRIES = 250
TRIES_PER_MODEL = 3


class _EmptyRange(Exception):
    """A variable has no value: its extent is 0."""


class Model:
    """Values of atoms by their numbers, drawn on demand."""

    __slots__ = ("rng", "style", "values")

    def __init__(self, rng: Random, style: int, values: dict[int, int]) -> None:
        self.rng, self.style, self.values = rng, style, values

    def poly_value(self, p: Poly) -> int:
        total, values = 0, self.values
        for m, c in p.terms:
            for a in m:
                found = values.get(a.number)
                c *= self.atom_value(a) if found is None else found
            total += c
        return total

    def atom_value(self, a: Atom) -> int:
        found = self.values.get(a.number)
        if found is None:
            found = self.values[a.number] = self._draw(a)
        return found

    def knows(self, p: Poly) -> bool:
        """True if the value of a polynomial needs no draw."""
        return all(a.number in self.values for m, _ in p.terms for a in m)

    def _draw(self, a: Atom) -> int:
        match a:
            case Symbol():
                return max(a.low, SAMPLE_SIZES[int(self.rng.random() * len(SAMPLE_SIZES))])
            case Var():
                return self._draw_below(self.poly_value(a.extent))
            case ElementIndex():
                return self._draw_below(self.poly_value(a.bound))
            case Quotient():
                q = self.poly_value(a.q)
                if q < 1:
                    raise _EmptyRange
                return self.poly_value(a.p) // q
            case Min():
                return min(self.poly_value(a.p), self.poly_value(a.q))
            case _:
                raise _EmptyRange

    def _draw_below(self, n: int) -> int:
        if n < 1:
            raise _EmptyRange
        if n == 1:
            return 0
        match (self.style + int(self.rng.random() * 4)) % 4:
            case 0:
                return 0
            case 1:
                return n - 1
            case 2:
                return 1
            case _:
                return int(self.rng.random() * n)

    def holds(self, kind: str, p: Poly) -> bool:
        n = self.poly_value(p)
        return n >= 0 if kind == "ge" else n == 0 if kind == "eq" else n != 0


def sample_models(hypotheses: tuple[tuple[str, Poly], ...]) -> list[Model]:
    """Return some models of the hypotheses, perhaps none."""
    rng = Random(7)
    trials = (Model(rng, n, {}) for n in range(MAX_TRIES))
    return list(islice((one for one in trials if _satisfies(one, hypotheses)), MAX_MODELS))


def extend_models(models: list[Model], hypotheses: tuple[tuple[str, Poly], ...]) -> list[Model]:
    """Extend models to more hypotheses."""
    trials = (
        Model(one.rng, one.style + n, dict(one.values))
        for n in range(TRIES_PER_MODEL)
        for one in models
    )
    return list(islice((one for one in trials if _satisfies(one, hypotheses)), MAX_MODELS))


def _satisfies(model: Model, hypotheses: tuple[tuple[str, Poly], ...]) -> bool:
    try:
        return all(model.holds(k, p) for k, p in hypotheses)
    except _EmptyRange:
        return False


def has_countermodel(models: list[Model], kind: str, p: Poly) -> bool:
    """True if one of the models falsifies the guard."""
    for model in models:
        if model.knows(p):
            if not model.holds(kind, p):
                return True
            continue
        for _ in range(2):
            trial = Model(model.rng, model.style, dict(model.values))
            try:
                if not trial.holds(kind, p):
                    return True
            except _EmptyRange:
                break
    return False
