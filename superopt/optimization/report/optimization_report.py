"""The report of an optimization: plain data for people and programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from superopt.loading.package_versions import package_versions
from superopt.loading.value_names import REPORT_REASONS, ValueNames
from superopt.optimization.ablation import AblationResult
from superopt.optimization.optimization_result import OptimizationResult
from superopt.optimization.report.applied_sizes import rule_sizes_at
from superopt.optimization.report.graph_change import describe_graph_change, trace_steps
from superopt.optimization.report.latencies import timed_latencies
from superopt.optimization.report.partial_rule_page import describe_partial_equality
from superopt.optimization.report.rule_report import describe_rule
from superopt.optimization.report.waterfall import make_waterfall
from superopt.report.data.diagram import PartialRuleUse
from superopt.report.data.report import (
    REPORT_VERSION,
    Rejected,
    Report,
    SearchStats,
    Step,
    UnusedRules,
)
from superopt.report.formatting import phrases
from superopt.report.formatting.phrases import ratio_text
from superopt.rules.lang.rule import Rule
from superopt.rules.library.records import tier
from superopt.search.move import Step as Applied
from superopt.verification.check_summary import summarize_check


def make_report(result: OptimizationResult, rules: Iterable[Rule], optimized_sha256: str) -> Report:
    """Return the report of one optimization."""
    book = {r.name: r for r in rules}
    winner = result.winner
    steps = winner.variant.steps if winner else ()
    trace = trace_steps(result.model, steps)
    names = ValueNames(trace.names)
    before, after, speedup = timed_latencies(result)
    notes = [*result.notes, *(winner.notes if winner else ())]
    fired = dict.fromkeys(s.rule for s in steps)
    notes += dict.fromkeys(f"{r}: {book[r].caveat}" for r in fired if r in book and book[r].caveat)
    if winner is None and speedup is not None:
        notes.append(
            f"the best graph found runs at {ratio_text(speedup)} the speed of the original:"
            " this is not significantly faster, so it is not used"
        )
        after = speedup = None
    ablation = result.attribution.ablation
    if isinstance(ablation, str):
        notes.append(f"ablation: {ablation}")
    kinds = _count_op_types(result.source.model.graph)
    kinds_after = _count_op_types(winner.source.model.graph) if winner else kinds
    o = result.outcome
    stats = SearchStats(
        graphs_seen=o.visited,
        graphs_per_second=o.visited / max(o.seconds, 1e-9),
        seconds=o.seconds,
        stop_reason=o.stop.value,
        partitions=o.pieces,
        measured_ops=result.clock.measured_count if result.clock else 0,
        store_hits=result.clock.store_hits if result.clock else 0,
    )
    return Report(
        version=REPORT_VERSION,
        model_name=result.source.label,
        model_sha256=result.source.sha256,
        optimized_sha256=optimized_sha256,
        nodes_before=kinds.total(),
        nodes_after=kinds_after.total(),
        operators=tuple((k, kinds[k], kinds_after[k]) for k in sorted(kinds | kinds_after)),
        opaque=result.model.opaque_reasons,
        cost_before_us=result.cost_before,
        cost_after_us=result.cost_after,
        latency_before=before,
        latency_after=after,
        speedup=speedup,
        steps=tuple(_report_step(s, book, names) for s in steps),
        rules=tuple(describe_rule(book[r]) for r in fired if r in book),
        rejected=_rejected_rows(result, names),
        left_out=_left_out_rules(result, fired),
        check=summarize_check(winner.check if winner else None),
        worst_step=None if isinstance(result.worst_step, str) else result.worst_step,
        worst_step_note=result.worst_step if isinstance(result.worst_step, str) else "",
        search=stats,
        notes=tuple(notes),
        machine=result.machine.text,
        changed=winner is not None,
        versions=package_versions(),
        partial=tuple(
            p
            for r in fired
            if r in book and (p := _partial_equality(book[r], result, steps)) is not None
        ),
        graph=describe_graph_change(result.model, winner, trace) if winner else None,
        cost_source=result.request.cost_source,
        waterfall=make_waterfall(result),
        ablation=ablation.table if isinstance(ablation, AblationResult) else None,
    )


def _partial_equality(
    rule: Rule, result: OptimizationResult, steps: Iterable[Applied]
) -> PartialRuleUse | None:
    """Return where a rule's sides are equal, drawn at the sizes at which it was first applied."""
    first = next(s for s in steps if s.rule == rule.name)
    return describe_partial_equality(
        rule, result.request.partial_pairs, lambda: rule_sizes_at(rule, first, result.costs.sizes)
    )


def _count_op_types(graph: Iterable[Any]) -> Counter[str]:
    """Return how many nodes of each type an ONNX graph has, without Constant nodes."""
    return Counter(n.op_type for n in graph if n.op_type != "Constant")


def _report_step(s: Applied, book: Mapping[str, Rule], names: ValueNames) -> Step:
    rule = book.get(s.rule)
    return Step(
        rule=s.rule,
        kind="tactic" if s.tactic else "rule",
        where=tuple(names[v] for v in s.change),
        saves_us=-s.us,
        tier=tier(rule) if rule else "",
        float_class=rule.float_class if rule else "",
        before="; ".join(names.term_text(v) for v in s.change),
        after="; ".join(dict.fromkeys(names.term_text(v) for v in s.change.values())),
    )


def _rejected_rows(result: OptimizationResult, names: ValueNames) -> tuple[Rejected, ...]:
    fired = {s.rule for s in result.winner.variant.steps} if result.winner else set()
    rows: list[Rejected] = []
    for (rule, reason, detail), row in sorted(result.refusals.table.items()):
        if reason == "cost":
            if rule in fired and row.min_us < 0:
                continue
            detail = phrases.cost_change_text(row.min_us)
        where = tuple(names[v] for v in row.values)
        rows.append(
            Rejected(rule, where, REPORT_REASONS.get(reason, "condition"), detail, row.count)
        )
    return tuple(rows)


def _left_out_rules(
    result: OptimizationResult, applied_rules: Collection[str]
) -> tuple[UnusedRules, ...]:
    """Return rules that may not be applied, and those that no other part of the report mentions."""
    mentioned_rules = {rule for rule, _, _ in result.refusals.table}.union(applied_rules)
    unseen = tuple(r.name for r in result.admitted_rules.rules if r.name not in mentioned_rules)
    return (*result.admitted_rules.left_out, *([UnusedRules("unseen", unseen)] if unseen else []))
