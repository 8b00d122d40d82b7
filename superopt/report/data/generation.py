"""The counts of a run of the rule generator, as plain data."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LevelCount:
    """A level of an enumeration: candidates; distinct tensors and equal pairs so far; pairs that
    earlier equations did not explain, and the new equations that do; seconds of both parts. cut:
    every nth candidate was tried, for want of memory."""

    candidates: int
    tensors: int
    pairs: int
    unexplained: int
    equations: int
    enumerating: float
    relating: float
    cut: int = 1


@dataclass(frozen=True, slots=True)
class FamilyCount:
    """The counts of a family, from candidates to rules.

    doubtful: pairs that are equal only by coincidence. laws: equations and further pairs; followed:
    those that follow from rules of other families. unread: candidates without a valid
    generalization. refuted: laws that hold only at the family's sizes, as rules for these. idle:
    candidates whose rules have no effect. unproved: rules that are tested and not proved. partial:
    partially equal pairs. enumerating, closing: seconds. wrong: refuted generalizations, the most
    general one of each candidate.
    """

    family: str
    levels: tuple[LevelCount, ...]
    doubtful: int
    equations: int
    pairs: int
    laws: int
    followed: int
    claims: int
    covered: int
    unread: int
    refuted: tuple[str, ...]
    idle: tuple[str, ...]
    unproved: tuple[str, ...]
    derivable: int
    rules: int
    partial: int
    enumerating: float
    closing: float
    wrong: int = 0


@dataclass(frozen=True, slots=True)
class Generation:
    """A run of the rule generator. folder: of its files. lost: numbers of unreadable lines of its
    journal."""

    families: tuple[FamilyCount, ...]
    folder: str
    lost: tuple[int, ...]
    seconds: float
    peak_mb: float
