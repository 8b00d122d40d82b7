"""`superopt demo`: the main job on two real models that ship with the package."""

from pathlib import Path

import click

from superopt.commands import options, terminal
from superopt.commands.contract import api
from superopt.errors import ExitCode, UsageError

DEMO_MODELS = 2


@click.command()
@options.budget("30s")
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default="superopt-demo",
    show_default=True,
    metavar="FOLDER",
    help="Where models and reports go.",
)
@click.option("--model", "names", multiple=True, metavar="NAME", help="Only this model.")
@options.threads
@options.seed
@options.as_json
@options.quiet
@options.debug
@options.limits(lambda given: given["budget"] * max(1, len(given["names"]) or DEMO_MODELS))
def demo(
    budget: float,
    output: Path,
    names: tuple[str, ...],
    threads: int | None,
    seed: int,
    as_json: bool,
    quiet: bool,
) -> ExitCode:
    """Optimize two real models that ship with superopt.

    They are exported graphs of a recurrent cell (nasrnn) and of resnet18, with random weights:
    graphs and speed are real, predictions are not. The budget is for each of them.
    """
    from superopt.onnx_io.weightless import demo_models
    from superopt.report import codec, text
    from superopt.report.html import page

    models = demo_models()
    if unknown := sorted(set(names) - set(models)):
        raise UsageError(
            f"there is no demo model {unknown[0]!r}",
            f"the package holds {', '.join(models)}",
            "leave out --model to run all",
        )
    output.mkdir(parents=True, exist_ok=True)
    reports = []
    for name in names or tuple(models):
        original, faster = output / f"{name}.onnx", output / f"{name}.fast.onnx"
        html, stored = output / f"{name}.html", output / f"{name}.json"
        with terminal.progress(quiet) as show, terminal.interruptible() as stop:
            terminal.write(original, models[name]().SerializeToString())
            found = api().optimize(
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
            found.save(faster)
            terminal.write(html, page(found.report))
            terminal.write(stored, codec.to_json(found.report))
            stopped = stop()
        reports.append(found.report)
        if not as_json:
            terminal.say(f"{text.summary(found.report)}\nwrote {faster}, {html} and {stored}\n\n")
        if stopped:
            break
    if as_json:
        terminal.say(codec.dumps(reports))
    return ExitCode.OK
