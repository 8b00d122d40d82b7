"""The programs of a library: one for fixed sizes, or one for each of several classes of sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from superopt.compilation.cpu.library.class_examples import more_examples
from superopt.compilation.cpu.library.shared_objects import shared_objects
from superopt.compilation.cpu.native_segment import NativeSegment
from superopt.compilation.frontend.decode_sizes import decode_sizes, prefill_sizes
from superopt.compilation.frontend.static_sizes import with_given_sizes
from superopt.compilation.model.classes.class_program import (
    plan_class_program,
    with_planned_sizes,
)
from superopt.compilation.model.classes.class_steps import (
    compile_if_supported,
    unsupported_reasons,
)
from superopt.compilation.model.classes.related_class import related_formulas
from superopt.compilation.model.compile_class import (
    class_candidates,
    class_compiler,
)
from superopt.compilation.model.control_flow.dynamic_if import ControlFlow
from superopt.compilation.runtime import background_worker
from superopt.errors import SuperoptError, UsageError
from superopt.ir import graph
from superopt.kernels.runtime.cpu import Machine
from superopt.kernels.runtime.engine import can_link
from superopt.loading.representative_sizes import DEFAULT_SIZE, representative_sizes
from superopt.onnx_io.import_.model import Model
from superopt.onnx_io.import_.size_relation import SizeRelation, consistent_sizes
from superopt.plan.graph.partition import NO_KERNEL_ERRORS, Segment
from superopt.plan.program.constant_pool import PackedConstants
from superopt.plan.program.execute import pack_program_constants, used_threads
from superopt.plan.program.program import Program
from superopt.plan.program.size_formulas import SizeFormulas

if TYPE_CHECKING:
    from superopt.compilation.model.compiler import Compiler
    from superopt.compilation.model.executable import Executable

SMALL_SIZES = (DEFAULT_SIZE, 2)  # where a model does not run at representative ones
MAX_CLASS_COMPILES = 32  # of a library, after the first


@dataclass(frozen=True, slots=True)
class LibraryProgram:
    """A program for all sizes that its formulas admit. model: whose outputs it computes, in the new
    sizes of `relation`. objects: object files by name."""

    model: Model
    relation: SizeRelation
    segment: Segment
    program: Program
    formulas: SizeFormulas
    constants: PackedConstants
    threads: int
    objects: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class LibraryCode:
    """A model's programs; none if it computes nothing. given_sizes: of the library. sizes: those
    that are symbolic in `model`."""

    model: Model
    programs: tuple[LibraryProgram, ...]
    given_sizes: Mapping[str, int]
    sizes: Mapping[str, int]

    def objects(self) -> dict[str, bytes]:
        """Return the object files of all programs by name."""
        return {name: data for p in self.programs for name, data in p.objects.items()}


@dataclass(frozen=True, slots=True)
class ObjectBuilder:
    """Compiles programs for a processor. folder: the cache of object files."""

    machine: Machine
    threads: int
    folder: Path | None

    def objects(self, program: Program, others: Sequence[LibraryProgram]) -> dict[str, bytes]:
        """Return the object files of a program by name. others: the programs before it."""
        known = {name: data for p in others for name, data in p.objects.items()}
        threads = self.threads_of(program)
        return shared_objects(program, self.machine, threads, self.folder, len(others), known)

    def threads_of(self, program: Program) -> int:
        """Return 1 if no kernel of a program has several chunks; else the number of threads."""
        return used_threads(program, self.threads)


def compile_library(
    exe: Executable,
    shapes: Mapping[str, int],
    build: ObjectBuilder,
    called: Sequence[Mapping[str, int]],
) -> LibraryCode:
    """Return the programs for these symbolic sizes, and for all values of those that are missing.
    called: sizes of calls before.

    Raises UsageError if nodes run in ONNX Runtime, and if a size must be given.
    """
    model = exe.compiler.model
    found = representative_sizes(model, shapes)
    missing = {
        theirs: our
        for theirs, our in model.symbols.items()
        if our in model.size_bindings and not {theirs, our} & shapes.keys()
    }
    sizes = {name: n for name, n in found.items() if name in model.size_bindings}
    if not missing:
        return _compile_at_sizes(exe, sizes, build)
    given = {name: n for name, n in sizes.items() if name not in missing.values()}
    if exe.shape_policy.specialize != "eager":
        made = _compile_at_all_sizes(exe, given, build, called)
        if made is not None:
            return made
    if not given and len(called) == 1:
        return _compile_at_sizes(exe, called[0], build)
    first, *_ = names = sorted(missing)
    raise UsageError(
        f"{model.source.label}: no value for {', '.join(names)}",
        "a shared object has one value for each symbolic size",
        f"give it: --shape {first}=1, or shapes={{{first!r}: 1}}",
    )


def _compile_at_sizes(
    exe: Executable, sizes: Mapping[str, int], build: ObjectBuilder
) -> LibraryCode:
    """Return the program for these sizes alone."""
    if not can_link(build.machine):
        return _plan_at_sizes(exe.compiler, sizes, build)
    if exe.compiler.fallback_nodes(sizes):
        # these nodes may have kernels that are slower than ONNX Runtime
        exe = exe.compiler.with_kernels_only().executable()
        exe.variant(sizes)
    key = sizes
    if (other := exe.executable_for(sizes)) is not exe:
        exe, key = other, {}
    native = _native_segment(exe, key)
    model = exe.compiler.model
    if native is None:
        return LibraryCode(model, (), sizes, sizes)
    p, constants = native.program, native.code.constants
    made = _library_program(model, sizes, native.segment, p, constants, build)
    return LibraryCode(model, (made,), sizes, sizes)


def _plan_at_sizes(
    compiler: Compiler, sizes: Mapping[str, int], build: ObjectBuilder
) -> LibraryCode:
    """Return the program for these sizes, which this processor need not be able to run."""
    own, key = compiler.with_kernels_only(), sizes
    if (other := own.compiler_for(sizes)) is not own:
        own, key = other, {}
    model = own.model
    if own.control_flow() is not None:
        raise _control_flow_error(model.source.label)
    _require_kernels(model, own.fallback_nodes(key))
    parts = own.partition(key)
    if not parts:
        return LibraryCode(model, (), sizes, sizes)
    (segment,) = parts
    try:
        program = own.plan_segment(segment, key)
    except NO_KERNEL_ERRORS as e:
        _require_kernels(model, unsupported_reasons(own, segment, key, e).items())
        raise
    constants = pack_program_constants(program, model.source.release_pages)
    made = _library_program(model, sizes, segment, program, constants, build)
    return LibraryCode(model, (made,), sizes, sizes)


def _library_program(
    model: Model,
    sizes: Mapping[str, int],
    segment: Segment,
    p: Program,
    constants: PackedConstants,
    build: ObjectBuilder,
) -> LibraryProgram:
    """Return a program for these sizes alone."""
    formulas = SizeFormulas((), (), (), str(p.memory_bytes), str(p.workspace_bytes), ())
    objects, threads = build.objects(p, ()), build.threads_of(p)
    as_is = SizeRelation.of_sizes(sizes)
    return LibraryProgram(model, as_is, segment, p, formulas, constants, threads, objects)


def _native_segment(exe: Executable, sizes: Mapping[str, int]) -> NativeSegment | None:
    """Return the compiled segment; None if the model computes nothing."""
    label = exe.compiler.model.source.label
    steps = exe.variants.get(tuple(sorted(sizes.items())), ())
    if any(isinstance(s, ControlFlow) for s in steps):
        raise _control_flow_error(label)
    _require_kernels(exe.compiler.model, exe.fallback_nodes(sizes))
    return next((s for s in exe.variant(sizes) if isinstance(s, NativeSegment)), None)


def _control_flow_error(label: str) -> UsageError:
    return UsageError(
        f"{label} cannot be exported",
        "a library is one program, and a condition of an If is known only at run time",
        "export one model for each branch",
    )


def _require_kernels(model: Model, fallback_nodes: Iterable[tuple[graph.Node, str]]) -> None:
    """Raise UsageError if nodes run in ONNX Runtime."""
    of = model.names
    each = [
        f"{n.op.title} {of.get(graph.result(n, 0), '')}".strip() + f" ({why})"
        for n, why in fallback_nodes
    ]
    if each:
        raise UsageError(
            f"{model.source.label} cannot be exported",
            f"these nodes run in onnxruntime: {', '.join(each)}",
            "export a model without these nodes",
        )


def _compile_at_all_sizes(
    exe: Executable,
    given: Mapping[str, int],
    build: ObjectBuilder,
    called: Sequence[Mapping[str, int]],
) -> LibraryCode | None:
    """Return the programs for all values of the sizes that are not given; None if the model has
    no program for several sizes."""
    compiler = exe.compiler.with_kernels_only()
    if given:
        model = with_given_sizes(compiler.model, given)
        if model is None:
            return None
        compiler = compiler.with_model(model)
    model = compiler.model
    bases = [*_example_sizes(called, compiler)]
    _require_kernels(model, compiler.fallback_nodes(bases[-1]))
    with background_worker.compile_lock():
        programs = _compile_classes(compiler, bases, build)
    return LibraryCode(model, programs, given, {}) if programs else None


def _example_sizes(
    called: Sequence[Mapping[str, int]], compiler: Compiler
) -> Iterator[Mapping[str, int]]:
    """Yield the sizes of calls before, those of a decoder's other calls, and representative
    ones."""
    model = compiler.model
    names = sorted(model.size_bindings)
    complete = (sizes for sizes in called if {*names} <= sizes.keys())
    called = [{n: sizes[n] for n in names} for sizes in complete]
    found = _runnable_sizes(compiler)
    yield from called
    for base in (*called, found):
        yield from (*decode_sizes(model, base), *prefill_sizes(model, base))
    yield found


def _runnable_sizes(compiler: Compiler) -> Mapping[str, int]:
    """Return sizes at which all nodes have kernels: representative or smaller ones, where needed
    with equal sizes where operators need them; representative ones if there are none."""
    model = compiler.model
    found = representative_sizes(model, {})
    first = {n: found[n] for n in sorted(model.size_bindings)}
    smaller = ({name: min(n, limit) for name, n in first.items()} for limit in SMALL_SIZES)
    for sizes in (first, *smaller):
        for each in (sizes, consistent_sizes(model, sizes)):
            if each is not None and not compiler.fallback_nodes(each):
                return each
    return first


def _compile_classes(
    compiler: Compiler, bases: Sequence[Mapping[str, int]], build: ObjectBuilder
) -> tuple[LibraryProgram, ...]:
    """Return programs for classes of sizes: of the first of `bases` that has one, and of others
    that may follow from them."""
    made: list[LibraryProgram] = []

    def add_class(example: Mapping[str, int]) -> bool:
        with suppress(SuperoptError):  # the model admits no such size
            found = _compile_class(compiler, example, build, made)
            made.extend([found] if found is not None else ())
        return bool(made)

    first = next((n for n, base in enumerate(bases) if add_class(base)), len(bases))
    others = (
        example
        for example in more_examples(bases[first:], made)
        if not any(p.formulas.admits(example) for p in made)
    )
    for example in islice(others, MAX_CLASS_COMPILES if made else 0):
        add_class(example)
    return tuple(made)


def _compile_class(
    compiler: Compiler,
    example: Mapping[str, int],
    build: ObjectBuilder,
    others: Sequence[LibraryProgram],
) -> LibraryProgram | None:
    """Return the program for all sizes like these; None if it cannot be. others: the programs
    before it."""
    own = class_compiler(compiler)
    for c, relation in class_candidates(own, example):
        parts = c.partition(relation.example(example))
        if len(parts) != 1 or not parts[0].native:
            continue
        if output_sources(c.model.graph) != output_sources(compiler.model.graph):
            continue  # outputs that no kernel writes are those of the library
        make = partial(_compile_segment, c, parts[0], example, relation, build, others)
        if (made := compile_if_supported(make)) is not None:
            return made
    return None


def output_sources(g: graph.Graph) -> list[tuple[str, int]]:
    """Return what each output is: a constant, an input, another output, or computed."""
    return [
        ("constant", 0) if isinstance(v, graph.Constant)
        else ("input", g.inputs.index(v)) if isinstance(v, graph.Input)
        else ("output", g.outputs.index(v))
        for v in g.outputs
    ]  # fmt: skip


def _compile_segment(
    compiler: Compiler,
    s: Segment,
    example: Mapping[str, int],
    relation: SizeRelation,
    build: ObjectBuilder,
    others: Sequence[LibraryProgram],
) -> LibraryProgram:
    """Return the program of the model's only segment for all sizes like these."""
    made = plan_class_program(
        compiler.generator, compiler, s, relation.example(example), relation.assumed_guards(),
        with_planned_sizes(lambda p: build.objects(p, others)),
    )  # fmt: skip
    if made.program.border_bytes:
        raise NotImplementedError("its memory has zeros, which other programs overwrite")
    formulas = related_formulas(made.formulas, example, relation)
    constants = pack_program_constants(made.program, compiler.model.source.release_pages)
    threads = build.threads_of(made.program)
    return LibraryProgram(
        compiler.model, relation, s, made.program, formulas, constants, threads, made.code
    )
