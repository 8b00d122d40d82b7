"""The facts beside the drawing of a rule, as lines of text."""

from collections.abc import Sequence

from superopt.report.data.diagram import AxiomProof, Proof, RuleDiagram
from superopt.report.formatting import phrases
from superopt.report.formatting.wrap import wrap_items, wrap_text

MAX_CONDITIONS = 8  # conditions of a proof that are listed


def rule_facts(rule: RuleDiagram, width: int) -> list[tuple[str, str]]:
    """Return the facts as lines of at most `width` letters where possible, each with its heading.

    Headings have at most 6 letters; they are empty on further lines of a fact.
    """
    tier = f"tier {rule.tier}: {phrases.TIER_TEXTS.get(rule.tier, 'unknown')}"
    if not rule.tier:
        tier = phrases.UNCHECKED_TEXT
    floats = phrases.float_class_text(rule.float_class, rule.computed, rule.growth)
    said = (
        ("where", wrap_items(rule.conditions, width)),
        ("floats", wrap_text(floats, width)),
        ("proof", wrap_text(tier, width)),
        *_proof_facts(rule.proof, width),
        *_axiom_facts(rule.axioms, width),
        ("open", wrap_text(rule.unproved, width)),
        ("origin", wrap_items((rule.origin, rule.source), width)),
        ("caveat", wrap_text(rule.caveat, width)),
        ("trial", wrap_items(rule.trial, width)),
        ("text", wrap_text(rule.text, width)),
    )
    return [
        (heading if number == 0 else "", line)
        for heading, lines in said
        for number, line in enumerate(lines)
        if lines != [""]
    ]


def _proof_facts(proof: Proof | None, width: int) -> tuple[tuple[str, list[str]], ...]:
    if proof is None:
        return ()
    return (
        ("scope", wrap_text("; ".join((proof.scope, *proof.assumes)), width)),
        ("needs", wrap_items(_first_conditions(proof.conditions), width)),
        (
            "shown",
            wrap_text(phrases.proof_effort_text(proof.obligations, proof.queries, proof.ms), width),
        ),
        ("tests", wrap_text(phrases.mutants_text(proof.mutants), width)),
    )


def _first_conditions(conditions: Sequence[str]) -> tuple[str, ...]:
    """Return the first conditions; each applies to some bindings of operands."""
    more = len(conditions) - MAX_CONDITIONS
    return (*conditions[:MAX_CONDITIONS], *([f"and {more} more"] if more > 0 else []))


def _axiom_facts(axioms: AxiomProof | None, width: int) -> tuple[tuple[str, list[str]], ...]:
    if axioms is None:
        return ()
    chain = [
        line
        for term, name in axioms.steps
        for line in wrap_text(f"= {term}  by {name}" if name else term, width)
    ]
    return (("axioms", wrap_items(axioms.names, width)), ("chain", chain or [""]))
