"""The kernel times of a compiled model: data and text."""

from __future__ import annotations

from dataclasses import dataclass

from superopt.report.compilation import roofline_svg
from superopt.report.data.notebook import preformatted
from superopt.report.formatting import phrases
from superopt.report.formatting.table import join_lines, table

MAX_KERNELS = 25  # kernels that are listed, the slowest ones
MAX_LABEL_OPERATORS = 4  # of a kernel's label


@dataclass(frozen=True, slots=True)
class KernelProfile:
    """A call of a kernel, or a segment that runs in onnxruntime.

    name: of the value that it computes, in the model; ops: its operators; how: the kernel's
    algorithm; seconds: the median; operations: of the algorithm; model_operations: of a direct
    computation (Winograd and Strassen need fewer); bytes: the least amount; arithmetic, memory:
    seconds that operations and bytes take at this machine's measured peaks.
    """

    name: str
    ops: tuple[str, ...]
    type: str
    how: str
    seconds: float
    operations: int
    model_operations: int
    bytes: int
    arithmetic: float
    memory: float

    @property
    def roofline_seconds(self) -> float:
        """The least seconds by the roofline; those measured, if they are fewer."""
        return min(max(self.arithmetic, self.memory), self.seconds)

    @property
    def is_above_peak(self) -> bool:
        """True if the kernel is faster than the measured peaks allow."""
        return max(self.arithmetic, self.memory) > self.seconds > 0

    @property
    def roofline_share(self) -> float:
        """The share of the roofline, at most 1."""
        return self.roofline_seconds / self.seconds if self.seconds > 0 else 0.0

    @property
    def bound(self) -> str:
        """What bounds the kernel: "flops", "bytes", or "" if nothing is known of it."""
        if not self.roofline_seconds:
            return ""
        return "flops" if self.arithmetic >= self.memory else "bytes"

    @property
    def saved_operations(self) -> bool:
        """True if the algorithm has fewer operations than a direct computation."""
        return 0 < self.operations < self.model_operations

    @property
    def label(self) -> str:
        ops = "+".join(self.ops[:MAX_LABEL_OPERATORS]) + "+..." * (
            len(self.ops) > MAX_LABEL_OPERATORS
        )
        return phrases.printable(f"{ops} {self.name}".strip())


@dataclass(frozen=True, slots=True)
class Profile:
    """The kernel times of a compiled model, in execution order. `str` of it is a table, `svg` a
    drawing.

    threads: 0 on a GPU, which has `precision` instead, and whose kernels are timed one by one.
    seconds: of a run, the median of `runs`; flops: peak operations per second in float32 (on a GPU
    in its precision); bandwidths: peak bytes per second, by the bytes of the working set.
    bf16_flops, int8_flops: peak operations per second of products in bfloat16, and of 8-bit
    integers; 0 if there are none.
    """

    model: str
    sizes: tuple[tuple[str, int], ...]
    threads: int
    machine: str
    runs: int
    seconds: float
    flops: float
    bandwidths: tuple[tuple[int, float], ...]
    parts: tuple[KernelProfile, ...]
    precision: str = ""
    bf16_flops: float = 0.0
    int8_flops: float = 0.0

    @property
    def roofline_share(self) -> float:
        """The share of the roofline, of all kernels together."""
        own = [p for p in self.parts if p.roofline_seconds]
        spent = sum(p.seconds for p in own)
        return sum(p.roofline_seconds for p in own) / spent if spent else 0.0

    @property
    def peaks(self) -> str:
        """The measured peaks as text."""
        memory = self.bandwidths[-1][1]
        cache = max(rate for _, rate in self.bandwidths)
        caches = f" {cache / 1e9:.0f} GB/s from caches," if self.threads else ""
        rates = {"bf16": self.bf16_flops, "int8": self.int8_flops}
        narrow = "".join(f" {rate / 1e9:.0f} in {kind}," for kind, rate in rates.items() if rate)
        return (
            f"at most {self.flops / 1e9:.0f} GFLOP/s,{narrow}{caches} "
            f"{memory / 1e9:.0f} GB/s from memory"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What the numbers need to be understood, a sentence each."""
        notes = []
        if any(x.saved_operations for x in self.parts):
            notes.append(
                "Winograd and Strassen need fewer operations than the model's direct computation;"
                " GFLOP/s and the roofline count those of the algorithm."
            )
        if above := sum(x.is_above_peak for x in self.parts):
            calls = phrases.count_text(above, "call was", "calls were")
            notes.append(
                f"{calls} faster than the measured peaks allow and count as 100 %: other work"
                " slowed the measurement of the peaks, or the data was in a nearer cache."
            )
        return tuple(notes)

    def __str__(self) -> str:
        return profile_text(self)

    def __repr__(self) -> str:
        return (
            f"<Profile of {self.model}: {phrases.time_text(1e6 * self.seconds)},"
            f" {len(self.parts)} kernels, {100 * self.roofline_share:.0f} % of the roofline>"
        )

    def _repr_html_(self) -> str:
        return preformatted(str(self))

    def svg(self) -> str:
        """Return the roofline with a dot for each kernel, and the slowest kernels."""
        return roofline_svg.roofline_page(self)


def profile_text(p: Profile, max_kernels: int = MAX_KERNELS) -> str:
    """Return the table, the slowest kernels first."""
    own = sum(x.operations for x in p.parts) / p.seconds / 1e9 if p.seconds else 0.0
    model = sum(x.model_operations for x in p.parts) / p.seconds / 1e9 if p.seconds else 0.0
    has_fewer = any(x.saved_operations for x in p.parts)
    where = f"on {phrases.count_text(p.threads, 'thread')}" if p.threads else f"in {p.precision}"
    lines = [
        f"{phrases.printable(p.model)}{phrases.sizes_text(p.sizes)}:"
        f" {phrases.time_text(1e6 * p.seconds)} a run, the median of {p.runs}, {where};"
        f" {own:.1f} GFLOP/s{f' ({model:.1f} of the model)' * has_fewer},"
        f" {100 * p.roofline_share:.0f} % of the roofline",
        f"  {p.machine}; {p.peaks}",
    ]
    head = ["time", "%", "GFLOP/s", "model's", "GB/s", "roof %", "by"]
    cells = [[*head, "kernel", "result", "computes"]]
    for part in sorted(p.parts, key=lambda x: -x.seconds)[:max_kernels]:
        model_rate = f"{part.model_operations / part.seconds / 1e9:.1f}" if part.seconds else ""
        cells.append(
            [
                phrases.time_text(1e6 * part.seconds),
                f"{100 * part.seconds / p.seconds:.1f}" if p.seconds else "",
                f"{part.operations / part.seconds / 1e9:.1f}" if part.operations else "",
                model_rate if part.saved_operations else "",
                f"{part.bytes / part.seconds / 1e9:.1f}" if part.bytes else "",
                f"{100 * part.roofline_share:.0f}" if part.roofline_seconds else "",
                part.bound,
                part.how,
                part.type,
                part.label,
            ]
        )
    if not has_fewer:
        cells = [[*row[:3], *row[4:]] for row in cells]
    lines += table(cells, max_rows=len(cells), numeric_columns=range(5 + has_fewer))
    if len(p.parts) > max_kernels:
        rest = sum(x.seconds for x in sorted(p.parts, key=lambda x: -x.seconds)[max_kernels:])
        count = phrases.count_text(len(p.parts) - max_kernels, "more call")
        lines.append(f"  and {count}, {phrases.time_text(1e6 * rest)} together")
    lines += (f"  {note}" for note in p.notes)
    return join_lines(lines)
