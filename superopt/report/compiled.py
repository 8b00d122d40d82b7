"""Reports on compiling, tuning, running and exporting a model: data and text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from superopt.report import words
from superopt.report.table import joined, table


@dataclass(frozen=True, slots=True)
class Foreign:
    """A node of a compiled model that falls back to onnxruntime."""

    node: str
    why: str


@dataclass(frozen=True, slots=True)
class Compilation:
    """The result of `superopt compile`.

    threads: 0 for a GPU, which has `precision` instead. kernels: functions, each called once or
    more (`calls`); constants, memory: bytes at run time; sizes: of symbolic dimensions; notes:
    further facts, one sentence each.
    """

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
    """A tuned kernel: its result, calls per run, seconds with the default and the chosen option,
    the number of measured options, and of all options."""

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
    """The result of `superopt tune`.

    seconds: of the whole call. rewrites, faster: rewrites of the graph, before kernels were tuned,
    and the speedup by them. notes: such as why nothing was stored.
    """

    kernels: tuple[TunedKernel, ...]
    seconds: float
    rewrites: int = 0
    faster: float = 1.0
    notes: tuple[str, ...] = ()

    @property
    def before(self) -> float:
        """Seconds of all kernels with their default options."""
        return sum(k.calls * k.before for k in self.kernels)

    @property
    def after(self) -> float:
        return sum(k.calls * k.after for k in self.kernels)


@dataclass(frozen=True, slots=True)
class OutputValue:
    """An output of a model: its type, and its smallest and largest value (None: no numbers)."""

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
    """The result of `superopt export`.

    name: the prefix of all C names; needs: CPU features; files: the library, its header and its
    weights, with their bytes.
    """

    model: str
    name: str
    threads: int
    needs: tuple[str, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    files: tuple[tuple[str, int], ...]


def compilation(c: Compilation) -> str:
    """Return the text of `superopt compile`."""
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
    head = f"  {words.count(len(c.foreign), 'node')} in onnxruntime:"
    return [head, *(f"    {line}" for line in rows)]


def fallen(c: Compilation) -> str:
    """Return the text of `superopt explain MODEL`."""
    nodes = words.count(c.nodes, "node")
    if not c.foreign:
        head = f"{words.plain(c.model)}: compiled, all of its {nodes} run as kernels"
        return joined([head, *_notes(c)])
    head = f"{words.plain(c.model)}: {nodes}; compiled"
    return joined([head, *_foreign(c), *_notes(c)])


def tuned(t: Tuned) -> str:
    """Return the text of `superopt tune`: the kernels, slowest first."""
    measured, options = sum(k.measured for k in t.kernels), sum(k.options for k in t.kernels)
    lines = [
        f"{words.count(len(t.kernels), 'kernel')} tuned in {t.seconds:.0f} s: {measured} "
        f"of {options} options measured; kernels alone take {1e3 * t.before:.3g} ms by "
        f"default, {1e3 * t.after:.3g} ms now"
    ]
    if not t.kernels:
        lines = [f"no kernel was measured in {t.seconds:.0f} s"]
    if t.rewrites:
        changed = words.count(t.rewrites, "rewrite")
        lines.insert(0, f"{changed} of the graph, {t.faster:.2f}x faster")
    cells = [("result", "calls", "default", "now", "chosen")]
    for k in sorted(t.kernels, key=lambda k: -k.calls * k.before):
        now = "" if k.chosen == k.default else f"{1e6 * k.after:.1f} us"
        option = "the default" if k.chosen == k.default else k.chosen
        cells.append((k.result, str(k.calls), f"{1e6 * k.before:.1f} us", now, option))
    lines += [f"note: {words.plain(note)}" for note in t.notes]
    rows = table(cells, shown=len(cells)) if t.kernels else []
    return joined([*lines, *(f"  {line}" for line in rows)])


def exported(e: Exported) -> str:
    """Return the text of `superopt export`."""
    threads = words.count(e.threads, "thread")
    lines = [
        f"{words.plain(e.model)}: {e.name}_run in C, on {threads}, for processors with the "
        "features of this one"
    ]
    lines += table([(words.plain(f), words.size(n)) for f, n in e.files])
    rows = [
        (f"{what}[{n}]", words.plain(p.name), p.type)
        for what, ports in (("inputs", e.inputs), ("outputs", e.outputs))
        for n, p in enumerate(ports)
    ]
    return joined([*lines, *table(rows, shown=len(rows))])


def outputs(values: Sequence[OutputValue]) -> str:
    """Return the text of `superopt run`."""
    cells = (
        (words.plain(v.name), v.type, "" if v.least is None else f"{v.least:g} to {v.most:g}")
        for v in values
    )
    return joined(table(cells, shown=len(values)))
