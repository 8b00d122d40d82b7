"""What is said of a search for programs that are equal in parts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MutantCount:
    """Programs and mutants of a family: pairs that enumeration found to be equal in parts; those
    of which all boxes are proved for all sizes; of how many a correction is; why others were
    dropped, how many; seconds; operators at most. saving: corrected ones that should cost less than
    their programs. cut: of graphs of that many operators every nth was tried. Of a model's own:
    mutants right in parts; those corrected, priced below, and proved; those that are corrected;
    false: rules of which the folder's journal said otherwise than was proved."""

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
    """A run of the generator of mutants. folder: where its files are. model: of a model's windows?
    `proved` counts those then that are corrected, `corrected` what is proved and cheaper. journal:
    what keeps results; lost: its lines that could not be read."""

    families: tuple[MutantCount, ...]
    folder: str
    model: bool = False
    journal: str = ""
    lost: int = 0
