"""The report of the rule library as text: counts, and the rules that are not proved."""

from collections.abc import Iterator, Sequence

from superopt.report.data.diagram import RuleDiagram
from superopt.report.formatting import phrases
from superopt.report.formatting.table import MAX_ROWS, join_lines, table
from superopt.report.text.library_counts import (
    PROOF_METHODS,
    RuleReport,
    RuleSummary,
    count_assumptions,
    count_axiom_uses,
    count_by_method,
    group_by_file,
    slowest_proofs,
    summarize_rules,
    unproved_reason,
    unproved_rules,
)

REASON_WIDTH = 100  # letters of a reason's line


def library_summary(report: RuleReport) -> str:
    """Return counts by file and kind of proof, the slowest proofs, axioms, and the unproved
    rules."""
    return join_lines(map(phrases.printable, _summary_lines(report)))


def _summary_lines(report: RuleReport) -> Iterator[str]:
    rules = report.rules
    files = [summarize_rules(file, some) for file, some in group_by_file(rules).items()]
    yield phrases.library_verdict_text(len(rules), len(unproved_rules(rules)))
    if report.part:
        yield f"  of {report.of:,} rules, those with {report.part!r} in the name or file"
    yield ""
    yield from _file_table(files, summarize_rules("all", rules))
    yield ""
    yield from table(
        ((f"{n:,}x", PROOF_METHODS[m]) for m, n in count_by_method(rules)), numeric_columns=(0,)
    )
    yield from (f"  {c}: {meaning}" for c, meaning in phrases.FLOAT_CLASS_TEXTS.items())
    yield from _count_table(
        "assumptions of proofs, and the number of rules", count_assumptions(rules)
    )
    slow = slowest_proofs(rules, MAX_ROWS)
    if slow:
        yield ""
        yield "the slowest proofs"
        yield from table(
            ((phrases.time_text(ms * 1e3), r.name, r.source) for r, ms in slow),
            numeric_columns=(0,),
        )
    yield from _count_table(
        "axioms, and the number of rules that use them", count_axiom_uses(rules)
    )
    yield from _unproved_lines(unproved_rules(rules))


def _file_table(files: Sequence[RuleSummary], every: RuleSummary) -> Iterator[str]:
    """Leave out tiers without rules."""
    tiers = [n for n, (_, count) in enumerate(every.tiers) if count]
    rows = [
        (
            "file",
            "rules",
            *(f"tier {every.tiers[n][0]}" if every.tiers[n][0] else "unchecked" for n in tiers),
            *(c for c, _ in every.float_classes),
            "obligations",
            "to Z3",
            "time",
            "mutants refused" if every.mutants else "",
        )
    ]
    for s in (*files, every):
        counts = (s.rules, *(s.tiers[n][1] for n in tiers), *(n for _, n in s.float_classes))
        mutants = f"{s.mutants[0]:,} of {s.mutants[1]:,}" if s.mutants else ""
        time = phrases.time_text(s.ms * 1e3) if s.ms else ""
        numbers = (*counts, s.obligations, s.queries)
        rows.append((s.file, *(f"{n:,}" if n else "" for n in numbers), time, mutants))
    return table(rows, len(rows), numeric_columns=range(1, len(rows[0])))


def _count_table(title: str, rows: Sequence[tuple[str, int]]) -> Iterator[str]:
    if rows:
        yield ""
        yield title
        yield from table(((f"{n:,}x", name) for name, n in rows), len(rows), numeric_columns=(0,))


def _unproved_lines(rules: Sequence[RuleDiagram]) -> Iterator[str]:
    if not rules:
        return
    yield ""
    yield f"not proved ({phrases.count_text(len(rules), 'rule')}), and why"
    for rule in rules:
        yield f"  {rule.name} ({rule.source})"
        yield _truncate(f"    {unproved_reason(rule)}")


def _truncate(line: str) -> str:
    return line if len(line) <= REASON_WIDTH else f"{line[: REASON_WIDTH - 3]}..."
