"""Reports on rules as plain text: lists, counts, verdicts, derivations, and generator runs."""

from collections import Counter
from collections.abc import Iterable, Sequence

from superopt.report import words
from superopt.report.data import (
    Decision,
    Derivation,
    Generation,
    RuleCount,
    RuleInfo,
    RuleVerdict,
)
from superopt.report.mutation import Mutation
from superopt.report.table import SHOWN, joined, table
from superopt.report.text import legend


def rule_list(rules: Sequence[RuleInfo]) -> str:
    rows = [(words.plain(r.name), f"tier {r.tier}", r.float_class, r.source) for r in rules]
    return joined([*table(rows, shown=len(rows)), words.count(len(rules), "rule")])


def rule_counts(rows: Sequence[RuleCount]) -> str:
    """Return a table of rules by file, with totals."""

    def cell(counts: Iterable[tuple[str, int]]) -> str:
        return ", ".join(f"{n} {words.plain(name)}" for name, n in counts)

    cells = [("file", "rules", "several outputs", "float class", "origin")]
    for r in rows:
        origins = cell(r.origins)
        cells.append(
            (words.plain(r.file), str(r.rules), str(r.several), cell(r.float_classes), origins)
        )
    cells.append(
        ("all", str(sum(r.rules for r in rows)), str(sum(r.several for r in rows)), "", "")
    )
    return joined(table(cells, len(cells)))


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
            *map(words.plain, (r.name, _floats(r), r.source, notes.get(r.detail, r.detail))),
        )
        for r in rows
    )
    lines = list(table(cells, shown=len(rows)))
    for r in rows:
        if r.counterexample:
            lines += ["", words.plain(f"  {' '.join(r.text.split()) or r.name}")]
            lines += [words.plain(f"    {line}") for line in r.counterexample]
    lines += [""] if lines[len(rows) :] else []
    lines += (words.plain(f"  {mark} {detail}") for detail, mark in notes.items())
    counts = Counter(r.decision for r in rows)
    parts = (f"{counts[d]} {name}" for d, name in said.items() if counts[d])
    lines.append(f"{words.count(len(rows), 'rule')}: {', '.join(parts)}")
    return joined(lines)


def _floats(r: RuleVerdict) -> str:
    """Return the effective class: the computed one if it is above the declared one."""
    if r.computed <= r.float_class:
        return r.float_class
    return f"{r.computed}, not {r.float_class}"


def derivation(found: Derivation, a: str, b: str) -> str:
    """Return the chain of rules between two models, each line a rule and its result."""
    if found.differ:
        return joined(
            [
                words.plain(f"not derived: {a} and {b} are not equal"),
                words.plain(f"  {found.reason}; no rules were tried"),
            ]
        )
    if not found.derived:
        return joined(
            [
                words.plain(f"not derived: no chain of rules from {a} to {b} was found"),
                words.plain(f"  {found.reason}, in {found.seconds:.1f} s; this proves nothing"),
            ]
        )
    lines = [f"derived: {a} and {b} are equal, {found.reason}"]
    for n, step in enumerate(found.steps, 1):
        way = "" if step.forward else "  (from right to left)"
        lines.append(f"  {n}. {step.rule}  tier {step.tier}, {step.float_class}{way}")
        lines.append(f"     {step.after}")
    lines += legend({s.tier for s in found.steps}, {s.float_class for s in found.steps})
    return joined(map(words.plain, lines))


def mutation(made: Mutation) -> str:
    """Return the results of a run of the mutant generator."""
    lines: list[str] = []
    for f in made.families:
        if made.model:
            lines.append(
                f"{f.family}: {words.count(f.enumerated, 'mutant')} of its programs; "
                f"{f.corrected} of them corrected, {f.proved} of these cost less and are "
                f"proved; {f.seconds:.1f} s"
            )
            lines += [f"  dropped, {why}: {n}" for why, n in f.dropped.items()]
            if f.false:
                lines.append(words.plain(f"  {words.otherwise(f.false, made.journal)}"))
            name = f"{made.folder}/{f.family}"
            lines.append(f"{name}.corrected.rules: pass it to optimize as --rules;")
            lines.append(f"{name}.regions.json lists where each mutant is equal")
            return joined(lines)
        lines.append(
            f"{f.family}: {words.count(f.proved, 'program')} with a mutant whose equal "
            f"parts are proved for all sizes, {f.corrected} of them with a proved "
            f"correction, {f.saving} of these should cost less than their program"
        )
        cut = f" (of those with {f.operators}, one in {f.cut} was tried)" if f.cut > 1 else ""
        lines.append(
            f"  {words.count(f.enumerated, 'partially equal pair')} enumerated, of "
            f"programs of up to {words.count(f.operators, 'operator')}{cut}; "
            f"{f.seconds:.1f} s"
        )
        lines += [f"  dropped, {why}: {n}" for why, n in f.dropped.items()]
    if made.lost:
        lost = words.count(made.lost, "line")
        lines.append(f"{made.journal}: {lost} could not be read; their results were computed again")
    lines.append(
        f"in {made.folder}: NAME.pairs, NAME.corrected.rules and NAME.regions.json for each family"
    )
    return joined(lines)


def generation(made: Generation) -> str:
    """Return the results of a run of the rule generator."""
    lines: list[str] = []
    for f in made.families:
        lines.append(
            f"{f.family}: {words.count(f.rules, 'rule')},"
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
            f"  {words.count(f.laws, 'law')} (equations and further equal pairs), "
            f"{f.followed:,} of which follow from rules"
        )
        lines.append(
            f"  {words.count(f.claims, 'rule candidate')} from the rest: instances of a "
            f"rule {f.covered}, false at other sizes {f.unread}, without effect "
            f"{len(f.idle)}, derived from other rules {f.derivable}"
        )
        if f.doubtful:
            lines.append(f"  {words.count(f.doubtful, 'pair')} equal by coincidence")
        if f.partial:
            lines.append(f"  {words.count(f.partial, 'partially equal pair')}")
        lines += [
            f"  no rule: true at these sizes, no generalization holds: {r}"
            for r in f.refuted[:SHOWN]
        ]
        lines += [f"  without effect: {r}" for r in f.idle[:SHOWN]]
        if f.wrong:
            lines.append(
                f"  {words.count(f.wrong, 'generalization')} refuted, with counterexamples "
                f"in {f.family}.refuted.txt"
            )
        if f.unproved:
            lines.append(
                f"  {words.count(len(f.unproved), 'rule')} not proved, in"
                f" {f.family}.unproved.rules; `optimize` uses none of them without --tier C"
            )
        lines += [f"  not proved: {r}" for r in f.unproved[:SHOWN]]
    if made.lost:
        some = ", ".join(map(str, made.lost[:SHOWN])) + ", ..." * (len(made.lost) > SHOWN)
        lines.append(
            f"{made.folder}/journal.jsonl: {words.count(len(made.lost), 'line')} could not "
            f"be read ({some}); their results were computed again"
        )
    rules = sum(f.rules for f in made.families)
    proved = rules - sum(len(f.unproved) for f in made.families)
    lines.append(
        f"{words.count(rules, 'rule')}, {proved} proved for all sizes, in {made.folder} "
        f"(NAME.rules for each family, account.json), after {made.seconds:.1f} s, at most "
        f"{made.peak_mb:,.0f} MB for one process"
    )
    return joined(map(words.plain, lines))
