"""The report of the rule library as plain data, and its counts."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from superopt.report.diagram import RuleDiagram
from superopt.report.words import FLOAT_CLASSES, TIERS, UNCHECKED

RULES_FORMAT = (
    1  # the version of the stored form; raised when readers of the old form would misread it
)

# How a rule is known to be right.
Method = Literal["elements and axioms", "elements", "axioms", "trials", "nothing"]
METHODS: dict[Method, str] = {
    "elements and axioms": "proved element by element, and from axioms",
    "elements": "proved element by element, from the operators' definitions",
    "axioms": "proved from axioms only",
    "trials": "tested on random instances only",
    "nothing": "neither proved nor tested: your own rules",
}


@dataclass(frozen=True, slots=True)
class RuleReport:
    """The rules with their proofs.

    part: only rules with this text in their name or their file's; of: the number of all rules.
    sha256: of the names and texts of all rules.
    """

    version: int
    part: str
    of: int
    sha256: str
    versions: tuple[tuple[str, str], ...]
    rules: tuple[RuleDiagram, ...]


@dataclass(frozen=True, slots=True)
class Sum:
    """Counts of rules by tier and by float class; totals of their proofs. mutants: as in
    `Proof`."""

    file: str
    rules: int
    tiers: tuple[tuple[str, int], ...]
    float_classes: tuple[tuple[str, int], ...]
    obligations: int
    queries: int
    ms: float
    mutants: tuple[int, int] | None


def method(rule: RuleDiagram) -> Method:
    if rule.proof:
        return "elements and axioms" if rule.axioms else "elements"
    if rule.axioms:
        return "axioms"
    return "trials" if rule.tier else "nothing"


def file_of(rule: RuleDiagram) -> str:
    return rule.source.rpartition(":")[0]


def by_file(rules: Iterable[RuleDiagram]) -> dict[str, list[RuleDiagram]]:
    """Group the rules by file, in order."""
    files: defaultdict[str, list[RuleDiagram]] = defaultdict(list)
    for rule in rules:
        files[file_of(rule)].append(rule)
    return dict(files)


def summed(file: str, rules: Iterable[RuleDiagram]) -> Sum:
    """Count the rules; every tier and float class is present."""
    some = list(rules)
    proofs = [r.proof for r in some if r.proof]
    tried = [p.mutants for p in proofs if p.mutants]
    tiers = Counter(r.tier for r in some)
    classes = Counter(r.float_class for r in some)
    return Sum(
        file,
        len(some),
        tuple((t, tiers[t]) for t in (*TIERS, "")),
        tuple((c, classes[c]) for c in FLOAT_CLASSES),
        sum(p.obligations for p in proofs),
        sum(p.queries for p in proofs),
        sum(p.ms for p in proofs),
        (sum(a for a, _ in tried), sum(b for _, b in tried)) if tried else None,
    )


def by_method(rules: Iterable[RuleDiagram]) -> tuple[tuple[Method, int], ...]:
    """Count the rules by proof method; methods without rules are left out."""
    counts = Counter(map(method, rules))
    return tuple((m, counts[m]) for m in METHODS if counts[m])


def slowest(rules: Iterable[RuleDiagram], most: int) -> tuple[tuple[RuleDiagram, float], ...]:
    """Return rules with the milliseconds of their proof, the slowest first."""
    timed = ((r, r.proof.ms) for r in rules if r.proof)
    return tuple(sorted(timed, key=lambda row: -row[1])[:most])


def unproved(rules: Iterable[RuleDiagram]) -> tuple[RuleDiagram, ...]:
    """Return the rules that are not proved for all sizes."""
    return tuple(r for r in rules if r.tier != "A")


def why_not(rule: RuleDiagram) -> str:
    """Return why a rule is not proved."""
    return rule.unproved or ("the prover was not run" if rule.tier else UNCHECKED)


def axiom_uses(rules: Iterable[RuleDiagram]) -> tuple[tuple[str, int], ...]:
    """Return each axiom with the number of rules whose proof uses it, the most used first."""
    return _ranked(n for r in rules if r.axioms for n in r.axioms.names)


def assumptions(rules: Iterable[RuleDiagram]) -> tuple[tuple[str, int], ...]:
    """Return the assumptions of proofs with the number of rules, the most frequent first."""
    return _ranked(a for r in rules if r.proof for a in r.proof.assumes)


def _ranked(names: Iterable[str]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(Counter(names).items(), key=lambda row: (-row[1], row[0])))
