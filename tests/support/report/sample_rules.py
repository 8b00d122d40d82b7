"""Rules as reports have them, for tests: proved in two ways, in one, not at all, and hostile."""

from dataclasses import replace

from superopt.report.data.diagram import (
    AxiomProof,
    Box,
    Diagram,
    Link,
    Parameter,
    Proof,
    RuleDiagram,
)
from superopt.report.text.library_counts import RULE_REPORT_VERSION, RuleReport

HOSTILE_NAME = "<script>alert(1)</script>\x1b[31m\"'&"
X = Box("parameter", "x", ("f",))
RESULT = Box("result", "result", (), (Link(1),))
# As `superopt rules show` knows it in tests of the command line.
DIAGRAM = RuleDiagram(
    *("relu-concat", "relu-concat: Relu(x) => x", "C", "E0", "library", "hand", ""),
    (Parameter("x", "f", False),),
    (),
    (),
    Diagram((X, Box("operator", "Relu", (), (Link(0),)), RESULT), "Relu(x)"),
    Diagram((X, Box("result", "result", (), (Link(0),))), "x"),
)
TWICE = replace(
    DIAGRAM,
    name="relu-relu",
    text="relu-relu(x: f): Relu(Relu(x)) => Relu(x) where rank(x) == 2 ; float=E0",
    tier="A",
    source="activation.rules:6",
    conditions=("rank(x) == 2",),
    trial=("k: nat",),
    caveat="a caveat",
    proof=Proof(
        "ranks 0 to 4; 6 ways to fit",
        ("sizes from 1", "floats as real numbers, sizes without overflow"),
        ("n == m",),
        1200,
        3,
        49.1,
        (11, 12),
    ),
    axioms=AxiomProof(
        ("relu-idempotent", "identity"),
        (("Relu(Relu(x))", ""), ("Relu(Identity(x))", "identity"), ("Relu(x)", "relu-idempotent")),
        1.8,
    ),
)
ONCE = replace(
    TWICE,
    name="merge-matmul",
    float_class="E1",
    source="linear.rules:9",
    proof=Proof("ranks 0 to 4; 2 ways to fit", ("sizes from 1",), (), 7, 0, 2100.0, None),
    axioms=None,
)
OPEN = replace(
    DIAGRAM,
    name="cast-same",
    float_class="E3",
    source="linear.rules:12",
    unproved="a cast in a rule for several types, " * 4,
)
OWN = replace(DIAGRAM, name="relu-relu", tier="", source="my.rules:1", float_class="E2")
RULES = RuleReport(
    RULE_REPORT_VERSION, "", 4, "3f" * 32, (("superopt", "0.1.0"),), (TWICE, ONCE, OPEN, OWN)
)
HOSTILE_RULE = replace(
    TWICE,
    name=HOSTILE_NAME,
    text=HOSTILE_NAME,
    source=f"{HOSTILE_NAME}:1",
    origin=HOSTILE_NAME,
    caveat=HOSTILE_NAME,
    unproved=HOSTILE_NAME,
    conditions=(HOSTILE_NAME,),
    trial=(HOSTILE_NAME,),
    left=Diagram((replace(X, label=HOSTILE_NAME, details=(HOSTILE_NAME,)),), HOSTILE_NAME),
    proof=Proof(HOSTILE_NAME, (HOSTILE_NAME,), (HOSTILE_NAME,), 1, 1, 1.0, None),
    axioms=AxiomProof((HOSTILE_NAME,), ((HOSTILE_NAME, HOSTILE_NAME),), 1.0),
)
HOSTILE_RULES = replace(
    RULES,
    part=HOSTILE_NAME,
    versions=((HOSTILE_NAME, HOSTILE_NAME),),
    rules=(HOSTILE_RULE, replace(HOSTILE_RULE, tier="C", proof=None, axioms=None)),
)
