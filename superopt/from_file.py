"""`compile` of a model's file: programs are kept, and found again by another process, which loads
what it needs for a call and no more."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from superopt.errors import ModelError
from superopt.pipeline import entries
from superopt.pipeline.executable import Executable
from superopt.pipeline.fallback import Fallback
from superopt.pipeline.kept_fallback import Kept, Options
from superopt.pipeline.native import Native

if TYPE_CHECKING:
    from superopt.kernels.engine import Machine
    from superopt.onnx_io.source import Source
    from superopt.pipeline import ready
    from superopt.pipeline.compile import Compiler
    from superopt.pipeline.executable import Sizes, Steps


def compiler(source: Source, options: Options) -> Compiler:
    from superopt.kernels.engine import host
    from superopt.pipeline import compile
    from superopt.pipeline.rewritten import rewritten

    o = options
    return compile.compiler(source, o.threads, host(), o.store, o.allowed, rewritten)


def executable(path: Path, options: Options) -> Executable:
    """The model in a file; its programs are kept, and found again. Where they are found neither the
    model nor the compiler is loaded until something else is asked of it; LLVM is not loaded where
    the model is known to run in onnxruntime."""
    watch = entries.Watch.on(path)
    digest = entries.digest_of(path)
    about = None if digest is None else entries.interface(options.key(digest))
    made: Compiler | None = None
    if digest is None or about is None:
        from superopt.onnx_io.source import read

        source = read(path)
        made = compiler(source, options)
        keep_digest(watch, source)
        digest = source.sha256
        about = entries.Interface(made.ports(), made.names())
        if not any(p.optional for p in about.ports):
            entries.keep_interface(options.key(digest), about)

    @cache
    def make() -> Compiler:
        return made or compiler(read_again(path, digest), options)

    fallback = Kept(
        options.key(digest), path, options.threads, about, lambda: make().model.graph
    )  # fmt: skip

    def remember(sizes: Sizes | None) -> None:
        mode = make().original.mode
        fallback.keep(sizes, mode.level, mode.unsigned_weights)

    if made is not None and made.all_fall_back:
        remember(None)

    @cache
    def programs() -> ready.Kept:
        from superopt.kernels.engine import host
        from superopt.pipeline import ready

        o = ready.Options(options.threads, options.allowed, host(), options.store)
        return ready.Kept(o.key(digest), o.machine)

    def find(sizes: Sizes) -> Native | Fallback | None:
        if made is None and (found := fallback.find(sizes)) is not None:
            return found
        return programs().find(sizes, lambda how: make().planned(dict(sizes), how))

    def keep(sizes: Sizes, steps: Steps) -> None:
        first = steps[0] if len(steps) == 1 else None
        if isinstance(first, Native) and first.whole is not None:
            programs().keep(sizes, first, make().image(first))
        elif isinstance(first, Fallback):
            remember(sizes)

    def machine() -> Machine:
        return make().machine

    return Executable(about.ports, about.outputs, options.threads, machine, make, find, keep)


def keep_digest(watch: entries.Watch, source: Source) -> None:
    """Write down the digest of a model's files, where they are as they were."""
    folder = watch.path.parent
    watch.keep(source.sha256, [folder / location for location in source.skeleton.files])


def read_again(path: Path, digest: str | None) -> Source:
    """A model of which there is only its program so far."""
    from superopt.onnx_io.source import read

    source = read(path)
    if source.sha256 != digest:
        raise ModelError(
            f"{path} is another model now",
            "it was changed after it was compiled",
            "compile it again",
        )
    return source
