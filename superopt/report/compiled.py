"""What is said of a compiled model: data, and its text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from superopt.report import words
from superopt.report.table import joined, table


@dataclass(frozen=True, slots=True)
class Foreign:
    """A node of a compiled model that runs in onnxruntime."""

    node: str
    why: str


@dataclass(frozen=True, slots=True)
class Compilation:
    """What `superopt compile` did. kernels: functions, each called once or more (`calls`);
    constants, memory: bytes that the model takes when it runs."""

    model: str
    threads: int
    seconds: float
    nodes: int
    kernels: int
    calls: int
    constants: int
    memory: int
    foreign: tuple[Foreign, ...]


@dataclass(frozen=True, slots=True)
class OutputValue:
    """An output of a model: its type, and how large its numbers are (None: it has none)."""

    name: str
    type: str
    least: float | None
    most: float | None


def compilation(c: Compilation) -> str:
    """What `superopt compile` says."""
    kernels = words.count(c.kernels, "kernel")
    threads = words.count(c.threads, "thread")
    lines = [
        f"{words.plain(c.model)}: {words.count(c.nodes, 'node')} as {kernels}, called"
        f" {words.count(c.calls, 'time')}; compiled in {c.seconds:.1f} s for {threads}",
        f"  {words.size(c.constants)} of constants, {words.size(c.memory)} of memory",
    ]
    if c.foreign:
        lines.append(f"  in onnxruntime run {words.count(len(c.foreign), 'node')}:")
        cells = ((words.plain(f.node), words.plain(f.why)) for f in c.foreign)
        lines += [f"    {line}" for line in table(cells, shown=len(c.foreign))]
    return joined(lines)


def outputs(values: Sequence[OutputValue]) -> str:
    """What `superopt run` says."""
    cells = (
        (words.plain(v.name), v.type, "" if v.least is None else f"{v.least:g} to {v.most:g}")
        for v in values
    )
    return joined(table(cells, shown=len(values)))
