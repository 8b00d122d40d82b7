"""Constants that are transformed for kernels (Winograd's tiles, Strassen's parts): each is made
once in a program, and together they do not grow beyond a budget, which the programs for all sizes
of a model share."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from math import prod
from weakref import WeakKeyDictionary

import numpy as np

from superopt.kernels.problem import Choice
from superopt.te.expr import Tensor

Load = Callable[[], np.ndarray]
# Transformed constants of a model may take so many times the bytes of all constants more than
# these, or so many bytes: then peak memory stays below 2.5 models and 200 MB. The first kernels
# come first: of a network for images their constants are small, and are read for many places.
GROWTH = 0.6
GROWTH_BYTES = 32 << 20
# How it was made, its number and its shape: of another size's problem the same constants are made.
Made = tuple[str, int, tuple[object, ...]]
# By how many bytes what programs of this process made of an original is larger.
Growths = MutableMapping[Load, dict[Made, int]]
_GROWTHS: Growths = WeakKeyDictionary()


def size_of(t: Tensor) -> int:
    """Bytes of a constant."""
    return prod(n for n in t.shape if isinstance(n, int)) * max(t.dtype.bits // 8, 1)


@dataclass(slots=True)
class Transformed:
    """constants: of a program, by tensor; made: those that are transformed, by what they are made
    of and how; growths: of all programs; before: of those for other sizes; added: by how many bytes
    transformed constants of all these programs are larger; most: of these."""

    constants: MutableMapping[Tensor, Load]
    made: dict[object, Load] = field(default_factory=dict)
    growths: Growths = field(default_factory=lambda: _GROWTHS)
    before: Growths = field(init=False)
    added: int = field(init=False)
    most: int = field(init=False)

    def __post_init__(self) -> None:
        self.most = max(int(GROWTH * sum(map(size_of, self.constants))), GROWTH_BYTES)
        originals = {*self.constants.values()}
        self.before = {x: dict(self.growths[x]) for x in originals if x in self.growths}
        self.added = sum(sum(some.values()) for some in self.before.values())

    def fits(self, key: str, how: Choice) -> bool:
        """True if what this problem's solution needs is within the budget. key: of the problem."""
        return self.added + sum(self._growth(key, how).values()) <= self.most

    def add(self, key: str, how: Choice) -> None:
        """Add what the solution needs to the constants."""
        for (load, made), growth in self._growth(key, how).items():
            self.added += growth
            self.growths.setdefault(load, {})[made] = growth
        for n, (x, (source, make)) in enumerate(how.made.items()):
            recipe = self._recipe(key, how, n, source)
            if recipe not in self.made:
                self.made[recipe] = _made(self.constants[source], make)
            self.constants[x] = self.made[recipe]

    def _recipe(self, key: str, how: Choice, number: int, source: Tensor) -> object:
        # Of one problem that is solved in one way the same is made of the same constant, or of what
        # is made of it.
        if source in how.made:
            n = [*how.made].index(source)
            return key, str(how.option), number, self._recipe(key, how, n, how.made[source][0])
        return key, str(how.option), number, self.constants[source]

    def _growth(self, key: str, how: Choice) -> dict[tuple[Load, Made], int]:
        """By how many bytes what is new is larger, by original and how it was made."""
        out: dict[tuple[Load, Made], int] = {}
        option = str(how.option)
        for n, (x, (source, _)) in enumerate(how.made.items()):
            load = self.constants[self._original(how, source)]
            made = option, n, x.shape
            known = made in self.before.get(load, {})
            if not known and self._recipe(key, how, n, source) not in self.made:
                out[load, made] = max(size_of(x) - size_of(source), 0)
        return out

    def _original(self, how: Choice, source: Tensor) -> Tensor:
        while source in how.made:
            source = how.made[source][0]
        return source


def _made(load: Load, make: Callable[[np.ndarray], np.ndarray]) -> Load:
    return lambda: make(load())
