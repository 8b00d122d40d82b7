"""Arguments and options that several commands share, and the parsers of their values."""

import re
import time
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from superopt import guard
from superopt.cli import supervise
from superopt.compilation.frontend.targets import TARGETS
from superopt.errors import ExitCode, OutOfMemory, OutOfTime, SuperoptError

F = TypeVar("F", bound=Callable[..., Any])
UNBUDGETED_SECONDS = 300.0  # of a command that reads and says what there is
_SECONDS_PER_UNIT = {"ms": 1e-3, "": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def parse_duration(text: str) -> float:
    """Parse a duration in seconds: `60s`, `2m`, `1.5`, `500ms`, `1h`; raises ValueError
    otherwise."""
    found = re.fullmatch(r"(\d+\.?\d*|\.\d+)\s*([a-z]*)", text.strip().lower())
    if not found or found[2] not in _SECONDS_PER_UNIT:
        raise ValueError(f"{text!r} is not a duration; write it as 60s, 2m or 1.5 (seconds)")
    value = float(found[1]) * _SECONDS_PER_UNIT[found[2]]
    if value <= 0:
        raise ValueError(f"{text!r} is zero; pass at least a second, such as 60s")
    return value


def parse_sizes(text: str) -> dict[str, int]:
    """Parse values of symbolic dimensions, `batch=8,sequence=128`; raises ValueError otherwise."""
    sizes: dict[str, int] = {}
    for item in text.split(","):
        name, equals, digits = (part.strip() for part in item.rpartition("="))
        if not equals or not name or not digits.isdecimal() or int(digits) < 1:
            raise ValueError(f"{item!r} is not NAME=SIZE with a size of at least 1")
        if sizes.setdefault(name, int(digits)) != int(digits):
            raise ValueError(f"{name!r} is given twice, as {sizes[name]} and {digits}")
    return sizes


def _duration_callback(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> float | None:
    try:
        return None if value is None else parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from error


def _sizes_callback(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> dict[str, int]:
    try:
        return parse_sizes(",".join(values)) if values else {}
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from error


def _memory_callback(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    try:
        return None if value is None else guard.parse_size(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from error


FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
NEW_FILE = click.Path(
    path_type=Path
)  # checked by terminal.check_outputs, whose errors say what to do


def model_argument(name: str) -> Callable[[F], F]:
    return click.argument(name, type=FILE)


def duration_option(
    name: str, default: str | None, help_text: str, default_text: bool | str = True
) -> Callable[[F], F]:
    """Return an option whose value is a time in seconds. default_text: shown as default in the
    help."""
    return click.option(
        name,
        default=default,
        show_default=default_text,
        metavar="TIME",
        callback=_duration_callback,
        help=help_text,
    )


def budget_option(default: str | None, default_text: bool | str = True) -> Callable[[F], F]:
    return duration_option("--budget", default, "Time to spend, as 60s, 2m or 1.5.", default_text)


def limit_resources(
    command_budget: Callable[[Mapping[str, Any]], float | None],
    *,
    budget_default: str | None = None,
    fallback: Callable[[Mapping[str, Any], SuperoptError], ExitCode | None] = lambda given, e: None,
) -> Callable[[F], F]:
    """Return a decorator that adds --max-memory and limits the time and memory of the command.

    command_budget: returns the command's budget in seconds from its parameters; None: no limit.
    budget_default: the default of --budget in the help, for a command without an own time option,
    which gets --budget here. fallback: called when the time or the memory is over; returns the exit
    code, or None to raise the error.
    """

    def decorate(command: F) -> F:
        @wraps(command)
        def run_within_limits(*args: Any, max_memory: int | None, **parameters: Any) -> Any:
            budget = command_budget(parameters)
            if budget_default is not None:
                del parameters["budget"]
            context = click.get_current_context()
            try:
                with guard.limit_call(budget, max_memory) as limit:
                    process = context.find_object(supervise.Process)
                    if (
                        process is not None and process.may_fork
                    ):  # the start of the process counts, too
                        limit.deadline -= time.monotonic() - supervise.PROCESS_START
                    supervise.supervise(context, budget, limit.max_memory)
                    code = command(*args, **parameters)
                    for sentence in limit.take_notes():
                        click.echo(f"note: {sentence}", err=True)
                    return code
            except (OutOfTime, OutOfMemory) as e:  # raised in the child, or in its parent
                code = fallback(parameters, e)
                if code is None:
                    raise
                return code

        option = click.option(
            "--max-memory", metavar="SIZE", callback=_memory_callback,
            show_default="half of the free memory",
            help="Memory limit, as 8GB or 512MB.",
        )  # fmt: skip
        found = option(run_within_limits)
        return cast(
            F, found if budget_default is None else budget_option(None, budget_default)(found)
        )

    return decorate


unbudgeted = limit_resources(lambda given: UNBUDGETED_SECONDS)


def sizes_option(help_text: str) -> Callable[[F], F]:
    """Return an option whose values are values of symbolic dimensions."""
    return click.option(
        "--shape",
        "shapes",
        multiple=True,
        metavar="DIM=N,...",
        callback=_sizes_callback,
        help=help_text,
    )


shape = sizes_option("Values of symbolic dimensions for measuring.")
inputs = click.option(
    "--inputs", type=FILE, metavar="X.npz", help="Also check on these inputs, by name."
)
rules = click.option(
    "--rules", multiple=True, type=FILE, metavar="FILE", help="Add rules from this file."
)
library = click.option(
    "--library/--no-library",
    default=True,
    help="Without the library: only the rules of --rules.",
)
threads = click.option(
    "--threads", type=click.IntRange(1, 1024), help="Threads of the runtime.  [default: 1]"
)


def _seed_option(hidden: bool) -> Callable[[Any], Any]:
    return click.option(
        "--seed",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        hidden=hidden,
        help="Seed of all random choices.",
    )


precision = click.option(
    "--precision",
    type=click.Choice(["fp32", "tf32", "fp16", "bf16"]),
    default="fp32",
    show_default=True,
    help="Precision of floats between GPU kernels, or of products on the CPU (fp32, bf16).",
)


def target_options(command: Any) -> Any:
    """Add --target, --precision and --no-vendor."""
    kind = click.option(
        "--target",
        type=click.Choice([*TARGETS]),
        default="cpu",
        show_default=True,
        help="Compile for the CPU, for a GPU, or interpret the kernels.",
    )
    library = click.option(
        "--vendor/--no-vendor", default=True, help="Allow vendor libraries for GPU kernels."
    )
    return kind(precision(library(command)))


float_class = click.option(
    "--float-class",
    type=click.Choice(["E1", "E2"]),
    default="E2",
    show_default=True,
    help="Allowed float deviation; E1 disables Winograd convolutions, Strassen matrix products "
    "and folding batch normalization into weights.",
)
seed, hidden_seed = (
    _seed_option(False),
    _seed_option(True),
)  # hidden: for commands with many other options
target = click.option(
    "--target",
    type=click.Choice(["onnxruntime", "cpu", "cuda"]),
    default="onnxruntime",
    show_default=True,
    help="The runtime of the result; cpu and cuda: superopt's own compiler.",
)
store = click.option(
    "--store", type=NEW_FILE, metavar="FILE", help="Store of measured costs, if not the user's own."
)
as_json = click.option(
    "--json", "as_json", is_flag=True, help="Write one JSON document to stdout, all else to stderr."
)
quiet = click.option("--quiet", is_flag=True, help="Show no progress.")
# Read from the arguments in cli.main, so that it also works when parsing fails. Shown by `superopt
# --help` alone: a command shows at most twenty options.
debug = click.option("--debug", is_flag=True, expose_value=False, hidden=True)
