"""`superopt explain` and `superopt report`: read the results of an optimization."""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from superopt.commands import options, terminal
from superopt.commands.contract import api
from superopt.errors import ExitCode, UsageError
from superopt.report.data import Rejected, Report, Step

COMPILE_SECONDS = 600.0  # for compiling a model, unless --budget is given


def _seconds(given: Mapping[str, Any]) -> float:
    source = click.get_current_context().get_parameter_source("budget")
    compiles = given["name"] is None and source is ParameterSource.DEFAULT
    return COMPILE_SECONDS if compiles else float(given["budget"])


def _stored(path: Path) -> Report:
    from superopt.report.codec import from_json

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
@options.budget("10s")
@options.target
@options.rules
@options.shape
@options.threads
@options.seed
@options.as_json
@options.quiet
@options.debug
@options.limits(_seconds)
def explain(
    source: Path,
    name: str | None,
    budget: float,
    target: str,
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
    which nodes of a compiled model fall back to onnxruntime, and why.
    """
    from superopt.report import codec, group, text

    if name is None:
        _compiled(source, threads, shapes, as_json)
        return ExitCode.OK

    names = {name}
    missed: tuple[Rejected, ...] = ()
    if _is_report(source):
        report = _stored(source)
    else:
        names.update(api().values_of(source, name))
        with terminal.progress(quiet) as show, terminal.interruptible() as stop:
            found = api().optimize(
                source,
                budget=budget,
                target=target,
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
    steps, rejected = group.about(report, names)
    partial = tuple(p for p in report.partial if any(s.rule == p.rule for s in steps))
    told = {s.rule for s in steps} | {r.rule for r in rejected}
    rejected += tuple(m for m in missed if m.reason == "match" or m.rule not in told)
    if not steps and not rejected and len(names) == 1:
        raise _nothing_about(name, report, source)
    if as_json:
        about = {"name": name, "steps": steps, "rejected": rejected, "partial": partial}
        terminal.say(codec.dumps(about))
    else:
        terminal.say(text.explanation(name, steps, rejected, partial=partial))
        if not steps and not rejected:
            terminal.say("no rule of the library matches there\n")
    return ExitCode.OK


def _compiled(source: Path, threads: int | None, shapes: Mapping[str, int], as_json: bool) -> None:
    from superopt.report import codec, compiled

    if _is_report(source):
        raise UsageError(
            f"{source} is a report",
            "a report explains only rules and values",
            "pass the name of one",
        )
    found = api().compilation(
        source, threads=threads, shapes=shapes, dump=None, float_class="E2", target="cpu",
        precision="fp32", vendor=True,
    )  # fmt: skip
    about = {key: getattr(found, key) for key in ("model", "nodes", "foreign", "notes")}
    terminal.say(codec.dumps(about) if as_json else compiled.fallen(found))


def _nothing_about(name: str, report: Report, source: Path) -> UsageError:
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
    from superopt.report import codec, text
    from superopt.report.html import page

    terminal.check_outputs(source, html=html)
    stored = _stored(source)
    if html is not None:
        terminal.write(html, page(stored))
    terminal.say(codec.to_json(stored) if as_json else text.summary(stored))
    return ExitCode.OK
