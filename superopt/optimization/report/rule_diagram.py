"""Both sides of a rule as graphs in which equal terms share a box."""

from collections.abc import Mapping, Sequence

from superopt.report.data.diagram import (
    AxiomProof,
    Box,
    BoxKind,
    Diagram,
    Link,
    Parameter,
    Proof,
    RuleDiagram,
)
from superopt.rules.lang.printer import show
from superopt.rules.lang.rule import Rule, show_side
from superopt.rules.lang.syntax import Param
from superopt.rules.lang.term import (
    Absent,
    AllResults,
    App,
    Call,
    Fill,
    Formula,
    MapTerms,
    Name,
    Number,
    OperandRun,
    Pick,
    Scalar,
    Term,
    Var,
    free_names,
    walk,
)

# Variables of the enclosing comprehensions: the box of each, or a unique negative number if only
# formulas use the variable.
Scope = Mapping[str, int]


def rule_diagram(
    rule: Rule,
    tier: str,
    proof: Proof | None = None,
    axioms: AxiomProof | None = None,
    unproved: str = "",
    computed_class_and_growth: tuple[str, float | None] = ("", None),
) -> RuleDiagram:
    """Return a rule as drawable data; parameters are as in `RuleDiagram`."""
    parameters = tuple(
        Parameter(
            "*" * p.is_run + p.name,
            str(p).partition(": ")[2],
            Call("const", (Name(p.name),)) in rule.where,
        )
        for p in rule.params
        if isinstance(p, Param)
    )
    return RuleDiagram(
        name=rule.name,
        text=rule.text,
        tier=tier,
        float_class=rule.float_class,
        source=rule.source,
        origin=rule.origin,
        caveat=rule.caveat,
        parameters=parameters,
        trial=tuple(str(p) for p in rule.params if not isinstance(p, Param)),
        conditions=tuple(map(show, rule.where)),
        left=_side_diagram(rule.lhs, rule.rhs, parameters),
        right=_side_diagram(rule.rhs, rule.lhs, parameters),
        proof=proof,
        axioms=axioms,
        unproved=unproved,
        computed=computed_class_and_growth[0],
        growth=computed_class_and_growth[1],
    )


def _side_diagram(
    terms: tuple[Term, ...], others: tuple[Term, ...], parameters: Sequence[Parameter]
) -> Diagram:
    builder = _DiagramBuilder(parameters)
    results = [Box("result", n, (), (link,)) for n, link in _side_results(terms, others, builder)]
    return Diagram((*builder.boxes, *results), show_side(terms))


def _side_results(
    terms: tuple[Term, ...], others: tuple[Term, ...], builder: "_DiagramBuilder"
) -> list[tuple[str, Link]]:
    """Return the results with their names. A single operator may produce what several terms do on
    the other side."""
    if len(terms) == 1 and isinstance(terms[0], App):
        box = builder.box_number(terms[0], {})
        if any(isinstance(t, (OperandRun, AllResults, MapTerms)) for t in others):
            return [("results", Link(box, "all"))]
        if len(others) > 1:
            return [(f"result {i}", Link(box, f"[{i}]")) for i in range(len(others))]
        return [("result", Link(box))]
    links = [builder.link(t, {}) for t in terms]
    runs = [isinstance(t, (OperandRun, AllResults, MapTerms)) for t in terms]
    if len(terms) > 1 and not any(runs):
        return [(f"result {i}", link) for i, link in enumerate(links)]
    return [("results" if run else "result", link) for run, link in zip(runs, links, strict=True)]


class _DiagramBuilder:
    """Collects the boxes of one side, one for each term."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self.parameters = {p.name.removeprefix("*"): p for p in parameters}
        self.runs = {p.name[1:] for p in parameters if p.name.startswith("*")}
        self.boxes: list[Box] = []
        self.box_numbers: dict[tuple[str, tuple[tuple[str, int], ...]], int] = {}
        self.hidden_count = 0  # count of variables without a box

    def link(self, t: Term, scope: Scope) -> Link:
        match t:
            case Pick(app, index):
                return Link(self.box_number(app, scope), f"[{index}]")
            case AllResults(app):
                return Link(self.box_number(app, scope), "all")
            case _:
                return Link(self.box_number(t, scope))

    def box_number(self, t: Term, scope: Scope) -> int:
        """Return the number of a term's box, which is created on first use."""
        if isinstance(t, Var) and t.name in scope:
            return scope[t.name]
        key = show(t), tuple(sorted((n, scope[n]) for n in free_names(t) if n in scope))
        if key not in self.box_numbers:
            self.box_numbers[key] = self.make_box(t, scope)
        return self.box_numbers[key]

    def make_box(self, t: Term, scope: Scope) -> int:
        match t:
            case App(op, operands, attrs, rest):
                inputs = tuple(self.link(o, scope) for o in operands)
                given = [f"{k}={show(v)}" for k, v in attrs]
                given += [f"**{rest}"] if rest is not None else []
                return self.add_box("operator", op.name, given, inputs)
            case Var(n) | OperandRun(n):
                return self.add_parameter(n)
            case MapTerms():
                return self.add_comprehension(t, scope)
            case Number() | Scalar() | Fill() | Absent():
                return self.add_box("constant", show(t))
            case Pick() | AllResults():
                raise AssertionError(f"{show(t)} is a link, not a box")

    def add_parameter(self, name: str) -> int:
        p = self.parameters[name]
        return self.add_box("parameter", p.name, [p.kind, *["constant"] * p.constant])

    def add_comprehension(self, t: MapTerms, scope: Scope) -> int:
        """Add a comprehension: its variables come from what it iterates over, its body is one
        box."""
        said = t.over.op.name if isinstance(t.over, App) else show(t.over)
        used = {v.name for v in walk(t.body) if isinstance(v, Var)} & set(t.names)
        sources = self.comprehension_sources(t.over, scope) if used else []
        inner = dict(scope)
        for number, name in enumerate(t.names):
            if name in used:
                own = sources if len(sources) != len(t.names) else [sources[number]]
                inner[name] = self.add_box("variable", name, [f"each of {said}"], tuple(own))
            else:
                self.hidden_count += 1
                inner[name] = -self.hidden_count
        body = self.link(t.body, inner)
        return self.add_box("each", "each", [f"for {', '.join(t.names)} in {said}"], (body,))

    def comprehension_sources(self, over: Formula | App, scope: Scope) -> list[Link]:
        """Return the runs that a comprehension iterates over, in the order of their names in it."""
        if isinstance(over, App):
            return [Link(self.box_number(over, scope), "all")]
        named = dict.fromkeys(f.id for f in walk(over) if isinstance(f, Name))
        runs = [n for n in named if n not in scope and n in self.runs]
        return [Link(self.box_number(OperandRun(n), scope)) for n in runs]

    def add_box(
        self,
        kind: BoxKind,
        label: str,
        details: Sequence[str] = (),
        inputs: tuple[Link, ...] = (),
    ) -> int:
        self.boxes.append(Box(kind, label, tuple(details), inputs))
        return len(self.boxes) - 1
