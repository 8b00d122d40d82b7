"""The command `superopt`: its subcommands, and how errors become exit codes.

Nothing heavy is imported here or at the top of a command's file: each command imports what it needs
when it runs.
"""

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from superopt import __version__
from superopt.cli import terminal
from superopt.cli.compare import bench, verify
from superopt.cli.compile import compile_, profile, tune
from superopt.cli.compile import run as run_
from superopt.cli.demo import demo
from superopt.cli.explain import explain, report
from superopt.cli.export import export
from superopt.cli.maintenance import cache, doctor
from superopt.cli.optimize import optimize
from superopt.cli.rules import rules
from superopt.cli.simplify import simplify
from superopt.cli.supervise import Process
from superopt.errors import Aborted, ExitCode, ModelError, SuperoptError, UsageError


class OrderedGroup(click.Group):
    """A group that lists its commands in the order in which they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(
    cls=OrderedGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 success, 1 unchanged (with --fail-if-unchanged), 2 bad arguments, 3 "
    "invalid or unsafe model, or out of memory, 4 check failed or refuted, 5 undecided or "
    "timed out, 130 aborted.",
)
@click.version_option(__version__, prog_name="superopt")
@click.option(
    "--log-level",
    type=click.Choice(["WARNING", "INFO", "DEBUG"], case_sensitive=False),
    default="WARNING",
    show_default=True,
    help="Log steps (INFO) and details (DEBUG) to stderr.",
)
@click.option(
    "--debug",
    is_flag=True,
    expose_value=False,
    help="Show tracebacks; also works after any command.",
)
def cli(log_level: str) -> None:
    """Optimize and compile ONNX models, and check that their results stay the same."""
    terminal.log_to_stderr(log_level)


for command in (
    optimize,
    simplify,
    compile_,
    tune,
    run_,
    profile,
    export,
    demo,
    explain,
    report,
    bench,
    verify,
    rules,
    doctor,
    cache,
):
    cli.add_command(command)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit the process with a code of `ExitCode`."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(
            stream, "reconfigure"
        ):  # a terminal's encoding may lack characters of names in models
            stream.reconfigure(errors="backslashreplace")
    process = Process(may_fork=True)
    process.exit_process(int(run(given, process)))


def run(arguments: Sequence[str], process: Process | None = None) -> int:
    """Run the command line; print every error and return its exit code.

    process: this process, if it belongs to the command and may fork for its limits (`supervise`).
    """
    try:
        code = cli.main(
            list(arguments) or ["--help"],
            prog_name="superopt",
            standalone_mode=False,
            obj=process,
        )
        return int(code or ExitCode.OK)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return ExitCode.USAGE
    except BrokenPipeError:
        # The reader of our output has exited (`superopt ... | head`).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    except (Exception, KeyboardInterrupt) as error:
        if "--debug" in arguments:
            import traceback

            traceback.print_exception(error)
        return _print_error(_to_superopt_error(error), as_json="--json" in arguments)


def _to_superopt_error(error: BaseException) -> SuperoptError:
    """Convert any exception to an error with what happened, why, and what to do."""
    match error:
        case SuperoptError():
            return error
        case click.UsageError():
            path = error.ctx.command_path if error.ctx else "superopt"
            what, _, why = error.format_message().partition(": ")
            return UsageError(what, why, f"see `{path} --help`")
        case click.ClickException():
            return UsageError(error.format_message())
        case KeyboardInterrupt() | click.Abort():
            return _aborted_error()
        case _ if _is_interrupt(error):
            return _aborted_error()
        case OSError():
            what = f"cannot access {error.filename}" if error.filename else "a system call failed"
            return UsageError(what, error.strerror or str(error), "check the path and the disk")
        case MemoryError():
            return ModelError(
                "out of memory",
                "the model needs more memory than is available",
                "free some memory, or use a smaller model",
            )
        case _:
            return InternalError(
                "superopt has a bug",
                f"{type(error).__name__}: {error}",
                "run it again with --debug and report the output",
            )


def _aborted_error() -> Aborted:
    return Aborted("aborted", "interrupted", "no partial output was written")


def _is_interrupt(error: BaseException) -> bool:
    """True if Ctrl-C caused the error. C extensions may turn it into an ImportError while they
    load."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, KeyboardInterrupt):
            return True
        seen.add(id(cause))
        cause = cause.__cause__ or cause.__context__
    return False


class InternalError(SuperoptError):
    """An exception that was not raised on purpose."""

    code = ExitCode.INTERNAL


def _print_error(error: SuperoptError, as_json: bool) -> int:
    from superopt.report.formatting.phrases import printable

    if as_json:
        from superopt.report.data.codec import dumps

        parts = {"what": error.what, "why": error.why, "todo": error.todo}
        click.echo(dumps({"error": {**parts, "code": int(error.code)}}), nl=False)
    indent = "\n       "
    lines = [printable(line) for line in str(error).splitlines()]
    click.echo(f"error: {indent.join(lines)}", err=True)
    return error.code
