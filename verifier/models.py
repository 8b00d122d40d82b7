"""Small models of hypotheses: a guard that fails in a model does not follow.

A guard decided by a model needs no Z3 call; models refute most guards that do not follow.
"""

from __future__ import annotations

from random import Random

from superopt.verifier.poly import Atom, Chosen, Least, Poly, Quot, Sym, Var

SIZES = (1, 2, 3, 4, 7)
MOST = 8  # models kept
TRIES = 250
EXTENSIONS = 3


class _None(Exception):
    """A variable has no value: its extent is 0."""


class Model:
    """Values of atoms, drawn on demand."""

    __slots__ = ("rng", "style", "values")

    def __init__(self, rng: Random, style: int, values: dict[Atom, int]) -> None:
        self.rng, self.style, self.values = rng, style, values

    def poly(self, p: Poly) -> int:
        total = 0
        for m, c in p.terms:
            for a in m:
                c *= self.atom(a)
            total += c
        return total

    def atom(self, a: Atom) -> int:
        found = self.values.get(a)
        if found is None:
            found = self.values[a] = self._drawn(a)
        return found

    def _drawn(self, a: Atom) -> int:
        match a:
            case Sym():
                return max(a.low, SIZES[int(self.rng.random() * len(SIZES))])
            case Var():
                return self._below(self.poly(a.extent))
            case Chosen():
                return self._below(self.poly(a.bound))
            case Quot():
                q = self.poly(a.q)
                if q < 1:
                    raise _None
                return self.poly(a.p) // q
            case Least():
                return min(self.poly(a.p), self.poly(a.q))
            case _:
                raise _None

    def _below(self, n: int) -> int:
        if n < 1:
            raise _None
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
        n = self.poly(p)
        return n >= 0 if kind == "ge" else n == 0 if kind == "eq" else n != 0


def models(hypotheses: tuple[tuple[str, Poly], ...]) -> list[Model]:
    """Return some models of the hypotheses, perhaps none."""
    rng = Random(7)
    out: list[Model] = []
    for n in range(TRIES if hypotheses else MOST):
        one = Model(rng, n, {})
        if _satisfied(one, hypotheses):
            out.append(one)
        if len(out) == MOST:
            break
    return out


def extended(some: list[Model], more: tuple[tuple[str, Poly], ...]) -> list[Model]:
    """Extend models to more hypotheses."""
    out: list[Model] = []
    for n in range(EXTENSIONS):
        for one in some:
            trial = Model(one.rng, one.style + n, dict(one.values))
            if _satisfied(trial, more):
                out.append(trial)
                if len(out) == MOST:
                    return out
    return out


def _satisfied(one: Model, hypotheses: tuple[tuple[str, Poly], ...]) -> bool:
    try:
        return all(one.holds(k, p) for k, p in hypotheses)
    except _None:
        return False


def fails(some: list[Model], kind: str, p: Poly) -> bool:
    """True if one of the models falsifies the guard."""
    for model in some:
        for _ in range(2):
            trial = Model(model.rng, model.style, dict(model.values))
            try:
                if not trial.holds(kind, p):
                    return True
            except _None:
                break
            if len(trial.values) == len(model.values):
                break
    return False
