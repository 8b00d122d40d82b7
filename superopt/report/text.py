"""Reports as plain text, at most 100 columns where names allow it."""

from collections.abc import Iterator, Mapping, Sequence

from superopt.report import words
from superopt.report.data import (
    BenchRow,
    CheckResult,
    Finding,
    Latency,
    LeftOut,
    Rejected,
    Report,
    Step,
    StoreStats,
    Verdict,
)
from superopt.report.diagram import InParts, RuleDiagram
from superopt.report.group import applied, refused
from superopt.report.partial import in_parts
from superopt.report.table import SHOWN, joined, table
from superopt.report.wrap import broken

WIDTH = 88  # letters of a sentence beside its heading


def summary(report: Report) -> str:
    """Return the summary: headline, numbers, rewrites, rejections."""
    return joined(_summary(report))


def _summary(r: Report) -> Iterator[str]:
    yield f"{words.plain(r.model_name)}: {words.verdict(r.speedup, r.changed)}"
    yield ""
    if r.latency_before:
        yield f"  latency   {_change(r.latency_before, r.latency_after)}"
        yield f"  measured  {_where_measured(r.latency_before)}"
    else:
        yield f"  latency   not timed; costs are for {words.plain(r.machine)}"
    cost = f"{words.time(r.cost_before_us)} -> {words.time(r.cost_after_us)}"
    yield f"  cost      {cost} (estimated, operators and weights)"
    yield f"  nodes     {r.nodes_before:,} -> {r.nodes_after:,}{_opaque(r.opaque)}"
    yield f"  check     {_check(r.check)}"
    if r.worst_step:
        first, *rest = broken(words.plain(words.worst_step(r.worst_step)), WIDTH)
        yield f"  error     {first}"
        yield from (f"            {line}" for line in rest)
    elif r.changed:
        yield f"  error     no worst step: {words.plain(r.worst_step_note)}"
    if s := r.search:
        yield (
            f"  search    {words.count(s.graphs_seen, 'graph')} in {s.seconds:.1f} s "
            f"({s.graphs_per_second:,.0f} a second); stopped: {words.plain(s.stop_reason)}"
        )
    yield from _errors(r.check)
    yield from _applied(r.steps, {rule.name: rule for rule in r.rules})
    if r.partial:
        yield ""
        yield "equal in parts, and corrected"
        for found in r.partial:
            yield from map(words.plain, in_parts(found))
    yield from _refused(r.rejected)
    yield from _left_out(r.left_out)
    yield from _untouched(r.opaque)
    yield from _notes(r.notes)


def _change(before: Latency, after: Latency | None) -> str:
    if after is None:
        return f"{words.time(before.us_median)} (median)"
    return f"{words.time(before.us_median)} -> {words.time(after.us_median)} (medians)"


def _where_measured(t: Latency) -> str:
    threads = words.count(t.threads, "thread")
    return words.plain(f"{words.count(t.runs, 'run')} each, {t.runtime}, {threads}, {t.machine}")


def _opaque(names: Sequence[tuple[str, str]]) -> str:
    return f" ({len(names):,} opaque: not rewritten)" if names else ""


def _check(check: CheckResult | None) -> str:
    if check is None:
        return "not run"
    text = "passed" if check.passed else "FAILED"
    text += f": {words.count(len(check.outputs), 'output')} on {words.count(check.inputs, 'input')}"
    if check.outputs:
        worst = max(check.outputs, key=lambda o: o.max_error)
        text += f"; max error {words.error(worst.max_error)}"
        text += f" (of the original: {words.error(worst.original_max_error)})"
    if check.skipped:
        text += f"; {len(check.skipped)} not checked"
    return text


def _errors(check: CheckResult | None) -> Iterator[str]:
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
        rows.append((words.plain(o.name), *map(words.error, pairs)))
    yield from table(rows, SHOWN + 1)


def _applied(steps: Sequence[Step], rules: Mapping[str, RuleDiagram]) -> Iterator[str]:
    if not steps:
        return
    rows = applied(steps)
    yield ""
    yield f"applied ({words.count(len(steps), 'step')})"
    yield from table(
        (
            f"{len(row.steps)}x",
            words.plain(row.rule),
            _saving(row.saves_us),
            f"tier {row.tier}" if row.tier else "",
            row.float_class,
            _ranks(rules.get(row.rule)),
        )
        for row in rows
    )
    yield from legend({row.tier for row in rows}, {row.float_class for row in rows})


def _ranks(rule: RuleDiagram | None) -> str:
    """Return the ranks for which a rule is proved."""
    return f"proved: {words.ranks(rule.proof.scope)}" if rule and rule.proof else ""


def legend(tiers: set[str], classes: set[str]) -> Iterator[str]:
    """Yield the meanings of tiers and float classes."""
    for code in sorted(tiers & set(words.TIERS)):
        yield f"  tier {code}: {words.TIERS[code]}"
    known = sorted(classes & set(words.FLOAT_CLASSES))
    if known:
        yield "  " + "; ".join(f"{code}: {words.FLOAT_CLASSES[code]}" for code in known)


def _saving(us: float) -> str:
    if us == 0:
        return ""
    return f"saves {words.time(us)}" if us > 0 else f"costs {words.time(-us)}"


def _refused(rejected: Sequence[Rejected]) -> Iterator[str]:
    if not rejected:
        return
    yield ""
    yield f"not applied ({words.count(sum(r.count for r in rejected), 'place')})"
    yield from table(
        (f"{row.count:,}x", words.plain(row.rule), words.plain(row.details[0].detail))
        for row in refused(rejected)
    )


def _left_out(rows: Sequence[LeftOut]) -> Iterator[str]:
    if rows:
        yield ""
        yield "rules that were applied nowhere"
        cells = ((f"{len(row.rules):,}x", words.LEFT_OUT[row.bar]) for row in rows)
        yield from table(cells, numbers=(0,))


def _untouched(nodes: Sequence[tuple[str, str]]) -> Iterator[str]:
    if nodes:
        yield ""
        yield f"opaque nodes, not rewritten ({words.count(len(nodes), 'node')})"
        yield from table((words.plain(name), words.plain(why)) for name, why in nodes)


def _notes(notes: Sequence[str]) -> Iterator[str]:
    if notes:
        yield ""
        yield "notes"
        yield from (f"  - {words.plain(note)}" for note in notes)


def explanation(
    name: str,
    steps: Sequence[Step],
    rejected: Sequence[Rejected],
    notes: Sequence[str] = (),
    partial: Sequence[InParts] = (),
) -> str:
    """Return the steps and rejections of a rule or a value: each step with before and after, and
    where a mutant is equal; each rejection with its reason."""
    return joined(_explanation(name, steps, rejected, notes, {p.rule: p for p in partial}))


def _explanation(
    name: str,
    steps: Sequence[Step],
    rejected: Sequence[Rejected],
    notes: Sequence[str],
    partial: Mapping[str, InParts],
) -> Iterator[str]:
    yield words.plain(f"{name}: {len(steps)} applied, {sum(r.count for r in rejected)} not applied")
    for step in steps:
        code = ", ".join(filter(None, (step.tier and f"tier {step.tier}", step.float_class)))
        yield ""
        yield words.plain(f"applied {step.rule} ({code})" if code else f"applied {step.rule}")
        yield words.plain(f"  at      {', '.join(step.where)}")
        yield from _block("before", step.before)
        yield from _block("after", step.after)
        if step.saves_us:
            yield f"  {_saving(step.saves_us)}, by the cost model"
        if step.rule in partial:
            yield "  equal in parts"
            yield from map(words.plain, in_parts(partial[step.rule]))
    for item in rejected:
        times = f" ({item.count:,} places)" if item.count > 1 else ""
        yield ""
        yield words.plain(f"not applied: {item.rule}: {words.REASONS[item.reason]}{times}")
        if item.where:
            yield words.plain(f"  at      {', '.join(item.where)}")
        yield words.plain(f"  because {item.detail}")
    yield from _notes(notes)


def _block(label: str, text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines()):
        yield f"  {label if number == 0 else '':7} {words.plain(line)}"


def comparison(verdict: Verdict) -> str:
    """Return the text of `superopt verify`."""
    said = {
        "proved": "equal, proved",
        "agrees": "equal on every tested input, not proved",
        "unknown": "undecided",
        "differs": "different",
        "certified": "certified",
        "refused": "the certificate is refused",
    }[verdict.decision]
    return joined(_comparison(said, verdict))


def _comparison(said: str, verdict: Verdict) -> Iterator[str]:
    yield f"{said}: {words.plain(verdict.reason)}"
    if {o.decision for o in verdict.outputs} != {"proved"}:
        rows = ((words.plain(o.name), o.decision, words.plain(o.reason)) for o in verdict.outputs)
        yield from table(tuple(rows))
    if check := verdict.check:
        yield f"  {_check(check)}; {words.plain(check.method)}"
        header = ("output", "max error", "p99", "mean", "original's", "rtol", "atol", "")
        numbers = (
            (
                words.plain(o.name),
                words.error(o.max_error),
                words.error(o.p99_error),
                words.error(o.mean_error),
                words.error(o.original_max_error),
                f"{o.rtol:g}",
                f"{o.atol:g}",
                words.plain(("ok" if o.passed else "FAILED") + (f", {o.note}" if o.note else "")),
            )
            for o in check.outputs
        )
        yield from table((header, *numbers))
        yield from (f"  not checked: {words.plain(name)}" for name in check.skipped)
    yield from _notes(verdict.notes)


def latencies(rows: Sequence[BenchRow]) -> str:
    """Return the table of `superopt bench`."""
    body = [("model", "runtime", "median", "95 % interval", "speedup", "")]
    for row in rows:
        t = row.latency
        body.append(
            (
                words.plain(row.model),
                words.plain(row.runtime),
                words.time(t.us_median) if t else "-",
                f"{words.time(t.us_low)} to {words.time(t.us_high)}" if t else "-",
                words.ratio(row.speedup) if row.speedup else "-",
                words.plain(row.note),
            )
        )
    return joined(table(body, shown=len(body)))


def findings(rows: Sequence[Finding]) -> str:
    """Return the table of `superopt doctor`."""
    cells = ((r.status, r.name, r.version, words.plain(r.detail)) for r in rows)
    return joined(table(cells, shown=len(rows)))


def store(stats: StoreStats) -> str:
    machines = [f"  measured on {words.plain(name)}" for name in stats.machines]
    entries = words.count(stats.entries, "entry", "entries")
    return joined([words.plain(stats.path), f"  {entries}, {words.size(stats.bytes)}", *machines])
