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
    """What `superopt compile` did. threads: 0 for a GPU, whose precision is said then. kernels:
    functions, each called once or more (`calls`); constants, memory: bytes that the model takes
    when it runs; sizes: symbolic ones; notes: sentences on what to know beside."""

    model: str
    threads: int
    seconds: float
    nodes: int
    kernels: int
    calls: int
    constants: int
    memory: int
    foreign: tuple[Foreign, ...]
    precision: str = ""
    sizes: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TunedKernel:
    """A kernel that was tuned: what it computes, how often it runs, seconds by the default and by
    the chosen option, how many were measured, and how many there are."""

    result: str
    calls: int
    before: float
    after: float
    default: str
    chosen: str
    measured: int
    options: int


@dataclass(frozen=True, slots=True)
class Tuned:
    """What `superopt tune` did. seconds: how long it took. rewrites, faster: of the graph, before
    kernels were tuned, and how many times as fast it became by these. notes: of the store, such as
    why nothing was written down."""

    kernels: tuple[TunedKernel, ...]
    seconds: float
    rewrites: int = 0
    faster: float = 1.0
    notes: tuple[str, ...] = ()

    @property
    def before(self) -> float:
        """Seconds of all kernels by their defaults."""
        return sum(k.calls * k.before for k in self.kernels)

    @property
    def after(self) -> float:
        return sum(k.calls * k.after for k in self.kernels)


@dataclass(frozen=True, slots=True)
class OutputValue:
    """An output of a model: its type, and how large its numbers are (None: it has none)."""

    name: str
    type: str
    least: float | None
    most: float | None


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of an exported model; dtype: numpy's name."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int

    @property
    def type(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclass(frozen=True, slots=True)
class Exported:
    """What `superopt export` did. name: with which all names in C begin; needs: of a processor;
    files: the library, its header and its weights, with their bytes."""

    model: str
    name: str
    threads: int
    needs: tuple[str, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    files: tuple[tuple[str, int], ...]


def compilation(c: Compilation) -> str:
    """What `superopt compile` says."""
    kernels = words.count(c.kernels, "kernel")
    threads = words.count(c.threads, "thread") if c.threads else f"a GPU, in {c.precision}"
    lines = [
        f"{words.plain(c.model)}{words.at(c.sizes)}: {words.count(c.nodes, 'node')} as {kernels},"
        f" called {words.count(c.calls, 'time')}; compiled in {c.seconds:.1f} s for {threads}",
        f"  {words.size(c.constants)} of constants, {words.size(c.memory)} of memory",
    ]
    if c.foreign:
        lines += _foreign(c)
    return joined([*lines, *_notes(c)])


def _notes(c: Compilation) -> list[str]:
    return [f"  note: {words.plain(note)}" for note in c.notes]


def _foreign(c: Compilation) -> list[str]:
    cells = ((words.plain(f.node), words.plain(f.why)) for f in c.foreign)
    rows = table(cells, shown=len(c.foreign))
    head = f"  in onnxruntime run {words.count(len(c.foreign), 'node')}:"
    return [head, *(f"    {line}" for line in rows)]


def fallen(c: Compilation) -> str:
    """What `superopt explain MODEL` says."""
    nodes = words.count(c.nodes, "node")
    if not c.foreign:
        head = f"{words.plain(c.model)}: all of its {nodes} run as kernels when it is compiled"
        return joined([head, *_notes(c)])
    head = f"{words.plain(c.model)}: {nodes}; when it is compiled"
    return joined([head, *_foreign(c), *_notes(c)])


def tuned(t: Tuned) -> str:
    """What `superopt tune` says: the kernels, those first that take longest."""
    measured, options = sum(k.measured for k in t.kernels), sum(k.options for k in t.kernels)
    lines = [
        f"{words.count(len(t.kernels), 'kernel')} tuned in {t.seconds:.0f} s: {measured} of "
        f"{options} options measured; {1e3 * t.before:.3g} ms by default, {1e3 * t.after:.3g} ms "
        "now, each kernel by itself"
    ]
    if not t.kernels:
        lines = [f"no kernel was measured in {t.seconds:.0f} s"]
    if t.rewrites:
        changed = words.count(t.rewrites, "rewrite")
        lines.insert(0, f"{changed} of the graph, which is {t.faster:.2f} times as fast by these")
    cells = [("result", "calls", "default", "now", "chosen")]
    for k in sorted(t.kernels, key=lambda k: -k.calls * k.before):
        now = "" if k.chosen == k.default else f"{1e6 * k.after:.1f} us"
        option = "the default" if k.chosen == k.default else k.chosen
        cells.append((k.result, str(k.calls), f"{1e6 * k.before:.1f} us", now, option))
    lines += [f"note: {words.plain(note)}" for note in t.notes]
    rows = table(cells, shown=len(cells)) if t.kernels else []
    return joined([*lines, *(f"  {line}" for line in rows)])


def exported(e: Exported) -> str:
    """What `superopt export` says."""
    threads = words.count(e.threads, "thread")
    lines = [
        f"{words.plain(e.model)}: {e.name}_run in C, on {threads}, for processors that have what "
        "this one has"
    ]
    lines += table([(words.plain(f), words.size(n)) for f, n in e.files])
    rows = [
        (f"{what}[{n}]", words.plain(p.name), p.type)
        for what, ports in (("inputs", e.inputs), ("outputs", e.outputs))
        for n, p in enumerate(ports)
    ]
    return joined([*lines, *table(rows, shown=len(rows))])


def outputs(values: Sequence[OutputValue]) -> str:
    """What `superopt run` says."""
    cells = (
        (words.plain(v.name), v.type, "" if v.least is None else f"{v.least:g} to {v.most:g}")
        for v in values
    )
    return joined(table(cells, shown=len(values)))
