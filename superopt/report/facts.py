"""The facts beside the drawing of a rule, as lines of text."""

from collections.abc import Sequence

from superopt.report import words
from superopt.report.diagram import AxiomProof, Proof, RuleDiagram
from superopt.report.wrap import broken, packed

SHOWN = 8  # conditions of a proof that are listed


def facts(rule: RuleDiagram, width: int) -> list[tuple[str, str]]:
    """Return the facts as lines of at most `width` letters where possible, each with its heading.

    Headings have at most 6 letters; they are empty on further lines of a fact.
    """
    tier = f"tier {rule.tier}: {words.TIERS.get(rule.tier, 'unknown')}"
    if not rule.tier:
        tier = words.UNCHECKED
    floats = words.floats(rule.float_class, rule.computed, rule.growth)
    said = (
        ("where", packed(rule.conditions, width)),
        ("floats", broken(floats, width)),
        ("proof", broken(tier, width)),
        *_proof(rule.proof, width),
        *_axioms(rule.axioms, width),
        ("open", broken(rule.unproved, width)),
        ("origin", packed((rule.origin, rule.source), width)),
        ("caveat", broken(rule.caveat, width)),
        ("trial", packed(rule.trial, width)),
        ("text", broken(rule.text, width)),
    )
    return [
        (heading if number == 0 else "", line)
        for heading, lines in said
        for number, line in enumerate(lines)
        if lines != [""]
    ]


def _proof(proof: Proof | None, width: int) -> tuple[tuple[str, list[str]], ...]:
    if proof is None:
        return ()
    return (
        ("scope", broken("; ".join((proof.scope, *proof.assumes)), width)),
        ("needs", packed(_some(proof.conditions), width)),
        ("shown", broken(words.shown(proof.obligations, proof.queries, proof.ms), width)),
        ("tests", broken(words.mutants(proof.mutants), width)),
    )


def _some(conditions: Sequence[str]) -> tuple[str, ...]:
    """Return the first conditions; each applies to some bindings of operands."""
    more = len(conditions) - SHOWN
    return (*conditions[:SHOWN], *([f"and {more} more"] if more > 0 else []))


def _axioms(axioms: AxiomProof | None, width: int) -> tuple[tuple[str, list[str]], ...]:
    if axioms is None:
        return ()
    chain = [
        line
        for term, name in axioms.steps
        for line in broken(f"= {term}  by {name}" if name else term, width)
    ]
    return (("axioms", packed(axioms.names, width)), ("chain", chain or [""]))
