"""`superopt bench` and `superopt verify`: compare models."""

from collections.abc import Mapping
from pathlib import Path

import click

from superopt.cli import options, terminal
from superopt.errors import ExitCode

RUNTIMES = ("ort", "openvino", "torch", "superopt")
EXIT_CODES = {
    "proved": ExitCode.OK,
    "agrees": ExitCode.UNDECIDED,
    "within_steps": ExitCode.UNDECIDED,
    "unknown": ExitCode.UNDECIDED,
    "differs": ExitCode.REFUTED,
    "certified": ExitCode.OK,
    "refused": ExitCode.REFUTED,
}


def _parse_runtimes(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> tuple[str, ...] | None:
    if value is None:
        return None
    names = tuple(dict.fromkeys(name.strip() for name in value.split(",")))
    for name in names:
        if name not in RUNTIMES:
            known = ", ".join(RUNTIMES)
            raise click.BadParameter(
                f"unknown runtime {name!r}; the runtimes are {known}", ctx, param
            )
    return names


@click.command()
@click.argument("models", nargs=-1, required=True, type=options.FILE)
@click.option(
    "--vs",
    show_default="ort; with --target cuda superopt",
    metavar="NAME,...",
    callback=_parse_runtimes,
    help="Runtimes to compare: ort, openvino, torch (torch.compile), superopt (compiled).",
)
@options.threads
@options.target_options
@options.duration_option("--seconds", "10s", "Time to spend on measuring.")
@options.shape
@options.float_class
@options.as_json
@options.quiet
@options.debug
@options.limit_resources(
    lambda given: given["budget"] or 10 * given["seconds"] + 60,
    budget_default="1m plus 10 times --seconds",
)
def bench(
    models: tuple[Path, ...],
    vs: tuple[str, ...] | None,
    threads: int | None,
    seconds: float,
    shapes: Mapping[str, int],
    float_class: str,
    target: str,
    precision: str,
    vendor: bool,
    as_json: bool,
    quiet: bool,
) -> ExitCode:
    """Time models against each other, in interleaved rounds.

    Prints medians with confidence intervals. Speedups are relative to the first model in the first
    runtime. With --target cuda superopt and torch run on the GPU, with inputs on the device; the
    other runtimes run on the CPU.
    """
    from superopt.api import functions as api

    with terminal.progress(quiet) as show, terminal.handle_interrupts() as stop:
        rows = api.bench(
            models,
            vs=vs,
            threads=threads,
            seconds=seconds,
            shapes=shapes,
            progress=show,
            stop=stop,
            float_class=float_class,
            target=target,
            precision=precision,
            vendor=vendor,
        )
    from superopt.report.text import report_text

    terminal.print_result(rows, report_text.latency_table, as_json=as_json)
    return ExitCode.OK


@click.command()
@options.model_argument("a")
@options.model_argument("b")
@click.option(
    "--certificate",
    type=options.FILE,
    metavar="FILE",
    help="Replay the rewrites from A to B in this certificate.",
)
@options.rules
@options.inputs
@options.shape
@options.seed
@click.option(
    "--method",
    type=click.Choice(["auto", "index", "rules", "numeric"]),
    default="auto",
    show_default=True,
    help="Prove by definition (index), prove by rules (rules), test inputs (numeric), or all "
    "(auto).",
)
@options.duration_option("--limit", "60s", "Time for proofs.")
@click.option(
    "--max-steps",
    type=click.IntRange(min=0),
    metavar="N",
    help="Refute quantized outputs that differ by more than N quantization steps "
    "[default: more than rounding explains].",
)
@options.as_json
@options.quiet
@options.debug
@options.limit_resources(lambda given: given["limit"])
def verify(
    a: Path,
    b: Path,
    method: str,
    limit: float,
    max_steps: int | None,
    certificate: Path | None,
    rules: tuple[Path, ...],
    inputs: Path | None,
    shapes: Mapping[str, int],
    seed: int,
    as_json: bool,
    quiet: bool,
) -> ExitCode:
    """Decide whether two models compute the same results.

    Exits 0 if they are equal by structure or proof, 5 if they agree on every tested input (which
    proves nothing), also if quantized outputs differ by steps that rounding explains, 4 if they
    differ. With --certificate, applies the rewrites that the file lists
    again, with the library's rules (and those of --rules): exits 0 if they lead from A to B, 4 if
    not.
    """
    from superopt.api import functions as api

    if rules and certificate is None:
        raise click.UsageError("--rules adds rules for a --certificate: pass that, too")
    with terminal.progress(quiet) as show, terminal.handle_interrupts() as stop:
        verdict = api.verify(
            a,
            b,
            inputs=inputs,
            shapes=shapes,
            seed=seed,
            method=method,
            limit=limit,
            max_steps=max_steps,
            certificate=certificate,
            rules=rules,
            progress=show,
            stop=stop,
        )
    from superopt.report.text import report_text

    terminal.print_result(verdict, report_text.verdict_text, as_json=as_json)
    return EXIT_CODES[verdict.decision]
