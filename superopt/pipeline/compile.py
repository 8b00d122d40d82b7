"""The CPU compiler: a model as machine code."""

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
    """A model and how it is compiled.

    tuned_options: of problems, by key. packed_constants: of programs, by identity.
    fallback_reasons: nodes without a kernel, and why. sized_compilers: results of `compiler_for`.
    session: runs a model that superopt does not read (`readable_model`). prefer_kernels: use
    kernels even if ONNX Runtime is faster. simplified_segments: see `plan_segment_program`.
    given_model: the model for ONNX Runtime. if_depth: dynamic Ifs above. is_sized: sizes are
    static. units: see `segments`. dynamic_if_cache: empty, or the result of `dynamic_if`.
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
        """Return this compiler; or, if these sizes leave shapes unknown or the model has rewrites
        for static sizes, that of the model with these sizes."""
        key = tuple(sorted(sizes.items()))
        if key not in self.fixed:
            more = sizes or plainer(self.model)
            none = 0 in sizes.values()  # tensor expressions require sizes >= 1
            open_ = not self.all_fall_back and more and (none or fallback_nodes(self.split(sizes)))
            model = sized(self.model, sizes) if open_ else None
            own = {} if model is None or self.own else without_kernels(model)
            how: Any = {"model": model, "without": own, "fixed": {}, "is_sized": True}
            self.fixed[key] = self if model is None else replace(self, **how)
        return self.fixed[key]

    @property
    def all_fall_back(self) -> bool:
        """True if all nodes run in ONNX Runtime, at any sizes."""
        return all(n in self.without for n in ir_graph.nodes(self.model.graph))

    def executable(self) -> Executable:
        """Return the executable; nothing is compiled yet."""
        about = self.ports(), self.names(), self.threads
        return Executable(*about, lambda: self.machine, lambda: self)

    def ports(self) -> tuple[Port, ...]:
        return tuple(port(i, i in self.model.input_defaults) for i in self.model.graph.inputs)

    def run(self, steps: Steps, arrays: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs by name, in the model's order, for the inputs in order."""
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
        """Return one function that runs all steps, if there is one."""
        parts = [s for s in steps if isinstance(s, Native | Foreign)]
        named = dict(zip(self.names(), self.model.graph.outputs, strict=True))
        return in_turn(parts, self.model.graph.inputs, named) if len(parts) == len(steps) else None

    def names(self) -> tuple[str, ...]:
        """Return the names of the outputs."""
        return tuple(v.name or "" for v in self.model.source.model.graph.outputs)

    def default(self, name: str) -> np.ndarray:
        """Return the model's default value of an input."""
        (found,) = (v for i, v in self.model.input_defaults.items() if i.name == name)
        assert found.const_value is not None
        return found.const_value.numpy()

    def sizes(self, arrays: Sequence[np.ndarray]) -> dict[str, int]:
        """Return the symbolic sizes. Raises UsageError if shapes do not fit."""
        return given_sizes(self.model.graph, arrays)

    def compiled(self, sizes: Mapping[str, int], *, sessions: bool = True) -> Steps:
        """Return the steps for these sizes. open_sessions: open the sessions in ONNX Runtime."""
        self.model.source.check_unchanged()
        if (other := self.at(sizes)) is not self:
            try:
                return other.compiled({}, sessions=sessions)
            except ModelError:  # ONNX Runtime rejects some nodes that a folded If exposes
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
        """Return the only segment, and its program planned again with these options."""
        if (other := self.at(sizes)) is not self:
            return other.planned({}, options)
        (s,) = self.split(sizes)
        own = {key: Option.parse(text) for key, text in options.items()}
        return s, replace(self, chosen=own).program(s, sizes)

    def image(self, made: Native) -> ProgramImage:
        """Return the code and sizes of a compiled segment."""
        return build_image(made.code.program, self.machine, self.threads, self.folder)

    def tune(
        self,
        steps: Steps,
        budget: float,
        store: Store,
        progress: Progress,
        stop: Callable[[], bool],
    ) -> Tuned:
        """Find faster options for the kernels of these steps, and use them from now on."""
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
        # these nodes may have kernels that are slower than ONNX Runtime
        if any(map(self.fallen, (*known, shapes))):
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
        """Return why a node runs in ONNX Runtime; empty if it runs as a kernel."""
        why = self.without.get(n) or unsupported_reason(n, sizes)
        if why or self.own or has_scatter_kernel(n) or not (slow := slow_reason(n, sizes)):
            return why
        return slow if ort.available() is not None else ""

    def foreign(self, s: Segment, sizes: Mapping[str, int]) -> Foreign | Fallback:
        whole = len(s.nodes) == len(ir_graph.nodes(self.model.graph))
        if whole and (self.session is not None or not self.is_sized):
            return self.fallback()
        # Also for a whole model: ONNX Runtime rejects unfit sizes when it sees them.
        part = foreign(self.model, s, self.threads, sizes, self.original)
        return self.fallback() if whole else part

    def branch(self) -> Branch | None:
        """Return the programs at the first If with a dynamic condition; None if there is none."""
        if not self.branches:
            self.branches.append(branch(self))
        return self.branches[0]

    def part(self, source: Source, original: Source) -> Compiler:
        """Return the compiler of a part of the model at an If, with the options of this one."""
        how = self.threads, self.machine, self.chosen, self.packed, self.allowed
        return replace(_compiler(Readable(source, original), *how), depth=self.depth + 1)

    def fallback(self) -> Fallback:
        """Return the whole model, as given, in ONNX Runtime."""
        graph = self.model.graph
        checked_available(self.model, ir_graph.nodes(graph))
        with fitting_shapes(self.model):
            read = self.session if self.original.mode == DEFAULT else None
            session = read or self.original.session()
        return Fallback(session, tuple(i.name for i in graph.inputs), self.names(), lambda: graph)

    def forkable(self) -> AbstractContextManager[object]:
        """Return a lock; a process forked while it is held can compile."""
        return llvm_lock()

    def outside(self, e: Unlike) -> None:
        """Run the whole model in ONNX Runtime from now on."""
        self.without |= whole(self.model.graph, e)

    def elsewhere(self) -> Steps | None:
        """Return the whole model in ONNX Runtime, for any sizes; None if it is not installed."""
        return [self.fallback()] if ort.available() else None

    def fallen(self, sizes: Mapping[str, int], why: str = "") -> list[tuple[ir_graph.Node, str]]:
        """Return the nodes that run in ONNX Runtime, each with the reason. common_reason: if it is
        the same for all nodes."""
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
    """Return the executable of a model; it is compiled once the sizes of its inputs are known.

    store: the file of measurements, if not in the user's cache. is_valid: superopt made the model;
    skip the checks.

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
    """Return the compiler of a model with its tuned options. rewrite: applies a stored rewrite log
    (`graph_rewrites`). Raises ModelError for an invalid model."""
    try:
        require_address_space(0, source.size_bytes)  # its weights are copied at least once
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
    """Return the executable of a saved model. For other vectors kernels are compiled again."""
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
