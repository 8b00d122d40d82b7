"""Open a model as an executable whose programs are cached on disk.

On a cache hit the model and the compiler are loaded only when they are needed, and LLVM is not
loaded if the model is known to fall back to onnxruntime.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superopt import guard
from superopt.api.open_in_child import (
    OpenedModel,
    ReadAhead,
    compiles_in_child,
    open_in_child,
    prepare_first_calls,
    print_description,
)
from superopt.compilation.cache import entries
from superopt.compilation.fallback.fallback_cache import FallbackCache, interface_key
from superopt.compilation.fallback.whole_model import Fallback
from superopt.compilation.frontend.compile_options import CompileOptions
from superopt.compilation.frontend.input_arrays import (
    Sizes,
    check_sizes,
    has_symbolic_sizes,
    symbolic_dims,
)
from superopt.compilation.frontend.targets import TARGETS, check_target
from superopt.compilation.model.compile_model import make_compiler, open_device
from superopt.compilation.model.control_flow.cached_parts import use_cache
from superopt.compilation.model.executable import Executable
from superopt.compilation.model.shape_policy import ShapePolicy, Shapes, Specialize
from superopt.compilation.model.size_classes import SizeClass
from superopt.compilation.model.steps import Variant
from superopt.errors import ModelError
from superopt.loading.given_sizes import as_size_mapping
from superopt.ort import sessions

if TYPE_CHECKING:
    from superopt.compilation.model.compiler import Compiler
    from superopt.compilation.model.control_flow.dynamic_if import ControlFlow
    from superopt.compilation.model.device import Device, ProgramCache
    from superopt.compilation.model.states.state_programs import StateNames
    from superopt.onnx_io.read.source import Source

LOG = logging.getLogger("superopt.compile")
Reduced = tuple[Callable[..., Executable], tuple[Any, ...]]  # as of object.__reduce__


@dataclass(frozen=True, slots=True)
class FileReference:
    """A compiled model in a pickle: its file, and how it is compiled. digest: SHA-256 of its files.
    sizes: for which it is compiled at once."""

    path: Path
    digest: str
    options: CompileOptions
    specialize: Specialize
    sizes: tuple[Sizes, ...] = ()

    def reduce(self) -> Reduced:
        return open_file_reference, (self,)


@dataclass(frozen=True, slots=True)
class SavedReference:
    """A saved model: its file, and what `load` was given. state: of the file when it was read."""

    path: Path
    state: list[int] | None
    threads: int | None
    specialize: Specialize

    def reduce(self) -> Reduced:
        """Return how to load it in another process. Raises ModelError if the file has changed."""
        if entries.file_state(self.path) != self.state:
            raise changed_file_error(self.path)
        digest = _file_digest(self.path)
        return open_saved_reference, (self.path, digest, self.threads, self.specialize)


def open_source(source: Source, options: CompileOptions, specialize: Specialize) -> Executable:
    """Open a model in memory. Programs that are compiled in the background are written to disk, for
    later processes with this model."""
    device = open_device(options)
    compiler = make_compiler(source, options, device, _replay_tuned_rewrites)
    out = compiler.executable(specialize)
    if specialize == "background" and device.compiles_in_background:
        programs = _CachedPrograms(options, device, source.sha256, lambda: compiler)
        use_cache(out, programs)
    return out


def open_file(
    path: Path,
    options: CompileOptions,
    specialize: Specialize,
    expected_digest: str | None = None,
    *,
    may_start_child: bool = False,
    read: Callable[[Path], Source] | None = None,
) -> Executable:
    """Open a model file. may_start_child: a child may open it, and compile it for the first calls.
    read: reads the file. Raises ModelError if it does not have the expected digest."""
    device = open_device(options)
    snapshot = entries.FileSnapshot.take(path)
    digest = entries.known_digest(path)
    interface = None if digest is None else entries.read_interface(interface_key(options, digest))
    compiler: Compiler | None = None
    opened: OpenedModel | None = None
    may_start_child = may_start_child and compiles_in_child(device, specialize)
    if may_start_child and (digest is None or interface is None):
        given = path.absolute(), options, specialize
        opened = open_in_child(path, open_for_parent, given, partial(_import_runtimes, options))
        may_start_child = opened is not None and opened.child is not None
    if opened is not None:
        digest, interface = opened.digest, opened.interface
    if digest is None or interface is None:
        from superopt.onnx_io.read.source import read_model

        source = read_model(path) if read is None else read(path)
        compiler = make_compiler(source, options, device, _replay_tuned_rewrites)
        store_digest(snapshot, source)
        digest = source.sha256
        interface = entries.ModelInterface(compiler.input_ports(), compiler.output_names())
        if not any(p.has_default for p in interface.input_ports):
            entries.write_interface(interface_key(options, digest), interface)

    if expected_digest not in (None, digest):
        raise changed_file_error(path)

    @cache
    def load_compiler() -> Compiler:
        return compiler or make_compiler(
            reread_model(path, digest), options, device, _replay_tuned_rewrites
        )

    key, threads = interface_key(options, digest), device.fallback_threads
    fallback = FallbackCache(
        key, path, snapshot.state, threads, interface, lambda: load_compiler().model.graph
    )
    programs = _CachedPrograms(options, device, digest, load_compiler)

    def store_fallback(sizes: Sizes | None) -> None:
        mode = load_compiler().given_model.mode
        fallback.store_fallback(sizes, mode.level, mode.unsigned_weights)

    if compiler is not None and compiler.is_all_fallback:
        store_fallback(None)

    def find(sizes: Sizes) -> Variant | None:
        if compiler is None and (fallen := fallback.find_fallback(sizes)) is not None:
            found: Variant | None = Variant((fallen,), lambda: load_compiler().model)
        else:
            found = programs.find(sizes)
        if found is not None:
            LOG.info("%s: from the cache", path.name)
        return found

    def store_variant(sizes: Sizes, variant: Variant) -> None:
        programs.store(sizes, variant, out.shape_policy.expected_compile_seconds)
        if len(variant) == 1 and isinstance(variant[0], Fallback):
            store_fallback(sizes)

    policy = ShapePolicy(specialize, device.eager_sizes, device.compiles_in_background)
    policy.cached_compile_seconds = programs.compile_seconds
    ports, names = interface.input_ports, interface.output_names
    out = Executable(ports, names, device, load_compiler, find, store_variant, shape_policy=policy)
    out.size_classes.cache = programs
    out.session_cache = fallback
    store = None if options.store is None else options.store.absolute()
    known = replace(options, store=store)
    out.reference = FileReference(path.absolute(), digest, known, specialize)
    if may_start_child and has_symbolic_sizes(ports) and not fallback.is_all_fallback():
        prepare_first_calls(out, path, opened)
    return out


def _import_runtimes(options: CompileOptions) -> None:
    """Import what programs of the cache need, and ONNX Runtime."""
    TARGETS[options.target].load("program_cache")
    sessions.installed_version()


def open_for_parent(path: Path, options: CompileOptions, specialize: Specialize) -> Executable:
    """In a child: open a model file, and print what the parent needs of it."""
    with guard.limit_call(None, guard.parse_max_memory(None)):
        ahead = ReadAhead(lambda: TARGETS[options.target].load("load_compiler"))
        out = open_file(path, options, specialize, read=ahead.read)
        assert isinstance(out.reference, FileReference)
        print_description(out, out.reference.digest, ahead)
        return out


def open_saved(path: Path, threads: int | None, specialize: Specialize) -> Executable:
    """Open a saved model. Raises UsageError if the file is not one."""
    from superopt.compilation.model.saved_model import read_saved_model

    state = entries.file_state(path)
    held = read_saved_model(path)
    check_target(held.target, held.precision, held.vendor)
    target, out = TARGETS[held.target], None
    if held.contents is not None and held.contents.code is not None:

        def load_compiler() -> Compiler:
            made: Compiler = target.load("load_compiler").saved_compiler(held, threads)
            return made

        out = target.load("saved_code").open_code(held, threads, load_compiler)
    if out is None:
        out = target.load("load_compiler").load_saved(held, threads)
    assert isinstance(out, Executable)
    out.shape_policy.specialize = specialize
    out.reference = SavedReference(path.absolute(), state, threads, specialize)
    return out


def open_file_reference(reference: FileReference) -> Executable:
    """Return the compiled model of a pickle. Raises ModelError if its file is missing or has
    changed."""
    with guard.limit_call(None, guard.parse_max_memory(None)):
        out = open_file(reference.path, reference.options, reference.specialize, reference.digest)
        out.reference = reference
        for sizes in reference.sizes:
            out.runnable(dict(sizes))
        return out


def open_saved_reference(
    path: Path, digest: str, threads: int | None, specialize: Specialize
) -> Executable:
    """Return the saved model of a pickle. Raises ModelError if its file is missing or has
    changed."""
    if _file_digest(path) != digest:
        raise changed_file_error(path)
    return open_saved(path, threads, specialize)


def _file_digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as e:
        raise ModelError(
            f"{path} cannot be read",
            e.strerror or str(e),
            "put the file of the compiled model there",
        ) from None


def changed_file_error(path: Path) -> ModelError:
    return ModelError(
        f"{path} has changed",
        "its digest differs from that of the compiled model",
        "compile it again",
    )


def bind_shapes(exe: Executable, shapes: Shapes | None) -> list[dict[str, int]]:
    """Return the sizes for which to compile before the first call, by internal names.

    Raises UsageError for dimensions that the model does not have, and if some are missing.
    """
    is_one = isinstance(shapes, str | Mapping) or not isinstance(shapes, Iterable)
    given = () if shapes is None else [shapes] if is_one else shapes
    some = [as_size_mapping(each) for each in given]
    if not has_symbolic_sizes(exe.input_ports):
        for each in some:
            check_sizes(exe.input_ports, each)
        return [{}]
    return [_internal_size_names(exe, each) for each in some]


def _internal_size_names(exe: Executable, sizes: Mapping[str, int]) -> dict[str, int]:
    if symbolic_dims(exe.input_ports) == sizes.keys():  # the model need not be read for this
        return check_sizes(exe.input_ports, sizes)
    from superopt.loading.representative_sizes import size_names

    theirs = {our: name for name, our in exe.model.symbols.items()}
    given = {theirs.get(name, name): n for name, n in sizes.items()}
    found = size_names(exe.model).check_all(given)
    return {exe.model.symbols[name]: n for name, n in found.items()}


class _CachedPrograms:
    """The cached programs of a model, opened on demand. digest: of the model's files."""

    def __init__(
        self,
        options: CompileOptions,
        device: Device,
        digest: str,
        load_compiler: Callable[[], Compiler],
    ) -> None:
        target = TARGETS[options.target]

        def open_cache() -> ProgramCache | None:
            if not target.has_program_cache:
                return None
            module = target.load("program_cache")
            found: ProgramCache = module.open_program_cache(options, device, digest, load_compiler)
            return found

        self.open_cache = cache(open_cache)

    def find(self, sizes: Sizes) -> Variant | None:
        found = self.open_cache()
        return None if found is None else found.find(sizes)

    def store(self, sizes: Sizes, variant: Variant, expected_seconds: float) -> None:
        if (found := self.open_cache()) is not None:
            found.store(sizes, variant, expected_seconds)

    def find_classes(self) -> Sequence[SizeClass] | None:
        found = self.open_cache()
        return () if found is None else found.find_classes()

    def store_class(self, made: SizeClass | None) -> None:
        if (found := self.open_cache()) is not None:
            found.store_class(made)

    def with_states(self, names: StateNames) -> ProgramCache | None:
        found = self.open_cache()
        return None if found is None else found.with_states(names)

    def find_control_flow(self, specialize: Specialize) -> ControlFlow | None:
        found = self.open_cache()
        return None if found is None else found.find_control_flow(specialize)

    def store_control_flow(self, flow: ControlFlow) -> None:
        if (found := self.open_cache()) is not None:
            found.store_control_flow(flow)

    def compile_seconds(self) -> float | None:
        found = self.open_cache()
        return None if found is None else found.compile_seconds()


def _replay_tuned_rewrites(source: Source, log: str) -> Source:
    """Return a model with a stored rewrite log. Most models were not tuned and have no log: they
    do not load `optimize`."""
    from superopt.jobs.graph_rewrites import apply_rewrite_log

    return apply_rewrite_log(source, log)


def store_digest(snapshot: entries.FileSnapshot, source: Source) -> None:
    """Store the digest of a model's files, if the files did not change meanwhile."""
    folder = snapshot.path.parent
    snapshot.store_digest(source.sha256, [folder / location for location in source.skeleton.files])


def reread_model(path: Path, digest: str | None) -> Source:
    """Read a model again, of which only the program was loaded. Raises ModelError if it changed."""
    from superopt.onnx_io.read.source import read_model

    source = read_model(path)
    if source.sha256 != digest:
        raise changed_file_error(path)
    return source
