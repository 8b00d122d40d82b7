"""Why rules were not applied: all rules at one value of the original model, or one rule everywhere
in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from superopt.ir import graph as ir_graph
from superopt.loading.value_names import REPORT_REASONS, ValueNames
from superopt.optimization.optimization_result import OptimizationResult
from superopt.report.data.report import Rejected
from superopt.report.formatting import phrases
from superopt.rules.lang.rule import Rule
from superopt.rules.match.explain import Attempt, explain
from superopt.rules.match.graph_context import GraphContext, graph_context
from superopt.rules.match.matcher import matches
from superopt.rules.match.pattern import root_app
from superopt.rules.match.rewrite import Refusal, rewrite
from superopt.search.cost_delta import cost_delta

MAX_SHOWN_RULES = 12  # shown rules that do not match at a value
MAX_SHOWN_VALUES = 8  # values named for each reason


def explain_rejections(result: OptimizationResult, names: Iterable[str]) -> tuple[Rejected, ...]:
    """Return why the rules among `names` were not applied, and why no rule was applied at the
    values among `names`, in the original model.

    A rule that matches is priced by the cost model of the run.
    """
    wanted = set(names)
    calls = ValueNames(result.model.names)
    ctx = graph_context(result.model.graph)
    rows: list[Rejected] = []
    for rule in result.request.rules:
        if rule.name in wanted:
            rows += _explain_rule(result, rule, ctx, calls)
    values = [v for v in _graph_values(result.model.graph) if calls[v] in wanted]
    for v in values:
        rows += _explain_value(result, v, ctx, calls)
    return tuple(dict.fromkeys(rows))


def _graph_values(graph: ir_graph.Graph) -> Iterator[ir_graph.Value]:
    yield from graph.inputs
    yield from ir_graph.walk(graph)


def _explain_rule(
    result: OptimizationResult, rule: Rule, ctx: GraphContext, value_names: ValueNames
) -> list[Rejected]:
    """Explain one rule at every place where it could start: the nearest misses first."""
    failed: dict[str, list[Attempt]] = {}
    found = explain(rule, ctx)
    for a in found:
        if a.outcome == "failed":
            failed.setdefault(a.reason, []).append(a)
    rows = _explain_matches(result, rule, ctx, value_names, None)
    for reason, some in sorted(failed.items(), key=lambda row: -row[1][0].passed):
        where = tuple(value_names[a.site] for a in some[:MAX_SHOWN_VALUES])
        rows.append(Rejected(rule.name, where, "match", reason, len(some)))
    if not found:
        ops = f"the model has no node that {rule.name} can start from"
        rows.append(Rejected(rule.name, (), "match", ops, 1))
    return rows


def _explain_value(
    result: OptimizationResult, v: ir_graph.Value, ctx: GraphContext, value_names: ValueNames
) -> list[Rejected]:
    """Explain every rule at one value: those that match, and the nearest misses."""
    rows: list[Rejected] = []
    missed: list[tuple[float, Attempt]] = []
    producer = ir_graph.producer(v)
    near = [producer] if producer is not None else ctx.users.get(v, [])
    for rule in result.request.rules:
        if not any(root_app(side).op in ctx.by_op for side in rule.lhs):
            continue  # the graph has nothing to start from: no match, and no near miss
        rows += _explain_matches(result, rule, ctx, value_names, near)
        failed = [a for a in explain(rule, ctx, v) if a.outcome == "failed"]
        if failed:
            best = max(failed, key=lambda a: a.passed / a.steps)
            missed.append((best.passed / best.steps, best))
    missed = [row for row in missed if row[0] > 0]
    for _, a in sorted(missed, key=lambda row: -row[0])[:MAX_SHOWN_RULES]:
        rows.append(Rejected(a.rule, (value_names[v],), "match", a.reason, 1))
    return rows


def _explain_matches(
    result: OptimizationResult,
    rule: Rule,
    ctx: GraphContext,
    value_names: ValueNames,
    start_nodes: list[ir_graph.Node] | None,
) -> list[Rejected]:
    """Return the places where `rule` matches, grouped by why it was not applied there."""
    found: dict[tuple[str, str], list[str]] = {}
    for m in matches(rule, ctx, start_nodes):
        change = rewrite(m, ctx)
        where = [value_names[v] for v in m.roots]
        if isinstance(change, Refusal):
            found.setdefault((change.reason, change.detail), []).extend(where)
            continue
        if all(old is new for old, new in change.items()):
            continue
        effect = cost_delta(ctx, change, result.costs)
        if effect is None:
            text = "would save nothing: the new nodes read the nodes that they replace"
            found.setdefault(("cost", text), []).extend(where)
        elif effect.us >= 0:
            text = phrases.cost_change_text(effect.us)
            found.setdefault(("cost", text), []).extend(where)
        else:
            text = f"alone it would save {-effect.us:.2f} us; {_reason_not_applied(result, rule)}"
            found.setdefault(("untaken", text), []).extend(where)
    return [
        Rejected(
            rule.name,
            tuple(where[:MAX_SHOWN_VALUES]),
            REPORT_REASONS.get(reason, "condition"),
            detail,
            len(where),
        )
        for (reason, detail), where in found.items()
    ]


def _reason_not_applied(result: OptimizationResult, rule: Rule) -> str:
    """Return why a rule that gains by the cost model was not applied."""
    if (
        result.winner is None
        and result.best is not None
        and any(s.rule == rule.name for s in result.best.variant.steps)
    ):
        return "the best graph applies it but is not faster than the original as a whole"
    return "another rewrite was applied first, or time ran out"
