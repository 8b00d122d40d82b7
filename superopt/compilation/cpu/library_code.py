"""The programs of a library: one for fixed sizes, or one for each of several classes of sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from typing import TYPE_CHECKING

from superopt.compilation.cpu.native_segment import NativeSegment
from superopt.compilation.cpu.shared_objects import shared_objects
from superopt.compilation.frontend.static_sizes import with_given_sizes
from superopt.compilation.model.classes.class_program import (
    plan_class_program,
    with_planned_sizes,
)
from superopt.compilation.model.classes.class_steps import compile_if_supported
from superopt.compilation.model.compile_class import (
    class_compiler,
    level_examples,
    related_compiler,
)
from superopt.compilation.model.control_flow.dynamic_if import ControlFlow
from superopt.compilation.runtime import background_worker
from superopt.errors import SuperoptError, UsageError
from superopt.ir import graph
from superopt.kernels.runtime.cpu import Machine
from superopt.loading.representative_sizes import representative_sizes
from superopt.onnx_io.import_.model import Model
from superopt.plan.graph.partition import Segment
from superopt.plan.program.constant_pool import PackedConstants
from superopt.plan.program.execute import pack_program_constants, used_threads
from superopt.plan.program.program import Program
from superopt.plan.program.size_formulas import SizeFormulas
from superopt.te.expr.symbolic_int import SIZE_LEVELS

if TYPE_CHECKING:
    from superopt.compilation.model.compiler import Compiler
    from superopt.compilation.model.executable import Executable

LARGE_SIZES = tuple(1 << n for n in range(8, 21))
MAX_CLASS_COMPILES = 32  # of a library, after the first


@dataclass(frozen=True, slots=True)
class LibraryProgram:
    """A program for all sizes that its formulas admit. objects: object files by name."""

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
    exe: Executable, shapes: Mapping[str, int], build: ObjectBuilder
) -> LibraryCode:
    """Return the programs for these symbolic sizes, and for all values of those that are missing.

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
        made = _compile_at_all_sizes(exe, given, build)
        if made is not None:
            return made
    if not given and len(exe.variants) == 1:
        return _compile_at_sizes(exe, dict(*exe.variants), build)
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
    if exe.compiler.fallback_nodes(sizes):
        # these nodes may have kernels that are slower than ONNX Runtime
        exe = exe.compiler.with_kernels_only().executable()
        exe.variant(sizes)
    key = sizes
    if (other := exe.executable_for(sizes)) is not exe:
        exe, key = other, {}
    native = _native_segment(exe, key)
    made = []
    if native is not None:
        p = native.program
        formulas = SizeFormulas((), (), (), str(p.memory_bytes), str(p.workspace_bytes), ())
        objects, threads = build.objects(p, ()), build.threads_of(p)
        constants = native.code.constants
        made.append(LibraryProgram(native.segment, p, formulas, constants, threads, objects))
    return LibraryCode(exe.compiler.model, tuple(made), sizes, sizes)


def _native_segment(exe: Executable, sizes: Mapping[str, int]) -> NativeSegment | None:
    """Return the compiled segment; None if the model computes nothing."""
    label = exe.compiler.model.source.label
    steps = exe.variants.get(tuple(sorted(sizes.items())), ())
    if any(isinstance(s, ControlFlow) for s in steps):
        raise UsageError(
            f"{label} cannot be exported",
            "a library is one program, and a condition of an If is known only at run time",
            "export one model for each branch",
        )
    _require_kernels(exe.compiler.model, exe.fallback_nodes(sizes))
    return next((s for s in exe.variant(sizes) if isinstance(s, NativeSegment)), None)


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
    exe: Executable, given: Mapping[str, int], build: ObjectBuilder
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
    names = sorted(model.size_bindings)
    known = [*map(dict, exe.variants), representative_sizes(model, {})]
    bases = [{n: sizes[n] for n in names} for sizes in known if sizes.keys() >= {*names}]
    _require_kernels(model, compiler.fallback_nodes(bases[-1]))
    with background_worker.compile_lock():
        programs = _compile_classes(compiler, bases, build)
    return LibraryCode(model, programs, given, {}) if programs else None


def _compile_classes(
    compiler: Compiler, bases: Iterable[Mapping[str, int]], build: ObjectBuilder
) -> tuple[LibraryProgram, ...]:
    """Return programs for classes of sizes: of the first of `bases` that has one, and of others
    that may follow from them."""
    made: list[LibraryProgram] = []

    def add_class(example: Mapping[str, int]) -> bool:
        with suppress(SuperoptError):  # the model admits no such size
            found = _compile_class(compiler, example, build, made)
            made.extend([found] if found is not None else ())
        return bool(made)

    base = next((base for base in bases if add_class(base)), {})
    others = (
        example
        for example in class_examples(base)
        if not any(p.formulas.admits(example) for p in made)
    )
    for example in islice(others, MAX_CLASS_COMPILES if made else 0):
        add_class(example)
    return tuple(made)


def class_examples(base: Mapping[str, int]) -> Iterator[Mapping[str, int]]:
    """Yield these sizes, those with one of another level, with all of other levels, and with a
    large one: kernels may differ where buffers exceed a cache."""
    yield base
    yield from level_examples(base)
    for values in product(*[SIZE_LEVELS[::-1]] * len(base)):
        yield dict(zip(base, values, strict=True))
    for value in LARGE_SIZES:
        yield from ({**base, name: value} for name in base)


def _compile_class(
    compiler: Compiler,
    example: Mapping[str, int],
    build: ObjectBuilder,
    others: Sequence[LibraryProgram],
) -> LibraryProgram | None:
    """Return the program for all sizes like these; None if it cannot be. others: the programs
    before it."""
    own = class_compiler(compiler)
    if related_compiler(own, example) is not None:
        return None  # the shapes of another model may be others
    parts = own.partition(example)
    if len(parts) != 1 or not parts[0].native:
        return None
    return compile_if_supported(lambda: _compile_segment(own, parts[0], example, build, others))


def _compile_segment(
    compiler: Compiler,
    s: Segment,
    example: Mapping[str, int],
    build: ObjectBuilder,
    others: Sequence[LibraryProgram],
) -> LibraryProgram:
    """Return the program of the model's only segment for all sizes like these."""
    made = plan_class_program(
        compiler.generator, compiler, s, example, {},
        with_planned_sizes(lambda p: build.objects(p, others)),
    )  # fmt: skip
    if made.program.border_bytes:
        raise NotImplementedError("its memory has zeros, which other programs overwrite")
    constants = pack_program_constants(made.program, compiler.model.source.release_pages)
    threads = build.threads_of(made.program)
    return LibraryProgram(s, made.program, made.formulas, constants, threads, made.code)
