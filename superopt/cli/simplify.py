"""`superopt simplify`: fold constants and remove nodes, without a search."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from superopt.cli import options, terminal
from superopt.errors import ExitCode

# Names of passes in onnxsim (onnxoptimizer) and onnxslim, by ours.
PEER_PASSES = {
    "constant_folding": "constant-folding",
    "graph_fusion": "rules",
    "fuse_bn_into_conv": "bn-fusion",
    "FusionConvBN": "bn-fusion",
    "FusionConvTransposeBN": "bn-fusion",
}
SHAPE_OPTIONS = ("--input-shape", "--overwrite-input-shape", "--input-shapes")
SKIP_OPTIONS = (
    "--skip", "--skip-optimization", "--skip-optimizations", "--skip-fusion-patterns",
)  # fmt: skip


def parse_input_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Parse `x:1,3,224,224`; the name is empty in `1,3,224,224`. Raises ValueError otherwise."""
    name, _, sizes = text.rpartition(":")
    if not re.fullmatch(r"\d+(,\d+)*", sizes):
        raise ValueError(f"{text!r} is not NAME:SIZE,SIZE, such as x:1,3,224,224")
    return name, tuple(map(int, sizes.split(",")))


def _shapes_callback(
    ctx: click.Context, param: click.Parameter, values: Sequence[str]
) -> dict[str, tuple[int, ...]]:
    try:
        return dict(map(parse_input_shape, values))
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from error


class ListOptions(click.Command):
    """A command whose options take several values, as in onnxsim and onnxslim:
    `--input-shape a:1,3 b:1,4` is `--input-shape a:1,3 --input-shape b:1,4`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeat the options, then parse."""
        return super().parse_args(ctx, repeat_list_options(args))


def repeat_list_options(args: Sequence[str]) -> list[str]:
    """Return arguments in which each value of a list option follows the option's name."""
    out: list[str] = []
    is_value: Callable[[str], object] | None = None
    name, count = "", 0
    for argument in args:
        if argument.startswith("-"):
            name, count, is_value = argument, 0, None
            if argument in SHAPE_OPTIONS:
                is_value = re.compile(r"(.+:)?\d+(,\d+)*").fullmatch
            elif argument in SKIP_OPTIONS:
                is_value = re.compile(r"[^./\\]+").fullmatch  # no path of a model
        elif is_value is not None and is_value(argument):
            count += 1
            if count > 1:
                out.append(name)
        else:
            is_value = None
        out.append(argument)
    return out


def default_output(model: Path) -> Path:
    """Return the file that is written without a name: m.simplified.onnx for m.onnx."""
    return model.with_name(f"{model.stem}.simplified.onnx")


@click.command(cls=ListOptions)
@options.model_argument("model")
@click.argument("new_file", type=options.NEW_FILE, required=False, metavar="[OUTPUT]")
@click.option(
    "-o",
    "--output",
    type=options.NEW_FILE,
    metavar="FILE",
    help="Where to write the result: by default OUTPUT, or MODEL.simplified.onnx beside it.",
)
@click.option(
    *SHAPE_OPTIONS,
    "input_shapes",
    multiple=True,
    callback=_shapes_callback,
    metavar="NAME:SIZES",
    help="Give an input a static shape, such as x:1,3,224,224.",
)
@click.option(
    *SKIP_OPTIONS,
    "skip",
    multiple=True,
    metavar="NAME",
    help="Leave out a pass (constant-folding, bn-fusion, rules) or a rule by its name.",
)
@click.option("--skip-constant-folding", is_flag=True, help="As --skip constant-folding.")
@click.option("--skip-fuse-bn", is_flag=True, help="As --skip bn-fusion.")
@click.option(
    "--skip-shape-inference",
    "--no-shape-infer",
    "skip_inference",
    is_flag=True,
    expose_value=False,
    hidden=True,  # inferred shapes are not written in any case
)
@options.budget_option("60s")
@options.shape
@options.inputs
@options.threads
@options.hidden_seed
@options.as_json
@options.quiet
@options.debug
@options.limit_resources(lambda given: given["budget"])
def simplify(
    model: Path,
    new_file: Path | None,
    output: Path | None,
    input_shapes: dict[str, tuple[int, ...]],
    skip: tuple[str, ...],
    skip_constant_folding: bool,
    skip_fuse_bn: bool,
    budget: float,
    shapes: dict[str, int],
    inputs: Path | None,
    threads: int | None,
    seed: int,
    as_json: bool,
    quiet: bool,
) -> ExitCode:
    """Remove nodes without a search: fold constants, fuse batch normalization, drop what is unused.

    Each rewrite is by a rule that is proved, and the result is compared with MODEL. Takes the
    common options of onnxsim and onnxslim. A certificate is written beside the result
    (FILE.superopt.json) that `verify` replays.
    """
    from superopt.api.simplification import simplify as simplify_model
    from superopt.report.data.certificate import certificate_path

    if new_file is not None and output is not None:
        raise click.UsageError("the output is named twice: by OUTPUT and by --output")
    output = output or new_file or default_output(model)
    terminal.check_outputs(
        model, inputs, may_replace=True, output=output, certificate=certificate_path(output)
    )
    names = {PEER_PASSES.get(name, name) for name in skip}
    names |= {"constant-folding"} if skip_constant_folding else set()
    names |= {"bn-fusion"} if skip_fuse_bn else set()
    with terminal.progress(quiet) as show, terminal.handle_interrupts() as stop:
        found = simplify_model(
            model, input_shapes=input_shapes, skip=sorted(names), budget=budget, shapes=shapes,
            inputs=inputs, threads=threads, seed=seed, progress=show, stop=stop,
        )  # fmt: skip
        certificate = found.save(output)
    if as_json:
        from superopt.report.data.codec import to_json

        terminal.print_text(to_json(found.report))
        return ExitCode.OK
    from superopt.onnx_io.export.weights_summary import weights_summary
    from superopt.report.formatting import phrases

    terminal.print_text(f"{found}\n")
    for path in filter(None, (output, certificate)):
        terminal.print_text(f"wrote {path} ({phrases.size_text(path.stat().st_size)})\n")
    for line in weights_summary(output, model):
        terminal.print_text(f"{line}\n")
    if not found.changed:
        terminal.print_text(f"{output} is a byte-identical copy of {model}\n")
    return ExitCode.OK
