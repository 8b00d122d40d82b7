"""The command `superopt`: the list of commands, and how errors leave the process.

Nothing heavy is imported here or at the top of a command's file: each command imports what it needs
when it runs.
"""

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from superopt import __version__
from superopt.commands.compare import bench, verify
from superopt.commands.compiled import compile_, export, profile, tune
from superopt.commands.compiled import run as run_
from superopt.commands.demo import demo
from superopt.commands.explain import explain, report
from superopt.commands.household import cache, doctor
from superopt.commands.optimize import optimize
from superopt.commands.rulebook import rules
from superopt.commands.supervise import Process
from superopt.errors import Aborted, ExitCode, ModelError, SuperoptError, UsageError


class InOrder(click.Group):
    """Lists its commands in the order they were added: the ones needed first come first."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(
    cls=InOrder,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 ok, 1 unchanged (with --fail-if-unchanged), 2 bad arguments, "
    "3 invalid or unsafe model, or no memory for it, 4 check failed or refuted, 5 not decided, or "
    "no time for it, 130 aborted.",
)
@click.version_option(__version__, prog_name="superopt")
@click.option(
    "--debug", is_flag=True, expose_value=False, help="Show tracebacks; of any command, too."
)
def cli() -> None:
    """Make ONNX models faster, and check that they stay the same."""


for command in (
    optimize,
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
        if hasattr(stream, "reconfigure"):  # names in models may not fit the terminal's encoding
            stream.reconfigure(errors="backslashreplace")
    process = Process(own=True)
    process.leave(int(run(given, process)))


def run(arguments: Sequence[str], process: Process | None = None) -> int:
    """Run the command line; every error is printed and becomes an exit code.

    process: this one, where it is the command's own and may fork for its limits (`supervise`).
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
        # Whoever read our output has gone (`superopt ... | head`): nothing is left to say.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    except (Exception, KeyboardInterrupt) as error:
        if "--debug" in arguments:
            import traceback

            traceback.print_exception(error)
        return _report(_as_ours(error), as_json="--json" in arguments)


def _as_ours(error: BaseException) -> SuperoptError:
    """Any exception as what happened, why, and what to do."""
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
            return _aborted()
        case _ if _interrupted(error):
            return _aborted()
        case OSError():
            what = f"cannot use {error.filename}" if error.filename else "a system call failed"
            return UsageError(what, error.strerror or str(error), "check the path and the disk")
        case MemoryError():
            return ModelError("out of memory", "the model needs more than there is", "free some")
        case _:
            return Internal(
                "superopt has a bug",
                f"{type(error).__name__}: {error}",
                "run it again with --debug and report what it prints",
            )


def _aborted() -> Aborted:
    return Aborted("aborted", "interrupted", "nothing partial was left behind")


def _interrupted(error: BaseException) -> bool:
    """Did Ctrl-C begin it? Modules written in C make an ImportError of it when they are loaded."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, KeyboardInterrupt):
            return True
        seen.add(id(cause))
        cause = cause.__cause__ or cause.__context__
    return False


class Internal(SuperoptError):
    """An exception that nobody raised on purpose."""

    code = ExitCode.INTERNAL


def _report(error: SuperoptError, as_json: bool) -> int:
    from superopt.report.words import plain

    if as_json:
        from superopt.report.codec import dumps

        parts = {"what": error.what, "why": error.why, "todo": error.todo}
        click.echo(dumps({"error": {**parts, "code": int(error.code)}}), nl=False)
    indent = "\n       "
    lines = [plain(line) for line in str(error).splitlines()]
    click.echo(f"error: {indent.join(lines)}", err=True)
    return error.code
