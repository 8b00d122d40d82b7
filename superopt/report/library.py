"""A report of the rule library as plain data, and what is counted of it."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from superopt.report.diagram import RuleDiagram
from superopt.report.words import FLOAT_CLASSES, TIERS, UNCHECKED

RULES_FORMAT = 1  # the version of the stored form; raised when a reader of the old would go wrong

# By what a rule is known to be right.
Method = Literal["elements and axioms", "elements", "axioms", "trials", "nothing"]
METHODS: dict[Method, str] = {
    "elements and axioms": "proved element by element, and from axioms",
    "elements": "proved element by element, from the operators' definitions",
    "axioms": "proved from axioms only",
    "trials": "tried on random instances only",
    "nothing": "neither proved nor tried: rules of your own",
}


@dataclass(frozen=True, slots=True)
class RuleReport:
    """What is known of the rules.

    part: only of those with this in their name or their file's; of: rules that there are in all.
    sha256: of names and texts of all of them.
    """

    version: int
    part: str
    of: int
    sha256: str
    versions: tuple[tuple[str, str], ...]
    rules: tuple[RuleDiagram, ...]


@dataclass(frozen=True, slots=True)
class Sum:
    """Rules counted: by tier, by float class; what their proofs showed, and how long they took.
    mutants: as in `Proof`, of all together."""

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
    """The rules of each file, in the order in which they come."""
    files: defaultdict[str, list[RuleDiagram]] = defaultdict(list)
    for rule in rules:
        files[file_of(rule)].append(rule)
    return dict(files)


def summed(file: str, rules: Iterable[RuleDiagram]) -> Sum:
    """Every tier and float class is there, with 0 where no rule is of it; tier B only if one is."""
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
    """How many rules are known to be right by what; without what none is."""
    counts = Counter(map(method, rules))
    return tuple((m, counts[m]) for m in METHODS if counts[m])


def slowest(rules: Iterable[RuleDiagram], most: int) -> tuple[tuple[RuleDiagram, float], ...]:
    """Rules with the milliseconds of their proof, the slowest first."""
    timed = ((r, r.proof.ms) for r in rules if r.proof)
    return tuple(sorted(timed, key=lambda row: -row[1])[:most])


def unproved(rules: Iterable[RuleDiagram]) -> tuple[RuleDiagram, ...]:
    """Those that are not proved for all sizes."""
    return tuple(r for r in rules if r.tier != "A")


def why_not(rule: RuleDiagram) -> str:
    """Why a rule is not proved."""
    return rule.unproved or ("nobody asked the prover" if rule.tier else UNCHECKED)


def axiom_uses(rules: Iterable[RuleDiagram]) -> tuple[tuple[str, int], ...]:
    """Each axiom with the number of rules whose chain uses it, the most used first."""
    return _ranked(n for r in rules if r.axioms for n in r.axioms.names)


def assumptions(rules: Iterable[RuleDiagram]) -> tuple[tuple[str, int], ...]:
    """What proofs assume or leave out, with the number of rules, the most frequent first."""
    return _ranked(a for r in rules if r.proof for a in r.proof.assumes)


def _ranked(names: Iterable[str]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(Counter(names).items(), key=lambda row: (-row[1], row[0])))
