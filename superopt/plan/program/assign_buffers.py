"""Assign streams and buffers to the steps of a plan: the last passes, which make its program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from math import prod

from superopt.kernels.algorithms.digests import kernel_digest
from superopt.kernels.llvm.calls import Call, Ref
from superopt.kernels.llvm.codegen import chunk_count, workspace_bytes
from superopt.kernels.loops import zero_border
from superopt.kernels.loops.layout import Layout
from superopt.kernels.loops.tile import Kernel
from superopt.plan.lowering.provenance import provenance_of
from superopt.plan.program.buffer_assignment import ALIGNMENT_BYTES, BufferLife, assign_offsets
from superopt.plan.program.pack_constants import ConstantSlot, layout_key
from superopt.plan.program.plan import Plan, Step
from superopt.plan.program.program import Program, SymbolicSizes
from superopt.plan.program.streams import live_ranges
from superopt.plan.program.symbolic_buffers import SymbolicLife, Words, assign_slots
from superopt.te.expr import index
from superopt.te.expr.node import Size
from superopt.te.expr.symbolic_int import example_sizes, hint, is_symbolic
from superopt.te.expr.tensor import Tensor


def assign_streams(p: Plan) -> None:
    """Assign a stream to each step, on targets that have several."""
    if p.target.assign_streams is not None:
        reads, writes = _reads_and_writes(p)
        solved = [(p.problems[s.problem], p.chosen[s.problem]) for s in p.steps]
        p.stream_order = p.target.assign_streams(reads, writes, solved)


def assign_buffers(p: Plan) -> None:
    """Assign an offset to each buffer and constant, and make the program. Zero borders that share
    their memory with another buffer are cleared by steps of their own."""
    reads, writes = _reads_and_writes(p)
    used = live_ranges(reads, writes, p.stream_order)
    own = [t for t in used if t not in p.places]
    if example_sizes():
        _assign_symbolic(p, own, used)
        return
    lives = [BufferLife(p.buffer_bytes(t), *used[t], *_border_contents(p, t)) for t in own]
    offsets, memory_bytes, shared, border_bytes = assign_offsets(lives)
    p.places |= {t: Ref("memory", at) for t, at in zip(own, offsets, strict=True)}
    to_clear = {own[n] for n in shared}
    constants = _ConstantOffsets(p)
    calls: list[Call] = []
    run: list[Step] = []
    for step in p.steps:
        if step.target in to_clear:  # before its first write
            to_clear.remove(step.target)
            clear = _border_clear_kernel(p, step.target)
            run.append(replace(step, kernel=clear))
            calls.append(Call(clear.name, (p.places[step.target],), chunk_count(clear)))
        run.append(step)
        refs = [
            constants.place(x, step.kernel)
            if x in p.tensors.constants
            else replace(p.places[x], position=p.places[x].position + begin)
            for x, begin in zip(step.reads, step.read_offsets, strict=True)
        ]
        arguments = (*refs, p.places[step.target])
        calls.append(Call(step.kernel.name, arguments, chunk_count(step.kernel)))
    kernels = {step.kernel.name: step.kernel for step in run}
    p.program = Program(
        kernels,
        tuple(calls),
        tuple(constants.slots),
        constants.end,
        memory_bytes,
        border_bytes,
        max((workspace_bytes(k) for k in kernels.values()), default=0),
        p.problems,
        p.chosen,
        tuple(step.problem for step in run),
        tuple(step.result for step in run),
        provenance_of(p.graph, p.tensors, p.definitions),
        p.stream_order,
    )


def _assign_symbolic(
    p: Plan, own: Sequence[Tensor], used: Mapping[Tensor, tuple[int, int]]
) -> None:
    """Assign words to buffers, and make the program. Zero borders are cleared in each run: they lie
    elsewhere when a size changes."""
    words = Words([Size(name) for name in example_sizes()])
    lives = [SymbolicLife(p.buffer_bytes(t), *used[t]) for t in own]
    offsets, memory_bytes = assign_slots(lives)
    p.places |= {t: Ref("word", words.number(at)) for t, at in zip(own, offsets, strict=True)}
    sizes_place = Ref("argument", len(p.graph.inputs) + len(p.outputs))
    constants = _ConstantOffsets(p)
    calls: list[Call] = []
    run: list[Step] = []

    def call(step: Step, places: Sequence[Ref]) -> None:
        arguments = (*places, p.places[step.target], *[sizes_place] * bool(step.kernel.sizes))
        count = chunk_count(step.kernel)
        word = words.number(index.as_index(count)) if is_symbolic(count) else None
        calls.append(Call(step.kernel.name, arguments, hint(count), word))
        run.append(step)

    to_clear = {t for t in own if (layout := p.layouts.get(t)) and _has_border(layout)}
    for step in p.steps:
        if step.target in to_clear:  # before its first write
            to_clear.remove(step.target)
            call(replace(step, kernel=_border_clear_kernel(p, step.target)), ())
        refs = [
            constants.place(x, step.kernel)
            if x in p.tensors.constants
            else replace(p.places[x], offset=p.places[x].offset + begin)
            for x, begin in zip(step.reads, step.read_offsets, strict=True)
        ]
        call(step, refs)
    kernels = {step.kernel.name: step.kernel for step in run}
    workspace = [index.as_index(workspace_bytes(k)) for k in kernels.values()]
    p.program = Program(
        kernels,
        tuple(calls),
        tuple(constants.slots),
        constants.end,
        0,
        0,
        0,
        p.problems,
        p.chosen,
        tuple(step.problem for step in run),
        tuple(step.result for step in run),
        provenance_of(p.graph, p.tensors, p.definitions),
        symbolic=SymbolicSizes(
            tuple(example_sizes()), tuple(words.values), sizes_place.position, memory_bytes,
            reduce(lambda a, b: index.apply("max", (a, b), a.dtype), workspace, index.as_index(0)),
        ),
    )  # fmt: skip


def _reads_and_writes(p: Plan) -> tuple[list[tuple[Tensor, ...]], list[Tensor]]:
    # A write over another tensor comes after the write of that tensor, as a read would.
    over = p.tensors.overwriting_parts
    reads = [(*s.reads, s.target) if s.result in over else s.reads for s in p.steps]
    return reads, [s.target for s in p.steps]


class _ConstantOffsets:
    """Offsets of constants in the layouts in which kernels read them; each is held once."""

    def __init__(self, p: Plan) -> None:
        self.constants = p.tensors.constants
        self.slots: list[ConstantSlot] = []
        self.end = 0
        self.held: dict[object, Ref] = {}

    def place(self, x: Tensor, kernel: Kernel) -> Ref:
        """Return the place of a constant as this kernel reads it."""
        load = self.constants[x]
        pack = {k.source: k for k in kernel.packs}.get(x)
        key = load, None if pack is None else layout_key(pack)
        if key not in self.held:
            self.held[key] = Ref("constant", self.end)
            buffer = x if pack is None else pack.buffer
            size = prod(buffer.sizes) * _element_bytes(x)
            self.slots.append(ConstantSlot(self.end, buffer.type, load, pack))
            self.end += -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        return self.held[key]


def _has_border(layout: Layout) -> bool:
    """True if zeros lie around a tensor of this layout."""
    return any(part.border for part in layout.parts)


def _border_contents(p: Plan, t: Tensor) -> tuple[object, int | None]:
    """Return the key of the zero border around a tensor, and the bytes of the border."""
    layout = p.layouts.get(t)
    if layout is None or not _has_border(layout):
        return None, None
    assert p.storage is not None
    shape = layout.shape(t.sizes)
    zeros = layout.borders()
    written = zeros is not None and p.target.clears_borders
    clear = (
        zero_border.count_border_elements(shape, zeros) * _element_bytes(t)
        if written and zeros
        else None
    )
    return (p.storage.dtype_of(t), shape, layout), clear


def _border_clear_kernel(p: Plan, t: Tensor) -> Kernel:
    """Return a kernel that writes the zeros around a tensor."""
    layout = p.layouts[t]
    borders = layout.borders()
    if borders is None:
        raise NotImplementedError(f"a border of an axis in blocks: {layout}")
    assert p.storage is not None
    dtype = p.storage.dtype_of(t)
    made = zero_border.clear_border_kernel(dtype, layout.shape(t.sizes), borders)
    if example_sizes():
        made = replace(made, sizes=tuple(example_sizes()))
    return replace(made, name=f"k{kernel_digest(made)}")


def _element_bytes(t: Tensor) -> int:
    return max(t.dtype.bits // 8, 1)
