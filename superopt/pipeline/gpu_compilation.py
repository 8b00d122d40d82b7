"""The report of a model compiled for a GPU: numbers, and the texts of its kernels."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from superopt.errors import UsageError
from superopt.ir import graph
from superopt.kernels.triton.module import vendor_name as vendor_of
from superopt.onnx_io.read.source import Source
from superopt.pipeline import cuda
from superopt.pipeline.gpu_parts import Part
from superopt.pipeline.shapes import fitting, representative
from superopt.plan.dump import dump_passes
from superopt.report.compiled import Compilation, Foreign


def compilation(
    source: Source, precision: str, shapes: Mapping[str, int], dump: Path | None, float_class: str,
    vendor: bool,
) -> Compilation:  # fmt: skip
    """Compile for these sizes, and report the result."""
    begin = time.monotonic()
    with dump_passes(dump):
        exe = cuda.compile(source, precision, float_class, vendor=vendor)
        sizes = representative(exe.model, shapes)
        with fitting(exe.model, shapes):
            made = exe.variant(sizes)
    seconds = time.monotonic() - begin
    if dump is not None:
        for n, p in enumerate(made.parts):
            _dumped(p, dump if len(made.parts) == 1 else dump / f"part{n}")
    programs = [p.program for p in made.parts]
    names = made.model.names
    foreign = tuple(
        Foreign(f"{n.op.title} {names.get(graph.result(n, 0), '')}".strip(), why)
        for n, why in exe.fallen(sizes)
    )
    return Compilation(
        source.label,
        0,
        seconds,
        len(graph.nodes(made.model.graph)),
        len({name for p in programs for name in p.kernels}),
        sum(len(p.running.launches) for p in made.parts),
        sum(p.constant_bytes for p in programs),
        sum(p.memory_bytes for p in programs),
        foreign,
        precision,
        tuple(sizes.items()),
    )


def _dumped(p: Part, folder: Path) -> None:
    """Write the texts of a segment's kernels as they run here, in order."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for n, call in enumerate(p.program.kernel_calls()):
            kernel = p.program.kernels[call.function]
            for name, made in (*kernel.passes, ("tile", kernel)):
                (folder / f"{n:03}-{call.function}.{name}").write_text(f"{made}\n", "utf-8")
            text = p.running.loaded[kernel.name].text.source
            if kernel.library:
                text = f"# by {vendor_of(kernel.library)}: {kernel.library}\n"
            (folder / f"{n:03}-{call.function}.triton.py").write_text(text, "utf-8")
    except OSError as e:
        raise UsageError(f"cannot write to {folder}", str(e), "name another folder") from None
