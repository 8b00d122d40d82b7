"""The results of a search for partially equal programs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MutantCount:
    """The counts of a family.

    enumerated: partially equal pairs; proved: pairs whose boxes are all proved for all sizes;
    corrected: those with a correction; dropped: the others, by reason; operators: the most of a
    graph; saving: corrected ones that should cost less than their programs; cut: every nth graph
    with that many operators was tried; false: rules whose journal entry disagreed with the proof.
    For a model: enumerated counts its partially equal mutants, `proved` the corrected ones.
    """

    family: str
    enumerated: int
    proved: int
    corrected: int
    dropped: dict[str, int]
    seconds: float
    operators: int = 0
    saving: int = 0
    cut: int = 1
    false: int = 0


@dataclass(frozen=True, slots=True)
class Mutation:
    """A run of the mutant generator.

    folder: of its files. model: whether it is for a model's own programs; then `proved` counts
    corrected mutants, `corrected` those that are proved and cheaper. journal: of results; lost: its
    unreadable lines.
    """

    families: tuple[MutantCount, ...]
    folder: str
    model: bool = False
    journal: str = ""
    lost: int = 0
