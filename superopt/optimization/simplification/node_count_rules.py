"""Which rules simplify a graph, and the cost by which their rewrites are chosen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from superopt.cost.graph_cost import ChangeCost, GraphCosts, Replacement, roofline_cost_model
from superopt.errors import UsageError
from superopt.ir import graph as ir_graph
from superopt.rules.lang.rule import Rule
from superopt.rules.lang.term import App, Call, Name, Term, Var, walk

NORM_FUSION_RULES = frozenset(
    {
        "conv-bn", "conv-bias-bn", "conv-transpose-bn", "conv-transpose-bias-bn", "bn-conv",
        "bn-affine",
    }
)  # fmt: skip
# Operators that a rule may introduce: every runtime has them.
COMMON_OPERATORS = frozenset({"Gemm", "Reshape", "Transpose"})
MAX_ADDED_US = 0.05  # of estimated work that a rewrite may add: estimates are rounded


PASSES = ("constant-folding", "bn-fusion", "rules")  # that may be skipped


def select_rules(library: Sequence[Rule], skipped: Collection[str]) -> tuple[Rule, ...]:
    """Return the rules that simplify, without those of skipped passes, and those skipped by name.
    Raises UsageError for a name that is neither."""
    rules = simplifying_rules(library, may_fold="constant-folding" not in skipped)
    unknown = {*skipped} - {*PASSES} - {r.name for r in library}
    if unknown:
        raise UsageError(
            f"cannot skip {', '.join(sorted(unknown))}",
            f"the passes are {', '.join(PASSES)}; other names must be those of rules",
            "`superopt rules list` has the rules",
        )
    left_out = {*skipped, *(NORM_FUSION_RULES if "bn-fusion" in skipped else ())}
    return () if "rules" in skipped else tuple(r for r in rules if r.name not in left_out)


def simplifying_rules(rules: Iterable[Rule], may_fold: bool = True) -> tuple[Rule, ...]:
    """Return the rules that compute one value by fewer operators, of the kinds that were there.

    Operators that read only constants do not count, because they are folded. may_fold: False:
    without the rules that need this.
    """
    return tuple(r for r in rules if _removes_operators(r, may_fold))


def _removes_operators(rule: Rule, may_fold: bool) -> bool:
    if len(rule.lhs) != 1 or len(rule.rhs) != 1:
        return False
    constants = _constant_names(rule) if may_fold else frozenset[str]()
    before, after = (_count_operators(side, constants) for side in (rule.lhs, rule.rhs))
    return after.total() < before.total() and after.keys() <= before.keys() | COMMON_OPERATORS


def _constant_names(rule: Rule) -> frozenset[str]:
    """Return the parameters that a rule requires to be constants, by `const(w)`."""
    calls = (p for f in rule.where for p in walk(f) if isinstance(p, Call) and p.fn == "const")
    return frozenset(a.id for call in calls for a in call.args if isinstance(a, Name))


def _count_operators(side: tuple[Term, ...], constants: frozenset[str]) -> Counter[str]:
    """Count the operators of a side, by name, that do not read only constants."""
    applied = (p for term in side for p in walk(term) if isinstance(p, App))
    return Counter(p.op.name for p in applied if not _reads_only(p, constants))


def _reads_only(part: App, constants: frozenset[str]) -> bool:
    names = {p.name for p in walk(part) if isinstance(p, Var)}
    return bool(names) and names <= constants


@dataclass(slots=True)
class NodeCounts(GraphCosts):
    """Costs that count nodes. Rewrites that add estimated work, or replace `kept_values`, have
    none."""

    kept_values: set[ir_graph.Value] = field(default_factory=set)

    def change_cost(self, r: Replacement) -> ChangeCost | None:
        """Return the number of nodes that a rewrite adds; None if it adds work."""
        if not self.kept_values.isdisjoint(r.change):
            return None
        work = GraphCosts.change_cost(self, r)
        if work is None or work.us > MAX_ADDED_US:
            return None
        before, after = self._count(r.removed), self._count(r.added)
        return ChangeCost(after - before, before, 0.0)

    def graph_cost(self, graph: ir_graph.Graph) -> float:
        """Return the number of nodes that are left when constants are folded."""
        return self._count(ir_graph.nodes(graph))

    def _count(self, nodes: Collection[ir_graph.Node]) -> float:
        return float(sum(not self.is_constant(n) for n in nodes))


def node_counts(sizes: Mapping[str, int]) -> NodeCounts:
    """Return the cost by which simplification decides, with work at these sizes. Fused nodes count:
    which ones are fused differs between runtimes."""
    return NodeCounts(sizes, roofline_cost_model(1), lambda node, flags: False)
