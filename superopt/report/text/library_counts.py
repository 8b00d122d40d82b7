"""The report of the rule library as plain data, and its counts."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from superopt.report.data.diagram import RuleDiagram
from superopt.report.formatting.phrases import FLOAT_CLASS_TEXTS, TIER_TEXTS, UNCHECKED_TEXT

RULE_REPORT_VERSION = (
    1  # the version of the stored form; raised when readers of the old form would misread it
)

# How a rule is known to be right.
Method = Literal["elements and axioms", "elements", "axioms", "trials", "nothing"]
PROOF_METHODS: dict[Method, str] = {
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
class RuleSummary:
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


def proof_method(rule: RuleDiagram) -> Method:
    if rule.proof:
        return "elements and axioms" if rule.axioms else "elements"
    if rule.axioms:
        return "axioms"
    return "trials" if rule.tier else "nothing"


def rule_file(rule: RuleDiagram) -> str:
    return rule.source.rpartition(":")[0]


def group_by_file(rules: Iterable[RuleDiagram]) -> dict[str, list[RuleDiagram]]:
    """Group the rules by file, in order."""
    files: defaultdict[str, list[RuleDiagram]] = defaultdict(list)
    for rule in rules:
        files[rule_file(rule)].append(rule)
    return dict(files)


def summarize_rules(file: str, rules: Iterable[RuleDiagram]) -> RuleSummary:
    """Count the rules; every tier and float class is present."""
    some = list(rules)
    proofs = [r.proof for r in some if r.proof]
    tried = [p.mutants for p in proofs if p.mutants]
    tiers = Counter(r.tier for r in some)
    classes = Counter(r.float_class for r in some)
    return RuleSummary(
        file,
        len(some),
        tuple((t, tiers[t]) for t in (*TIER_TEXTS, "")),
        tuple((c, classes[c]) for c in FLOAT_CLASS_TEXTS),
        sum(p.obligations for p in proofs),
        sum(p.queries for p in proofs),
        sum(p.ms for p in proofs),
        (sum(a for a, _ in tried), sum(b for _, b in tried)) if tried else None,
    )


def count_by_method(rules: Iterable[RuleDiagram]) -> tuple[tuple[Method, int], ...]:
    """Count the rules by proof method; methods without rules are left out."""
    counts = Counter(map(proof_method, rules))
    return tuple((m, counts[m]) for m in PROOF_METHODS if counts[m])


def slowest_proofs(
    rules: Iterable[RuleDiagram], max_rules: int
) -> tuple[tuple[RuleDiagram, float], ...]:
    """Return rules with the milliseconds of their proof, the slowest first."""
    timed = ((r, r.proof.ms) for r in rules if r.proof)
    return tuple(sorted(timed, key=lambda row: -row[1])[:max_rules])


def unproved_rules(rules: Iterable[RuleDiagram]) -> tuple[RuleDiagram, ...]:
    """Return the rules that are not proved for all sizes."""
    return tuple(r for r in rules if r.tier != "A")


def unproved_reason(rule: RuleDiagram) -> str:
    """Return why a rule is not proved."""
    return rule.unproved or ("the prover was not run" if rule.tier else UNCHECKED_TEXT)


def count_axiom_uses(rules: Iterable[RuleDiagram]) -> tuple[tuple[str, int], ...]:
    """Return each axiom with the number of rules whose proof uses it, the most used first."""
    return _rank_by_count(n for r in rules if r.axioms for n in r.axioms.names)


def count_assumptions(rules: Iterable[RuleDiagram]) -> tuple[tuple[str, int], ...]:
    """Return the assumptions of proofs with the number of rules, the most frequent first."""
    return _rank_by_count(a for r in rules if r.proof for a in r.proof.assumes)


def _rank_by_count(names: Iterable[str]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(Counter(names).items(), key=lambda row: (-row[1], row[0])))
