"""An option: an algorithm and its knobs, one way to compute a tensor. Data, which prints as text
that parses back:

    direct rows=6 vectors=4 deep=0
    winograd m=4 apart=0 block=2 rows=2 columns=3 vectors=4
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Option:
    algorithm: str
    knobs: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        return " ".join([self.algorithm, *(f"{name}={n}" for name, n in self.knobs)])

    def __getitem__(self, knob: str) -> int:
        return dict(self.knobs)[knob]

    @classmethod
    def make(cls, algorithm: str, **knobs: int) -> Self:
        return cls(algorithm, tuple(knobs.items()))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse an option. Raises ValueError for other text."""
        algorithm, *rest = text.split()
        knobs = []
        for word in rest:
            name, sign, n = word.partition("=")
            if not sign:
                raise ValueError(f"{word} is not a knob, such as rows=6")
            knobs.append((name, int(n)))
        return cls(algorithm, tuple(knobs))
