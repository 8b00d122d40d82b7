"""`superopt rules`: read, check and generate rules."""

import difflib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from superopt.cli import options, terminal
from superopt.errors import Aborted, ExitCode, UsageError

if TYPE_CHECKING:
    from superopt.report.text.partial_rule import PartialPage


@click.group()
def rules() -> None:
    """Read, check and generate rewrite rules."""


@rules.command("list")
@options.rules
@options.as_json
@options.debug
@options.unbudgeted
def list_(rules: tuple[Path, ...], as_json: bool) -> ExitCode:
    """List the rules by name."""
    from superopt.api import functions as api

    found = api.rules(rules)
    from superopt.report.text import rules_text

    terminal.print_result(found, rules_text.rule_list, as_json=as_json)
    return ExitCode.OK


@rules.command()
@options.rules
@options.as_json
@options.debug
@options.unbudgeted
def stats(rules: tuple[Path, ...], as_json: bool) -> ExitCode:
    """Count the rules, by file."""
    from superopt.api import functions as api

    found = api.rule_stats(rules)
    from superopt.report.text import rules_text

    terminal.print_result(found, rules_text.rule_counts, as_json=as_json)
    return ExitCode.OK


@rules.command()
@options.as_json
@options.debug
@options.unbudgeted
def lowering(as_json: bool) -> ExitCode:
    """Prove the rules by which compile lowers programs, for all sizes."""
    from superopt.api import functions as api

    found = api.check_lowering_rules()
    from superopt.report.text import rules_text

    terminal.print_result(found, rules_text.rule_verdicts, as_json=as_json)
    return ExitCode.OK if all(r.decision == "proved" for r in found) else ExitCode.UNDECIDED


@rules.command()
@click.argument("name")
@click.option(
    "--svg", type=options.NEW_FILE, metavar="FILE", help="Write the drawing as SVG; - is stdout."
)
@options.rules
@options.as_json
@options.debug
@options.unbudgeted
def show(name: str, svg: Path | None, rules: tuple[Path, ...], as_json: bool) -> ExitCode:
    """Draw both sides of a rule, with its proof and origin.

    For a program and its mutant (rules/library/partial, or a FILE.pairs): where the mutant is
    equal, for all sizes, and the correction of the rest.
    """
    from superopt.api import functions as api

    on_stdout = svg == Path("-")
    if on_stdout and as_json:
        raise UsageError(
            "--svg - and --json exclude each other", "both write to stdout", "pass a file to --svg"
        )
    if svg is not None and not on_stdout:
        terminal.check_outputs(*rules, svg=svg)
    pairs = [r for r in rules if r.suffix == ".pairs"]
    rules = tuple(r for r in rules if r not in pairs)
    found = None if pairs else api.rule_diagram(name, rules)
    if found is None and (partial := api.partial_rule(name, pairs)) is not None:
        return _print_partial_rule(partial, svg, as_json)
    found = found or api.rule_diagram(name, rules)
    if found is None:
        known = [rule.name for rule in api.rules(rules)]
        near = difflib.get_close_matches(name, sorted(known), n=3, cutoff=0.5)
        raise UsageError(
            f"unknown rule {name!r}",
            f"the library holds {len(known)} rules",
            f"did you mean {', '.join(near)}?" if near else "see `superopt rules list`",
        )
    if svg is not None:
        from superopt.report.svg.rule_svg import rule_page

        if on_stdout:
            terminal.print_text(rule_page(found))
            return ExitCode.OK
        terminal.write_atomically(svg, rule_page(found))
    if as_json:
        from superopt.report.data.codec import dumps

        terminal.print_text(dumps(found))
        return ExitCode.OK
    from superopt.report.formatting import phrases
    from superopt.report.text import rule_tree

    terminal.print_text(
        rule_tree.rule_tree_page(
            found, terminal.terminal_width(), ascii_only=not terminal.can_encode("├─└│")
        )
    )
    if svg is not None:
        terminal.print_text(f"\nwrote {svg} ({phrases.size_text(svg.stat().st_size)})\n")
    return ExitCode.OK


def _print_partial_rule(page: "PartialPage", svg: Path | None, as_json: bool) -> ExitCode:
    if svg is not None:
        raise UsageError(
            f"--svg {svg}", f"{page.name} is not a rule, and has no drawing", "leave out --svg"
        )
    from superopt.report.text.partial_rule import partial_page_text

    terminal.print_result(page, partial_page_text, as_json=as_json)
    return ExitCode.OK


@rules.command()
@click.argument("part", metavar="[FILTER]", default="")
@options.rules
@click.option(
    "--html", type=options.NEW_FILE, metavar="FILE", help="Write the report as an HTML page."
)
@options.as_json
@options.debug
@options.unbudgeted
def report(part: str, rules: tuple[Path, ...], html: Path | None, as_json: bool) -> ExitCode:
    """Report how each rule is proved, and which are not.

    FILTER is part of a rule's name or of its file's. The page has drawings of both sides of each
    rule, its proof and its assumptions; --json has the same as data.
    """
    from superopt.api import functions as api

    terminal.check_outputs(*rules, html=html)
    found = api.rule_report(rules, part)
    if not found.rules:
        raise UsageError(
            f"no rule has {part!r} in its name or its file's name",
            f"the library holds {found.of} rules",
            "see `superopt rules list`",
        )
    from superopt.report.formatting import phrases

    if html is not None:
        from superopt.report.html.library_page import library_page

        terminal.write_atomically(html, library_page(found))
    if as_json:
        from superopt.report.data.codec import dumps

        terminal.print_text(dumps(found))
        return ExitCode.OK
    from superopt.report.text.library_text import library_summary

    terminal.print_text(library_summary(found))
    if html is not None:
        terminal.print_text(f"\nwrote {html} ({phrases.size_text(html.stat().st_size)})\n")
    return ExitCode.OK


@rules.command()
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="FOLDER",
    help="Folder for the rules and account.json.",
)
@click.option(
    "--family", "families", multiple=True, metavar="NAME", help="Enumerate only this family."
)
@click.option(
    "--ops",
    metavar="OP,...",
    help="A custom family: operators, as in 'MatMul,Transpose(perm=(1,0))'.",
)
@click.option(
    "--shapes",
    metavar="NAME=SHAPE,...",
    help="Inputs and constants of the custom family, as in 'x=2x3,s=,0=zeros:2x3'.",
)
@click.option(
    "--max-ops",
    type=click.IntRange(1, 5),
    default=4,
    show_default=True,
    help="Most operators of a graph; families with many graphs stop at 3, or at 4 with 5. Of a "
    "level that would take more than 6 GB, one graph in several is tried, as account.json "
    "says. With --partial no family stops earlier, and of 5 operators one graph in several "
    "is tried; with --model, 4 or 5.",
)
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Processes.")
@click.option(
    "--ray",
    metavar="ADDRESS",
    help="Work on this Ray cluster; local starts one with --jobs CPUs.",
)
@click.option(
    "--partial",
    is_flag=True,
    help="Find programs that are equal in parts, and their corrections, instead of rules.",
)
@click.option(
    "--model",
    type=options.FILE,
    metavar="MODEL",
    help="With --partial: mutants of this model's own programs.",
)
@options.seed
@options.as_json
@options.quiet
@options.debug
@options.limit_resources(lambda given: given["budget"], budget_default="none")
def generate(
    out: Path,
    partial: bool,
    model: Path | None,
    families: tuple[str, ...],
    ops: str | None,
    shapes: str | None,
    max_ops: int,
    jobs: int,
    ray: str | None,
    seed: int,
    as_json: bool,
    quiet: bool,
) -> ExitCode:
    """Find rules by enumeration.

    Enumerates operator graphs, compares their results over a prime field, and writes the rules that
    explain the equal ones. A run that was killed continues when it is started again.
    """
    from superopt.api import functions as api

    if partial:
        refused = {"--ops": ops, "--shapes": shapes, "--ray": ray, "--jobs": jobs > 1 or None}
        for option, given in refused.items():
            if given is not None:
                raise UsageError(
                    f"{option} and --partial exclude each other",
                    "mutants come from families with sizes of their own, in one process",
                    "leave one of them out",
                )
        return _generate_mutants(out, families, model, max_ops, seed, as_json, quiet)
    if model is not None:
        raise UsageError("--model needs --partial", "rules come from families", "add --partial")
    try:
        with terminal.progress(quiet) as show_event:
            made = api.generate_rules(
                out,
                families=families,
                ops=ops,
                shapes=shapes,
                max_ops=max_ops,
                jobs=jobs,
                ray=ray,
                seed=seed,
                progress=show_event,
            )
    except KeyboardInterrupt:
        raise Aborted(
            "aborted", "interrupted", f"run the same command to continue in {out}"
        ) from None
    from superopt.report.text import rules_text

    terminal.print_result(made, rules_text.generation_text, as_json=as_json)
    return ExitCode.OK


def _generate_mutants(
    out: Path,
    families: tuple[str, ...],
    model: Path | None,
    max_ops: int,
    seed: int,
    as_json: bool,
    quiet: bool,
) -> ExitCode:
    from superopt.api import functions as api

    try:
        with terminal.sigterm_as_interrupt(), terminal.progress(quiet) as show_event:
            made = api.generate_mutants(
                out, families=families, max_ops=max_ops, seed=seed, model=model, progress=show_event
            )
    except KeyboardInterrupt:
        raise Aborted(
            "aborted", "interrupted", f"run the same command to continue in {out}"
        ) from None
    from superopt.report.text import rules_text

    terminal.print_result(made, rules_text.mutation_text, as_json=as_json)
    return ExitCode.OK


@rules.command()
@options.model_argument("a")
@options.model_argument("b")
@options.rules
@options.library
@options.duration_option("--limit", "60s", "Time to spend.")
@options.as_json
@options.quiet
@options.debug
@options.limit_resources(lambda given: given["limit"])
def derive(
    a: Path,
    b: Path,
    rules: tuple[Path, ...],
    library: bool,
    limit: float,
    as_json: bool,
    quiet: bool,
) -> ExitCode:
    """Decide whether the equality of two models follows from the rules.

    Prints the chain of rules that leads from one to the other. Exits 5 if none was found, which
    proves nothing.
    """
    from superopt.api import functions as api

    with terminal.progress(quiet) as show_event, terminal.handle_interrupts() as stop:
        found = api.derive(
            a, b, rules=rules, library=library, limit=limit, progress=show_event, stop=stop
        )
    from superopt.report.text import rules_text

    terminal.print_result(
        found, lambda found: rules_text.derivation_text(found, a.name, b.name), as_json=as_json
    )
    return ExitCode.OK if found.derived else ExitCode.UNDECIDED


@rules.command()
@click.argument("file", type=options.FILE)
@options.duration_option("--limit", "20s", "Time for the proof of each rule.")
@options.seed
@options.as_json
@options.quiet
@options.debug
@options.limit_resources(lambda given: given["budget"] or 3600.0, budget_default="1h")
def check(file: Path, limit: float, seed: int, as_json: bool, quiet: bool) -> ExitCode:
    """Try to refute each rule in FILE, and prove it for all sizes.

    Exits 0 if all are proved, 5 if some are not refuted or not testable, 4 if one is refuted.
    """
    from superopt.api import functions as api

    with terminal.progress(quiet) as show_event:
        verdicts = api.check_rules(file, seed=seed, limit=limit, progress=show_event)
    from superopt.report.text import rules_text

    terminal.print_result(verdicts, rules_text.rule_verdicts, as_json=as_json)
    decisions = {verdict.decision for verdict in verdicts}
    if "refuted" in decisions:
        return ExitCode.REFUTED
    return ExitCode.OK if decisions == {"proved"} else ExitCode.UNDECIDED
