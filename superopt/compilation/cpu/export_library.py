"""Compiled models as shared objects, with a C header and a file of weights."""

from __future__ import annotations

import platform
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from superopt import __version__
from superopt.compilation.cpu.c_compiler import find_c_compiler, link_shared_object
from superopt.compilation.cpu.native_segment import NativeSegment
from superopt.compilation.model.control_flow.dynamic_if import ControlFlow
from superopt.errors import UsageError
from superopt.ir import graph
from superopt.kernels.llvm.chunk_threads import STATE_BYTES, STOP_WORD, WAKE_WORD
from superopt.kernels.runtime.cpu import Machine, checkable_target
from superopt.loading.representative_sizes import representative_sizes
from superopt.onnx_io.export.atomic_files import NewFile, atomic_files, resolve_target
from superopt.onnx_io.import_.model import Model
from superopt.plan.graph.partition import supports_dtype
from superopt.plan.program.call_context import ALIGNMENT_BYTES
from superopt.plan.program.execute import object_files
from superopt.report.compilation.c_source import (
    BufferRef,
    ExportedLibrary,
    header_text,
    source_text,
)
from superopt.report.compilation.compile_report import ExportReport, Port
from superopt.te.expr import index
from superopt.te.expr.dtype import to_numpy

THREAD_POOL_LAYOUT = {"STATE_BYTES": STATE_BYTES, "WAKE": WAKE_WORD, "STOP": STOP_WORD}
# With these prefixes a name could collide with one of POSIX: sem_open, W_OK, ...
RESERVED_PREFIXES = ("f", "mq", "r", "sem", "shm", "w", "x")
_WORDS_PER_CHUNK = 1 << 20  # per chunk


@dataclass(frozen=True, slots=True)
class LibraryNames:
    """The names of the files, and the prefix of the symbols in them."""

    folder: Path
    file_stem: str
    prefix: str

    @property
    def files(self) -> tuple[Path, Path, Path]:
        """The library, its header and its weights."""
        names = (f"lib{self.file_stem}.so", f"{self.file_stem}.h", f"{self.file_stem}.weights")
        return tuple(self.folder / n for n in names)  # type: ignore[return-value]


def library_names(path: Path, label: str) -> LibraryNames:
    """Return the names of the files of a library.

    path: a folder, for files named after the model; or the files' name in a folder.
    """
    within = path.is_dir()
    folder, file = (path, Path(label).stem) if within else (path.parent, path.name)
    if not within and (done := re.fullmatch(r"(?:lib)?(.+)\.so|(.+)\.(?:h|weights)", file)):
        file = done[1] or done[2]
    if not folder.is_dir():
        raise UsageError(
            f"{path} cannot be written",
            f"there is no folder {folder}",
            "create it, or name another",
        )
    out = LibraryNames(folder, file, c_identifier(file))
    for each in out.files:
        resolve_target(each)
    return out


def c_identifier(file_stem: str) -> str:
    """Return a C identifier: the file's name, with other characters replaced."""
    out = re.sub(r"[^0-9A-Za-z_]", "_", file_stem)
    if not re.match("[A-Za-z]", out):
        out = f"model_{out.lstrip('_')}"
    return f"{out}_model" if out.lower() in RESERVED_PREFIXES else out


class CompiledModel(Protocol):
    """The part of `Executable` that the export needs."""

    @property
    def model(self) -> Model: ...
    @property
    def variants(self) -> Mapping[tuple[tuple[str, int], ...], Sequence[Any]]: ...
    def variant(self, sizes: Mapping[str, int]) -> Sequence[Any]: ...
    def fallback_nodes(self, sizes: Mapping[str, int]) -> list[tuple[graph.Node, str]]: ...
    def executable_for(self, sizes: Mapping[str, int]) -> CompiledModel: ...


def export_library(
    exe: CompiledModel,
    machine: Machine,
    object_folder: Path | None,
    path: Path,
    shapes: Mapping[str, int],
) -> ExportReport:
    """Write the files; see `Executable.export`. object_folder: the cache of object files."""
    here = f"{sys.platform} on {platform.machine()}"
    if here != "linux on x86_64":
        raise UsageError(
            "shared objects are unsupported here", f"this is {here}", "use Linux on x86-64"
        )
    at = _export_sizes(exe, shapes)
    if (other := exe.executable_for(at)) is not exe:
        return export_library(other, machine, object_folder, path, {})
    model = exe.model
    where, cc = library_names(path, model.source.label), find_c_compiler()
    native = _native_segment(exe, at)
    target, needs = checkable_target(machine)
    weights = _WeightFile()
    if native is not None:
        weights.add(native.code.constants.concatenate())
    library = _describe_library(model, native, at, where, needs, weights)
    program = None if native is None else native.code.program
    code = []
    if program is not None:
        code = object_files(program, target, library.threads, object_folder, shared=True)
    text = header_text(library)
    with tempfile.TemporaryDirectory() as temporary:
        texts = text, source_text(library)
        made = link_shared_object(cc, Path(temporary), texts, code, where.prefix, where.file_stem)
    about = (made, text.encode(), library.weights_header.encode())
    with atomic_files() as new:
        *_, last = [_write(new(f), data) for f, data in zip(where.files, about, strict=True)]
        for part in weights.chunks():
            last.write(part.data)
    files = tuple((str(f), f.stat().st_size) for f in where.files)
    return ExportReport(
        model.source.label,
        where.prefix,
        library.threads,
        needs,
        library.inputs,
        library.outputs,
        files,
    )


def _write(new: NewFile, data: bytes) -> BinaryIO:
    new.file.write(data)
    return new.file


def _export_sizes(exe: CompiledModel, given_sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the values of all symbolic sizes: the given ones, or the only ones that were
    compiled."""
    model = exe.model
    if not given_sizes and len(exe.variants) == 1:
        return dict(*exe.variants)
    known = {theirs: our for theirs, our in model.symbols.items() if our in model.size_bindings}
    missing = sorted(
        theirs for theirs, our in known.items() if not {theirs, our} & given_sizes.keys()
    )
    if missing:
        raise UsageError(
            f"{model.source.label}: no value for {', '.join(missing)}",
            "a shared object has one value for each symbolic size",
            f"give it: --shape {missing[0]}=1, or shapes={{{missing[0]!r}: 1}}",
        )
    found = representative_sizes(model, given_sizes)
    return {name: n for name, n in found.items() if name in model.size_bindings}


def _native_segment(exe: CompiledModel, sizes: Mapping[str, int]) -> NativeSegment | None:
    """Return the compiled segment; None if the model computes nothing. Raises UsageError if nodes
    run in ONNX Runtime."""
    steps = exe.variants.get(tuple(sorted(sizes.items())), ())
    if any(isinstance(s, ControlFlow) for s in steps):
        raise UsageError(
            f"{exe.model.source.label} cannot be exported",
            "a library is one program, and a condition of an If is known only at run time",
            "export one model for each branch",
        )
    if fallen := exe.fallback_nodes(sizes):
        of = exe.model.names
        each = (
            f"{n.op.title} {of.get(graph.result(n, 0), '')}".strip() + f" ({w})" for n, w in fallen
        )
        raise UsageError(
            f"{exe.model.source.label} cannot be exported",
            f"these nodes run in onnxruntime: {', '.join(each)}",
            "export a model without these nodes",
        )
    return next((s for s in exe.variant(sizes) if isinstance(s, NativeSegment)), None)


class _WeightFile:
    """Arrays at offsets that are multiples of 64 bytes."""

    def __init__(self) -> None:
        self.arrays: list[np.ndarray] = []
        self.size = 0

    def add(self, array: np.ndarray) -> int:
        """Add an array; return its offset."""
        at = self.size
        self.arrays.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        self.size += _align_up(array.nbytes)
        return at

    def chunks(self) -> Iterator[np.ndarray]:
        for a in self.arrays:
            yield a
            yield np.zeros(-len(a) % ALIGNMENT_BYTES, np.uint8)

    def digest(self) -> str:
        found = blake2b(digest_size=16)
        for part in self.chunks():
            found.update(part.data)
        return found.hexdigest()

    def checksums(self) -> tuple[int, int]:
        """Return the sum of the 64-bit words modulo 2^64, and the sum of its prefix sums, which
        depends on the order of the words."""
        first = second = 0
        for a in self.arrays:
            words = np.concatenate([a, np.zeros(-len(a) % ALIGNMENT_BYTES, np.uint8)]).view("<u8")
            for k in range(0, len(words), _WORDS_PER_CHUNK):
                running = np.cumsum(words[k : k + _WORDS_PER_CHUNK], dtype=np.uint64)
                second += first * len(running) + int(np.sum(running, dtype=np.uint64))
                first += int(running[-1])
        return first % 2**64, second % 2**64


def _describe_library(
    model: Model,
    native: NativeSegment | None,
    sizes: Mapping[str, int],
    where: LibraryNames,
    needs: tuple[str, ...],
    weights: _WeightFile,
) -> ExportedLibrary:
    inputs, outputs = model.graph.inputs, model.graph.outputs
    defaults = {
        inputs.index(i): weights.add(v.const_value.numpy())
        for i, v in model.input_defaults.items()
        if v.const_value is not None
    }
    theirs = {our: name for name, our in model.symbols.items()}
    names_of = [v.name or "" for v in model.source.model.graph.outputs]
    ins = tuple(_c_port(i.name, i, sizes) for i in inputs)
    outs = tuple(_c_port(name, v, sizes) for name, v in zip(names_of, outputs, strict=True))
    written = native.segment.outputs if native else ()
    given = native.segment.inputs if native else ()
    arguments = [BufferRef("INPUT", inputs.index(v)) for v in given if isinstance(v, graph.Input)]
    arguments += [BufferRef("OUTPUT", outputs.index(v)) for v in written]
    copies: list[tuple[int, BufferRef]] = []
    for n, v in enumerate(outputs):
        if isinstance(v, graph.Constant):
            copies.append((n, BufferRef("HELD", weights.add(v.load()))))
        elif isinstance(v, graph.Input):
            copies.append((n, BufferRef("INPUT", inputs.index(v))))
        elif outputs.index(v) != n:
            copies.append((n, BufferRef("OUTPUT", outputs.index(v))))
    program = native.code.program if native else None
    return ExportedLibrary(
        __version__,
        model.source.label,
        where.prefix,
        where.file_stem,
        {theirs.get(our, our): n for our, n in sizes.items()},
        needs,
        native.static_code.threads if native else 1,
        ins,
        outs,
        defaults,
        tuple(arguments),
        tuple(copies),
        weights.size,
        _align_up(program.memory_bytes) if program else 0,
        _align_up(program.workspace_bytes) if program else 0,
        weights.digest(),
        weights.checksums(),
        THREAD_POOL_LAYOUT,
    )


def _c_port(name: str, v: graph.Value, sizes: Mapping[str, int]) -> Port:
    t = v.type
    if not supports_dtype(t.dtype) or t.dtype is None or t.shape is None:
        raise UsageError(
            f"{name} is {t}", "C has no such tensors", "remove it from the model's interface"
        )
    shape = tuple(index.evaluate(d, dict(sizes)) for d in t.shape)
    kind = to_numpy(t.dtype)
    return Port(name, str(kind), shape, prod(shape) * kind.itemsize)


def _align_up(n: int) -> int:
    return -(-n // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
