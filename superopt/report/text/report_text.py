"""Reports as plain text, at most 100 columns where names allow it."""

from collections.abc import Iterator, Mapping, Sequence

from superopt.report.data.diagram import PartialRuleUse, RuleDiagram
from superopt.report.data.group import group_rejections, group_steps
from superopt.report.data.report import (
    BenchRow,
    CheckResult,
    Finding,
    Latency,
    OutputError,
    Rejected,
    Report,
    Step,
    StoreStats,
    UnusedRules,
    Verdict,
)
from superopt.report.formatting import phrases
from superopt.report.formatting.table import MAX_ROWS, join_lines, table
from superopt.report.formatting.wrap import cut_text, wrap_text
from superopt.report.text.ablation_text import ablation_lines
from superopt.report.text.partial_rule import partial_use_lines

LABEL_WIDTH = len("measured latency")
SENTENCE_WIDTH = 80  # characters of a sentence beside its label
SHOWN_RULES = 4  # in the short summary


def report_summary(report: Report) -> str:
    """Return the whole summary: headline, numbers, rewrites, rejections, notes."""
    return join_lines(_summary_lines(report))


def short_summary(report: Report) -> str:
    """Return the summary in at most 14 lines; `report_summary` has the rest."""
    return join_lines(_short_lines(report))


def _short_lines(r: Report) -> Iterator[str]:
    yield from _number_lines(r, is_short=True)
    if r.steps:
        rows = [f"{len(row.steps)}x {row.rule}" for row in group_steps(r.steps)]
        steps, more = phrases.count_text(len(r.steps), "step"), ", ..." * (len(rows) > SHOWN_RULES)
        text = f"{steps}: {', '.join(rows[:SHOWN_RULES])}{more}"
        yield f"  {'applied':{LABEL_WIDTH}}  {_cut(text)}"
    if r.rejected:
        places = phrases.count_text(sum(row.count for row in r.rejected), "place")
        first = group_rejections(r.rejected)[0]
        text = f"{places}; most often {first.rule}: {first.details[0].detail}"
        yield f"  {'not applied':{LABEL_WIDTH}}  {_cut(text)}"
    if r.notes:
        more = f" (and {len(r.notes) - 1} more)" if len(r.notes) > 1 else ""
        yield f"  {'notes':{LABEL_WIDTH}}  {_cut(r.notes[0], len(more))}{more}"
    yield f"  {'':{LABEL_WIDTH}}  all of it: -v, --html FILE, or --json"


def _cut(text: str, reserved: int = 0) -> str:
    """Return the text on one line, with an ellipsis if it is too long."""
    return cut_text(phrases.printable(text), SENTENCE_WIDTH - reserved)


def _summary_lines(r: Report) -> Iterator[str]:
    yield from _number_lines(r)
    yield from _error_lines(r.check)
    yield from _applied_lines(r.steps, {rule.name: rule for rule in r.rules})
    if r.partial:
        yield ""
        yield "equal in parts, and corrected"
        for found in r.partial:
            yield from map(phrases.printable, partial_use_lines(found))
    if r.ablation:
        yield ""
        yield from ablation_lines(r.ablation)
    yield from _rejected_lines(r.rejected)
    yield from _unused_rule_lines(r.left_out)
    yield from _opaque_lines(r.opaque)
    yield from _note_lines(r.notes)


def _number_lines(r: Report, is_short: bool = False) -> Iterator[str]:
    """Yield the headline and the numbers. is_short: cut the line of the error."""

    def row(label: str, text: str) -> str:
        return f"  {label:{LABEL_WIDTH}}  {text}"

    yield f"{phrases.printable(r.model_name)}: {phrases.report_verdict_text(r)}"
    yield ""
    if r.latency_before:
        yield row("measured latency", _latency_change(r.latency_before, r.latency_after))
        yield row("", _measurement_setup(r.latency_before))
    elif r.cost_source:
        yield row("measured latency", "not measured here")
    else:
        yield row("measured latency", f"not timed; costs are for {phrases.printable(r.machine)}")
    if r.compiled:
        yield row("compiled", f"{phrases.ratio_text(r.compiled)} of that speed: superopt compile")
    cost = f"{phrases.time_text(r.cost_before_us)} -> {phrases.time_text(r.cost_after_us)}"
    source = phrases.printable(r.cost_source.partition(":")[0])
    yield row("estimated cost", f"{cost} ({source})" if source else cost)
    yield row("nodes", f"{r.nodes_before:,} -> {r.nodes_after:,}{_opaque_count(r.opaque)}")
    yield row("check", _check_text(r.check))
    if r.worst_step:
        text = phrases.printable(phrases.worst_step_text(r.worst_step))
        lines = wrap_text(text, SENTENCE_WIDTH)
        if is_short:
            lines = [_cut(phrases.short_worst_step_text(r.worst_step))]
        yield from (row("" if n else "error", line) for n, line in enumerate(lines))
    elif r.changed:
        yield row("error", f"no worst step: {phrases.printable(r.worst_step_note)}")
    if s := r.search:
        found = phrases.count_text(s.graphs_seen, "graph")
        rate = f"{s.graphs_per_second:,.0f} a second"
        stop = phrases.printable(s.stop_reason)
        yield row("search", f"{found} in {s.seconds:.1f} s ({rate}); stopped: {stop}")


def _latency_change(before: Latency, after: Latency | None) -> str:
    if after is None:
        return f"{phrases.time_text(before.us_median)} (median)"
    return (
        f"{phrases.time_text(before.us_median)} -> {phrases.time_text(after.us_median)} (medians)"
    )


def _measurement_setup(t: Latency) -> str:
    threads = phrases.count_text(t.threads, "thread")
    return phrases.printable(
        f"{phrases.count_text(t.runs, 'run')} each, {t.runtime}, {threads}, {t.machine}"
    )


def _opaque_count(names: Sequence[tuple[str, str]]) -> str:
    return f" ({len(names):,} opaque: not rewritten)" if names else ""


def _check_text(check: CheckResult | None) -> str:
    if check is None:
        return "not run"
    text = "passed" if check.passed else "FAILED"
    text += (
        f": {phrases.count_text(len(check.outputs), 'output')} on "
        f"{phrases.count_text(check.inputs, 'input')}"
    )
    if check.outputs:
        worst = max(check.outputs, key=lambda o: o.max_error)
        text += f"; max error {phrases.known_error_text(worst.max_error)}"
        text += f" (of the original: {phrases.error_text(worst.original_max_error)})"
        steps = [o.steps for o in check.outputs if o.steps is not None]
        if steps:
            text += f"; at most {phrases.steps_text(max(steps))}"
    if check.skipped:
        text += f"; {len(check.skipped)} not checked"
    return text


def _error_lines(check: CheckResult | None) -> Iterator[str]:
    """Yield the errors of the original and of the optimized model, the largest first."""
    if check is None or not check.outputs:
        return
    yield ""
    yield "errors against float64: of the original, then of the optimized model"
    rows: list[tuple[str, ...]] = [("output", "largest", "", "99 % below", "", "mean", "")]
    for o in sorted(check.outputs, key=lambda o: -o.max_error):
        pairs = (
            *(o.original_max_error, o.max_error),
            *(o.original_p99_error, o.p99_error),
            *(o.original_mean_error, o.mean_error),
        )
        rows.append((phrases.printable(o.name), *map(phrases.error_text, pairs)))
    yield from table(rows, MAX_ROWS + 1)


def _applied_lines(steps: Sequence[Step], rules: Mapping[str, RuleDiagram]) -> Iterator[str]:
    if not steps:
        return
    rows = group_steps(steps)
    yield ""
    yield f"applied ({phrases.count_text(len(steps), 'step')})"
    yield from table(
        (
            f"{len(row.steps)}x",
            phrases.printable(row.rule),
            _saving_text(row.saves_us),
            f"tier {row.tier}" if row.tier else "",
            row.float_class,
            _proved_ranks(rules.get(row.rule)),
        )
        for row in rows
    )
    yield from legend_lines({row.tier for row in rows}, {row.float_class for row in rows})


def _proved_ranks(rule: RuleDiagram | None) -> str:
    """Return the ranks for which a rule is proved."""
    return f"proved: {phrases.ranks_text(rule.proof.scope)}" if rule and rule.proof else ""


def legend_lines(tiers: set[str], classes: set[str]) -> Iterator[str]:
    """Yield the meanings of tiers and float classes."""
    for code in sorted(tiers & set(phrases.TIER_TEXTS)):
        yield f"  tier {code}: {phrases.TIER_TEXTS[code]}"
    known = sorted(classes & set(phrases.FLOAT_CLASS_TEXTS))
    if known:
        yield "  " + "; ".join(f"{code}: {phrases.FLOAT_CLASS_TEXTS[code]}" for code in known)


def _saving_text(us: float) -> str:
    if us == 0:
        return ""
    return f"saves {phrases.time_text(us)}" if us > 0 else f"costs {phrases.time_text(-us)}"


def _rejected_lines(rejected: Sequence[Rejected]) -> Iterator[str]:
    if not rejected:
        return
    yield ""
    yield f"not applied ({phrases.count_text(sum(r.count for r in rejected), 'place')})"
    yield from table(
        (f"{row.count:,}x", phrases.printable(row.rule), phrases.printable(row.details[0].detail))
        for row in group_rejections(rejected)
    )


def _unused_rule_lines(rows: Sequence[UnusedRules]) -> Iterator[str]:
    if rows:
        yield ""
        yield "rules that were applied nowhere"
        cells = ((f"{len(row.rules):,}x", phrases.UNUSED_REASON_TEXTS[row.bar]) for row in rows)
        yield from table(cells, numeric_columns=(0,))


def _opaque_lines(nodes: Sequence[tuple[str, str]]) -> Iterator[str]:
    if nodes:
        yield ""
        yield f"opaque nodes, not rewritten ({phrases.count_text(len(nodes), 'node')})"
        yield from table((phrases.printable(name), phrases.printable(why)) for name, why in nodes)


def _note_lines(notes: Sequence[str]) -> Iterator[str]:
    if notes:
        yield ""
        yield "notes"
        yield from (f"  - {phrases.printable(note)}" for note in notes)


def explanation_text(
    name: str,
    steps: Sequence[Step],
    rejected: Sequence[Rejected],
    notes: Sequence[str] = (),
    partial: Sequence[PartialRuleUse] = (),
) -> str:
    """Return the steps and rejections of a rule or a value: each step with before and after, and
    where a mutant is equal; each rejection with its reason."""
    return join_lines(
        _explanation_lines(name, steps, rejected, notes, {p.rule: p for p in partial})
    )


def _explanation_lines(
    name: str,
    steps: Sequence[Step],
    rejected: Sequence[Rejected],
    notes: Sequence[str],
    partial: Mapping[str, PartialRuleUse],
) -> Iterator[str]:
    yield phrases.printable(
        f"{name}: {len(steps)} applied, {sum(r.count for r in rejected)} not applied"
    )
    for step in steps:
        code = ", ".join(filter(None, (step.tier and f"tier {step.tier}", step.float_class)))
        yield ""
        yield phrases.printable(f"applied {step.rule} ({code})" if code else f"applied {step.rule}")
        yield phrases.printable(f"  at      {', '.join(step.where)}")
        yield from _block_lines("before", step.before)
        yield from _block_lines("after", step.after)
        if step.saves_us:
            yield f"  {_saving_text(step.saves_us)}, by the cost model"
        if step.rule in partial:
            yield "  equal in parts"
            yield from map(phrases.printable, partial_use_lines(partial[step.rule]))
    for item in rejected:
        times = f" ({item.count:,} places)" if item.count > 1 else ""
        yield ""
        yield phrases.printable(
            f"not applied: {item.rule}: {phrases.REJECTION_TEXTS[item.reason]}{times}"
        )
        if item.where:
            yield phrases.printable(f"  at      {', '.join(item.where)}")
        yield phrases.printable(f"  because {item.detail}")
    yield from _note_lines(notes)


def _block_lines(label: str, text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines()):
        yield f"  {label if number == 0 else '':7} {phrases.printable(line)}"


def verdict_text(verdict: Verdict) -> str:
    """Return the text of `superopt verify`."""
    said = {
        "proved": "equal, proved",
        "agrees": "equal on every tested input, not proved",
        "within_steps": "equal within quantization steps on every tested input, not proved",
        "unknown": "undecided",
        "differs": "different",
        "certified": "certified",
        "refused": "the certificate is refused",
    }[verdict.decision]
    if verdict.proved_steps:
        said = "proved"
    return join_lines(_verdict_lines(said, verdict))


def _verdict_lines(said: str, verdict: Verdict) -> Iterator[str]:
    yield f"{said}: {phrases.printable(verdict.reason)}"
    if {o.decision for o in verdict.outputs} != {"proved"}:
        rows = (
            (phrases.printable(o.name), o.decision, phrases.printable(o.reason))
            for o in verdict.outputs
        )
        yield from table(tuple(rows))
    if check := verdict.check:
        yield f"  {_check_text(check)}; {phrases.printable(check.method)}"
        yield from table(_output_rows(check.outputs))
        yield from (f"  not checked: {phrases.printable(name)}" for name in check.skipped)
    yield from _note_lines(verdict.notes)


def _output_rows(outputs: Sequence[OutputError]) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a table of errors, with steps if an output is of a quantization."""
    stepped = any(o.steps is not None for o in outputs)
    header = ("output", "max error", "of rms", "p99", "mean", "original's", "rtol", "atol")
    yield (*header, *(("steps", "original's") if stepped else ()), "")
    for o in outputs:
        steps = tuple("-" if n is None else str(n) for n in (o.steps, o.original_steps))
        verdict = ("ok" if o.passed else "FAILED") + (f", {o.note}" if o.note else "")
        yield (
            phrases.printable(o.name),
            phrases.known_error_text(o.max_error),
            phrases.relative_error_text(o.max_error, o.rms),
            phrases.known_error_text(o.p99_error),
            phrases.known_error_text(o.mean_error),
            phrases.error_text(o.original_max_error),
            f"{o.rtol:g}",
            f"{o.atol:g}",
            *(steps if stepped else ()),
            phrases.printable(verdict),
        )


def latency_table(rows: Sequence[BenchRow]) -> str:
    """Return the table of `superopt bench`."""
    body = [("model", "runtime", "median", "95 % interval", "speedup", "")]
    for row in rows:
        t = row.latency
        body.append(
            (
                phrases.printable(row.model),
                phrases.printable(row.runtime),
                phrases.time_text(t.us_median) if t else "-",
                f"{phrases.time_text(t.us_low)} to {phrases.time_text(t.us_high)}" if t else "-",
                phrases.ratio_text(row.speedup) if row.speedup else "-",
                phrases.printable(row.note),
            )
        )
    return join_lines(table(body, max_rows=len(body)))


def findings_table(rows: Sequence[Finding]) -> str:
    """Return the table of `superopt doctor`."""
    cells = ((r.status, r.name, r.version, phrases.printable(r.detail)) for r in rows)
    return join_lines(table(cells, max_rows=len(rows)))


def store_text(stats: StoreStats) -> str:
    machines = [f"  measured on {phrases.printable(name)}" for name in stats.machines]
    entries = phrases.count_text(stats.entries, "entry", "entries")
    return join_lines(
        [phrases.printable(stats.path), f"  {entries}, {phrases.size_text(stats.bytes)}", *machines]
    )
