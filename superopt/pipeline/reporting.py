"""The report of an optimization: plain data for people and programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from superopt.cost.clock import Ratio
from superopt.onnx_io.read.source import read_model
from superopt.pipeline.applied import sizes_at
from superopt.pipeline.check_summary import check_result
from superopt.pipeline.known import described
from superopt.pipeline.naming import REASONS, Names
from superopt.pipeline.optimize import Done
from superopt.pipeline.partial_page import in_parts
from superopt.pipeline.versions import version_of, versions
from superopt.report.data import (
    FORMAT,
    Interval,
    Latency,
    LeftOut,
    Rejected,
    Report,
    SearchStats,
    Step,
)
from superopt.report.diagram import InParts
from superopt.report.words import ratio
from superopt.rules.lang.rule import Rule
from superopt.rules.library.records import tier
from superopt.search.move import Step as Applied


def report_of(done: Done, rules: Iterable[Rule], optimized_sha256: str) -> Report:
    """Return the report of one optimization."""
    book = {r.name: r for r in rules}
    winner = done.winner
    names = Names(done.model.names)
    steps = winner.variant.steps if winner else ()
    before, after, speedup = _latencies(done)
    notes = [*done.notes, *(winner.notes if winner else ())]
    fired = dict.fromkeys(s.rule for s in steps)
    notes += dict.fromkeys(f"{r}: {book[r].caveat}" for r in fired if r in book and book[r].caveat)
    if winner is None and speedup is not None:
        notes.append(
            f"the best graph found runs at {ratio(speedup)} the speed of the original:"
            " this is not significantly faster, so it is not used"
        )
        after = speedup = None
    kinds = _kinds(done.source.model.graph)
    kinds_after = _kinds(read_model(winner.path).model.graph) if winner else kinds
    o = done.outcome
    stats = SearchStats(
        graphs_seen=o.visited,
        graphs_per_second=o.visited / max(o.seconds, 1e-9),
        seconds=o.seconds,
        stop_reason=o.stop.value,
        partitions=o.pieces,
        measured_ops=done.clock.measured if done.clock else 0,
        store_hits=done.clock.hits if done.clock else 0,
    )
    return Report(
        version=FORMAT,
        model_name=done.source.label,
        model_sha256=done.source.sha256,
        optimized_sha256=optimized_sha256,
        nodes_before=kinds.total(),
        nodes_after=kinds_after.total(),
        operators=tuple((k, kinds[k], kinds_after[k]) for k in sorted(kinds | kinds_after)),
        opaque=done.model.opaque_reasons,
        cost_before_us=done.cost_before,
        cost_after_us=done.cost_after,
        latency_before=before,
        latency_after=after,
        speedup=speedup,
        steps=tuple(_step(s, book, names) for s in steps),
        rules=tuple(described(book[r]) for r in fired if r in book),
        rejected=_rejected(done, names),
        left_out=_left_out(done, fired),
        check=check_result(winner.checked if winner else None),
        worst_step=None if isinstance(done.worst, str) else done.worst,
        worst_step_note=done.worst if isinstance(done.worst, str) else "",
        search=stats,
        notes=tuple(notes),
        machine=done.machine.text,
        changed=winner is not None,
        versions=versions(),
        partial=tuple(
            p for r in fired if r in book and (p := _in_parts(book[r], done, steps)) is not None
        ),
    )


def _in_parts(rule: Rule, done: Done, steps: Iterable[Applied]) -> InParts | None:
    """Return where a rule's sides are equal, drawn at the sizes at which it was first applied."""
    first = next(s for s in steps if s.rule == rule.name)
    return in_parts(rule, done.request.pairs, lambda: sizes_at(rule, first, done.costs.sizes))


def _kinds(graph: Iterable[Any]) -> Counter[str]:
    """Return how many nodes of each type an ONNX graph has, without Constant nodes."""
    return Counter(n.op_type for n in graph if n.op_type != "Constant")


def _step(s: Applied, book: Mapping[str, Rule], names: Names) -> Step:
    rule = book.get(s.rule)
    return Step(
        rule=s.rule,
        kind="tactic" if s.tactic else "rule",
        where=tuple(names[v] for v in s.change),
        saves_us=-s.us,
        tier=tier(rule) if rule else "",
        float_class=rule.float_class if rule else "",
        before="; ".join(names.text(v) for v in s.change),
        after="; ".join(dict.fromkeys(names.text(v) for v in s.change.values())),
    )


def _rejected(done: Done, names: Names) -> tuple[Rejected, ...]:
    fired = {s.rule for s in done.winner.variant.steps} if done.winner else set()
    rows: list[Rejected] = []
    for (rule, reason, detail), row in sorted(done.refusals.table.items()):
        if reason == "cost":
            if rule in fired and row.min_us < 0:
                continue
            said = "no gain" if row.min_us >= 0 else "gain within noise"
            detail = f"{said}: at best {row.min_us:+.2f} us by the cost model"
        where = tuple(names[v] for v in row.values)
        rows.append(Rejected(rule, where, REASONS.get(reason, "condition"), detail, row.count))
    return tuple(rows)


def _left_out(done: Done, fired: Collection[str]) -> tuple[LeftOut, ...]:
    """Return rules that may not be applied, and those that no other part of the report mentions."""
    told = {rule for rule, _, _ in done.refusals.table}.union(fired)
    unseen = tuple(r.name for r in done.admitted.rules if r.name not in told)
    return (*done.admitted.left_out, *([LeftOut("unseen", unseen)] if unseen else []))


def _latencies(done: Done) -> tuple[Latency | None, Latency | None, Interval | None]:
    if not done.times or done.ratio is None:
        return None, None, None
    runner = "superopt" if done.request.target == "cpu" else "onnxruntime"
    runtime = f"{runner} {version_of(runner)}"
    a, b = (latency(t, done.request.threads, runtime, done.machine.text) for t in done.times)
    return a, b, interval(done.ratio)


def interval(found: Ratio) -> Interval:
    return (found.low, found.mid, found.high)


def latency(times: tuple[float, ...], threads: int, runtime: str, machine: str) -> Latency:
    """Return the median of `times_us` and its 95 % confidence interval by order statistics."""
    ordered = sorted(times)
    n = len(ordered)
    reach = int(0.98 * n**0.5)  # 1.96 sqrt(n) / 2 ranks to either side
    low, high = max(0, n // 2 - reach), min(n - 1, n // 2 + reach)
    return Latency(ordered[n // 2], ordered[low], ordered[high], n, threads, runtime, machine)
