"""`superopt doctor` and `superopt cache`: the installation, and the files on disk."""

import sys
from pathlib import Path

import click

from superopt.cli import options, terminal
from superopt.errors import ExitCode, UsageError


@click.command()
@options.as_json
@options.debug
@options.unbudgeted
def doctor(as_json: bool) -> ExitCode:
    """List the installed dependencies and the features that each one enables."""
    from superopt.api import functions as api

    rows = api.doctor()
    from superopt.report.text import report_text

    terminal.print_result(rows, report_text.findings_table, as_json=as_json)
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
    from superopt.api import functions as api

    found = api.cache_stats(store)
    from superopt.report.text import report_text

    terminal.print_result(found, report_text.store_text, as_json=as_json)
    return ExitCode.OK


@cache.command("path")
@options.as_json
@options.debug
def path_(as_json: bool) -> ExitCode:
    """Print the location of the cache."""
    from superopt.api import functions as api

    folder = api.cache_list().folder
    if as_json:
        from superopt.report.data.codec import dumps

        terminal.print_text(dumps({"folder": folder}))
    else:
        terminal.print_text(f"{folder}\n")
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
    from superopt.api import functions as api

    found = api.cache_list()
    from superopt.report.text.cache_listing import listing_text

    terminal.print_result(found, lambda found: listing_text(found, files), as_json=as_json)
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
    from superopt.api import functions as api

    done = api.cache_prune(max_size, older_than)
    from superopt.report.text.cache_listing import pruned_text

    terminal.print_result(done, pruned_text, as_json=as_json)
    return ExitCode.OK


@cache.command()
@options.store
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@options.as_json
@options.debug
def clear(store: Path | None, yes: bool, as_json: bool) -> ExitCode:
    """Remove all measured costs."""
    from superopt.api import functions as api

    if not yes:
        if not sys.stdin.isatty():
            raise UsageError(
                "the store was not cleared",
                "there is no terminal for the confirmation",
                "add --yes",
            )
        click.confirm("Remove all measured costs?", abort=True, err=True)
    return _print_count("removed", api.cache_clear(store), as_json)


@cache.command("export")
@click.argument("file", type=options.NEW_FILE)
@options.store
@options.as_json
@options.debug
@options.unbudgeted
def export_(file: Path, store: Path | None, as_json: bool) -> ExitCode:
    """Write the store to FILE, for another machine of the same kind."""
    from superopt.api import functions as api

    terminal.check_outputs(export=file)
    return _print_count("exported", api.cache_export(store, file), as_json)


@cache.command("import")
@click.argument("file", type=options.FILE)
@options.store
@options.as_json
@options.debug
@options.unbudgeted
def import_(file: Path, store: Path | None, as_json: bool) -> ExitCode:
    """Add the costs in FILE, which `superopt cache export` wrote."""
    from superopt.api import functions as api

    return _print_count("imported", api.cache_import(store, file), as_json)


def _print_count(done: str, entries: int, as_json: bool) -> ExitCode:
    if as_json:
        from superopt.report.data.codec import dumps

        terminal.print_text(dumps({done: entries}))
    else:
        from superopt.report.formatting.phrases import count_text

        terminal.print_text(f"{done} {count_text(entries, 'entry', 'entries')}\n")
    return ExitCode.OK
