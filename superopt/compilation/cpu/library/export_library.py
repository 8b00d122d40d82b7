"""Compiled models as shared objects, with a C header and a file of weights."""

from __future__ import annotations

import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from superopt import __version__
from superopt.compilation.cpu.library.derived_constants import describe_derived_constant
from superopt.compilation.cpu.library.library_code import (
    LibraryCode,
    LibraryProgram,
    ObjectBuilder,
    compile_library,
)
from superopt.compilation.cpu.library.linker import LinkerInput, find_linker, link_library
from superopt.compilation.cpu.library.weight_file import WeightFile, align_up
from superopt.compilation.frontend.value_limits import model_ports
from superopt.errors import UsageError
from superopt.ir import graph
from superopt.kernels.llvm.chunk_threads import STATE_BYTES, STOP_WORD, WAKE_WORD
from superopt.kernels.runtime.cpu import Machine, checkable_target
from superopt.kernels.runtime.feature_checks import feature_check, feature_title
from superopt.kernels.runtime.systems import System, host_system
from superopt.onnx_io.export.atomic_files import NewFile, atomic_files, resolve_target
from superopt.onnx_io.import_.model import Model
from superopt.plan.graph.partition import supports_dtype
from superopt.plan.program.formula_text import formula_text
from superopt.plan.program.pack_constants import ordered_slots
from superopt.report.compilation.c_header import header_text, model_functions
from superopt.report.compilation.c_source import source_text
from superopt.report.compilation.compile_report import ExportReport, Port
from superopt.report.compilation.exported_library import (
    BufferRef,
    DerivedConstant,
    ExportedLibrary,
    ExportedLimit,
    ExportedProgram,
)
from superopt.report.compilation.wasm_module import declarations_text, module_text
from superopt.te.expr import index
from superopt.te.expr.dtype import to_numpy
from superopt.te.expr.node import Dim, Expr, Size
from superopt.te.expr.tensor import TensorType

if TYPE_CHECKING:
    from superopt.compilation.model.executable import Executable

THREAD_POOL_LAYOUT = {"WAKE": WAKE_WORD, "STOP": STOP_WORD}
# With these prefixes a name could collide with one of POSIX, sem_open, W_OK, ..., or of
# model_interface.h.
RESERVED_PREFIXES = ("f", "mq", "r", "sem", "shm", "superopt", "w", "x")


@dataclass(frozen=True, slots=True)
class LibraryNames:
    """The names of the files, and the prefix of the symbols in them. library: the file's name, for
    a stem."""

    folder: Path
    file_stem: str
    prefix: str
    library: str = "lib{}.so"

    @property
    def files(self) -> tuple[Path, Path, Path]:
        """The library, its header and its weights."""
        library, header, weights, *_ = self.all_files(False)
        return library, header, weights

    def all_files(self, is_wasm: bool) -> list[Path]:
        """Return the library, what declares its interface, and its weights."""
        stem = self.file_stem
        texts = (f"{stem}.mjs", f"{stem}.d.mts") if is_wasm else (f"{stem}.h",)
        names = (self.library.format(stem), *texts, f"{stem}.weights")
        return [self.folder / name for name in names]


def library_names(path: Path, label: str, system: System) -> LibraryNames:
    """Return the names of the files of a library.

    path: a folder, for files named after the model; or the files' name in a folder.
    """
    within = path.is_dir()
    folder, file = (path, Path(label).stem) if within else (path.parent, path.name)
    endings = r"(?:lib)?(.+)\.so|(.+)\.(?:h|weights|dll|wasm|mjs)"
    if not within and (done := re.fullmatch(endings, file)):
        file = done[1] or done[2]
    if not folder.is_dir():
        raise UsageError(
            f"{path} cannot be written",
            f"there is no folder {folder}",
            "create it, or name another",
        )
    out = LibraryNames(folder, file, c_identifier(file), system.library)
    for each in out.all_files(system.platform == "wasm"):
        resolve_target(each)
    return out


def c_identifier(file_stem: str) -> str:
    """Return a C identifier: the file's name, with other characters replaced."""
    out = re.sub(r"[^0-9A-Za-z_]", "_", file_stem)
    if not re.match("[A-Za-z]", out):
        out = f"model_{out.lstrip('_')}"
    return f"{out}_model" if out.lower() in RESERVED_PREFIXES else out


def export_library(
    exe: Executable,
    machine: Machine,
    system: System,
    object_folder: Path | None,
    path: Path,
    shapes: Mapping[str, int],
    called: Sequence[Mapping[str, int]] = (),
    cpu: str = "",
) -> ExportReport:
    """Write the files; see `Executable.export`. object_folder: the cache of object files. called:
    sizes of calls before. cpu: the machine's name, if it has one."""
    if exe.precision != "fp32":
        raise UsageError(
            f"a shared object in {exe.precision}",
            "its code cannot ask the system for AMX's registers",
            'compile with precision="fp32" to export',
        )
    is_wasm = system.platform == "wasm"
    where = library_names(path, exe.compiler.model.source.label, system)
    linker = find_linker(system)
    target, needs = checkable_target(machine)
    threads = min(exe.device.kernel_threads, system.max_threads or exe.device.kernel_threads)
    code = compile_library(exe, shapes, ObjectBuilder(target, threads, object_folder), called)
    library, weights = _describe_library(code, where, needs, system)
    objects = [*code.objects().values()]
    header = header_text(library)
    texts = (module_text(library), declarations_text(library)) if is_wasm else (header,)
    with tempfile.TemporaryDirectory() as temporary:
        sources = header, source_text(library)
        functions = model_functions(library)
        parts = LinkerInput(sources, objects, where.prefix, functions, library.library_file)
        made = link_library(linker, system, Path(temporary), parts)
    about = (made, *(t.encode() for t in texts), library.weights_header.encode())
    names = where.all_files(is_wasm)
    with atomic_files() as new:
        *_, last = [_write(new(f), data) for f, data in zip(names, about, strict=True)]
        for part in weights.chunks():
            last.write(part.data)
    files = tuple((str(f), f.stat().st_size) for f in names)
    return ExportReport(
        library.model,
        where.prefix,
        library.threads,
        needs,
        library.inputs,
        library.outputs,
        files,
        library.symbols,
        len(code.programs) if library.symbols else 0,
        system.title,
        cpu,
        "" if system.name == host_system() else shlex.join(linker),
    )


def _write(new: NewFile, data: bytes) -> BinaryIO:
    new.file.write(data)
    return new.file


def _describe_library(
    library: LibraryCode, where: LibraryNames, needs: tuple[str, ...], system: System
) -> tuple[ExportedLibrary, WeightFile]:
    """Return the contents of the library's texts, and its weights."""
    weights = WeightFile()
    model, sizes, codes = library.model, library.sizes, library.programs
    inputs, outputs = model.graph.inputs, model.graph.outputs
    names = codes[0].formulas.names if codes else ()
    theirs = {our: name for name, our in model.symbols.items()}
    symbols = {our: theirs.get(our, our) for our in names}
    input_dims = tuple(_shape_formulas(i.type, sizes, names) for i in inputs)
    types = [_output_type(library, n) for n in range(len(outputs))]
    output_dims = tuple(_shape_formulas(t, sizes, names) for t in types)
    programs = tuple(_describe_program(p, weights, output_dims) for p in codes)
    names_of = [v.name or "" for v in model.source.model.graph.outputs]
    named = [*((i.name, i.type) for i in inputs), *zip(names_of, types, strict=True)]
    ports = tuple(_c_port(name, t, sizes, symbols) for name, t in named)
    numbers = {i.name: n for n, i in enumerate(inputs)}
    places = ((numbers[name], axis) for name, axis in map(model.size_bindings.__getitem__, names))
    defaults = {
        inputs.index(i): weights.add(v.const_value.numpy())
        for i, v in model.input_defaults.items()
        if v.const_value is not None and not ports[inputs.index(i)].is_symbolic
    }
    copies: list[tuple[int, BufferRef]] = []
    for n, v in enumerate(outputs):
        if isinstance(v, graph.Constant):
            copies.append((n, BufferRef("HELD", weights.add(v.load()))))
        elif isinstance(v, graph.Input):
            copies.append((n, BufferRef("INPUT", inputs.index(v))))
        elif outputs.index(v) != n:
            copies.append((n, BufferRef("OUTPUT", outputs.index(v))))
    made = ExportedLibrary(
        __version__,
        model.source.label,
        where.prefix,
        where.file_stem,
        where.library.format(where.file_stem),
        system.title,
        system.platform,
        {theirs.get(our, our): n for our, n in library.given_sizes.items()},
        tuple(symbols.values()),
        tuple(places),
        tuple(map(feature_title, needs)),
        tuple(feature_check(f, system.architecture) for f in needs),
        max((p.threads for p in codes), default=1),
        ports[: len(inputs)],
        ports[len(inputs) :],
        input_dims,
        output_dims,
        tuple(_value_limits(model, sizes, names)),
        defaults,
        programs,
        tuple(copies),
        weights.size,
        weights.digest(),
        weights.checksums(),
        THREAD_POOL_LAYOUT,
    )
    return made, weights


def _describe_program(
    p: LibraryProgram, weights: WeightFile, output_dims: Sequence[tuple[str, ...]]
) -> ExportedProgram:
    """Return a program. output_dims: of the outputs that it does not compute."""
    inputs, outputs = p.model.graph.inputs, p.model.graph.outputs
    given = [v for v in p.segment.inputs if isinstance(v, graph.Input)]
    arguments = [BufferRef("INPUT", inputs.index(v)) for v in given]
    arguments += [BufferRef("OUTPUT", outputs.index(v)) for v in p.segment.outputs]
    symbolic = p.program.symbolic
    assert symbolic is None or symbolic.argument == len(arguments)
    f, slots = p.formulas, ordered_slots(p.program.constants)

    def describe(n: int, packed: np.ndarray) -> DerivedConstant | None:
        return describe_derived_constant(slots[n], packed, weights)

    computed = dict(zip(p.segment.outputs, f.output_shapes, strict=False))
    return ExportedProgram(
        f.guards,
        f.memory_bytes,
        f.workspace_bytes,
        f.words,
        tuple(computed.get(v, own) for v, own in zip(outputs, output_dims, strict=True)),
        tuple(arguments),
        weights.add_constants(p.constants, describe),
        p.threads > 1,
        align_up(STATE_BYTES + 8 * len(p.program.calls)),
        f.shared,
    )


def _output_type(library: LibraryCode, n: int) -> TensorType:
    """Return the type of an output in the model's sizes; its shape may be known only where sizes
    are related."""
    own = library.model.graph.outputs[n].type
    known = library.model.size_bindings.keys() | library.sizes.keys()
    if own.shape is not None and all(index.symbols(d) <= known for d in own.shape):
        return own
    for p in sorted(library.programs, key=lambda p: -len(p.relation.values)):  # the most general
        here: dict[Expr, Expr] = {Size(name): e for name, e in p.relation.values.items()}
        shape = p.model.graph.outputs[n].type.shape
        if shape is not None:
            dims = (index.dim(index.substitute(index.as_index(d), here)) for d in shape)
            return replace(own, shape=tuple(dims))
    return own


def _shape_formulas(
    t: TensorType, sizes: Mapping[str, int], names: Sequence[str]
) -> tuple[str, ...]:
    return tuple(formula_text(_fixed_size(d, sizes), names) for d in t.shape or ())


def _value_limits(
    model: Model, sizes: Mapping[str, int], names: Sequence[str]
) -> Iterator[ExportedLimit]:
    """Yield the limits of the values of inputs, as formulas of sizes."""
    known = {name: str(n) for name, n in sizes.items()}
    known |= {name: f"s{n}" for n, name in enumerate(names)}

    def formula(text: str) -> str:
        return re.sub(r"[A-Za-z_]\w*", lambda found: known.get(found[0], found[0]), text)

    for n, port in enumerate(model_ports(model)):
        for limit in port.limits:
            axis = limit.summed_axis
            axis = -1 if axis is None else axis % len(port.shape or ())
            yield ExportedLimit(n, formula(limit.least), formula(limit.greatest), limit.what, axis)


def _fixed_size(d: Dim, sizes: Mapping[str, int]) -> Dim:
    """Return the value of a dimension at these sizes if it depends on no others."""
    return index.evaluate(d, dict(sizes)) if index.symbols(d) <= sizes.keys() else d


def _c_port(name: str, t: TensorType, sizes: Mapping[str, int], symbols: Mapping[str, str]) -> Port:
    """Return an input or output. symbols: the file's names of sizes that have no value."""
    if not supports_dtype(t.dtype) or t.dtype is None or t.shape is None:
        raise UsageError(
            f"{name} is {t}", "C has no such tensors", "remove it from the model's interface"
        )
    kind = to_numpy(t.dtype)
    env: dict[Expr, Expr] = {Size(our): Size(their) for our, their in symbols.items()}
    dims = [_fixed_size(d, sizes) for d in t.shape]
    shape = tuple(d if isinstance(d, int) else str(index.substitute(d, env)) for d in dims)
    known = [d for d in shape if isinstance(d, int)]
    size = prod(known) * kind.itemsize if len(known) == len(shape) else 0
    return Port(name, str(kind), shape, size)
