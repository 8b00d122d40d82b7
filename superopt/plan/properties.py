"""Properties of a plan that passes require and ensure, as checks that tests run after each pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import prod

from superopt.plan.lowering.kernel_stages import kernel_stages
from superopt.plan.program.plan import Plan
from superopt.te.analysis.walk import loads
from superopt.te.expr.tensor import Tensor


def violations(p: Plan, property_name: str) -> list[str]:
    """Return how a plan violates a property, one sentence each."""
    return list(PROPERTIES[property_name](p))


def _outputs(p: Plan) -> Iterator[str]:
    """Each output of the graph has a tensor of its own."""
    if len(p.outputs) != len(p.graph.outputs) or len({*p.outputs}) != len(p.outputs):
        yield f"{len(p.graph.outputs)} outputs have {len({*p.outputs})} tensors"


def _definitions(p: Plan) -> Iterator[str]:
    """Kernels read inputs, constants, and results of kernels before them."""
    inputs = {*p.tensors.constants, *p.tensors.copies.values()}
    inputs |= {
        t for t in p.tensors.by_value.values() if isinstance(t, Tensor) and t.body is None
    } - p.tensors.parts.keys()
    computed: set[Tensor] = set()
    missing = {whole: {*some} for whole, some in p.written_parts().items()}

    def is_available(t: Tensor) -> bool:
        if t in missing:
            return all(part in computed or is_available(part) for part in missing[t])
        return t in inputs or t in computed

    for t, definition in p.definitions.items():
        if prod(definition.sizes) != prod(t.sizes):
            yield f"{t.name} of shape {t.shape} is defined with shape {definition.shape}"
        for stage in kernel_stages(definition, p.definitions):
            for x in () if stage.body is None else loads(stage.body):
                if x.tensor.body is not None and x.tensor not in p.definitions:
                    continue  # a stage of this kernel
                if not is_available(x.tensor):
                    yield f"{t.name} reads {x.tensor.name} before it is computed"
        computed.add(t)
    for t in p.outputs:
        if not is_available(t):
            yield f"output {t.name} is not computed"


def _outputs_in_memory(p: Plan) -> Iterator[str]:
    """Outputs are in memory."""
    for t in p.outputs:
        if t not in p.materialized:
            yield f"output {t.name} is not in memory"


def _layouts(p: Plan) -> Iterator[str]:
    """Layouts are of tensors in memory, and have their axes."""
    for t, layout in p.layouts.items():
        if {part.axis for part in layout.parts} != set(range(t.rank)):
            yield f"layout {layout} of {t.name} of rank {t.rank}"


def _batch_ranks(p: Plan) -> Iterator[str]:
    """Leading axes that select a row are axes of their tensors."""
    for t, rank in p.batch_ranks.items():
        if not 0 <= rank <= t.rank:
            yield f"{t.name} of rank {t.rank} has rows of {rank} axes"


def _axis_orders(p: Plan) -> Iterator[str]:
    """Kernels with an order of axes are kernels of rows."""
    for t in p.axis_orders:
        if t not in p.batch_ranks:
            yield f"{t.name} has an order of axes and no rows"


def _storage(p: Plan) -> Iterator[str]:
    """Storage types are assigned; outputs are stored as they are declared."""
    if p.storage is None:
        yield "no storage types are assigned"
        return
    for t in p.outputs:
        if p.storage.dtype_of(t) != t.dtype:
            yield f"output {t.name}: {t.dtype} is stored as {p.storage.dtype_of(t)}"


def _steps(p: Plan) -> Iterator[str]:
    """Steps read what steps before them wrote; each problem has an option."""
    arguments = {t for t, place in p.places.items() if place.region == "argument"}
    written = arguments - {*p.outputs} | {*p.tensors.constants}
    for step in p.steps:
        for t in step.reads:
            if t not in written:
                yield f"{step.kernel.name} reads {t.name} before it is written"
        written.add(step.target)
        if step.problem not in p.chosen or step.problem not in p.problems:
            yield f"{step.kernel.name} solves no known problem"
    for t in p.outputs:
        if t not in written:
            yield f"output {t.name} is not written"


def _program(p: Plan) -> Iterator[str]:
    """There is a program; its calls are in bounds of its memory."""
    if p.program is None:
        yield "there is no program"
        return
    ends = {"memory": p.program.memory_bytes, "constant": p.program.constant_bytes}
    for call in p.program.kernel_calls():
        for ref in call.arguments:
            if ref.position > ends.get(ref.region, ref.position):
                yield f"{call.function} reads {ref} beyond {ends[ref.region]} bytes"


PROPERTIES: Mapping[str, Callable[[Plan], Iterator[str]]] = {
    "outputs": _outputs,
    "definitions": _definitions,
    "materialized": _outputs_in_memory,
    "layouts": _layouts,
    "batch-ranks": _batch_ranks,
    "axis-orders": _axis_orders,
    "storage": _storage,
    "steps": _steps,
    "program": _program,
}
