"""The policy for calls at sizes that a model is not compiled for: `specialize`.

"eager" compiles the model in the call. "never" runs it in ONNX Runtime. "background", the default,
compiles in the call for the first sizes only. Other sizes run in ONNX Runtime until the time that
compiled code would have saved equals the time of compiling for further sizes; then they are
compiled in the background. The total is at most twice that of the better choice (ski rental:
Karlin, Manasse, Rudolph and Sleator, Competitive snoopy caching, 1988), and no call waits for a
compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from superopt.errors import SuperoptError, UsageError
from superopt.pipeline.fallback import Fallback

Sizes = tuple[tuple[str, int], ...]
Specialize = Literal["background", "eager", "never"]
Shapes = Mapping[str, int] | Sequence[Mapping[str, int]]

REMEMBERED: Final = 1 << 14  # sizes
RECENT: Final = 16  # measurements that an estimate uses
# The assumed compile time if all programs so far came from the disk cache.
UNMEASURED_S: Final = 2.0
LEAST_SAVED: Final = 0.05  # of ONNX Runtime's time, if compiled code was measured hardly faster


def checked_specialize(given: object) -> Specialize:
    """Return a value of `specialize`. Raises UsageError for another one."""
    for known in get_args(Specialize):
        if given == known:
            return known  # type: ignore[no-any-return]
    names = ", ".join(map(repr, get_args(Specialize)))
    raise UsageError(f"specialize {given!r}", f"it must be one of {names}", "use one of these")


@dataclass(slots=True)
class Spent:
    """The total time of calls at one set of sizes in ONNX Runtime, and of the fastest, in
    seconds."""

    total: float = 0.0
    best: float = float("inf")

    def add(self, seconds: float) -> None:
        self.total += seconds
        self.best = min(self.best, seconds)


@dataclass(slots=True)
class NewSizes:
    """The state of the policy for one model.

    fallback: runs the whole model in ONNX Runtime at any sizes; None: not loaded yet. refusal: why
    there is none. first_compile_seconds: of the first sizes, including one-time loading; None: not
    compiled yet. compile_seconds: recent ones, of further sizes. saved_parts: the parts of ONNX
    Runtime's time that compiled code saved, measured. fallback_times: by sizes. pending: sizes that
    are compiled in the background now. fallback_reasons: sizes that stay in ONNX Runtime, each with
    the reason. cached_compile_seconds: returns the compile time of an earlier process, None if
    unknown.
    """

    specialize: Specialize = "eager"
    fallback: Fallback | None = None
    refused: str = ""
    first_seconds: float | None = None
    seconds: list[float] = field(default_factory=list)
    saved: list[float] = field(default_factory=list)
    spent: dict[Sizes, Spent] = field(default_factory=dict)
    pending: set[Sizes] = field(default_factory=set)
    settled: dict[Sizes, str] = field(default_factory=dict)
    kept_seconds: Callable[[], float | None] = lambda: None

    def in_call(self, sizes: Sizes, compiled: bool) -> bool:
        """True if a call at new sizes compiles the model. has_variants: other sizes are compiled
        already."""
        if not sizes or self.specialize == "eager" or self.refused:
            return True
        return self.specialize == "background" and not compiled and self.first_seconds is None

    @property
    def further_seconds(self) -> float:
        """The expected time of compiling for further sizes: the mean of measured times; before the
        first one, the time of the first sizes, in this process or an earlier one."""
        if self.seconds:
            return sum(self.seconds) / len(self.seconds)
        if self.first_seconds is not None:
            return self.first_seconds
        return self.kept_seconds() or UNMEASURED_S

    def is_due(self, sizes: Sizes) -> bool:
        """True if compiling for these sizes would have paid."""
        if self.specialize != "background" or 0 in dict(sizes).values():
            return False
        if sizes in self.settled or sizes in self.pending:
            return False
        found = self.spent.get(sizes)
        middle = sorted(self.saved)[len(self.saved) // 2] if self.saved else 1.0
        saved = max(middle, LEAST_SAVED)
        return found is not None and found.total * saved >= self.further_seconds

    def note_compiled(self, seconds: float) -> None:
        if self.first_seconds is None:
            self.first_seconds = seconds
        else:
            self.seconds = [*self.seconds, seconds][-RECENT:]

    def note_measured(self, own: float, other: float) -> None:
        """Compiled code took `compiled_seconds` where ONNX Runtime took `fallback_seconds`."""
        self.saved = [*self.saved, 1 - own / max(other, 1e-9)][-RECENT:]

    def note_spent(self, sizes: Sizes, seconds: float) -> None:
        if len(self.spent) >= REMEMBERED:
            self.spent.clear()
        self.spent.setdefault(sizes, Spent()).add(seconds)

    def note_gone(self, sizes: Sizes) -> None:
        """The program for these sizes was dropped: start to count again."""
        self.spent.pop(sizes, None)

    def note_settled(self, sizes: Sizes, why: str) -> None:
        if len(self.settled) >= REMEMBERED:
            self.settled.clear()
        self.settled[sizes] = why

    def prepare(self, make: Callable[[], Fallback | None]) -> None:
        """Load the model into ONNX Runtime once; if it does not run there, calls compile it."""
        if self.fallback is not None or self.refused:
            return
        try:
            self.fallback = make()
            self.refused = "" if self.fallback is not None else "onnxruntime is not installed"
        except SuperoptError as e:
            self.refused = f"{e.what}: {e.why}"
