"""`superopt optimize`: find a faster model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from superopt.cli import options, terminal
from superopt.errors import ExitCode, SuperoptError
from superopt.report.data.certificate import certificate_path


def default_output(model: Path) -> Path:
    """Return the file that is written without -o: m.optimized.onnx for m.onnx."""
    return model.with_name(f"{model.stem}.optimized.onnx")


def _copy_unchanged(given: Mapping[str, Any], error: SuperoptError) -> ExitCode | None:
    """Write a byte-identical copy of the model if there was no time or memory to read it.

    Return the exit code; None if more than the output was requested.
    """
    model = given["model"]
    output = given["output"] or default_output(model)
    if given["html"] or given["decisions"] or given["as_json"]:
        return None
    data = model.read_bytes()
    if b"location" in data and model.resolve().parent != output.resolve().parent:
        return None  # the model may have external data, which a copy elsewhere does not find
    if model.resolve() != output.resolve():
        terminal.write_atomically(output, data)
    terminal.print_text(f"{model.name}: unchanged: {error.what}: {error.why}\n")
    terminal.print_text(f"{output} is a byte-identical copy of {model}\n")
    return ExitCode.UNCHANGED if given["fail_if_unchanged"] else ExitCode.OK


@click.command()
@options.model_argument("model")
@click.option(
    "-o",
    "--output",
    type=options.NEW_FILE,
    metavar="FILE",
    help="Where to write the faster model: by default MODEL.optimized.onnx beside it.",
)
@options.budget_option("60s")
@options.target
@options.precision
@options.rules
@click.option(
    "--library/--no-library",
    default=True,
    hidden=True,  # docs/howto/add_a_rule.md
    help="Without the library: only the rules of --rules.",
)
@options.shape
@options.inputs
@options.threads
@options.hidden_seed
@click.option(
    "--alpha",
    type=click.FloatRange(min=1.0),
    hidden=True,  # for studies of the search: docs/explanation/search.md
    help="Keep graphs of up to ALPHA times the best cost.",
)
@click.option(
    "--cost",
    type=click.Choice(["auto", "measured", "roofline"]),
    default="auto",
    show_default=True,
    hidden=True,  # docs/howto/use_in_ci.md
    help="Where costs of operators come from.",
)
@click.option(
    "--tier",
    type=click.Choice(["A", "B", "C"]),
    default="A",
    show_default=True,
    help="Weakest proof of rules to apply: A proved for all sizes (or the only one they have), "
    "B up to a bound, C only tested.",
)
@click.option(
    "--float-class",
    type=click.Choice(["E0", "E1", "E2", "E3"]),
    default="E2",
    show_default=True,
    help="Largest float deviation of rules to apply: E0 none, E1 the order of sums and "
    "products, E2 products distributed over sums, E3 overflow and NaN.",
)
@click.option(
    "--partial/--no-partial",
    default=True,
    hidden=True,  # for comparisons: docs/explanation/partial_equivalence.md
    help="Without programs that are equal in parts, and corrected.",
)
@click.option(
    "--mutants",
    is_flag=True,
    help="Also search for programs that equal MODEL's own in parts, with a correction of the rest.",
)
@click.option(
    "--ablate",
    is_flag=True,
    help="Also time the result without each rule and kind of kernel decision, up to --budget more.",
)
@click.option(
    "--decisions",
    type=options.NEW_FILE,
    metavar="FILE",
    hidden=True,  # as --replay, which reads it: a command shows at most twenty options
    help="Write the search's decisions, for --replay FILE.",
)
@click.option(
    "--replay",
    type=options.FILE,
    metavar="FILE",
    hidden=True,  # docs/tutorials/optimize.md describes both
    help="Repeat these decisions, without a search.",
)
@options.store
@click.option(
    "--html", type=options.NEW_FILE, metavar="FILE", help="Write the report as an HTML page."
)
@options.as_json
@click.option("--fail-if-unchanged", is_flag=True, help="Exit 1 if nothing faster was found.")
@click.option("-v", "--verbose", is_flag=True, help="Print each rule, rejection, error and note.")
@options.quiet
@options.debug
@options.limit_resources(
    lambda given: given["budget"] * (1 + given["ablate"]), fallback=_copy_unchanged
)
def optimize(
    model: Path,
    output: Path | None,
    budget: float,
    target: str,
    precision: str,
    rules: tuple[Path, ...],
    library: bool,
    shapes: Mapping[str, int],
    inputs: Path | None,
    threads: int | None,
    seed: int,
    alpha: float | None,
    cost: str,
    tier: str,
    float_class: str,
    partial: bool,
    mutants: bool,
    ablate: bool,
    decisions: Path | None,
    replay: Path | None,
    store: Path | None,
    html: Path | None,
    as_json: bool,
    fail_if_unchanged: bool,
    verbose: bool,
    quiet: bool,
) -> ExitCode:
    """Find a faster model that computes the same results.

    Searches for a cheaper graph, checks it against the original, and writes it only if it is
    faster, with a certificate beside it (FILE.superopt.json for FILE.onnx) that `verify` replays;
    otherwise the output is a copy of MODEL. Ctrl-C stops with the best checked model so far.
    """
    from superopt.api import functions as api

    output = output or default_output(model)
    terminal.check_outputs(
        model,
        inputs,
        replay,
        *rules,
        may_replace=True,
        output=output,
        certificate=certificate_path(output),
        html=html,
        decisions=decisions,
        store=store,
    )
    if not quiet:
        terminal.print_text(f"the result is written to {output}\n", on_stderr=True)
    certificate: Path | None = None
    with terminal.progress(quiet) as show, terminal.handle_interrupts() as stop:
        found = api.optimize(
            model,
            budget=budget,
            target=target,
            precision=precision,
            rules=rules,
            library=library,
            shapes=shapes,
            inputs=inputs,
            threads=threads,
            seed=seed,
            alpha=alpha,
            progress=show,
            stop=stop,
            replay=None if replay is None else replay.read_text(encoding="utf-8", errors="replace"),
            store=store,
            cost=cost,
            tier=tier,
            float_class=float_class,
            partial=partial,
            mutants=mutants,
            ablate=ablate,
        )
        certificate = found.save(output)
        if html is not None:
            from superopt.report.html.report_page import report_page

            terminal.write_atomically(html, report_page(found.report))
        if decisions is not None:
            terminal.write_atomically(decisions, found.decisions)
    if as_json:
        from superopt.report.data.codec import to_json

        terminal.print_text(to_json(found.report))
    else:
        from superopt.onnx_io.export.weights_summary import weights_summary
        from superopt.report.formatting import phrases
        from superopt.report.text import report_text
        from superopt.report.text.ablation_text import ablation_text

        summary = report_text.report_summary if verbose else report_text.short_summary
        terminal.print_text(summary(found.report) + "\n")
        if found.report.ablation is not None and not verbose:
            terminal.print_text(ablation_text(found.report.ablation))
        for path in filter(None, (output, certificate, html, decisions)):
            terminal.print_text(f"wrote {path} ({phrases.size_text(path.stat().st_size)})\n")
        for line in weights_summary(output, model):
            terminal.print_text(f"{line}\n")
        if not found.changed:
            terminal.print_text(f"{output} is a byte-identical copy of {model}\n")
    return ExitCode.UNCHANGED if fail_if_unchanged and not found.changed else ExitCode.OK
