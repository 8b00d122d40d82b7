"""The policy for calls at sizes that a model is not compiled for: `specialize`.

"eager" compiles the model in the call. "never" runs it in ONNX Runtime. "background", the default,
compiles in the call for the first sizes only; and not even for these if a child process compiles
them (api/open_in_child.py). Other sizes run in ONNX Runtime until the time that compiled code would
have saved equals the time of compiling for further sizes; then they are compiled in the background,
or in the next call on a device that cannot compile in the background. Classes of sizes are compiled
earlier: a model has few, and later processes use them, too. The total is at most twice that of the
better choice (ski rental: Karlin, Manasse, Rudolph and Sleator, Competitive snoopy caching, 1988).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, get_args

from superopt.compilation.fallback.whole_model import Fallback
from superopt.compilation.frontend.input_arrays import Sizes
from superopt.errors import SuperoptError, UsageError

if TYPE_CHECKING:
    from superopt.compilation.model.control_flow.part_calls import OnMissing

Specialize = Literal["background", "eager", "never"]
SizeRanges = Mapping[str, tuple[int, int]]  # the least and the greatest value of each symbol
Shapes = Mapping[str, int] | Sequence[Mapping[str, int]]

MAX_REMEMBERED_SIZES: Final = 1 << 14  # sizes
MAX_SAVED_SIZES: Final = 4  # sizes of classes for which a saved model has constants
MAX_NEW_SIZES: Final = 64  # sizes that are kept until somebody asks for their ranges
MAX_SAMPLES: Final = 16  # measurements that an estimate uses
# The assumed compile time if all programs so far came from the disk cache.
DEFAULT_COMPILE_SECONDS: Final = 2.0
CLASS_WAIT: Final = 0.1  # of the time of compiling a class, until it is compiled
MIN_SAVED_PART: Final = 0.05  # of ONNX Runtime's time, if compiled code was measured hardly faster


def check_specialize(value: object) -> Specialize:
    """Return a value of `specialize`. Raises UsageError for another one."""
    for known in get_args(Specialize):
        if value == known:
            return known  # type: ignore[no-any-return]
    names = ", ".join(map(repr, get_args(Specialize)))
    raise UsageError(f"specialize {value!r}", f"it must be one of {names}", "use one of these")


@dataclass(slots=True)
class ShapePolicy:
    """The state of the policy for one model.

    eager_sizes: the number of sizes for which calls compile immediately. in_background: compile for
    others in the background; else in a call. fallback: runs the whole model in ONNX Runtime at any
    sizes; None: not loaded yet. refusal: why there is none. first_compile_seconds: of the first
    sizes, including one-time loading; None: not compiled yet. compile_seconds: recent ones, of
    further sizes. saved_parts: the parts of ONNX Runtime's time that compiled code saved, measured.
    fallback_times: of calls in ONNX Runtime, in seconds, by sizes; fallback_seconds: their sum.
    pending: sizes that are compiled in the background now. fallback_reasons: sizes that stay in
    ONNX Runtime, each with the reason. cached_compile_seconds: returns the compile time of an
    earlier process, None if unknown. compiles_classes: a program is for a class of sizes
    (size_classes.py). sizes_vary: calls had sizes of several classes, also in earlier processes.
    known_ranges: the ranges of the sizes of this process's calls; known_sizes: the last ones;
    new_sizes: of calls since, which are read when somebody asks. count_seconds: of runs in ONNX
    Runtime of segments whose sizes only a run gives. has_all_counts: these are compiled for all
    levels of such sizes, or are being so. first_in_background: the first call does not compile
    either; is_first_due: nothing is compiled yet, and it begins that. failures: of compilations in
    the background; each doubles the time until the next one. on_missing: what calls of a part of a
    model do at sizes of no program (part_calls.py); missing_sizes: for which the disk cache had
    none.
    """

    specialize: Specialize = "eager"
    eager_sizes: int = 1
    in_background: bool = True
    fallback: Fallback | None = None
    refusal: str = ""
    first_compile_seconds: float | None = None
    compile_seconds: list[float] = field(default_factory=list)
    saved_parts: list[float] = field(default_factory=list)
    fallback_times: dict[Sizes, float] = field(default_factory=dict)
    fallback_seconds: float = 0.0
    pending: set[Sizes] = field(default_factory=set)
    fallback_reasons: dict[Sizes, str] = field(default_factory=dict)
    compiles_classes: bool = False
    sizes_vary: bool = False
    known_ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    known_sizes: deque[Sizes] = field(default_factory=partial(deque, maxlen=MAX_SAVED_SIZES))
    new_sizes: list[Sizes] = field(default_factory=list)
    count_seconds: float = 0.0
    has_all_counts: bool = False
    first_in_background: bool = False
    on_missing: OnMissing = "specialize"
    missing_sizes: set[Sizes] = field(default_factory=set)
    is_first_due: bool = False
    failures: int = 0
    cached_compile_seconds: Callable[[], float | None] = lambda: None

    def compiles_in_call(self, sizes: Sizes, has_variants: bool) -> bool:
        """True if a call at new sizes compiles the model. has_variants: other sizes are compiled
        already."""
        if not sizes or self.specialize == "eager" or self.refusal:
            return True
        if self.specialize == "never" or self.first_in_background:
            return False
        if self.compiles_classes and self.in_background:
            return False
        if self.eager_sizes == 1:
            return not has_variants and self.first_compile_seconds is None
        count = len(self.compile_seconds) + (self.first_compile_seconds is not None)
        return count < self.eager_sizes or (not self.in_background and self.is_due(sizes))

    def compiles_class_in_call(self, sizes: Sizes, class_count: int) -> bool:
        """True if a call compiles a class that has these sizes, on a device that cannot compile in
        the background. class_count: of those that are compiled already."""
        if self.specialize != "background" or self.in_background:
            return False
        return class_count < self.eager_sizes or self.is_due(sizes)

    @property
    def expected_compile_seconds(self) -> float:
        """The expected time of compiling for further sizes: the mean of measured times; before the
        first one, the time of the first sizes, in this process or an earlier one."""
        if self.compile_seconds:
            return sum(self.compile_seconds) / len(self.compile_seconds)
        if self.first_compile_seconds is not None:
            return self.first_compile_seconds
        return self.cached_compile_seconds() or DEFAULT_COMPILE_SECONDS

    def is_due(self, sizes: Sizes) -> bool:
        """True if compiling for these sizes would have paid."""
        if self.specialize != "background":
            return False
        if 0 in dict(sizes).values() and not self.compiles_classes:
            return False
        if sizes in self.fallback_reasons or sizes in self.pending:
            return False
        if (self.compiles_classes or self.first_in_background) and self.pending:
            return False  # the class that is compiled now may have these sizes
        if self.is_first_due:
            return True
        middle = sorted(self.saved_parts)[len(self.saved_parts) // 2] if self.saved_parts else 1.0
        saved = max(middle, MIN_SAVED_PART)
        wait = (CLASS_WAIT if self.compiles_classes else 1.0) * (not self.sizes_vary)
        if self.failures:
            wait = CLASS_WAIT * 2.0**self.failures
        return self._fallback_seconds(sizes) * saved >= wait * self.expected_compile_seconds

    def _fallback_seconds(self, sizes: Sizes) -> float:
        """Return the time in ONNX Runtime that a program for these sizes would have replaced."""
        if self.compiles_classes:  # it will have most of the other sizes, too
            return self.fallback_seconds
        return self.fallback_times.get(sizes, 0.0)

    def add_sizes(self, sizes: Sizes) -> None:
        """A call has sizes that the last calls did not have."""
        self.new_sizes.append(sizes)
        if len(self.new_sizes) > MAX_NEW_SIZES:
            self._read_new_sizes()

    @property
    def size_ranges(self) -> Mapping[str, tuple[int, int]]:
        """The least and the greatest value of each size in the calls of this process."""
        self._read_new_sizes()
        return self.known_ranges

    @property
    def recent_sizes(self) -> Collection[Sizes]:
        """The sizes of the last calls."""
        self._read_new_sizes()
        return self.known_sizes

    def _read_new_sizes(self) -> None:
        some, self.new_sizes = self.new_sizes, []
        for sizes in some:
            for name, n in sizes:
                least, greatest = self.known_ranges.get(name, (n, n))
                self.known_ranges[name] = min(least, n), max(greatest, n)
            if sizes not in self.known_sizes:
                self.known_sizes.append(sizes)

    def add_class(self) -> None:
        """A class of sizes was compiled: start to count again."""
        self.compiles_classes, self.is_first_due = True, False
        self._clear_fallback_times()

    def add_compile_time(self, seconds: float) -> None:
        if self.first_compile_seconds is None:
            self.first_compile_seconds = seconds
        else:
            self.compile_seconds = [*self.compile_seconds, seconds][-MAX_SAMPLES:]

    def add_measurement(self, compiled_seconds: float, fallback_seconds: float) -> None:
        """Compiled code took `compiled_seconds` where ONNX Runtime took `fallback_seconds`."""
        self.saved_parts = [*self.saved_parts, 1 - compiled_seconds / max(fallback_seconds, 1e-9)][
            -MAX_SAMPLES:
        ]

    def add_fallback_time(self, sizes: Sizes, seconds: float) -> None:
        if len(self.fallback_times) >= MAX_REMEMBERED_SIZES:
            self._clear_fallback_times()
        self.fallback_times[sizes] = self.fallback_times.get(sizes, 0.0) + seconds
        self.fallback_seconds += seconds

    def _clear_fallback_times(self) -> None:
        self.fallback_times.clear()
        self.fallback_seconds = 0.0

    def reset_fallback_time(self, sizes: Sizes) -> None:
        """The program for these sizes was dropped: start to count again."""
        self.fallback_seconds -= self.fallback_times.pop(sizes, 0.0)

    def keep_in_fallback(self, sizes: Sizes, reason: str) -> None:
        if len(self.fallback_reasons) >= MAX_REMEMBERED_SIZES:
            self.fallback_reasons.clear()
        self.fallback_reasons[sizes] = reason

    def load_fallback(self, make: Callable[[], Fallback | None]) -> None:
        """Load the model into ONNX Runtime once; if it does not run there, calls compile it."""
        if self.fallback is not None or self.refusal:
            return
        try:
            self.fallback = make()
            self.refusal = "" if self.fallback is not None else "onnxruntime is not installed"
        except SuperoptError as e:
            self.refusal = f"{e.what}: {e.why}"
