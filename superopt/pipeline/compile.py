"""`compile`: a model as machine code."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from superopt import ort
from superopt.cost import tuned
from superopt.cost.folder import objects_folder
from superopt.cost.store import Store
from superopt.errors import ModelError, Unlike
from superopt.ir import graph as ir_graph
from superopt.kernels.loops.option import Option
from superopt.kernels.runtime.cpu import Machine, host
from superopt.kernels.runtime.engine import llvm_lock
from superopt.kernels.runtime.memory_limit import require_address_space
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.import_.model import Model
from superopt.onnx_io.read.source import Source
from superopt.pipeline import export
from superopt.pipeline.accuracy import accuracy
from superopt.pipeline.allowed import ALL, Allowed
from superopt.pipeline.arrays import Port, symbolic
from superopt.pipeline.branching import branch, compile_ahead, nodes_in_onnxruntime
from superopt.pipeline.executable import Executable as Executable
from superopt.pipeline.executable import Sizes, Steps
from superopt.pipeline.foreign import (
    Original,
    checked_available,
    fitting_shapes,
    told_operators,
    units,
    unsaved,
    without_kernels,
)
from superopt.pipeline.in_turn import Direct, in_turn
from superopt.pipeline.integer_mode import DEFAULT
from superopt.pipeline.native import Native
from superopt.pipeline.native_segment import native, out_of_memory
from superopt.pipeline.outside import Readable, readable
from superopt.pipeline.ports import given_sizes, port
from superopt.pipeline.profile import profile
from superopt.pipeline.programs import Simple, program_of
from superopt.pipeline.saved import Saved, saved_from, write
from superopt.pipeline.sized import plainer, sized
from superopt.pipeline.steps import Arrays, Branch, Fallback, Foreign, foreign, natives, whole
from superopt.pipeline.tune import Progress, tune
from superopt.plan.graph.partition import (  # fmt: skip
    NO_KERNEL_ERRORS,
    Segment,
    Units,
    fallback_nodes,
    partition_by_cost,
    slow_reason,
    unsupported_reason,
)
from superopt.plan.graph.scatter_nodes import has_scatter_kernel
from superopt.plan.graph.unsupported_nodes import unsupported_nodes
from superopt.plan.program.execute import build_image
from superopt.plan.program.image import ProgramImage
from superopt.plan.program.program import Program
from superopt.report.accuracy import Accuracy
from superopt.report.compiled import Exported, Tuned
from superopt.report.profile import Profile

Rewrite = Callable[[Source, str], Source]


@dataclass(slots=True)
class Compiler:
    """A model, and how it is compiled. chosen: how problems are computed that were tuned, by their
    keys. packed: constants of programs that are known, by the programs' identities. allowed: what
    may be done. without: nodes that turned out to have no kernel, and why. fixed: what `at` gives,
    by sizes. session: runs the model, where superopt does not read it (`outside`). own: whatever
    has a kernel is to run as one, also where onnxruntime is faster. simple: as in `program_of`.
    original: what onnxruntime gets where it runs all of the model. depth: how many Ifs were decided
    before. is_sized: the model's sizes are fixed (`at`). units: see `segments`. branches: the
    programs at the first If, or None, once that is known.
    """

    model: Model
    original: Original
    threads: int
    machine: Machine
    folder: Path | None
    chosen: Mapping[str, Option] = field(default_factory=dict)
    packed: Mapping[str, np.ndarray] = field(default_factory=dict)
    allowed: Allowed = ALL
    without: dict[ir_graph.Node, str] = field(default_factory=dict)
    fixed: dict[Sizes, Compiler] = field(default_factory=dict)
    session: ort.Session | None = None
    own: bool = False
    simple: dict[object, Simple] = field(default_factory=dict)
    depth: int = 0
    is_sized: bool = False
    units: Units = field(init=False)
    branches: list[Branch | None] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.units = units(self.model)

    def at(self, sizes: Mapping[str, int]) -> Compiler:
        """The compiler itself; or, where these sizes leave shapes unknown or the model is read in
        other words at them, that of the model whose inputs have these sizes."""
        key = tuple(sorted(sizes.items()))
        if key not in self.fixed:
            more = sizes or plainer(self.model)
            none = 0 in sizes.values()  # expressions are of sizes from 1 on
            open_ = not self.all_fall_back and more and (none or fallback_nodes(self.split(sizes)))
            model = sized(self.model, sizes) if open_ else None
            own = {} if model is None or self.own else without_kernels(model)
            how: Any = {"model": model, "without": own, "fixed": {}, "is_sized": True}
            self.fixed[key] = self if model is None else replace(self, **how)
        return self.fixed[key]

    @property
    def all_fall_back(self) -> bool:
        """True if all nodes run in onnxruntime, whatever the sizes are."""
        return all(n in self.without for n in ir_graph.nodes(self.model.graph))

    def executable(self) -> Executable:
        """The model, nothing of which is compiled yet."""
        about = self.ports(), self.names(), self.threads
        return Executable(*about, lambda: self.machine, lambda: self)

    def ports(self) -> tuple[Port, ...]:
        return tuple(port(i, i in self.model.input_defaults) for i in self.model.graph.inputs)

    def run(self, steps: Steps, arrays: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs by name, in the model's order, of the inputs in order."""
        graph = self.model.graph
        env: Arrays = dict(zip(graph.inputs, arrays, strict=True))
        for step in steps:
            step.run(env)
        out = {}
        for name, v in zip(self.names(), graph.outputs, strict=True):
            out[name] = env[v] if v in env else np.array(v.load())  # type: ignore[union-attr]
            if isinstance(v, ir_graph.Input):
                out[name] = np.array(out[name])
        return out

    def direct(self, steps: Steps) -> Direct | None:
        """What runs the model as one function, where there is one."""
        parts = [s for s in steps if isinstance(s, Native | Foreign)]
        named = dict(zip(self.names(), self.model.graph.outputs, strict=True))
        return in_turn(parts, self.model.graph.inputs, named) if len(parts) == len(steps) else None

    def names(self) -> tuple[str, ...]:
        """Of the outputs."""
        return tuple(v.name or "" for v in self.model.source.model.graph.outputs)

    def default(self, name: str) -> np.ndarray:
        """The model's own value for an input."""
        (found,) = (v for i, v in self.model.input_defaults.items() if i.name == name)
        assert found.const_value is not None
        return found.const_value.numpy()

    def sizes(self, arrays: Sequence[np.ndarray]) -> dict[str, int]:
        """The symbolic sizes; raises UsageError where shapes do not fit."""
        return given_sizes(self.model.graph, arrays)

    def compiled(self, sizes: Mapping[str, int], *, sessions: bool = True) -> Steps:
        """The steps for inputs of these sizes, of the model of which `at` is. sessions: also those
        in onnxruntime; a forked process makes none."""
        self.model.source.check_unchanged()
        if (other := self.at(sizes)) is not self:
            try:
                return other.compiled({}, sessions=sessions)
            except ModelError:  # onnxruntime refuses some of what it sees no more in a branch
                if not plainer(self.model):
                    raise
                self.fixed[tuple(sorted(sizes.items()))] = self
        if self.session is None and 0 in sizes.values() and (all_ := self.elsewhere()) is not None:
            return all_
        if (branch := self.branch()) is not None:
            compile_ahead(branch, self.depth)
            return [branch]
        while True:
            out: Steps = []
            parts = self.split(sizes)
            for s in parts:
                try:
                    alone = len(parts) == 1
                    if s.native:
                        out.append(native(self, s, sizes, alone))
                    elif sessions:
                        out.append(self.foreign(s, sizes))
                except NO_KERNEL_ERRORS as e:
                    found = unsupported_nodes(s, partial(self.program, sizes=sizes))
                    self.without |= found or dict.fromkeys(s.nodes, str(e))
                    break
                except MemoryError as e:
                    raise out_of_memory(self.model.source.label, str(e)) from None
            else:
                return out

    def program(self, s: Segment, sizes: Mapping[str, int]) -> Program:
        how = self.threads, self.machine, self.chosen, self.allowed
        return program_of(s, sizes, *how, self.simple)

    def planned(
        self, sizes: Mapping[str, int], options: Mapping[str, str]
    ) -> tuple[Segment, Program]:
        """The only segment, and how its program was planned when it was compiled, with these
        options."""
        if (other := self.at(sizes)) is not self:
            return other.planned({}, options)
        (s,) = self.split(sizes)
        own = {key: Option.parse(text) for key, text in options.items()}
        return s, replace(self, chosen=own).program(s, sizes)

    def image(self, made: Native) -> ProgramImage:
        """What code and sizes a part was compiled to."""
        return build_image(made.code.program, self.machine, self.threads, self.folder)

    def tune(
        self,
        steps: Steps,
        budget: float,
        store: Store,
        progress: Progress,
        stop: Callable[[], bool],
    ) -> Tuned:
        """Find faster ways to compute the kernels of these steps, and take them from now on."""
        programs = [s.code.program for s in natives(steps)]
        parts, end = [], time.monotonic() + budget
        for n, p in enumerate(programs):
            share = max(end - time.monotonic(), 0.0) / (len(programs) - n)
            parts.append(tune(p, self.machine, self.threads, store, share, progress, stop))
        self.chosen = tuned.chosen(store, tuned.target(self.threads))
        self.fixed.clear()
        self.branches.clear()
        kernels = tuple(k for part in parts for k in part.kernels)
        return Tuned(kernels, sum(part.seconds for part in parts))

    def profile(self, exe: Executable, feeds: Mapping[str, Any] | None, seconds: float) -> Profile:
        return profile(exe, feeds, seconds=seconds)

    def accuracy(self, exe: Executable, shapes: Mapping[str, int], sets: int) -> Accuracy:
        return accuracy(exe, shapes, sets)

    def export(self, exe: Executable, path: Path, shapes: Mapping[str, int]) -> Exported:
        known = [dict(key) for key in exe.variants]
        if any(map(self.fallen, (*known, shapes))):  # it may have kernels all the same
            exe = replace(self, own=True, without={}, fixed={}).executable()
            for sizes in known:
                exe.variant(sizes)
        return export.export(exe, path, shapes)

    def save(self, exe: Executable, path: Path) -> None:
        if self.session is not None:
            raise unsaved(self.model, self.without)
        how = self.threads, self.machine.width, self.allowed
        source = self.original.source if told_operators(self.model) else self.model.source
        write(saved_from(source, *how, exe.variants), path)

    def split(self, sizes: Mapping[str, int]) -> list[Segment]:
        native = partial(self.native_node, sizes=sizes)
        return partition_by_cost(self.model.graph, native, sizes, self.units)

    def native_node(self, n: ir_graph.Node, sizes: Mapping[str, int]) -> bool:
        """True if a node runs as a kernel."""
        return not self.why_not(n, sizes)

    def why_not(self, n: ir_graph.Node, sizes: Mapping[str, int]) -> str:
        """Why a node runs in onnxruntime; empty where it does not."""
        why = self.without.get(n) or unsupported_reason(n, sizes)
        if why or self.own or has_scatter_kernel(n) or not (slow := slow_reason(n, sizes)):
            return why
        return slow if ort.available() is not None else ""

    def foreign(self, s: Segment, sizes: Mapping[str, int]) -> Foreign | Fallback:
        whole = len(s.nodes) == len(ir_graph.nodes(self.model.graph))
        if whole and (self.session is not None or not self.is_sized):
            return self.fallback()
        # Of a whole model, too: onnxruntime refuses sizes that do not fit when it sees them.
        part = foreign(self.model, s, self.threads, sizes, self.original)
        return self.fallback() if whole else part

    def branch(self) -> Branch | None:
        """The programs at the first If that is not decided; None where there is none."""
        if not self.branches:
            self.branches.append(branch(self))
        return self.branches[0]

    def part(self, source: Source, original: Source) -> Compiler:
        """A part of the model at an If, compiled as the model is."""
        how = self.threads, self.machine, self.chosen, self.packed, self.allowed
        return replace(_compiler(Readable(source, original), *how), depth=self.depth + 1)

    def fallback(self) -> Fallback:
        """All of the model in onnxruntime, as it was given."""
        graph = self.model.graph
        checked_available(self.model, ir_graph.nodes(graph))
        with fitting_shapes(self.model):
            read = self.session if self.original.mode == DEFAULT else None
            session = read or self.original.session()
        return Fallback(session, tuple(i.name for i in graph.inputs), self.names(), lambda: graph)

    def forkable(self) -> AbstractContextManager[object]:
        """While it is held a forked process can compile."""
        return llvm_lock()

    def outside(self, e: Unlike) -> None:
        """From now on all of it runs in onnxruntime."""
        self.without |= whole(self.model.graph, e)

    def elsewhere(self) -> Steps | None:
        """All of it in onnxruntime, for any sizes; None where that is not there."""
        return [self.fallback()] if ort.available() else None

    def fallen(self, sizes: Mapping[str, int], why: str = "") -> list[tuple[ir_graph.Node, str]]:
        """The nodes that run in onnxruntime, and why. why: if it is the same for all nodes."""
        return nodes_in_onnxruntime(self, sizes, why)


def compile(
    source: Source,
    *,
    threads: int = 1,
    machine: Machine | None = None,
    store: Path | None = None,
    allowed: Allowed = ALL,
    rewrite: Rewrite | None = None,
    valid: bool = False,
) -> Executable:
    """The model, to be compiled when the sizes of its inputs are known; at once, where they are.

    store: where it is written how kernels were tuned, if not in the user's cache. valid: the model
    is one that superopt made, of which nothing is asked.

    Raises ModelError for an invalid model.
    """
    made = compiler(source, threads, machine or host(), store, allowed, rewrite, valid)
    out = made.executable()
    if not symbolic(out.ports):
        out.variant({})
    return out


def compiler(
    source: Source,
    threads: int,
    machine: Machine,
    store: Path | None,
    allowed: Allowed,
    rewrite: Rewrite | None = None,
    valid: bool = False,
) -> Compiler:
    """Of the model, with what was tuned. rewrite: makes the graph that was found, by a log
    (`rewritten`). Raises ModelError for an invalid model."""
    try:
        require_address_space(0, source.size_bytes)  # some way or other its weights are copied
    except MemoryError as e:
        raise out_of_memory(source.label, str(e)) from None
    given = Readable(source, source) if valid else readable(source, threads)
    with Store.open(store) as held:
        chosen = tuned.chosen(held, tuned.target(threads))
        log = tuned.graph(held, threads, lambda: given.source.sha256)
    if log is not None and rewrite is not None and allowed.tiles:
        found = rewrite(given.source, log)
        given = given if found is given.source else replace(given, source=found, given=found)
    return _compiler(given, threads, machine, chosen, {}, allowed)


def loaded(s: Saved, threads: int | None = None, machine: Machine | None = None) -> Executable:
    """The compiled model; for vectors of another width kernels and constants are made again."""
    machine = machine or host()
    same = s.width == machine.width
    options, constants = (s.options, s.constants) if same else ({}, {})
    some = threads or s.threads
    given = readable(s.source, some)
    out = _compiler(given, some, machine, options, constants, s.allowed).executable()
    for sizes in s.sizes:
        out.variant(sizes)
    return out


def _compiler(
    given: Readable,
    threads: int,
    machine: Machine,
    chosen: Mapping[str, Option],
    packed: Mapping[str, np.ndarray],
    allowed: Allowed,
) -> Compiler:
    folder, model = objects_folder(), import_model(given.source)
    how = Original(given.given, threads), threads, machine, folder
    if given.session is None:
        return Compiler(model, *how, chosen, packed, allowed, without_kernels(model))
    said = dict.fromkeys(ir_graph.nodes(model.graph), given.why)
    return Compiler(model, *how, {}, {}, allowed, said, session=given.session)
