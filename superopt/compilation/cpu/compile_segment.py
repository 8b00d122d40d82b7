"""The compilation of one segment, and the error for too little memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from superopt.compilation.frontend.graph_ports import check_window_sizes, numpy_dtype, static_shape
from superopt.compilation.runtime.native_segment import ModelBinding, NativeSegment
from superopt.errors import ModelError
from superopt.ir import graph as ir_graph
from superopt.plan.graph.partition import Segment
from superopt.plan.program.execute import load_program

if TYPE_CHECKING:
    from superopt.compilation.cpu.model_compiler import Compiler


def compile_native_segment(
    c: Compiler, s: Segment, sizes: Mapping[str, int], is_only_segment: bool
) -> NativeSegment:
    """Return the code of a segment. is_only_segment: there is no other one. Raises ModelError if it
    needs more memory than there is."""
    check_window_sizes(c.model, s.nodes, sizes)
    made = c.plan_segment(s, sizes)
    specs = tuple((static_shape(v.type, sizes), numpy_dtype(v.type)) for v in s.outputs)
    constants = c.packed_constants.get(made.identity()) if c.packed_constants else None
    try:
        release = c.model.source.release_pages
        ready = load_program(made, c.machine, c.threads, c.object_folder, constants, release)
    except MemoryError as e:
        needs = made.constant_bytes + made.memory_bytes + c.threads * made.workspace_bytes
        at = ", ".join(f"{k}={n}" for k, n in sizes.items())
        why = f"its kernels need {needs} bytes{': ' * bool(str(e))}{e}"
        raise out_of_memory_error(c.model.source.label, why, at) from None
    return NativeSegment(ready, specs, lambda: s, _model_binding(c, s) if is_only_segment else None)


def _model_binding(c: Compiler, s: Segment) -> ModelBinding | None:
    """Return how the only segment gives the model's outputs; None if it does not give all of
    them."""
    graph = c.model.graph
    if not set(graph.outputs) <= set(s.outputs):
        return None
    takes = tuple(graph.inputs.index(v) for v in s.inputs if isinstance(v, ir_graph.Input))
    gives = (s.outputs.index(v) for v in graph.outputs)
    return ModelBinding(takes, dict(zip(c.output_names(), gives, strict=True)))


# sizes_text: the symbolic sizes
def out_of_memory_error(label: str, reason: str, sizes_text: str = "") -> ModelError:
    return ModelError(
        f"{label}: out of memory{' at ' * bool(sizes_text)}{sizes_text}",
        reason or "compiling needs more memory than is available",
        "pass smaller inputs, or give the process more memory",
    )
