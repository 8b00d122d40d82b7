"""Reports on compiling, tuning, running and exporting a model: data and text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from superopt.report.compilation.quantization import (
    QuantizationSummary,
    quantization_lines,
    saturation_text,
)
from superopt.report.data.attribution import WaterfallStage
from superopt.report.formatting import phrases
from superopt.report.formatting.table import join_lines, table

SHOWN_CAUSES = 3  # of fallbacks, in the line of `superopt compile`


@dataclass(frozen=True, slots=True)
class FallbackNode:
    """A node of a compiled model that falls back to onnxruntime."""

    node: str
    why: str


@dataclass(frozen=True, slots=True)
class CompilationReport:
    """The result of `superopt compile`.

    threads: 0 for a GPU, which has `precision` instead, and for the reference target. kernels:
    functions, each called once or more (`calls`); constants, memory: bytes at run time; sizes: of
    symbolic dimensions; notes: further facts, one sentence each; quantization: None for models
    without products of quantized values.
    """

    model: str
    threads: int
    seconds: float
    nodes: int
    kernels: int
    calls: int
    constants: int
    memory: int
    foreign: tuple[FallbackNode, ...]
    precision: str = ""
    sizes: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()
    quantization: QuantizationSummary | None = None


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
class TuningReport:
    """The result of `superopt tune`.

    seconds: of the whole call. rewrites, faster: rewrites of the graph, before kernels were tuned,
    and the speedup by them. notes: such as why nothing was stored. cost_source: where that speedup
    comes from if it was not timed. waterfall: from kernels alone to the result, if the graph was
    searched.
    """

    kernels: tuple[TunedKernel, ...]
    seconds: float
    rewrites: int = 0
    faster: float = 1.0
    notes: tuple[str, ...] = ()
    cost_source: str = ""
    waterfall: tuple[WaterfallStage, ...] = ()

    @property
    def default_seconds(self) -> float:
        """Seconds of all kernels with their default options."""
        return sum(k.calls * k.before for k in self.kernels)

    @property
    def tuned_seconds(self) -> float:
        return sum(k.calls * k.after for k in self.kernels)


@dataclass(frozen=True, slots=True)
class OutputRange:
    """An output of a model: its type, smallest and largest value (None: it is not numeric)."""

    name: str
    type: str
    least: float | None
    most: float | None


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of an exported model; dtype: numpy's name. shape: a text for a dimension
    that depends on symbolic sizes; bytes: 0 if one does."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    bytes: int

    @property
    def type(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"

    @property
    def is_symbolic(self) -> bool:
        """True if a dimension depends on symbolic sizes."""
        return any(isinstance(d, str) for d in self.shape)


@dataclass(frozen=True, slots=True)
class ContextPart:
    """A group of nodes that became one EPContext node. nodes: their number."""

    name: str
    nodes: int


@dataclass(frozen=True, slots=True)
class ContextReport:
    """A model that was exported for onnxruntime. left: numbers of nodes that stay in it, and why.
    files: with their bytes; the first is the model."""

    model: str
    threads: int
    cpus: tuple[str, ...]
    parts: tuple[ContextPart, ...]
    left: tuple[tuple[int, str], ...]
    files: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class ExportReport:
    """The result of `superopt export`.

    name: the prefix of all C names; needs: CPU features; files: the library, its header and its
    weights, with their bytes; symbols: the sizes that calls pass; classes: the number of programs
    for classes of these sizes, 0 if all sizes are fixed. system: what they are for; cpu: the
    named processor; linker: the command that linked them, if that is not this system's compiler.
    """

    model: str
    name: str
    threads: int
    needs: tuple[str, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    files: tuple[tuple[str, int], ...]
    symbols: tuple[str, ...] = ()
    classes: int = 0
    system: str = ""
    cpu: str = ""
    linker: str = ""


def compilation_text(c: CompilationReport) -> str:
    """Return the text of `superopt compile`."""
    kernels = phrases.count_text(c.kernels, "kernel")
    where = f"a GPU, in {c.precision}" if c.precision else "the interpreter of kernels"
    threads = phrases.count_text(c.threads, "thread") if c.threads else where
    threads += f", in {c.precision}" if c.threads and c.precision not in ("", "fp32") else ""
    lines = [
        f"{phrases.printable(c.model)}{phrases.sizes_text(c.sizes)}:"
        f" {phrases.count_text(c.nodes, 'node')} as {kernels},"
        f" called {phrases.count_text(c.calls, 'time')};"
        f" compiled in {c.seconds:.1f} s for {threads}",
        f"  {phrases.size_text(c.constants)} of constants, {phrases.size_text(c.memory)} of memory",
    ]
    if c.foreign:
        lines.append(_fallback_causes(c))
    if c.quantization is not None and (text := saturation_text(c.quantization)):
        lines.append(f"  {text}")
    return join_lines([*lines, *_note_lines(c)])


def _fallback_causes(c: CompilationReport) -> str:
    """Return how many nodes run in onnxruntime and why, by cause, on one line."""
    by_cause = Counter(phrases.printable(f.why) for f in c.foreign)
    shown = [f"{n} since {why}" for why, n in by_cause.most_common(SHOWN_CAUSES)]
    more = len(c.foreign) - sum(n for _, n in by_cause.most_common(SHOWN_CAUSES))
    rest = [f"{more} for other causes"] if more else []
    nodes = phrases.count_text(len(c.foreign), "node")
    return f"  {nodes} in onnxruntime: {'; '.join([*shown, *rest])} (`superopt explain` lists them)"


def _note_lines(c: CompilationReport) -> list[str]:
    return [f"  note: {phrases.printable(note)}" for note in c.notes]


def _fallback_lines(c: CompilationReport) -> list[str]:
    cells = ((phrases.printable(f.node), phrases.printable(f.why)) for f in c.foreign)
    rows = table(cells, max_rows=len(c.foreign))
    head = f"  {phrases.count_text(len(c.foreign), 'node')} in onnxruntime:"
    return [head, *(f"    {line}" for line in rows)]


def fallback_text(c: CompilationReport) -> str:
    """Return the text of `superopt explain MODEL`."""
    nodes = phrases.count_text(c.nodes, "node")
    if not c.foreign:
        head = f"{phrases.printable(c.model)}: compiled, all of its {nodes} run as kernels"
        return join_lines([head, *_quantization_lines(c), *_note_lines(c)])
    head = f"{phrases.printable(c.model)}: {nodes}; fallbacks when compiled"
    return join_lines([head, *_fallback_lines(c), *_quantization_lines(c), *_note_lines(c)])


def _quantization_lines(c: CompilationReport) -> list[str]:
    return [] if c.quantization is None else [*quantization_lines(c.quantization)]


def rewrites_text(t: TuningReport) -> str:
    """Return how many rewrites a search found and what they gain; "" for none."""
    if not t.rewrites:
        return ""
    changed = phrases.count_text(t.rewrites, "rewrite")
    source = f", {phrases.printable(t.cost_source)}" if t.cost_source else ""
    return f"{changed} of the graph, {t.faster:.2f}x faster{source}"


def tuned_kernels_text(t: TuningReport) -> str:
    """Return how many kernels were tuned, and what they take alone."""
    if not t.kernels:
        return f"no kernel was measured in {t.seconds:.0f} s"
    measured, options = sum(k.measured for k in t.kernels), sum(k.options for k in t.kernels)
    return (
        f"{phrases.count_text(len(t.kernels), 'kernel')} tuned in {t.seconds:.0f} s: {measured} "
        f"of {options} options measured; kernels alone take {1e3 * t.default_seconds:.3g} ms by "
        f"default, {1e3 * t.tuned_seconds:.3g} ms now"
    )


def search_text(t: TuningReport) -> str:
    """Return what a search found: the rewrites of the graph, and the schedules of its kernels."""
    lines = [*filter(None, (rewrites_text(t), tuned_kernels_text(t)))]
    return join_lines([*lines, *(f"note: {phrases.printable(note)}" for note in t.notes)])


def tuning_text(t: TuningReport) -> str:
    """Return the text of `superopt tune`: what was found, and the kernels, slowest first."""
    cells = [("result", "calls", "default", "now", "chosen")]
    for k in sorted(t.kernels, key=lambda k: -k.calls * k.before):
        now = "" if k.chosen == k.default else f"{1e6 * k.after:.1f} us"
        option = "the default" if k.chosen == k.default else k.chosen
        cells.append((k.result, str(k.calls), f"{1e6 * k.before:.1f} us", now, option))
    rows = table(cells, max_rows=len(cells)) if t.kernels else []
    return join_lines([search_text(t).rstrip(), *(f"  {line}" for line in rows)])


def export_text(e: ExportReport) -> str:
    """Return the text of `superopt export`."""
    threads = phrases.count_text(e.threads, "thread")
    cpu = f" ({e.cpu})" if e.cpu else ", processors with the features of this one"
    how = "an ES module" if e.files[0][0].endswith(".wasm") else f"{e.name}_run in C"
    lines = [f"{phrases.printable(e.model)}: {how}, on {threads}, for {e.system}{cpu}"]
    if e.linker:
        lines.append(f"  linked by {phrases.printable(e.linker)}")
    if e.symbols:
        names = ", ".join(map(phrases.printable, e.symbols))
        classes = phrases.count_text(e.classes, "class", "classes")
        lines.append(f"  calls pass {names}: programs for {classes} of sizes")
    lines += table([(phrases.printable(f), phrases.size_text(n)) for f, n in e.files])
    rows = [
        (f"{what}[{n}]", phrases.printable(p.name), p.type)
        for what, ports in (("inputs", e.inputs), ("outputs", e.outputs))
        for n, p in enumerate(ports)
    ]
    return join_lines([*lines, *table(rows, max_rows=len(rows))])


def context_text(c: ContextReport) -> str:
    """Return the text of `superopt export --ort`."""
    nodes = phrases.count_text(sum(p.nodes for p in c.parts), "node")
    parts = phrases.count_text(len(c.parts), "library", "libraries")
    threads = phrases.count_text(c.threads, "thread")
    cpus = ", ".join(c.cpus)
    lines = [f"{phrases.printable(c.model)}: {nodes} in {parts}, on {threads}, for {cpus}"]
    lines += [
        f"  {phrases.count_text(n, 'node')} in onnxruntime: {phrases.printable(why)}"
        for n, why in c.left
    ]
    return join_lines(
        [*lines, *table([(phrases.printable(f), phrases.size_text(n)) for f, n in c.files])]
    )


def outputs_text(values: Sequence[OutputRange]) -> str:
    """Return the text of `superopt run`."""
    cells = (
        (phrases.printable(v.name), v.type, "" if v.least is None else f"{v.least:g} to {v.most:g}")
        for v in values
    )
    return join_lines(table(cells, max_rows=len(values)))
