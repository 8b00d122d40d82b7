"""A rewrite rule as two small graphs, with its proof: plain data for drawings."""

from dataclasses import dataclass
from typing import Literal

# each: a run of operands made from a term for each of some values; variable: one of those values.
BoxKind = Literal["parameter", "constant", "operator", "each", "variable", "result"]


@dataclass(frozen=True, slots=True)
class Link:
    """An operand: the index of the box that it comes from, and which of its results.

    which: "[1]" for one of several results, "all" for all of them as a run of operands, empty for
        the only one.
    """

    source: int
    which: str = ""


@dataclass(frozen=True, slots=True)
class Box:
    """A node: a parameter, a constant, an operator with its attributes as `details`, or a
    result."""

    kind: BoxKind
    label: str
    details: tuple[str, ...] = ()
    inputs: tuple[Link, ...] = ()


@dataclass(frozen=True, slots=True)
class Diagram:
    """One side of a rule. Operands come before their users, results last and in order. text: in the
    rule language."""

    boxes: tuple[Box, ...]
    text: str = ""


@dataclass(frozen=True, slots=True)
class Parameter:
    """An operand with its type, `x` and `f[*s, n]`; constant: its value must be known at compile
    time."""

    name: str
    kind: str
    constant: bool


@dataclass(frozen=True, slots=True)
class Proof:
    """The proof of a rule.

    scope: the ranks for which it holds. assumes: its assumptions. conditions: what the right side
    needs beyond the left for some bindings of operands; a match that violates one is refused.
    obligations: checks of reads in bounds, equal elements, and reductions matched one to one.
    queries: to Z3. ms: of one processor. mutants: mutated rules that were refused, and that were
    tested; None if none were.
    """

    scope: str
    assumes: tuple[str, ...]
    conditions: tuple[str, ...]
    obligations: int
    queries: int
    ms: float
    mutants: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class AxiomProof:
    """A second proof of a rule, from axioms about the operators.

    names: the axioms. steps: the chain from left to right, each a term and the axiom that made it;
    the first is the left side. ms: of one processor.
    """

    names: tuple[str, ...]
    steps: tuple[tuple[str, str], ...]
    ms: float


@dataclass(frozen=True, slots=True)
class RuleDiagram:
    """A rule, both its sides and its proof.

    trial: attribute variables with the values at which they are tested. tier: empty for a user's
    rule. unproved: why the prover did not prove it, if known. computed: the float class of its
    operations, a lower bound of `float_class`; growth: the right side's error relative to the left
    side's. Other fields as in the rule itself; conditions as text.
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
    proof: Proof | None = None
    axioms: AxiomProof | None = None
    unproved: str = ""
    computed: str = ""
    growth: float | None = None


@dataclass(frozen=True, slots=True)
class PartialRuleUse:
    """An applied rule that replaced a program by a partially equal mutant and a correction.

    how: recomputed, widened, split or equal (nothing differs). shape, right, wrong: of the result,
    and of the boxes where the mutant is equal and where it differs, as formulas of the sizes.
    sizes: of the drawing, whose lines show the result's last two axes: whether the mutant differs
    at an element for any index of the other axes. share: the equal part of all elements.
    """

    rule: str
    how: str
    shape: tuple[str, ...]
    right: tuple[str, ...]
    wrong: tuple[str, ...]
    sizes: tuple[tuple[str, int], ...]
    share: float
    picture: tuple[str, ...]
