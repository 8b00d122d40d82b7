"""Open a model as an executable whose programs are cached on disk.

On a cache hit the model and the compiler are loaded only when they are needed, and LLVM is not
loaded if the model is known to fall back to onnxruntime.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from superopt.compilation.cache import entries
from superopt.compilation.cpu.executable import Executable, Sizes, Steps
from superopt.compilation.cpu.shape_policy import ShapePolicy, Shapes, Specialize
from superopt.compilation.fallback.fallback_cache import FallbackCache, FallbackCacheOptions
from superopt.compilation.fallback.whole_model import Fallback
from superopt.compilation.frontend.input_arrays import check_sizes, has_symbolic_sizes
from superopt.compilation.runtime.native_segment import NativeSegment
from superopt.errors import ModelError, UsageError

if TYPE_CHECKING:
    from superopt.compilation.cache import program_cache
    from superopt.compilation.cpu.model_compiler import Compiler
    from superopt.kernels.runtime.engine import Machine
    from superopt.onnx_io.read.source import Source


def open_source(
    source: Source, options: FallbackCacheOptions, specialize: Specialize
) -> Executable:
    """Open a model in memory. Only programs that are compiled in the background are written to
    disk: the disk is how they reach this process.
    """
    made = make_compiler(source, options)
    out = made.executable()
    out.shape_policy = ShapePolicy(specialize)
    if specialize == "background":
        programs = _ProgramCache(options, source.sha256, lambda: made)
        out.find_cached = programs.find
        out.store_cached = lambda sizes, steps: programs.keep(sizes, steps, out.shape_policy)
        out.shape_policy.cached_compile_seconds = programs.compile_seconds
    return out


def open_file(path: Path, options: FallbackCacheOptions, specialize: Specialize) -> Executable:
    """Open a model file."""
    watch = entries.FileSnapshot.take(path)
    digest = entries.known_digest(path)
    about = None if digest is None else entries.read_interface(options.cache_key(digest))
    made: Compiler | None = None
    if digest is None or about is None:
        from superopt.onnx_io.read.source import read_model

        source = read_model(path)
        made = make_compiler(source, options)
        store_digest(watch, source)
        digest = source.sha256
        about = entries.ModelInterface(made.input_ports(), made.output_names())
        if not any(p.has_default for p in about.input_ports):
            entries.write_interface(options.cache_key(digest), about)

    @cache
    def make() -> Compiler:
        return made or make_compiler(reread_model(path, digest), options)

    key = options.cache_key(digest)
    fallback = FallbackCache(key, path, options.threads, about, lambda: make().model.graph)
    programs = _ProgramCache(options, digest, make)

    def remember(sizes: Sizes | None) -> None:
        mode = make().given_model.mode
        fallback.store_fallback(sizes, mode.level, mode.unsigned_weights)

    if made is not None and made.is_all_fallback:
        remember(None)

    def find(sizes: Sizes) -> NativeSegment | Fallback | None:
        if made is None and (found := fallback.find_fallback(sizes)) is not None:
            return found
        return programs.find(sizes)

    def keep(sizes: Sizes, steps: Steps) -> None:
        programs.keep(sizes, steps, out.shape_policy)
        if len(steps) == 1 and isinstance(steps[0], Fallback):
            remember(sizes)

    def machine() -> Machine:
        return make().machine

    out = Executable(
        about.input_ports, about.output_names, options.threads, machine, make, find, keep
    )
    out.shape_policy = ShapePolicy(specialize, cached_compile_seconds=programs.compile_seconds)
    return out


def bind_shapes(exe: Executable, shapes: Shapes | None) -> list[dict[str, int]]:
    """Return the sizes for which to compile before the first call, by internal names.

    Raises UsageError for dimensions that the model does not have, and if some are missing.
    """
    if not has_symbolic_sizes(exe.input_ports):
        if shapes:
            raise UsageError(
                f"invalid shapes {shapes!r}",
                "the model has no symbolic dimensions",
                "leave shapes out",
            )
        return [{}]
    some = [shapes] if isinstance(shapes, Mapping) else [*(shapes or ())]
    return [_internal_size_names(exe, each) for each in some]


def _internal_size_names(exe: Executable, given: Mapping[str, int]) -> dict[str, int]:
    dims = {d for p in exe.input_ports for d in p.shape or () if isinstance(d, str)}
    if dims == given.keys():  # the model need not be read for this
        check_sizes(exe.input_ports, given)
        return dict(given)
    ours = exe.model.symbols
    out = {ours.get(name, name): n for name, n in given.items()}
    wanted = exe.model.size_bindings
    if wrong := sorted({*out} ^ {*wanted}):
        theirs = {our: name for name, our in ours.items()}
        raise UsageError(
            f"shapes {dict(given)!r}: {', '.join(theirs.get(w, w) for w in wrong)}",
            "the model's symbolic dimensions are "
            f"{', '.join(sorted(theirs.get(w, w) for w in wanted))}",
            "pass a value for each of these",
        )
    check_sizes(exe.input_ports, out)
    return out


class _ProgramCache:
    """The cached programs of a model. digest: of the model's files."""

    def __init__(
        self, options: FallbackCacheOptions, digest: str, make: Callable[[], Compiler]
    ) -> None:
        self.options, self.digest, self.make = options, digest, make
        self.program_store = cache(self._open_program_store)

    def _open_program_store(self) -> program_cache.ProgramCache:
        from superopt.compilation.cache import program_cache
        from superopt.kernels.runtime.engine import host

        o = program_cache.ProgramCacheOptions(
            self.options.threads, self.options.allowed, host(), self.options.store
        )
        return program_cache.ProgramCache(o.cache_key(self.digest), o.machine)

    def find(self, sizes: Sizes) -> NativeSegment | None:
        return self.program_store().find_program(
            sizes, lambda how: self.make().replan(dict(sizes), how)
        )

    def keep(self, sizes: Sizes, steps: Steps, policy: ShapePolicy) -> None:
        if len(steps) == 1 and isinstance(steps[0], NativeSegment) and steps[0].binding is not None:
            self.program_store().store_program(sizes, steps[0], self.make().program_image(steps[0]))
            self.program_store().store_compile_seconds(policy.expected_compile_seconds)

    def compile_seconds(self) -> float | None:
        return self.program_store().compile_seconds()


def make_compiler(source: Source, options: FallbackCacheOptions) -> Compiler:
    """Return the compiler of a model. The replay of a search is loaded only for tuned models."""
    from superopt.compilation.cpu import cpu_compiler
    from superopt.kernels.runtime.engine import host

    o = options
    return cpu_compiler.tuned_compiler(
        source, o.threads, host(), o.store, o.allowed, _replay_tuned_rewrites
    )


def _replay_tuned_rewrites(source: Source, log: str) -> Source:
    """Call `rewritten`, which imports all of `optimize`: most models were not tuned and have no
    log."""
    from superopt.jobs.graph_rewrites import apply_rewrite_log

    return apply_rewrite_log(source, log)


def store_digest(watch: entries.FileSnapshot, source: Source) -> None:
    """Store the digest of a model's files, if the files did not change meanwhile."""
    folder = watch.path.parent
    watch.store_digest(source.sha256, [folder / location for location in source.skeleton.files])


def reread_model(path: Path, digest: str | None) -> Source:
    """Read a model again, of which only the program was loaded. Raises ModelError if it changed."""
    from superopt.onnx_io.read.source import read_model

    source = read_model(path)
    if source.sha256 != digest:
        raise ModelError(
            f"{path} has changed",
            "its digest differs from that of the compiled model",
            "compile it again",
        )
    return source
