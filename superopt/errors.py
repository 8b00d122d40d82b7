"""Errors that a person can act on, and the one table of exit codes.

Every error says three things: *what* happened, *why* (naming both values), and what *to do*.
Imports nothing, so that every other part may import it.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """What the process returns: one table for all commands."""

    OK = 0
    UNCHANGED = 1  # only with --fail-if-unchanged
    USAGE = 2  # bad arguments
    MODEL = 3  # an invalid or unsafe model, or one that needs more memory than it may
    REFUTED = 4  # a check failed or a claim was refuted; nothing was written
    UNDECIDED = 5  # agrees as far as it was tested, but is not proved; or there was no time
    INTERNAL = 70  # a bug in superopt: not one of the answers above
    ABORTED = 130  # stopped by a second Ctrl-C, or by SIGTERM


class SuperoptError(Exception):
    """The base of all errors raised on purpose.

    `str(error)` is one line per part: what, why, what to do.  An error that is caught and
    wrapped before a person sees it may leave `why` and `todo` empty.
    """

    code = ExitCode.MODEL

    def __init__(self, what: str, why: str = "", todo: str = "") -> None:
        super().__init__(what, why, todo)
        self.what = what
        self.why = why
        self.todo = todo

    def __str__(self) -> str:
        return "\n".join(part for part in (self.what, self.why, self.todo) if part)


class UsageError(SuperoptError):
    """The arguments do not make sense: a budget that is no time, a folder that is not there."""

    code = ExitCode.USAGE


class ModelError(SuperoptError):
    """The model is invalid, unsafe to load, or cannot be represented."""

    code = ExitCode.MODEL


class OutOfMemory(ModelError):
    """A model needs more memory than a device has left, or than a call may use."""


class Unlike(ModelError):
    """What onnxruntime gives has another shape, or type, than ONNX's inference says of it, or than
    the model does. Kernels for that would read beyond it."""


class CheckFailed(SuperoptError):
    """Two models were found to differ; nothing was written."""

    code = ExitCode.REFUTED


class Undecided(SuperoptError):
    """The question could not be answered either way."""

    code = ExitCode.UNDECIDED


class OutOfTime(SuperoptError):
    """The time of a call is over before it has a result."""

    code = ExitCode.UNDECIDED


class Aborted(SuperoptError):
    """Stopped by the user before there was anything to keep."""

    code = ExitCode.ABORTED


def seconds(name: str, value: float) -> float:
    """A time that is given as an argument of this name. Raises UsageError where it is none."""
    try:
        fits = 0 < value < float("inf")
    except TypeError:
        fits = False
    if not fits:
        raise UsageError(f"{name} {value!r}", "it is a positive number of seconds", "give another")
    return float(value)
