"""The compilation of one segment, and the error for too little memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from superopt.errors import ModelError
from superopt.ir import graph as ir_graph
from superopt.pipeline.native import Native, Whole
from superopt.pipeline.ports import checked_windows, dtype_of, shape_at
from superopt.plan.graph.partition import Segment
from superopt.plan.program.execute import load_program

if TYPE_CHECKING:
    from superopt.pipeline.compile import Compiler


def native(c: Compiler, s: Segment, sizes: Mapping[str, int], alone: bool) -> Native:
    """Return the code of a segment. is_only_segment: there is no other one. Raises ModelError if it
    needs more memory than there is."""
    checked_windows(c.model, s.nodes, sizes)
    made = c.program(s, sizes)
    specs = tuple((shape_at(v.type, sizes), dtype_of(v.type)) for v in s.outputs)
    constants = c.packed.get(made.identity()) if c.packed else None
    try:
        release = c.model.source.release_pages
        ready = load_program(made, c.machine, c.threads, c.folder, constants, release)
    except MemoryError as e:
        needs = made.constant_bytes + made.memory_bytes + c.threads * made.workspace_bytes
        at = ", ".join(f"{k}={n}" for k, n in sizes.items())
        why = f"its kernels need {needs} bytes{': ' * bool(str(e))}{e}"
        raise out_of_memory(c.model.source.label, why, at) from None
    return Native(ready, specs, lambda: s, _whole(c, s) if alone else None)


def _whole(c: Compiler, s: Segment) -> Whole | None:
    """Return how the only segment gives the model's outputs; None if it does not give all of
    them."""
    graph = c.model.graph
    if not set(graph.outputs) <= set(s.outputs):
        return None
    takes = tuple(graph.inputs.index(v) for v in s.inputs if isinstance(v, ir_graph.Input))
    gives = (s.outputs.index(v) for v in graph.outputs)
    return Whole(takes, dict(zip(c.names(), gives, strict=True)))


# sizes_text: the symbolic sizes
def out_of_memory(label: str, why: str, at: str = "") -> ModelError:
    return ModelError(
        f"{label}: out of memory{' at ' * bool(at)}{at}",
        why or "compiling needs more memory than is available",
        "pass smaller inputs, or give the process more memory",
    )
