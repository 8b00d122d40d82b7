"""The exception classes and the exit codes of all commands.

Every error has three parts: *what* happened, *why* (with both values), and what *to do*. This
module imports nothing, so that every other part may import it.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit codes of all commands.

    Example:
        >>> int(superopt.ExitCode.REFUTED)
        4
    """

    OK = 0
    UNCHANGED = 1  # only with --fail-if-unchanged
    USAGE = 2  # bad arguments
    MODEL = 3  # an invalid or unsafe model, or one that exceeds the memory limit
    REFUTED = 4  # a check failed or a claim was refuted; nothing was written
    UNDECIDED = 5  # equal on every tested input but not proved; or a timeout
    INTERNAL = 70  # a bug in superopt
    ABORTED = 130  # stopped by a second Ctrl-C, or by SIGTERM


class SuperoptError(Exception):
    """The base class of all errors that are raised on purpose.

    `str(error)` has one line for each part. An error that is caught and wrapped before a user sees
    it may leave `why` and `todo` empty.

    Attributes:
        what: What happened.
        why: Why, with both values.
        todo: What to do.
        code: The exit code of a command that ends with it.

    Example:
        >>> print(superopt.UsageError("no such target", "the targets are cpu, cuda", "choose one"))
        no such target
        the targets are cpu, cuda
        choose one
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
    """The arguments are invalid: a negative budget, a folder that does not exist.

    Example:
        >>> try:
        ...     superopt.optimize("model.onnx", budget=-1)
        ... except superopt.UsageError as error:
        ...     print(error.what)
        invalid budget: -1
    """

    code = ExitCode.USAGE


class ModelError(SuperoptError):
    """The model is invalid, unsafe to load, or cannot be represented.

    Example:
        >>> try:
        ...     superopt.compile(b"not a model")
        ... except superopt.ModelError as error:
        ...     print(int(error.code))
        3
    """

    code = ExitCode.MODEL


class OutOfMemory(ModelError):
    """A model needs more memory than a device has left, or than the call may use."""


class RuntimeMismatch(ModelError):
    """onnxruntime returned a shape or dtype that differs from the inferred or declared one. Kernels
    compiled for the declared one would read out of bounds."""


class CheckFailed(SuperoptError):
    """Two models were found to differ, or a rule was found to be wrong; nothing was written.

    Example:
        >>> issubclass(superopt.CheckFailed, superopt.SuperoptError), int(superopt.CheckFailed.code)
        (True, 4)
    """

    code = ExitCode.REFUTED


class Undecided(SuperoptError):
    """The question could be neither proved nor refuted.

    Example:
        >>> int(superopt.Undecided.code)
        5
    """

    code = ExitCode.UNDECIDED


class OutOfTime(SuperoptError):
    """The time of a call is over before it has a result."""

    code = ExitCode.UNDECIDED


class Aborted(SuperoptError):
    """The user stopped the command before there was a result to keep.

    Example:
        >>> int(superopt.Aborted.code)
        130
    """

    code = ExitCode.ABORTED


def positive_seconds(name: str, value: float) -> float:
    """Return `value` as float, a positive finite number of seconds. Raises UsageError otherwise.

    name: of the argument, for the message.
    """
    try:
        fits = 0 < value < float("inf")
    except TypeError:
        fits = False
    if not fits:
        raise UsageError(
            f"invalid {name} {value!r}",
            "it must be a positive number of seconds",
            "pass a number such as 60",
        )
    return float(value)
