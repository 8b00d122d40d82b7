"""The report of the rule library as text: counts, and the rules that are not proved."""

from collections.abc import Iterator, Sequence

from superopt.report import words
from superopt.report.diagram import RuleDiagram
from superopt.report.library import (
    METHODS,
    RuleReport,
    Sum,
    assumptions,
    axiom_uses,
    by_file,
    by_method,
    slowest,
    summed,
    unproved,
    why_not,
)
from superopt.report.table import SHOWN, joined, table

WIDTH = 100  # letters of a reason's line


def summary(report: RuleReport) -> str:
    """Return counts by file and kind of proof, the slowest proofs, axioms, and the unproved
    rules."""
    return joined(map(words.plain, _summary(report)))


def _summary(report: RuleReport) -> Iterator[str]:
    rules = report.rules
    files = [summed(file, some) for file, some in by_file(rules).items()]
    yield words.library_verdict(len(rules), len(unproved(rules)))
    if report.part:
        yield f"  of {report.of:,} rules, those with {report.part!r} in the name or file"
    yield ""
    yield from _files(files, summed("all", rules))
    yield ""
    yield from table(((f"{n:,}x", METHODS[m]) for m, n in by_method(rules)), numbers=(0,))
    yield from (f"  {c}: {meaning}" for c, meaning in words.FLOAT_CLASSES.items())
    yield from _counts("assumptions of proofs, and the number of rules", assumptions(rules))
    slow = slowest(rules, SHOWN)
    if slow:
        yield ""
        yield "the slowest proofs"
        yield from table(((words.time(ms * 1e3), r.name, r.source) for r, ms in slow), numbers=(0,))
    yield from _counts("axioms, and the number of rules that use them", axiom_uses(rules))
    yield from _unproved(unproved(rules))


def _files(files: Sequence[Sum], every: Sum) -> Iterator[str]:
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
        time = words.time(s.ms * 1e3) if s.ms else ""
        numbers = (*counts, s.obligations, s.queries)
        rows.append((s.file, *(f"{n:,}" if n else "" for n in numbers), time, mutants))
    return table(rows, len(rows), numbers=range(1, len(rows[0])))


def _counts(title: str, rows: Sequence[tuple[str, int]]) -> Iterator[str]:
    if rows:
        yield ""
        yield title
        yield from table(((f"{n:,}x", name) for name, n in rows), len(rows), numbers=(0,))


def _unproved(rules: Sequence[RuleDiagram]) -> Iterator[str]:
    if not rules:
        return
    yield ""
    yield f"not proved ({words.count(len(rules), 'rule')}), and why"
    for rule in rules:
        yield f"  {rule.name} ({rule.source})"
        yield _cut(f"    {why_not(rule)}")


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 3]}..."
