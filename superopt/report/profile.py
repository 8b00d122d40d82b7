"""What is said of how long a compiled model's kernels take: data, and its text."""

from __future__ import annotations

from dataclasses import dataclass

from superopt.report import roofline_svg, words
from superopt.report.table import joined, table

SHOWN = 25  # kernels, those that take longest
OPERATORS = 4  # of a kernel


@dataclass(frozen=True, slots=True)
class Part:
    """A call of a kernel, or a part that runs in onnxruntime.

    name: of the value that it computes, in the model; ops: the operators that went into it; how: of
    which kind the kernel is; seconds: the median; operations, bytes: what is to be done at least
    (of a convolution in Winograd's tiles: what a direct one does); arithmetic, memory: seconds that
    these take at this machine's peaks.
    """

    name: str
    ops: tuple[str, ...]
    type: str
    how: str
    seconds: float
    operations: int
    bytes: int
    arithmetic: float
    memory: float

    @property
    def least(self) -> float:
        """Seconds, by the roofline."""
        return max(self.arithmetic, self.memory)

    @property
    def share(self) -> float:
        """Of the roofline."""
        return self.least / self.seconds if self.seconds > 0 else 0.0

    @property
    def label(self) -> str:
        ops = "+".join(self.ops[:OPERATORS]) + "+..." * (len(self.ops) > OPERATORS)
        return words.plain(f"{ops} {self.name}".strip())


@dataclass(frozen=True, slots=True)
class Profile:
    """How long the kernels of a compiled model take, in the order in which they run.

    threads: of a processor; 0 on a GPU, whose precision is said then, and whose kernels' times are
    those of each alone. seconds: of a run, the median of `runs`; flops: operations in float32 (on a
    GPU in its precision) per second at most; bandwidths: bytes per second, by how many bytes are
    gone through again and again. `str` of it is a table, and `svg` a picture.
    """

    model: str
    sizes: tuple[tuple[str, int], ...]
    threads: int
    machine: str
    runs: int
    seconds: float
    flops: float
    bandwidths: tuple[tuple[int, float], ...]
    parts: tuple[Part, ...]
    precision: str = ""

    @property
    def share(self) -> float:
        """Of the roofline, of all kernels together."""
        own = [p for p in self.parts if p.least]
        spent = sum(p.seconds for p in own)
        return sum(p.least for p in own) / spent if spent else 0.0

    def __str__(self) -> str:
        return text(self)

    def svg(self) -> str:
        """The roofline with a dot for each kernel, and the kernels that take longest."""
        return roofline_svg.page(self)


def text(p: Profile, shown: int = SHOWN) -> str:
    """The table, those kernels first that take longest."""
    memory = p.bandwidths[-1][1]
    cache = max(rate for _, rate in p.bandwidths)
    rate = sum(part.operations for part in p.parts) / p.seconds / 1e9 if p.seconds else 0.0
    where = f"on {words.count(p.threads, 'thread')}" if p.threads else f"in {p.precision}"
    caches = f" {cache / 1e9:.0f} GB/s from caches," if p.threads else ""
    lines = [
        f"{words.plain(p.model)}{words.at(p.sizes)}: {words.time(1e6 * p.seconds)} a run, the"
        f" median of {p.runs}, {where}; {rate:.1f} GFLOP/s, {100 * p.share:.0f} % of the roofline",
        f"  {p.machine}; at most {p.flops / 1e9:.0f} GFLOP/s,{caches}"
        f" {memory / 1e9:.0f} GB/s from memory",
    ]
    head = ("time", "%", "GFLOP/s", "GB/s", "roof %", "by", "kernel", "result", "computes")
    cells = [head]
    for part in sorted(p.parts, key=lambda x: -x.seconds)[:shown]:
        by = "" if not part.least else "flops" if part.arithmetic >= part.memory else "bytes"
        cells.append(
            (
                words.time(1e6 * part.seconds),
                f"{100 * part.seconds / p.seconds:.1f}" if p.seconds else "",
                f"{part.operations / part.seconds / 1e9:.1f}" if part.operations else "",
                f"{part.bytes / part.seconds / 1e9:.1f}" if part.bytes else "",
                f"{100 * part.share:.0f}" if part.least else "",
                by,
                part.how,
                part.type,
                part.label,
            )
        )
    lines += table(cells, shown=len(cells), numbers=range(5))
    if len(p.parts) > shown:
        rest = sum(x.seconds for x in sorted(p.parts, key=lambda x: -x.seconds)[shown:])
        count = words.count(len(p.parts) - shown, "more call")
        lines.append(f"  and {count}, {words.time(1e6 * rest)} together")
    return joined(lines)
