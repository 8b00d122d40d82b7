"""`compile`: a model as machine code, and calls of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from superopt import ort
from superopt.cost import tuned
from superopt.cost.store import Store, default_folder
from superopt.errors import ModelError, UsageError
from superopt.ir import graph as g
from superopt.ir.evaluate import bound_sizes
from superopt.kernels.cpu import Machine, host
from superopt.kernels.option import Option
from superopt.onnx_io.extract import extracted
from superopt.onnx_io.importer import import_model
from superopt.onnx_io.model import Model
from superopt.onnx_io.source import Source
from superopt.onnx_io.validate import validate
from superopt.pipeline import export, forks
from superopt.pipeline.arrays import as_array
from superopt.pipeline.profile import profile
from superopt.pipeline.saved import Saved, write
from superopt.pipeline.sized import sized
from superopt.pipeline.steps import Arrays, Foreign, Native
from superopt.pipeline.tune import Progress, tune
from superopt.plan.build import program
from superopt.plan.execute import code
from superopt.plan.segments import Segment, fallen, graph_of, segments, why_not
from superopt.plan.simplify import simplified
from superopt.report.compiled import Exported, Tuned
from superopt.report.profile import Profile
from superopt.te import index as ix
from superopt.te.domain import Reals
from superopt.te.dtype import to_numpy
from superopt.te.expr import TensorType
from superopt.te.node import Size

TILES = "E2"  # the class of floats of convolutions in tiles: products are distributed over sums


def objects_folder() -> Path:
    """Where object files are kept."""
    return default_folder() / "objects"


@dataclass(slots=True, weakref_slot=True, eq=False)
class Executable:
    """A model that was compiled. For other sizes of its inputs it is compiled again, once each.

    outputs: names; ports: inputs, with their element types and ranks. chosen: how problems are
    computed that were tuned, by their keys. packed: constants of programs
    that are known, by the programs' identities. float_class: how much floats may change. without:
    nodes that turned out to have no kernel, and why. fixed: what `at` gives, by sizes. Calls from
    several threads wait for each other.
    """

    model: Model
    threads: int
    machine: Machine
    folder: Path | None
    outputs: tuple[str, ...]
    ports: tuple[tuple[g.Input, np.dtype | None, int | None], ...]
    chosen: Mapping[str, Option] = field(default_factory=dict)
    packed: Mapping[str, np.ndarray] = field(default_factory=dict)
    float_class: str = "E2"
    variants: dict[tuple[tuple[str, int], ...], list[Native | Foreign]] = field(
        default_factory=dict
    )
    without: dict[g.Node, str] = field(default_factory=dict)
    fixed: dict[tuple[tuple[str, int], ...], Executable] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        forks.known.add(self)

    def __call__(self, **feeds: Any) -> dict[str, np.ndarray]:
        """The outputs by name, in the model's order; inputs are given by their names."""
        return self.run(feeds)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The outputs by name, in the model's order."""
        given = self.given(feeds)
        sizes = self.sizes(given)
        if sizes and (other := self.at(sizes)) is not self:
            return other.run(feeds)
        with self.lock:
            env: Arrays = {v: array for v, array in given.items()}  # noqa: C416
            for step in self.variant(sizes):
                step.run(env)
            out = {}
            for name, v in zip(self.outputs, self.model.graph.outputs, strict=True):
                out[name] = env[v] if v in env else np.array(_constant(v))
                if isinstance(v, g.Input):
                    out[name] = np.array(out[name])
            return out

    def profile(self, feeds: Mapping[str, Any] | None = None, *, seconds: float = 2.0) -> Profile:
        """How long each kernel takes, and how long it must take at least on this machine.

        feeds: inputs by name; else they are drawn. seconds: how long the model is run. `print` it
        for a table; its `svg()` is a picture.
        """
        return profile(self, feeds, seconds=seconds)

    def save(self, path: str | Path) -> None:
        """Write the compiled model to a file, for `superopt.load`.

        It holds the model, how each kernel is computed, and constants as kernels read them, for
        the sizes that were compiled so far; no machine code. Raises UsageError where it cannot be
        written.
        """
        programs = [
            step.code for steps in self.variants.values() for step in steps
            if isinstance(step, Native)
        ]  # fmt: skip
        held = Saved(
            self.model.source,
            self.threads,
            self.machine.width,
            self.float_class,
            {key: o for c in programs for key, o in c.program.options.items()},
            tuple(dict(key) for key in self.variants),
            {c.program.identity(): c.constants for c in programs},
        )
        write(held, Path(path))

    def export(self, path: str | Path, *, shapes: Mapping[str, int] | None = None) -> Exported:
        """Write the model as a shared object that C can call, with its header and weights.

            exe.export("out/resnet")  # out/libresnet.so, out/resnet.h, out/resnet.weights

        path: a folder, for files named as the model is, or the files' name. shapes: symbolic sizes,
        where not exactly one set of them was compiled. The code is for Linux on x86-64, and for
        processors that have what this one has.

        Raises UsageError where parts run in onnxruntime, where there is no C compiler, and where
        a file cannot be written.
        """
        with self.lock:
            return export.export(self, Path(path), shapes or {})

    def sizes(self, given: Mapping[g.Input, np.ndarray]) -> dict[str, int]:
        """The symbolic sizes; raises UsageError where shapes do not fit."""
        if all(i.type.shape == a.shape for i, a in given.items() if i.type.dtype is not None):
            return {}
        try:
            return bound_sizes(given, Reals())
        except ValueError as e:
            raise UsageError("the inputs do not fit", str(e), "give other shapes") from None

    def given(self, feeds: Mapping[str, Any]) -> dict[g.Input, np.ndarray]:
        """The inputs' arrays; raises UsageError where they are not as the model says."""
        out = {}
        for i, dtype, rank in self.ports:
            array = feeds.get(i.name, self)
            if (
                type(array) is np.ndarray and array.dtype == dtype and array.ndim == rank
                and array.flags.c_contiguous
            ):  # fmt: skip
                out[i] = array
            elif array is not self:
                out[i] = as_array(i.name, i.type, array)
            elif i in self.model.overridable:
                default = self.model.overridable[i].const_value
                assert default is not None
                out[i] = default.numpy()
            else:
                self.known(feeds)
                raise UsageError(
                    f"no value for input {i.name!r}",
                    f"values were given for {', '.join(map(repr, feeds)) or 'none'}",
                    f"give an array: {i.type}",
                )
        if len(feeds) > len(out) or not all(i.name in feeds for i in out):
            self.known(feeds)
        return out

    def known(self, feeds: Mapping[str, Any]) -> None:
        """Raises UsageError for a name that is no input's."""
        names = [i.name for i in self.model.graph.inputs]
        for name in feeds:
            if name not in names:
                raise UsageError(
                    f"no input {name!r}", f"there are {', '.join(names) or 'none'}", "leave it out"
                )

    def at(self, sizes: Mapping[str, int]) -> Executable:
        """The model itself; or, where these sizes leave shapes unknown, as those that are computed
        by Concat and Reshape may be, the one in which the inputs have these sizes."""
        key = tuple(sorted(sizes.items()))
        found = self.fixed.get(key)
        if found is None:
            with self.lock:
                found = self.fixed[key] = self._at(sizes) or self
                if found is not self:
                    self.variants[key] = found.variant({})
        return found

    def _at(self, sizes: Mapping[str, int]) -> Executable | None:
        model = sized(self.model, sizes) if sizes and fallen(self.split(sizes)) else None
        if model is None:
            return None
        return _executable(
            model, self.threads, self.machine, self.folder, self.outputs, self.chosen,
            self.packed, self.float_class,
        )  # fmt: skip

    def variant(self, sizes: Mapping[str, int]) -> list[Native | Foreign]:
        """The steps for inputs of these sizes."""
        key = tuple(sorted(sizes.items()))
        if key not in self.variants and self.at(sizes) is self:
            self.variants[key] = self.compiled(sizes)
        return self.variants[key]

    def compiled(self, sizes: Mapping[str, int]) -> list[Native | Foreign]:
        while True:
            out: list[Native | Foreign] = []
            for s in self.split(sizes):
                try:
                    out.append(self.native(s, sizes) if s.native else self.foreign(s))
                except NotImplementedError as e:
                    self.without |= self.blamed(s, sizes) or dict.fromkeys(s.nodes, str(e))
                    break
            else:
                return out

    def native(self, s: Segment, sizes: Mapping[str, int]) -> Native:
        graph = simplified(graph_of(s), self.float_class)
        tiles = self.float_class >= TILES
        made = program(graph, sizes, self.machine.width, self.chosen, tiles)
        shapes = tuple(_shape(v.type, sizes) for v in s.outputs)
        constants = self.packed.get(made.identity()) if self.packed else None
        try:
            ready = code(made, self.machine, self.threads, self.folder, constants)
        except MemoryError:
            needs = made.constant_bytes + made.memory + self.threads * made.workspace
            at = ", ".join(f"{k}={n}" for k, n in sizes.items())
            raise ModelError(
                f"{self.model.source.label}: out of memory{' at ' * bool(at)}{at}",
                f"its kernels need {needs} bytes",
                "give smaller inputs, or the process more memory",
            ) from None
        return Native(s, ready, shapes)

    def blamed(self, s: Segment, sizes: Mapping[str, int]) -> dict[g.Node, str]:
        """The nodes of a segment that no kernel computes, each with why."""
        out = {}
        for n in s.nodes:
            inputs = tuple(v for v in n.inputs if v is not None and not isinstance(v, g.Constant))
            alone = Segment((n,), True, tuple(dict.fromkeys(inputs)), g.results(n))
            try:
                program(graph_of(alone), sizes, self.machine.width)
            except NotImplementedError as e:
                out[n] = str(e)
        return out

    def tune(
        self,
        sizes: Mapping[str, int],
        budget: float,
        store: Store,
        progress: Progress = lambda event: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> Tuned:
        """Find faster ways to compute the kernels for inputs of these sizes, and take them.

        budget: seconds.
        """
        programs = [s.code.program for s in self.variant(sizes) if isinstance(s, Native)]
        parts, end = [], time.monotonic() + budget
        for n, p in enumerate(programs):
            share = max(end - time.monotonic(), 0.0) / (len(programs) - n)
            parts.append(tune(p, self.machine, self.threads, store, share, progress, stop))
        self.chosen = tuned.chosen(store, self.threads)
        self.variants.clear()
        self.fixed.clear()
        self.variant(sizes)
        kernels = tuple(k for part in parts for k in part.kernels)
        return Tuned(kernels, sum(part.seconds for part in parts))

    def split(self, sizes: Mapping[str, int]) -> list[Segment]:
        return segments(self.model.graph, lambda n: not self.why_not(n, sizes))

    def why_not(self, n: g.Node, sizes: Mapping[str, int]) -> str:
        """Why a node runs in onnxruntime; empty where it does not."""
        return self.without.get(n) or why_not(n, sizes)

    def foreign(self, s: Segment) -> Foreign:
        if ort.available() is None:
            what = ", ".join(dict.fromkeys(n.op.name for n in s.nodes))
            raise ModelError(
                f"{self.model.source.label}: {what} run only in onnxruntime",
                "it is not installed",
                'pip install "superopt[ort]"',
            )
        names = self.model.names
        outputs = tuple(names[v] for v in s.outputs)
        given = {names[v]: v for v in s.inputs}
        part, wanted = extracted(self.model, {n: v.type for n, v in given.items()}, outputs)
        own = {i.name: i for i in self.model.graph.inputs}
        session = ort.session(part, self.threads)
        return Foreign(s, session, {n: given.get(n) or own[n] for n in wanted}, outputs)

    def fallen(self, sizes: Mapping[str, int]) -> list[tuple[g.Node, str]]:
        """The nodes that run in onnxruntime, and why."""
        other = self.at(sizes)
        if other is not self:
            return other.fallen({})
        return [(n, self.why_not(n, sizes)) for n in fallen(self.split(sizes))]


def compile(
    source: Source,
    *,
    threads: int = 1,
    machine: Machine | None = None,
    store: Path | None = None,
    float_class: str = "E2",
) -> Executable:
    """The model, to be compiled when the sizes of its inputs are known; at once, where they are.

    store: where it is written how kernels were tuned, if not in the user's cache.

    Raises ModelError for an invalid model.
    """
    with Store.open(store) as held:
        chosen = tuned.chosen(held, threads)
    out = executable(source, threads, machine or host(), chosen, {}, float_class)
    if not any(isinstance(d, Size) for i in out.model.graph.inputs for d in i.type.shape or ()):
        out.variant({})
    return out


def loaded(s: Saved, threads: int | None = None, machine: Machine | None = None) -> Executable:
    """The compiled model; for vectors of another width kernels and constants are made again."""
    machine = machine or host()
    same = s.width == machine.width
    options, constants = (s.options, s.constants) if same else ({}, {})
    out = executable(s.source, threads or s.threads, machine, options, constants, s.float_class)
    for sizes in s.sizes:
        out.variant(sizes)
    return out


def executable(
    source: Source,
    threads: int,
    machine: Machine,
    chosen: Mapping[str, Option],
    packed: Mapping[str, np.ndarray],
    float_class: str,
) -> Executable:
    """The model, nothing of which is compiled yet. Raises ModelError for an invalid model."""
    validate(source)
    model = import_model(source)
    names = tuple(v.name or "" for v in source.model.graph.outputs)
    return _executable(
        model, threads, machine, objects_folder(), names, chosen, packed, float_class
    )


def _executable(
    model: Model,
    threads: int,
    machine: Machine,
    folder: Path | None,
    outputs: tuple[str, ...],
    chosen: Mapping[str, Option],
    packed: Mapping[str, np.ndarray],
    float_class: str,
) -> Executable:
    ports = tuple((i, *_port(i.type)) for i in model.graph.inputs)
    return Executable(model, threads, machine, folder, outputs, ports, chosen, packed, float_class)


def _port(t: TensorType) -> tuple[np.dtype | None, int | None]:
    """An input's element type and rank; None for what only `as_array` can tell."""
    dtype = None if t.dtype is None else np.dtype(to_numpy(t.dtype))
    return dtype, None if t.shape is None else len(t.shape)


def _constant(v: g.Value) -> np.ndarray:
    assert isinstance(v, g.Constant)
    return v.load()


def _shape(t: TensorType, sizes: Mapping[str, int]) -> tuple[int, ...]:
    assert t.shape is not None
    return tuple(ix.evaluate(d, dict(sizes)) for d in t.shape)
