"""A rewrite rule as two small graphs, and what is known of it: plain data, for its drawings."""

from dataclasses import dataclass
from typing import Literal

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
    """One side of a rule. Operands come before what uses them, results last and in their order.
    text: the same as the rule language has it."""

    boxes: tuple[Box, ...]
    text: str = ""


@dataclass(frozen=True, slots=True)
class Parameter:
    """An operand with its type, `x` and `f[*s, n]`; `constant`: it must be known in advance."""

    name: str
    kind: str
    constant: bool


@dataclass(frozen=True, slots=True)
class Proof:
    """What the prover showed of a rule.

    scope: for which ranks the proof holds. assumes: what it takes for granted, or leaves out.
    conditions: what the right side needs beyond the left in some of the ways in which operands
    fit: a match is refused without.
    obligations: what was shown on the way: reads in bounds, elements equal, sums matched one to
    one. queries: questions to Z3. ms: of one processor. mutants: changed rules that were refused,
    and that were tried; None where none were.
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

    names: the axioms that it uses. steps: the chain from left to right, each a term and the axiom
    that made it; the first is the left side, made by none. ms: of one processor.
    """

    names: tuple[str, ...]
    steps: tuple[tuple[str, str], ...]
    ms: float


@dataclass(frozen=True, slots=True)
class RuleDiagram:
    """A rule, both its sides and what is known of it. trial: its attribute variables, with the
    values they are tried at. tier: none for a rule of the user's. unproved: why the prover did not
    prove it, where that is known. computed: the float class that its operations show, which
    `float_class` is at least; growth: how many times the left side's error the right side's is.

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
    proof: Proof | None = None
    axioms: AxiomProof | None = None
    unproved: str = ""
    computed: str = ""
    growth: float | None = None


@dataclass(frozen=True, slots=True)
class InParts:
    """A rule that was applied, by which a program became a mutant that is right in parts, and what
    corrects it. how: recomputed, widened, split or equal (nothing is wrong). shape, right, wrong:
    of the result, and of boxes of it, as formulas of the sizes. sizes: those of the picture, whose
    lines say of each element along the result's last two axes whether the mutant is ever wrong
    there; share: of all that it computes right.
    """

    rule: str
    how: str
    shape: tuple[str, ...]
    right: tuple[str, ...]
    wrong: tuple[str, ...]
    sizes: tuple[tuple[str, int], ...]
    share: float
    picture: tuple[str, ...]
