"""A rewrite rule as two small graphs, and what is said beside them: for its drawings."""

from dataclasses import dataclass
from typing import Literal

from superopt.report import words
from superopt.report.wrap import broken, packed

# each: a run of operands made from a term for each of some values; variable: one of those values.
BoxKind = Literal["parameter", "constant", "operator", "each", "variable", "result"]


@dataclass(frozen=True, slots=True)
class Link:
    """An operand: the box that it comes from, by its position, and which of that box's results.

    `which` is "[1]" for one of several results, "all" for all of them as a run of operands, and
    empty for the only one.
    """

    source: int
    which: str = ""


@dataclass(frozen=True, slots=True)
class Box:
    """A node: a parameter, a constant, an operator with its attributes as `details`, a result."""

    kind: BoxKind
    label: str
    details: tuple[str, ...] = ()
    inputs: tuple[Link, ...] = ()


@dataclass(frozen=True, slots=True)
class Diagram:
    """One side of a rule. Operands come before what uses them, results last and in their order."""

    boxes: tuple[Box, ...]


@dataclass(frozen=True, slots=True)
class Parameter:
    """An operand with its type, `x` and `f[*s, n]`; `constant`: it must be known in advance."""

    name: str
    kind: str
    constant: bool


@dataclass(frozen=True, slots=True)
class RuleDiagram:
    """A rule and both its sides. trial: its attribute variables, with the values they are tried at.
    tier: none for a rule of the user's. scope: for what it is proved, and what a match is refused
    without.

    Otherwise as in the rule itself; conditions as text.
    """

    name: str
    text: str
    tier: str
    float_class: str
    source: str
    origin: str
    caveat: str
    parameters: tuple[Parameter, ...]
    trial: tuple[str, ...]
    conditions: tuple[str, ...]
    left: Diagram
    right: Diagram
    scope: str = ""


def facts(rule: RuleDiagram, width: int) -> list[tuple[str, str]]:
    """What is to be said beside the drawing, in lines of at most `width` letters where possible.

    Each line comes with its heading, of at most 6 letters and empty on further lines.
    """
    tier = f"tier {rule.tier}: {words.TIERS.get(rule.tier, 'unknown')}"
    if not rule.tier:
        tier = "not checked; `superopt rules check FILE` tries and proves it"
    floats = f"{rule.float_class}: {words.FLOAT_CLASSES.get(rule.float_class, 'unknown')}"
    said = (
        ("where", packed(rule.conditions, width)),
        ("floats", broken(floats, width)),
        ("proof", broken(tier, width)),
        ("scope", broken(rule.scope, width)),
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
