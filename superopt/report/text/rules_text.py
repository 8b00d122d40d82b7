"""Reports on rules as plain text: lists, counts, verdicts, derivations, and generator runs."""

from collections import Counter
from collections.abc import Iterable, Sequence

from superopt.report.data.generation import Generation
from superopt.report.data.mutation import Mutation
from superopt.report.data.report import (
    Decision,
    Derivation,
    RuleCount,
    RuleInfo,
    RuleVerdict,
)
from superopt.report.formatting import phrases
from superopt.report.formatting.table import MAX_ROWS, join_lines, table
from superopt.report.text.report_text import legend_lines


def rule_list(rules: Sequence[RuleInfo]) -> str:
    rows = [(phrases.printable(r.name), f"tier {r.tier}", r.float_class, r.source) for r in rules]
    return join_lines([*table(rows, max_rows=len(rows)), phrases.count_text(len(rules), "rule")])


def rule_counts(rows: Sequence[RuleCount]) -> str:
    """Return a table of rules by file, with totals."""

    def cell(counts: Iterable[tuple[str, int]]) -> str:
        return ", ".join(f"{n} {phrases.printable(name)}" for name, n in counts)

    cells = [("file", "rules", "several outputs", "float class", "origin")]
    for r in rows:
        origins = cell(r.origins)
        cells.append(
            (
                phrases.printable(r.file),
                str(r.rules),
                str(r.several),
                cell(r.float_classes),
                origins,
            )
        )
    cells.append(
        ("all", str(sum(r.rules for r in rows)), str(sum(r.several for r in rows)), "", "")
    )
    return join_lines(table(cells, len(cells)))


def rule_verdicts(rows: Sequence[RuleVerdict]) -> str:
    """Return a line for each rule, counterexamples, the scopes of proofs, and counts of
    verdicts."""
    said: dict[Decision, str] = {
        "proved": "proved",
        "passed": "not refuted",
        "untestable": "NOT TESTABLE",
        "refuted": "REFUTED",
    }
    notes: dict[str, str] = {}
    for r in rows:
        if r.decision == "proved":
            notes.setdefault(r.detail, f"[{len(notes) + 1}]")
    cells = (
        (
            said[r.decision],
            *map(
                phrases.printable,
                (r.name, _effective_float_class(r), r.source, notes.get(r.detail, r.detail)),
            ),
        )
        for r in rows
    )
    lines = list(table(cells, max_rows=len(rows)))
    for r in rows:
        if r.counterexample:
            lines += ["", phrases.printable(f"  {' '.join(r.text.split()) or r.name}")]
            lines += [phrases.printable(f"    {line}") for line in r.counterexample]
    lines += [""] if lines[len(rows) :] else []
    lines += (phrases.printable(f"  {mark} {detail}") for detail, mark in notes.items())
    counts = Counter(r.decision for r in rows)
    parts = (f"{counts[d]} {name}" for d, name in said.items() if counts[d])
    lines.append(f"{phrases.count_text(len(rows), 'rule')}: {', '.join(parts)}")
    return join_lines(lines)


def _effective_float_class(r: RuleVerdict) -> str:
    """Return the effective class: the computed one if it is above the declared one."""
    if r.computed <= r.float_class:
        return r.float_class
    return f"{r.computed}, not {r.float_class}"


def derivation_text(found: Derivation, a: str, b: str) -> str:
    """Return the chain of rules between two models, each line a rule and its result."""
    if found.differ:
        return join_lines(
            [
                phrases.printable(f"not derived: {a} and {b} are not equal"),
                phrases.printable(f"  {found.reason}; no rules were tried"),
            ]
        )
    if not found.derived:
        return join_lines(
            [
                phrases.printable(f"not derived: no chain of rules from {a} to {b} was found"),
                phrases.printable(
                    f"  {found.reason}, in {found.seconds:.1f} s; this proves nothing"
                ),
            ]
        )
    lines = [f"derived: {a} and {b} are equal, {found.reason}"]
    for n, step in enumerate(found.steps, 1):
        way = "" if step.forward else "  (from right to left)"
        lines.append(f"  {n}. {step.rule}  tier {step.tier}, {step.float_class}{way}")
        lines.append(f"     {step.after}")
    lines += legend_lines({s.tier for s in found.steps}, {s.float_class for s in found.steps})
    return join_lines(map(phrases.printable, lines))


def mutation_text(made: Mutation) -> str:
    """Return the results of a run of the mutant generator."""
    lines: list[str] = []
    for f in made.families:
        if made.model:
            lines.append(
                f"{f.family}: {phrases.count_text(f.enumerated, 'mutant')} of its programs; "
                f"{f.corrected} of them corrected, {f.proved} of these cost less and are "
                f"proved; {f.seconds:.1f} s"
            )
            lines += [f"  dropped, {why}: {n}" for why, n in f.dropped.items()]
            if f.false:
                lines.append(
                    phrases.printable(f"  {phrases.distrusted_rules_text(f.false, made.journal)}")
                )
            name = f"{made.folder}/{f.family}"
            lines.append(f"{name}.corrected.rules: pass it to optimize as --rules;")
            lines.append(f"{name}.regions.json lists where each mutant is equal")
            return join_lines(lines)
        lines.append(
            f"{f.family}: {phrases.count_text(f.proved, 'program')} with a mutant whose equal "
            f"parts are proved for all sizes, {f.corrected} of them with a proved "
            f"correction, {f.saving} of these should cost less than their program"
        )
        cut = f" (of those with {f.operators}, one in {f.cut} was tried)" if f.cut > 1 else ""
        lines.append(
            f"  {phrases.count_text(f.enumerated, 'partially equal pair')} enumerated, of "
            f"programs of up to {phrases.count_text(f.operators, 'operator')}{cut}; "
            f"{f.seconds:.1f} s"
        )
        lines += [f"  dropped, {why}: {n}" for why, n in f.dropped.items()]
    if made.lost:
        lost = phrases.count_text(made.lost, "line")
        lines.append(f"{made.journal}: {lost} could not be read; their results were computed again")
    lines.append(
        f"in {made.folder}: NAME.pairs, NAME.corrected.rules and NAME.regions.json for each family"
    )
    return join_lines(lines)


def generation_text(made: Generation) -> str:
    """Return the results of a run of the rule generator."""
    lines: list[str] = []
    for f in made.families:
        lines.append(
            f"{f.family}: {phrases.count_text(f.rules, 'rule')},"
            f" {f.rules - len(f.unproved)} of them proved for all sizes"
        )
        cells = [
            ("operators", "candidates", "tensors", "equal pairs", "unexplained", "equations", "s")
        ]
        for n, v in enumerate(f.levels, 1):
            seconds = f"{v.enumerating + v.relating:.1f}"
            counts = (v.candidates, v.tensors, v.pairs, v.unexplained, v.equations)
            cells.append((str(n), *(f"{c:,}" for c in counts), seconds))  # type: ignore[arg-type]
        lines += table(cells, len(cells))
        lines += [
            f"  of {n} operators one candidate in {v.cut} was tried: all would take too much memory"
            for n, v in enumerate(f.levels, 1)
            if v.cut > 1
        ]
        lines.append(
            f"  {phrases.count_text(f.laws, 'law')} (equations and further equal pairs), "
            f"{f.followed:,} of which follow from rules"
        )
        lines.append(
            f"  {phrases.count_text(f.claims, 'rule candidate')} from the rest: instances of a "
            f"rule {f.covered}, false at other sizes {f.unread}, without effect "
            f"{len(f.idle)}, derived from other rules {f.derivable}"
        )
        if f.doubtful:
            lines.append(f"  {phrases.count_text(f.doubtful, 'pair')} equal by coincidence")
        if f.partial:
            lines.append(f"  {phrases.count_text(f.partial, 'partially equal pair')}")
        lines += [
            f"  no rule: true at these sizes, no generalization holds: {r}"
            for r in f.refuted[:MAX_ROWS]
        ]
        lines += [f"  without effect: {r}" for r in f.idle[:MAX_ROWS]]
        if f.wrong:
            lines.append(
                f"  {phrases.count_text(f.wrong, 'generalization')} refuted, with counterexamples "
                f"in {f.family}.refuted.txt"
            )
        if f.unproved:
            lines.append(
                f"  {phrases.count_text(len(f.unproved), 'rule')} not proved, in"
                f" {f.family}.unproved.rules; `optimize` uses none of them without --tier C"
            )
        lines += [f"  not proved: {r}" for r in f.unproved[:MAX_ROWS]]
    if made.lost:
        some = ", ".join(map(str, made.lost[:MAX_ROWS])) + ", ..." * (len(made.lost) > MAX_ROWS)
        lines.append(
            f"{made.folder}/journal.jsonl: {phrases.count_text(len(made.lost), 'line')} could not "
            f"be read ({some}); their results were computed again"
        )
    rules = sum(f.rules for f in made.families)
    proved = rules - sum(len(f.unproved) for f in made.families)
    lines.append(
        f"{phrases.count_text(rules, 'rule')}, {proved} proved for all sizes, in {made.folder} "
        f"(NAME.rules for each family, account.json), after {made.seconds:.1f} s, at most "
        f"{made.peak_mb:,.0f} MB for one process"
    )
    return join_lines(map(phrases.printable, lines))
