"""`superopt explain` and `superopt report`: read the results of an optimization."""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from superopt.cli import options, terminal
from superopt.errors import ExitCode, UsageError
from superopt.report.data.report import Rejected, Report, Step

DEFAULT_COMPILE_SECONDS = 600.0  # for compiling a model, unless --budget is given


def _budget_seconds(given: Mapping[str, Any]) -> float:
    source = click.get_current_context().get_parameter_source("budget")
    compiles = given["name"] is None and source is ParameterSource.DEFAULT
    return DEFAULT_COMPILE_SECONDS if compiles else float(given["budget"])


def _read_report(path: Path) -> Report:
    from superopt.report.data.codec import from_json

    try:
        return from_json(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path} is not a superopt report",
            f"it is not text: {error.reason} at byte {error.start}",
            "pass a file written by `superopt optimize --json`",
        ) from error


def _is_report(source: Path) -> bool:
    return source.suffix == ".json"


@click.command()
@click.argument("source", type=options.FILE)
@click.argument("name", required=False)
@options.budget_option("10s")
@options.target
@options.precision
@options.rules
@options.shape
@options.threads
@options.seed
@options.as_json
@options.quiet
@options.debug
@options.limit_resources(_budget_seconds)
def explain(
    source: Path,
    name: str | None,
    budget: float,
    target: str,
    precision: str,
    rules: tuple[Path, ...],
    shapes: Mapping[str, int],
    threads: int | None,
    seed: int,
    as_json: bool,
    quiet: bool,
) -> ExitCode:
    """Explain why a node or a rule was rewritten, or was not.

    NAME is a rule, a node or a value. SOURCE is a model, which is searched for the budget, or a
    report that `superopt optimize --json` wrote, which contains rules and values. Without NAME:
    which nodes of a compiled model fall back to onnxruntime, and why; of a quantized model also
    which products are exact, and which saturate in other runtimes.
    """
    from superopt.api import functions as api
    from superopt.report.data import codec, group
    from superopt.report.text import report_text

    if name is None:
        _explain_fallbacks(source, threads, shapes, as_json)
        return ExitCode.OK

    names = {name}
    missed: tuple[Rejected, ...] = ()
    if _is_report(source):
        report = _read_report(source)
    else:
        names.update(api.node_outputs(source, name))
        with terminal.progress(quiet) as show, terminal.handle_interrupts() as stop:
            found = api.optimize(
                source,
                budget=budget,
                target=target,
                precision=precision,
                rules=rules,
                library=True,
                shapes=shapes,
                inputs=None,
                threads=threads,
                seed=seed,
                alpha=None,
                progress=show,
                stop=stop,
                replay=None,
                store=None,
                cost="auto",
            )
            report, missed = found.report, found.explain(names)
    steps, rejected = group.filter_by_names(report, names)
    partial = tuple(p for p in report.partial if any(s.rule == p.rule for s in steps))
    told = {s.rule for s in steps} | {r.rule for r in rejected}
    rejected += tuple(m for m in missed if m.reason == "match" or m.rule not in told)
    if not steps and not rejected and len(names) == 1:
        raise _no_match_error(name, report, source)
    if as_json:
        about = {"name": name, "steps": steps, "rejected": rejected, "partial": partial}
        terminal.print_text(codec.dumps(about))
    else:
        terminal.print_text(report_text.explanation_text(name, steps, rejected, partial=partial))
        if not steps and not rejected:
            terminal.print_text("no rule of the library matches there\n")
    return ExitCode.OK


def _explain_fallbacks(
    source: Path, threads: int | None, shapes: Mapping[str, int], as_json: bool
) -> None:
    from superopt.api import functions as api
    from superopt.report.compilation import compile_report
    from superopt.report.data import codec

    if _is_report(source):
        raise UsageError(
            f"{source} is a report",
            "a report explains only rules and values",
            "pass the name of one",
        )
    found = api.compile_model(
        source, threads=threads, shapes=shapes, dump=None, float_class="E2", target="cpu",
        precision="fp32", vendor=True,
    )  # fmt: skip
    keys = ("model", "nodes", "foreign", "notes", "quantization")
    about = {key: getattr(found, key) for key in keys}
    terminal.print_text(codec.dumps(about) if as_json else compile_report.fallback_text(found))


def _no_match_error(name: str, report: Report, source: Path) -> UsageError:
    events: tuple[Step | Rejected, ...] = (*report.steps, *report.rejected)
    known = {e.rule for e in events} | {value for e in events for value in e.where}
    near = difflib.get_close_matches(name, sorted(known), n=3, cutoff=0.5)
    return UsageError(
        f"the search tried nothing at {name!r}",
        "no rule with this name was tried, and no rule was tried at a value with this name"
        + ("; a report contains no node names, the model does" if _is_report(source) else ""),
        f"did you mean {', '.join(near)}?" if near else "see `superopt rules list` for the rules",
    )


@click.command()
@click.argument("source", type=options.FILE)
@click.option(
    "--html", type=options.NEW_FILE, metavar="FILE", help="Write the report as an HTML page."
)
@options.as_json
@options.debug
@options.unbudgeted
def report(source: Path, html: Path | None, as_json: bool) -> ExitCode:
    """Print a report that `superopt optimize --json` wrote."""
    from superopt.report.data import codec
    from superopt.report.html.report_page import report_page
    from superopt.report.text import report_text

    terminal.check_outputs(source, html=html)
    stored = _read_report(source)
    if html is not None:
        terminal.write_atomically(html, report_page(stored))
    terminal.print_text(codec.to_json(stored) if as_json else report_text.report_summary(stored))
    return ExitCode.OK
