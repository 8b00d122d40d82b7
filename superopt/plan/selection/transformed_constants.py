"""Constants that are transformed for kernels (Winograd's tiles, Strassen's parts): each is made
once in a program, and together they do not grow beyond a budget, which the programs for all sizes
of a model share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from math import prod
from weakref import WeakKeyDictionary

import numpy as np

from superopt.kernels.algorithms.problem import Choice
from superopt.te.expr.tensor import Tensor

Load = Callable[[], np.ndarray]
# Transformed constants of a model may take so many times the bytes of all constants more than
# these, or so many bytes: then peak memory stays below 2.5 models and 200 MB (choose_kernels.py).
# ResNet-50 takes 154 instead of 248 MB of constants so, at 1.03 times the time (80 pairs of runs).
# They may also take as many as the largest result, as of large batches, to which they matter more:
# ResNet-18 takes 0.97 of the time at batch 16 with 51 MB instead of 28 MB.
MAX_GROWTH_RATIO = 0.6
MIN_GROWTH_BYTES = 32 << 20
# How it was made, its number and its shape: of another size's problem the same constants are made.
Made = tuple[str, int, tuple[object, ...]]
# By how many bytes what programs of this process made of an original is larger.
Growths = MutableMapping[Load, dict[Made, int]]
_GROWTHS: Growths = WeakKeyDictionary()


def tensor_bytes(t: Tensor) -> int:
    """Return the bytes of a tensor's elements."""
    return prod(n for n in t.shape if isinstance(n, int)) * max(t.dtype.bits // 8, 1)


@dataclass(slots=True)
class TransformedConstants:
    """constants: of a program, by tensor; made: those that are transformed, by what they are made
    of and how; growths: of all programs; largest_result_bytes: of the program's kernels; before: of
    those for other sizes; added: by how many bytes transformed constants of all these programs are
    larger; most: of these."""

    constants: MutableMapping[Tensor, Load]
    transformed: dict[object, Load] = field(default_factory=dict)
    growths: Growths = field(default_factory=lambda: _GROWTHS)
    largest_result_bytes: int = 0
    before: Growths = field(init=False)
    added_bytes: int = field(init=False)
    max_added_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.max_added_bytes = max(
            int(MAX_GROWTH_RATIO * sum(map(tensor_bytes, self.constants))),
            MIN_GROWTH_BYTES,
            self.largest_result_bytes,
        )
        originals = {*self.constants.values()}
        self.before = {x: dict(self.growths[x]) for x in originals if x in self.growths}
        self.added_bytes = sum(sum(some.values()) for some in self.before.values())

    @property
    def bytes_left(self) -> int:
        """The bytes that further constants may take."""
        return self.max_added_bytes - self.added_bytes

    def fits(self, key: str, choice: Choice) -> bool:
        """True if what this problem's solution needs is within the budget. key: of the problem."""
        return self.total_growth([(key, choice)]) <= self.bytes_left

    def total_growth(self, solutions: Iterable[tuple[str, Choice]]) -> int:
        """Return by how many bytes constants grow that solutions of problems need, each with its
        key."""
        growths: dict[tuple[Load, Made], int] = {}
        for key, choice in solutions:
            growths |= self._growth(key, choice)
        return sum(growths.values())

    def add(self, key: str, choice: Choice) -> None:
        """Add what the solution needs to the constants."""
        for (load, made), growth in self._growth(key, choice).items():
            self.added_bytes += growth
            self.growths.setdefault(load, {})[made] = growth
        for n, (x, (source, make)) in enumerate(choice.derived_constants.items()):
            recipe = self._recipe(key, choice, n, source)
            if recipe not in self.transformed:
                self.transformed[recipe] = TransformedConstant(self.constants[source], make)
            self.constants[x] = self.transformed[recipe]

    def _recipe(self, key: str, choice: Choice, number: int, source: Tensor) -> object:
        # Of one problem that is solved in one way the same is made of the same constant, or of what
        # is made of it.
        if source in choice.derived_constants:
            n = [*choice.derived_constants].index(source)
            return (
                key,
                str(choice.option),
                number,
                self._recipe(key, choice, n, choice.derived_constants[source][0]),
            )
        return key, str(choice.option), number, self.constants[source]

    def _growth(self, key: str, choice: Choice) -> dict[tuple[Load, Made], int]:
        """By how many bytes what is new is larger, by original and how it was made."""
        out: dict[tuple[Load, Made], int] = {}
        option = str(choice.option)
        for n, (x, (source, _)) in enumerate(choice.derived_constants.items()):
            load = self.constants[self._original(choice, source)]
            made = option, n, x.shape
            known = made in self.before.get(load, {})
            if not known and self._recipe(key, choice, n, source) not in self.transformed:
                out[load, made] = max(tensor_bytes(x) - tensor_bytes(source), 0)
        return out

    def _original(self, choice: Choice, source: Tensor) -> Tensor:
        while source in choice.derived_constants:
            source = choice.derived_constants[source][0]
        return source


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class TransformedConstant:
    """Returns what `make` makes of a constant."""

    load: Load
    make: Callable[[np.ndarray], np.ndarray]

    def __call__(self) -> np.ndarray:
        return self.make(self.load())
