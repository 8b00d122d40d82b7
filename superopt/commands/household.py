"""`superopt doctor` and `superopt cache`: the installation, and the files on disk."""

import sys
from pathlib import Path

import click

from superopt.commands import options, terminal
from superopt.commands.contract import api
from superopt.errors import ExitCode, UsageError


@click.command()
@options.as_json
@options.debug
@options.unbudgeted
def doctor(as_json: bool) -> ExitCode:
    """List the installed dependencies and the features that each one enables."""
    rows = api().doctor()
    if as_json:
        from superopt.report.codec import dumps

        terminal.say(dumps(rows))
    else:
        from superopt.report import text

        terminal.say(text.findings(rows))
    return ExitCode.OK


@click.group()
def cache() -> None:
    """Manage the disk cache and its store of measured costs."""


@cache.command()
@options.store
@options.as_json
@options.debug
@options.unbudgeted
def stats(store: Path | None, as_json: bool) -> ExitCode:
    """Print the location, size and contents of the store."""
    found = api().cache_stats(store)
    if as_json:
        from superopt.report.codec import dumps

        terminal.say(dumps(found))
    else:
        from superopt.report import text

        terminal.say(text.store(found))
    return ExitCode.OK


@cache.command("path")
@options.as_json
@options.debug
def path_(as_json: bool) -> ExitCode:
    """Print the location of the cache."""
    folder = api().cache_list().folder
    if as_json:
        from superopt.report.codec import dumps

        terminal.say(dumps({"folder": folder}))
    else:
        terminal.say(f"{folder}\n")
    return ExitCode.OK


@cache.command("list")
@click.option("--files", is_flag=True, help="List every file, most recently used first.")
@options.as_json
@options.debug
@options.unbudgeted
def list_(files: bool, as_json: bool) -> ExitCode:
    """List the contents, size and size limit of the cache.

    $SUPEROPT_CACHE_MAX_SIZE sets the limit, 4 GiB by default: above it, compiling a model removes
    the least recently used files.
    """
    found = api().cache_list()
    if as_json:
        from superopt.report.codec import dumps

        terminal.say(dumps(found))
    else:
        from superopt.report.cache import listing

        terminal.say(listing(found, files))
    return ExitCode.OK


@cache.command()
@click.option("--max-size", metavar="SIZE", help="Shrink to at most this size: 2GiB, 500M.")
@click.option(
    "--older-than", metavar="AGE", help="Remove files that were not used for so long: 30d, 12h."
)
@options.as_json
@options.debug
@options.unbudgeted
def prune(max_size: str | None, older_than: str | None, as_json: bool) -> ExitCode:
    """Remove the least recently used files, by default down to the limit.

    Measured costs and proofs stay (`superopt cache clear` removes measured costs).
    """
    done = api().cache_prune(max_size, older_than)
    if as_json:
        from superopt.report.codec import dumps

        terminal.say(dumps(done))
    else:
        from superopt.report.cache import pruned

        terminal.say(pruned(done))
    return ExitCode.OK


@cache.command()
@options.store
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@options.as_json
@options.debug
def clear(store: Path | None, yes: bool, as_json: bool) -> ExitCode:
    """Remove all measured costs."""
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError(
                "the store was not cleared",
                "there is no terminal for the confirmation",
                "add --yes",
            )
        click.confirm("Remove all measured costs?", abort=True, err=True)
    return _counted("removed", api().cache_clear(store), as_json)


@cache.command("export")
@click.argument("file", type=options.NEW_FILE)
@options.store
@options.as_json
@options.debug
@options.unbudgeted
def export_(file: Path, store: Path | None, as_json: bool) -> ExitCode:
    """Write the store to FILE, for another machine of the same kind."""
    terminal.check_outputs(export=file)
    return _counted("exported", api().cache_export(store, file), as_json)


@cache.command("import")
@click.argument("file", type=options.FILE)
@options.store
@options.as_json
@options.debug
@options.unbudgeted
def import_(file: Path, store: Path | None, as_json: bool) -> ExitCode:
    """Add the costs in FILE, which `superopt cache export` wrote."""
    return _counted("imported", api().cache_import(store, file), as_json)


def _counted(done: str, entries: int, as_json: bool) -> ExitCode:
    if as_json:
        from superopt.report.codec import dumps

        terminal.say(dumps({done: entries}))
    else:
        from superopt.report.words import count

        terminal.say(f"{done} {count(entries, 'entry', 'entries')}\n")
    return ExitCode.OK
