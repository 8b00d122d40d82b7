"""`superopt compile`, `tune`, `run` and `profile`: models as machine code."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from superopt.cli import options, terminal
from superopt.compilation.frontend.targets import TARGETS
from superopt.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from superopt.report.compilation.compile_report import TuningReport

DEFAULT_COMPILE_SECONDS = 600.0


def compile_budget(given: Mapping[str, Any]) -> float:
    measured = (given.get("search") or 0.0) + (given.get("tune") or 0.0)
    return float(given["budget"] or DEFAULT_COMPILE_SECONDS + measured)


def _print_passes(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        from superopt.plan.passes import pass_table

        terminal.print_text(pass_table())
        context.exit()


@click.command("compile")
@options.model_argument("model")
@options.threads
@options.target_options
@options.shape
@options.duration_option(
    "--search", None, "Time for finding a faster graph and faster kernels, as 60s.", False
)
@options.duration_option("--tune", None, "Time for finding faster kernels alone.", False)
@click.option(
    "--html", type=options.NEW_FILE, metavar="FILE", help="Write what --search found as a page."
)
@click.option(
    "--dump",
    type=options.NEW_FILE,
    metavar="FOLDER",
    help="Write the plan after each pass there, and the kernels, as text.",
)
@click.option(
    "-o",
    "--output",
    type=options.NEW_FILE,
    metavar="FILE",
    help="Save the compiled model there, for superopt.load.",
)
@click.option(
    "--aot", metavar="CPUS",
    help="Machine code for these processors in --output: native, x86-64-v3, x86-64-v4, .. with"
    " commas.",
)  # fmt: skip
@click.option(
    "--passes",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_passes,
    help="Print the passes of the back end, and exit.",
)
@options.float_class
@options.as_json
@options.debug
@options.limit_resources(compile_budget, budget_default="10m")
def compile_(
    model: Path,
    threads: int | None,
    shapes: Mapping[str, int],
    search: float | None,
    tune: float | None,
    html: Path | None,
    dump: Path | None,
    output: Path | None,
    aot: str | None,
    float_class: str,
    target: str,
    precision: str,
    vendor: bool,
    as_json: bool,
) -> ExitCode:
    """Compile MODEL for the CPU or a GPU and report the kernels and fallbacks.

    The machine code stays in the user's cache: compiling the model again takes less time, also with
    `superopt.compile` in a program. What --search and --tune find is kept, too.
    """
    from superopt.api import functions as api
    from superopt.report.compilation import compile_report

    if search is not None and tune is not None:
        raise UsageError("--search and --tune", "a search includes tuning", "pass one of them")
    if html is not None and search is None:
        raise UsageError("--html without --search", "it shows what a search found", "add --search")
    if aot is not None and output is None:
        raise UsageError("--aot without --output", "it names code in that file", "add --output")
    terminal.check_outputs(model, html=html, output=output)
    measured: TuningReport | None = None
    if search is not None or tune is not None:
        with terminal.progress(as_json) as show, terminal.handle_interrupts() as stop:
            measured = api.tune(
                model, threads=threads, shapes=shapes, budget=search or tune,
                rewrites=tune is None, progress=show, stop=stop, target=target,
                precision=precision, vendor=vendor, float_class=float_class,
            )  # fmt: skip
        if not as_json:
            terminal.print_text(compile_report.search_text(measured))
    found = api.compile_model(
        model,
        threads=threads,
        shapes=shapes,
        dump=dump,
        float_class=float_class,
        target=target,
        precision=precision,
        vendor=vendor,
        output=output,
        aot=tuple(aot.split(",")) if aot else (),
    )
    terminal.print_result(found, compile_report.compilation_text, as_json=as_json)
    if html is not None and measured is not None:
        from superopt.report.html.compilation_page import compilation_page

        terminal.write_atomically(html, compilation_page(found, measured))
        if not as_json:
            terminal.print_text(f"wrote {html}\n")
    return ExitCode.OK


@click.command()
@options.model_argument("model")
@options.budget_option(None, "5m, on a GPU 90s")
@options.threads
@options.target_options
@options.shape
@options.store
@options.float_class
@options.as_json
@options.quiet
@options.debug
@options.limit_resources(lambda given: given["budget"] or TARGETS[given["target"]].tuning_seconds)
def tune(
    model: Path,
    budget: float | None,
    threads: int | None,
    shapes: Mapping[str, int],
    store: Path | None,
    target: str,
    precision: str,
    vendor: bool,
    float_class: str,
    as_json: bool,
    quiet: bool,
) -> ExitCode:
    """Measure candidate schedules for MODEL's kernels and store the fastest.

    The results are kept in the store of measurements, where `compile` and `run` read them. Ctrl-C
    stops with the best schedules so far.
    """
    from superopt.api import functions as api

    with terminal.progress(quiet) as show, terminal.handle_interrupts() as stop:
        found = api.tune(
            model, threads=threads, shapes=shapes, budget=budget, store=store, progress=show,
            stop=stop, target=target, precision=precision, vendor=vendor, float_class=float_class,
        )  # fmt: skip
    from superopt.report.compilation import compile_report

    terminal.print_result(found, compile_report.tuning_text, as_json=as_json)
    return ExitCode.OK


@click.command()
@options.model_argument("model")
@options.threads
@options.target_options
@options.shape
@click.option(
    "--inputs", type=options.FILE, metavar="X.npz", help="Input arrays by name (default: random)."
)
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    default=2.0,
    show_default=True,
    help="Seconds of running the model.",
)
@click.option("--svg", type=options.NEW_FILE, metavar="P.svg", help="Write the roofline as SVG.")
@click.option("--all", "whole", is_flag=True, help="Show every kernel.")
@click.option(
    "--why", metavar="KERNEL",
    help="Say why a kernel has its schedule: its number in the table, 1 for the slowest, or a part"
    " of what it computes.",
)  # fmt: skip
@options.float_class
@options.as_json
@options.debug
@options.limit_resources(
    lambda given: given["budget"] or 10 * given["seconds"] + 300,
    budget_default="5m plus 10 times --seconds",
)
def profile(
    model: Path,
    threads: int | None,
    shapes: Mapping[str, int],
    inputs: Path | None,
    seconds: float,
    svg: Path | None,
    whole: bool,
    why: str | None,
    float_class: str,
    target: str,
    precision: str,
    vendor: bool,
    as_json: bool,
) -> ExitCode:
    """Run MODEL compiled and report the time of each kernel.

    Beside the time it prints the share of the roofline: the least time at this machine's measured
    peaks (multiply-adds, bytes from caches and memory), in percent of the measured time.
    """
    from superopt.api import functions as api

    terminal.check_outputs(model, inputs, svg=svg)
    if why is not None:
        explanation = api.explain_kernel(
            model, why, threads=threads, shapes=shapes, inputs=inputs, seconds=seconds,
            float_class=float_class, target=target, precision=precision, vendor=vendor,
        )  # fmt: skip
        terminal.print_result(explanation, str, as_json=as_json)
        return ExitCode.OK
    with terminal.handle_interrupts() as stop:
        found = api.profile(
            model, threads=threads, shapes=shapes, inputs=inputs, seconds=seconds, stop=stop,
            float_class=float_class, target=target, precision=precision, vendor=vendor,
        )  # fmt: skip
    if svg is not None:
        svg.write_text(found.svg())
    from superopt.report.compilation.profile import MAX_KERNELS, profile_text

    terminal.print_result(
        found,
        lambda found: profile_text(found, len(found.parts) if whole else MAX_KERNELS),
        as_json=as_json,
    )
    return ExitCode.OK


@click.command()
@options.model_argument("model")
@click.option(
    "--inputs", type=options.FILE, metavar="X.npz", required=True, help="Input arrays, by name."
)
@click.option(
    "-o", "--output", type=options.NEW_FILE, metavar="Y.npz", help="Write the outputs, by name."
)
@options.threads
@options.target_options
@options.float_class
@options.as_json
@options.debug
@options.limit_resources(compile_budget, budget_default="10m")
def run(
    model: Path,
    inputs: Path,
    output: Path | None,
    threads: int | None,
    float_class: str,
    target: str,
    precision: str,
    vendor: bool,
    as_json: bool,
) -> ExitCode:
    """Compile MODEL and run it once."""
    from superopt.api import functions as api

    terminal.check_outputs(model, inputs, output=output)
    found = api.run_model(
        model,
        inputs=inputs,
        output=output,
        threads=threads,
        float_class=float_class,
        target=target,
        precision=precision,
        vendor=vendor,
    )
    from superopt.report.compilation import compile_report

    terminal.print_result(found, compile_report.outputs_text, as_json=as_json)
    return ExitCode.OK
