"""Export a model for onnxruntime: EPContext nodes, and libraries that compute them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from superopt.compilation.cpu.library.export_library import LibraryNames, c_identifier
from superopt.compilation.model.compile_model import make_compiler, open_device
from superopt.errors import SuperoptError, UsageError
from superopt.kernels.runtime.engine import named_machine
from superopt.loading.representative_sizes import representative_sizes
from superopt.onnx_io.export.atomic_files import atomic_files
from superopt.onnx_io.export.model_file import write_source
from superopt.onnx_io.import_.model import opaque_reason
from superopt.ort_plugin.build import LIBRARY_NAME
from superopt.ort_plugin.context_model import (
    CONTEXT_SUFFIX,
    Part,
    context_model,
    context_text,
    embedded_context,
    extract_part,
)
from superopt.ort_plugin.library import provider_library
from superopt.ort_plugin.node_groups import file_positions, group_nodes
from superopt.plan.graph.partition import TOO_SMALL_REASON, fallback_nodes
from superopt.report.compilation.compile_report import ContextPart, ContextReport

if TYPE_CHECKING:
    from superopt.compilation.frontend.compile_options import CompileOptions
    from superopt.compilation.model.compiler import Compiler
    from superopt.onnx_io.read.source import Source

MODEL_SUFFIX = "_ctx.onnx"


def export_context_model(
    source: Source,
    folder: Path,
    options: CompileOptions,
    shapes: Mapping[str, int],
    cpus: Sequence[str],
    embed: bool,
) -> ContextReport:
    """Write `NAME_ctx.onnx` into a folder, which is created, what it needs, unless `embed`, and the
    provider.

    Nodes without a kernel stay in the model. shapes: values of symbolic dimensions; the others stay
    symbolic. cpus: names of processors, in the order in which their code is tried.

    Raises UsageError if no node has a kernel, for processors of other systems than the provider's,
    and if a file cannot be written.
    """
    for name in cpus:
        named_machine(name)  # before anything is written
    provider = provider_library().read_bytes()
    _make_folder(folder)
    stem = Path(source.label).stem
    target = folder / f"{stem}{MODEL_SUFFIX}"
    compiler = make_compiler(source, options, open_device(options))
    found, left = choose_parts(compiler, shapes)
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch) if embed else folder
        parts: dict[str, Part] = {}
        contexts: dict[str, bytes] = {}
        files: list[Path] = []
        for part in found:
            name = stem if len(found) == 1 else f"{stem}_{len(parts)}"
            try:
                variants = export_part(part.source, place, name, options, shapes, cpus)
            except SuperoptError as e:
                if len(found) == 1:
                    raise
                left.append((len(part.positions), f"{e.what}: {e.why}"))
                continue
            parts[name] = part
            contexts[name] = _write_context(variants, place, name, embed, files)
        types = {v: t.type for t, v in compiler.model.names.items()}
        model = context_model(source, parts, contexts, types, shapes, embed)
        write_source(source.with_proto(model), target)
    library = folder / LIBRARY_NAME
    with atomic_files() as new:
        new(library).file.write(provider)
    files = [target, library, *(f for f in folder.glob(f"{target.name}.data")), *files]
    return ContextReport(
        source.label,
        options.threads,
        tuple(cpus),
        tuple(ContextPart(name, len(p.positions)) for name, p in parts.items()),
        tuple(left),
        tuple((str(f), f.stat().st_size) for f in files),
    )


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise UsageError(
            f"{folder} cannot be created", e.strerror or str(e), "name another folder"
        ) from None


def choose_parts(
    compiler: Compiler, shapes: Mapping[str, int]
) -> tuple[list[Part], list[tuple[int, str]]]:
    """Return the parts of a model that kernels run, and numbers of nodes that they do not run, each
    with a reason. Raises UsageError if there are no parts."""
    model = compiler.model
    source = model.source
    sizes = representative_sizes(model, shapes)
    nodes = source.skeleton.shared_proto.graph.node
    reasons: dict[int, str] = {}
    for n in fallback_nodes(compiler.partition(sizes)):
        why = compiler.fallback_reason(n, sizes) or TOO_SMALL_REASON
        reasons |= dict.fromkeys(file_positions(model, [n]), opaque_reason(model, n, why))
    groups = group_nodes(nodes, set(reasons))
    types = {name: v.type for v, name in model.names.items()}
    parts = [extract_part(source, group, types) for group in groups]
    left = [*_count_reasons(reasons.values())]
    left += [
        (len(g), "an input or output has no known type")
        for g, p in zip(groups, parts, strict=True) if p is None
    ]  # fmt: skip
    found = [p for p in parts if p is not None]
    if not found:
        why = "; ".join(dict.fromkeys(why for _, why in left)) or "it computes nothing"
        raise UsageError(
            f"no part of {source.label} can be compiled", why, "run it in onnxruntime as it is"
        )
    return found, left


def export_part(
    source: Source,
    folder: Path,
    name: str,
    options: CompileOptions,
    shapes: Mapping[str, int],
    cpus: Sequence[str],
) -> list[LibraryNames]:
    """Write the libraries of a part of a model: one for each processor."""
    compiler = make_compiler(replace(source, label=name), options, open_device(options))
    exe = compiler.executable("never")  # programs for classes of sizes, not for single ones
    own = {n: value for n, value in shapes.items() if n in exe.compiler.model.symbols}
    out = []
    for cpu in cpus:
        stem = name if len(cpus) == 1 else f"{name}.{cpu}"
        exe.export(folder / f"{stem}.so", shapes=own, cpu=cpu)
        out.append(LibraryNames(folder, stem, c_identifier(stem)))
    return out


def _write_context(
    variants: Sequence[LibraryNames], folder: Path, name: str, embed: bool, files: list[Path]
) -> bytes:
    """Return the attribute of a part's node: its context, or the name of the file that has it.
    files: is extended by those that were written."""
    if embed:
        return embedded_context(variants)
    target = folder / f"{name}{CONTEXT_SUFFIX}"
    with atomic_files() as new:
        new(target).file.write(context_text(variants).encode())
    files.append(target)
    for names in variants:
        library, header, weights = names.files
        header.unlink()  # nobody compiles against it
        files += [library, weights]
    return target.name.encode()


def _count_reasons(reasons: Iterable[str]) -> list[tuple[int, str]]:
    counts: dict[str, int] = {}
    for why in reasons:
        counts[why] = counts.get(why, 0) + 1
    return [(n, why) for why, n in counts.items()]
