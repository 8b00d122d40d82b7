"""Open a model as an executable whose programs are cached on disk.

On a cache hit the model and the compiler are loaded only when they are needed, and LLVM is not
loaded if the model is known to fall back to onnxruntime.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from superopt.errors import ModelError, UsageError
from superopt.pipeline import entries
from superopt.pipeline.arrays import checked_sizes, symbolic
from superopt.pipeline.executable import Executable, Sizes, Steps
from superopt.pipeline.fallback import Fallback
from superopt.pipeline.kept_fallback import Kept, Options
from superopt.pipeline.native import Native
from superopt.pipeline.new_sizes import NewSizes, Shapes, Specialize

if TYPE_CHECKING:
    from superopt.kernels.runtime.engine import Machine
    from superopt.onnx_io.read.source import Source
    from superopt.pipeline import ready
    from superopt.pipeline.compile import Compiler


def open_source(source: Source, options: Options, specialize: Specialize) -> Executable:
    """Open a model in memory. Only programs that are compiled in the background are written to
    disk: the disk is how they reach this process.
    """
    made = compiler_of(source, options)
    out = made.executable()
    out.new_sizes = NewSizes(specialize)
    if specialize == "background":
        programs = _Programs(options, source.sha256, lambda: made)
        out.find = programs.find
        out.keep = lambda sizes, steps: programs.keep(sizes, steps, out.new_sizes)
        out.new_sizes.kept_seconds = programs.kept_seconds
    return out


def open_file(path: Path, options: Options, specialize: Specialize) -> Executable:
    """Open a model file."""
    watch = entries.Watch.on(path)
    digest = entries.digest_of(path)
    about = None if digest is None else entries.interface(options.key(digest))
    made: Compiler | None = None
    if digest is None or about is None:
        from superopt.onnx_io.read.source import read_model

        source = read_model(path)
        made = compiler_of(source, options)
        keep_digest(watch, source)
        digest = source.sha256
        about = entries.Interface(made.ports(), made.names())
        if not any(p.optional for p in about.ports):
            entries.keep_interface(options.key(digest), about)

    @cache
    def make() -> Compiler:
        return made or compiler_of(read_again(path, digest), options)

    key = options.key(digest)
    fallback = Kept(key, path, options.threads, about, lambda: make().model.graph)
    programs = _Programs(options, digest, make)

    def remember(sizes: Sizes | None) -> None:
        mode = make().original.mode
        fallback.keep(sizes, mode.level, mode.unsigned_weights)

    if made is not None and made.all_fall_back:
        remember(None)

    def find(sizes: Sizes) -> Native | Fallback | None:
        if made is None and (found := fallback.find(sizes)) is not None:
            return found
        return programs.find(sizes)

    def keep(sizes: Sizes, steps: Steps) -> None:
        programs.keep(sizes, steps, out.new_sizes)
        if len(steps) == 1 and isinstance(steps[0], Fallback):
            remember(sizes)

    def machine() -> Machine:
        return make().machine

    out = Executable(about.ports, about.outputs, options.threads, machine, make, find, keep)
    out.new_sizes = NewSizes(specialize, kept_seconds=programs.kept_seconds)
    return out


def sizes_of_shapes(exe: Executable, shapes: Shapes | None) -> list[dict[str, int]]:
    """Return the sizes for which to compile before the first call, by internal names.

    Raises UsageError for dimensions that the model does not have, and if some are missing.
    """
    if not symbolic(exe.ports):
        if shapes:
            raise UsageError(
                f"invalid shapes {shapes!r}",
                "the model has no symbolic dimensions",
                "leave shapes out",
            )
        return [{}]
    some = [shapes] if isinstance(shapes, Mapping) else [*(shapes or ())]
    return [_by_our_names(exe, each) for each in some]


def _by_our_names(exe: Executable, given: Mapping[str, int]) -> dict[str, int]:
    dims = {d for p in exe.ports for d in p.shape or () if isinstance(d, str)}
    if dims == given.keys():  # the model need not be read for this
        checked_sizes(exe.ports, given)
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
    checked_sizes(exe.ports, out)
    return out


class _Programs:
    """The cached programs of a model. digest: of the model's files."""

    def __init__(self, options: Options, digest: str, make: Callable[[], Compiler]) -> None:
        self.options, self.digest, self.make = options, digest, make
        self.kept = cache(self._kept)

    def _kept(self) -> ready.Kept:
        from superopt.kernels.runtime.engine import host
        from superopt.pipeline import ready

        o = ready.Options(self.options.threads, self.options.allowed, host(), self.options.store)
        return ready.Kept(o.key(self.digest), o.machine)

    def find(self, sizes: Sizes) -> Native | None:
        return self.kept().find(sizes, lambda how: self.make().planned(dict(sizes), how))

    def keep(self, sizes: Sizes, steps: Steps, policy: NewSizes) -> None:
        if len(steps) == 1 and isinstance(steps[0], Native) and steps[0].whole is not None:
            self.kept().keep(sizes, steps[0], self.make().image(steps[0]))
            self.kept().keep_seconds(policy.further_seconds)

    def kept_seconds(self) -> float | None:
        return self.kept().seconds()


def compiler_of(source: Source, options: Options) -> Compiler:
    """Return the compiler of a model. The replay of a search is loaded only for tuned models."""
    from superopt.kernels.runtime.engine import host
    from superopt.pipeline import compile

    o = options
    return compile.compiler(source, o.threads, host(), o.store, o.allowed, _rewritten)


def _rewritten(source: Source, log: str) -> Source:
    """Call `rewritten`, which imports all of `optimize`: most models were not tuned and have no
    log."""
    from superopt.pipeline.rewritten import rewritten

    return rewritten(source, log)


def keep_digest(watch: entries.Watch, source: Source) -> None:
    """Store the digest of a model's files, if the files did not change meanwhile."""
    folder = watch.path.parent
    watch.keep(source.sha256, [folder / location for location in source.skeleton.files])


def read_again(path: Path, digest: str | None) -> Source:
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
