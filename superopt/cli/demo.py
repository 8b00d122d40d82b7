"""`superopt demo`: compile, optimize and verify two models that ship with the package."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from superopt.cli import options, terminal
from superopt.errors import ExitCode, UsageError
from superopt.report.data.report import BenchRow, Verdict

if TYPE_CHECKING:
    from superopt.api.optimized import Optimized

DEMO_MODEL_COUNT = 2
BENCH_SECONDS = 5.0  # for all programs of one model
VERIFY_SECONDS = 10.0
EXTRA_SECONDS_PER_MODEL = 40.0  # at most, to compile, time and verify one model


@click.command()
@options.budget_option("20s")
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default="superopt-demo",
    show_default=True,
    metavar="FOLDER",
    help="Folder for models and reports.",
)
@click.option("--model", "names", multiple=True, metavar="NAME", help="Run only this model.")
@options.threads
@options.seed
@options.as_json
@options.quiet
@options.debug
@options.limit_resources(
    lambda given: (
        (given["budget"] + EXTRA_SECONDS_PER_MODEL)
        * max(1, len(given["names"]) or DEMO_MODEL_COUNT)
    )
)
def demo(
    budget: float,
    output: Path,
    names: tuple[str, ...],
    threads: int | None,
    seed: int,
    as_json: bool,
    quiet: bool,
) -> ExitCode:
    """Compile, optimize and verify two models that ship with superopt.

    They are exported graphs of a recurrent cell (nasrnn) and of resnet18 with random weights:
    graphs and speed are real, predictions are not. The budget is for the search on each model.
    """
    from superopt.api import functions as api
    from superopt.onnx_io.read.weightless import demo_models
    from superopt.report.data import codec
    from superopt.report.html.report_page import report_page

    models = demo_models()
    if unknown := sorted(set(names) - set(models)):
        raise UsageError(
            f"unknown demo model {unknown[0]!r}",
            f"the models are {', '.join(models)}",
            "leave out --model to run all of them",
        )
    output.mkdir(parents=True, exist_ok=True)
    reports = []
    for name in names or tuple(models):
        original, optimized = output / f"{name}.onnx", output / f"{name}.fast.onnx"
        with terminal.progress(quiet) as show, terminal.handle_interrupts() as stop:
            terminal.write_atomically(original, models[name]().SerializeToString())
            found = api.optimize(
                original,
                budget=budget,
                target="onnxruntime",
                rules=(),
                library=True,
                shapes={},
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
            certificate = found.save(optimized)
            terminal.write_atomically(output / f"{name}.html", report_page(found.report))
            terminal.write_atomically(output / f"{name}.json", codec.to_json(found.report))
            reports.append(found.report)
            if not as_json and not stop():
                rows = api.bench(
                    (original, optimized) if found.changed else (original,),
                    vs=("ort", "superopt"),
                    threads=threads,
                    seconds=BENCH_SECONDS,
                    shapes={},
                    progress=show,
                    stop=stop,
                    target="cpu",
                    precision="fp32",
                    vendor=True,
                    float_class="E2",
                )
                verdict = None
                if found.changed:
                    verdict = api.verify(
                        original,
                        optimized,
                        inputs=None,
                        shapes={},
                        seed=seed,
                        method="auto",
                        limit=VERIFY_SECONDS,
                        max_steps=None,
                        certificate=certificate,
                        rules=(),
                        progress=show,
                        stop=stop,
                    )
            stopped = stop()
        if stopped:
            break
        if not as_json:
            terminal.print_text(
                comparison_text(name, found, rows, verdict, output / f"{name}.html")
            )
    if as_json:
        terminal.print_text(codec.dumps(reports))
    elif not stopped:
        last = output / (names or tuple(models))[-1]
        terminal.print_text(
            "Try next:\n"
            f"  superopt profile {last}.onnx\n"
            f"  superopt compile YOUR_MODEL.onnx\n"
            f"  superopt optimize YOUR_MODEL.onnx --html report.html\n"
        )
    return ExitCode.OK


def comparison_text(
    name: str, found: Optimized, rows: Sequence[BenchRow], verdict: Verdict | None, html: Path
) -> str:
    """Return a text with the latency in onnxruntime, optimized and compiled, and the verdict.

    rows: the original in onnxruntime and compiled, then, if the model changed, the optimized model
        in both.
    """
    from superopt.report.formatting import phrases

    labels = ["onnxruntime", "superopt compile", "superopt optimize, in onnxruntime"]
    lines = [name]
    for label, row in zip(labels, rows, strict=False):
        if row.latency is None:
            lines.append(f"  {label:34} not timed: {row.note}")
            continue
        line = f"  {label:34} {phrases.time_text(row.latency.us_median):>8}"
        if row.speedup is not None and row is not rows[0]:
            low, middle, high = row.speedup
            line += f"  {middle:.2f}x faster ({low:.2f} to {high:.2f})"
        lines.append(line)
    if verdict is None:
        lines.append(f"  {labels[2]:34} unchanged: no rewritten graph was measured to be faster")
    else:
        steps = phrases.count_text(len(found.report.steps), "rewrite")
        lines.append(f"  verify: {steps}, {verdict.decision}: {verdict.reason}")
    lines.append(f"  report: {html}")
    return "\n".join(lines) + "\n\n"
