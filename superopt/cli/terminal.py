"""Progress, Ctrl-C and output files of a command."""

import logging
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import click

from superopt import guard
from superopt.errors import UsageError
from superopt.report.data.report import Event

PLAIN_LINE_SECONDS = 5.0  # seconds between two plain lines of one stage
# Seconds after a signal in which running work is stopped: senders of SIGTERM do not wait long.
SIGNAL_GRACE_SECONDS = {signal.SIGINT: 20.0, signal.SIGTERM: 0.8}
Progress = Callable[[Event], None]
Stop = Callable[[], bool]
Result = TypeVar("Result")


def print_text(text: str, *, on_stderr: bool = False) -> None:
    """Print `text`, which contains its line ends; control characters in lines are escaped."""
    from superopt.report.formatting.phrases import printable

    click.echo("\n".join(map(printable, text.split("\n"))), nl=False, err=on_stderr)


def print_result(result: Result, to_text: Callable[[Result], str], *, as_json: bool) -> None:
    from superopt.report.data.codec import dumps

    print_text(dumps(result) if as_json else to_text(result))


def log_to_stderr(level: str) -> None:
    """Write the package's log records from `level` on to stderr."""
    logger = logging.getLogger("superopt")
    for old in [h for h in logger.handlers if isinstance(h, logging.StreamHandler)]:
        logger.removeHandler(old)  # of an earlier call in this process
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(message)s", "%H:%M:%S"))
    logger.addHandler(handler)
    logger.setLevel(level.upper())


def terminal_width() -> int:
    """Return the terminal's width in columns; 100 without a terminal and without COLUMNS."""
    return shutil.get_terminal_size((100, 24)).columns


def can_encode(text: str) -> bool:
    """True if stdout's encoding has all characters of `text`."""
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return False
    return True


@contextmanager
def progress(quiet: bool = False) -> Iterator[Progress]:
    """Yield a function that shows events on stderr: a bar on a terminal, else a line now and
    then."""
    if quiet:
        yield lambda event: None
    elif sys.stderr.isatty() and not logging.getLogger("superopt").isEnabledFor(logging.INFO):
        with _progress_bar() as show:
            yield show
    else:
        yield _progress_lines()


@contextmanager
def _progress_bar() -> Iterator[Progress]:
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def show(event: Event) -> None:
            text = escape(_event_text(event))
            if event.done is None:
                bar.update(task, description=text)
            else:
                bar.update(task, description=text, total=1.0, completed=event.done)

        yield show


def _progress_lines() -> Progress:
    start = time.monotonic()
    last: dict[str, float] = {}

    def show(event: Event) -> None:
        now = time.monotonic()
        if now - last.get(event.stage, -PLAIN_LINE_SECONDS) < PLAIN_LINE_SECONDS:
            return
        last[event.stage] = now
        print_text(f"[{now - start:6.1f} s] {_event_text(event)}\n", on_stderr=True)

    return show


def _event_text(event: Event) -> str:
    from superopt.report.formatting import phrases

    best = "" if event.best_us is None else f", best {phrases.time_text(event.best_us)}"
    return phrases.printable(f"{event.stage}: {event.text}{best}")


@contextmanager
def handle_interrupts() -> Iterator[Stop]:
    """Yield `stop()`: the first Ctrl-C (or SIGTERM) makes it true; the second raises
    KeyboardInterrupt.

    Python calls a handler once for all signals during a long call into C, so signals are counted by
    the bytes that the system writes for each. Python also swallows exceptions while objects are
    freed, so `stop()` raises as well.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # only the main thread receives signals
        return
    received = 0
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)

    def stop() -> bool:
        if received > 1:
            raise KeyboardInterrupt
        return received == 1

    def on_signal(number: int, frame: object) -> None:
        nonlocal received
        first = received == 0
        guard.current_guard().shorten_deadline(SIGNAL_GRACE_SECONDS[signal.Signals(number)])
        try:
            signals = reader.recv(4096)
            received += signals.count(signal.SIGINT) + signals.count(signal.SIGTERM)
        except BlockingIOError:
            received += 1  # raised in this process, by a test
        if first and received == 1:
            # Not through a buffered stream: the signal may have come in the middle of a write.
            with suppress(OSError):
                os.write(2, b"\nstopping with what there is so far; Ctrl-C again aborts\n")
        elif received > 1:
            raise KeyboardInterrupt

    before = {s: signal.signal(s, on_signal) for s in (signal.SIGINT, signal.SIGTERM)}
    wakeup = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    try:
        yield stop
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
        reader.close()
        writer.close()


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM, so that the message says how to continue."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread receives signals
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def check_outputs(*sources: Path | None, may_replace: bool = False, **paths: Path | None) -> None:
    """Raise UsageError, before any work is done, if a file cannot be written to its path.

    The keywords are the options' names without dashes. may_replace: `output` may be one of
    `sources`, the files that are read: a model may be replaced by its optimized version, not by a
    report.
    """
    seen: dict[Path, str] = {}
    read = {p.resolve() for p in sources if p is not None}
    for name, path in paths.items():
        if path is None:
            continue
        option = "the certificate" if name == "certificate" else f"--{name}"
        folder = path.parent
        if not (may_replace and name == "output") and path.resolve() in read:
            raise UsageError(
                f"{option} would overwrite {path}", "this file is an input", "choose another name"
            )
        if name == "store":
            continue  # it is opened, and created if it does not exist
        if not folder.is_dir():
            raise UsageError(
                f"{option} cannot be written to {path}",
                f"the folder {folder} does not exist",
                "create it, or choose another path",
            )
        if path.is_dir():
            raise UsageError(
                f"{option} cannot be written to {path}", "it is a folder", "pass a file name"
            )
        if not os.access(folder, os.W_OK):
            raise UsageError(
                f"{option} cannot be written to {path}",
                f"the folder {folder} is not writable",
                "choose another path",
            )
        if other := seen.get(path.resolve()):
            raise UsageError(
                f"{option} and {other} are the same file", f"both are {path}", "choose two names"
            )
        seen[path.resolve()] = option


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file atomically, by rename."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with partial.open("xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
