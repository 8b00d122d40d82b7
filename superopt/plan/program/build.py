"""Plan a graph as a program: kernels, their order, and the offsets of their buffers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from math import prod

from superopt.ir import graph as ir_graph
from superopt.kernels.algorithms.build import build_kernels, input_buffers
from superopt.kernels.algorithms.contraction import VECTOR_REGISTERS
from superopt.kernels.algorithms.digests import kernel_digest, problem_digest
from superopt.kernels.algorithms.problem import Choice, Problem
from superopt.kernels.llvm.calls import Call, Loop, Ref, kernel_calls
from superopt.kernels.llvm.codegen import chunk_count, workspace_bytes
from superopt.kernels.loops import zero_border
from superopt.kernels.loops.layout import Layout, ScatteredLayout, row_major
from superopt.kernels.loops.option import Option
from superopt.kernels.loops.tile import Kernel
from superopt.plan.lowering.graph_tensors import GraphTensors
from superopt.plan.lowering.image_layouts import image_copies
from superopt.plan.lowering.outputs import copy_image_outputs, materialized_tensors, output_tensors
from superopt.plan.lowering.polyphase import StridedPart
from superopt.plan.lowering.provenance import Provenance, provenance_of
from superopt.plan.lowering.scatter_into import find_scatter_into
from superopt.plan.program.buffer_assignment import ALIGNMENT_BYTES, BufferLife, assign_offsets
from superopt.plan.program.pack_constants import ConstantSlot, layout_key
from superopt.plan.program.storage_types import StorageTypes, read_from_buffers
from superopt.plan.program.streams import StreamOrder, live_ranges
from superopt.plan.program.target import CPU, Target
from superopt.plan.program.transformed_constants import TransformedConstants
from superopt.plan.rewrites.fusion.buffer_views import BufferView, use_views
from superopt.plan.rewrites.fusion.concat_fusion import fuse_concat, inline_float_casts
from superopt.plan.rewrites.fusion.inline import (
    inline_tensors,
    inline_to_fixpoint,
    topological_order,
)
from superopt.plan.rewrites.fusion.tree_walks import fuse_tree_walks, tree_walk_steps
from superopt.plan.rewrites.matmul.attention import fuse_attention
from superopt.plan.rewrites.matmul.causal_masks import replace_causal_masks
from superopt.plan.rewrites.matmul.cell_fusion import find_cells, fuse_cells
from superopt.plan.rewrites.matmul.duplicated_constants import duplicate_constants
from superopt.plan.rewrites.matmul.gate_fusion import find_gates, fuse_gates
from superopt.plan.rewrites.matmul.operand_transpose import panel_layouts, transpose_operands
from superopt.plan.rewrites.matmul.product_passes import fuse_products, reorder_products
from superopt.plan.rewrites.matmul.scale_hoisting import hoist_scales
from superopt.plan.rewrites.matmul.zero_sensitive import zero_sensitive_products
from superopt.plan.rewrites.reductions.channel_reduction import split_channel_reductions
from superopt.plan.rewrites.reductions.group_norm import fuse_group_norm
from superopt.plan.rewrites.reductions.row_fusion import fuse_rows
from superopt.plan.rewrites.reductions.split_reduction import split_reductions
from superopt.plan.rewrites.reductions.strided_softmax import AxisOrder, fuse_strided_softmax
from superopt.te.expr import index
from superopt.te.expr.tensor import Tensor

# Bytes of a model's constants up to which its products use one level of Strassen, and two levels.
STRASSEN_CONSTANT_BYTES = (2**30, 2**29)


@dataclass(frozen=True, slots=True)
class Program:
    """A planned program.

    kernels: by function name, in tile-level form. memory_bytes, workspace_bytes: sizes.
    border_bytes: the first bytes of the memory, which stay zero wherever no kernel writes.
    problems: the problems to solve, by key. options: how each is solved. call_problems: the problem
    of each call, empty for a loop. call_results: the tensor that each call computes or contributes
    to. provenance: where these come from. stream_order: the stream of each call, if there are
    several. loop_bodies: by index of a loop among the calls, the program of each lane's step.
    """

    kernels: Mapping[str, Kernel]
    calls: tuple[Call | Loop, ...]
    constants: tuple[ConstantSlot, ...]
    constant_bytes: int
    memory_bytes: int
    border_bytes: int
    workspace_bytes: int
    problems: Mapping[str, Problem]
    options: Mapping[str, Option]
    call_problems: tuple[str, ...]
    call_results: tuple[Tensor, ...] = ()
    provenance: Provenance | None = None
    stream_order: StreamOrder | None = None
    loop_bodies: Mapping[int, tuple[Program, ...]] = field(default_factory=dict)

    def identity(self) -> str:
        """Return a digest that is equal for programs whose constants have the same offsets and
        order."""
        found = blake2b(digest_size=16)
        for c in self.constants:
            about = "" if c.pack is None else f"{c.pack.axes} {c.pack.index}"
            found.update(f"{c.offset} {c.type} {about}\n".encode())
        for call in self.calls:
            found.update(f"{call}\n".encode())
        return found.hexdigest()

    def kernel_calls(self) -> tuple[Call, ...]:
        """Return the calls; those in loops once."""
        return tuple(kernel_calls(self.calls))

    def solve_count(self, problem: str) -> int:
        """Return how often a run solves a problem."""
        out = self.call_problems.count(problem)
        for n, bodies in self.loop_bodies.items():
            loop = self.calls[n]
            assert isinstance(loop, Loop)
            out += loop.steps * sum(body.solve_count(problem) for body in bodies)
        return out


def plan_program(
    graph: ir_graph.Graph,
    sizes: Mapping[str, int],
    vector_bytes: int,
    options: Mapping[str, Option] | None = None,
    allow_winograd: bool = True,
    multiply_bytes: int = 0,
    allow_dilated_winograd: bool = True,
    vector_registers: int = VECTOR_REGISTERS,
    target: Target = CPU,
) -> Program:
    """Return the program of a graph.

    vector_bytes: bytes of a vector register of the target. options: how to solve problems, by key;
    the default option is used for all others. allow_winograd: use Winograd and Strassen.
    multiply_bytes: bytes of a vector that the machine multiplies at a time; 0 for all.
    allow_dilated_winograd: use Winograd for dilated convolutions, too, in tiles of every d-th
    element. vector_registers: their number.

    Raises NotImplementedError if no kernel supports an element type.
    """
    tensors = GraphTensors(sizes, scatters=find_scatter_into(graph, sizes))
    for n in ir_graph.nodes(graph):
        tensors.add(n)
    outputs = output_tensors(graph, tensors)
    parts = {t: [x.tensor for x in p] for t, p in tensors.parts.items()}
    order = topological_order(outputs, parts)
    walk_steps = tree_walk_steps(order) if target.reorders_operands else set()
    pictures = image_copies(order, tensors.copies, target.reorders_operands) | walk_steps
    turning = partial(transpose_operands, constants=tensors.constants, registers=vector_registers)
    current = inline_tensors(
        outputs, pictures, parts, turning if target.reorders_operands else None
    )
    outputs, current = copy_image_outputs(outputs, current, tensors.parts)
    needed = materialized_tensors(outputs, tensors)
    if target.fuses_horizontally:
        if target.attention_fusion is not None:
            current = hoist_scales(current, needed)
        current = fuse_concat(current, tensors.parts)
        needed = materialized_tensors(outputs, tensors)
        current = inline_to_fixpoint(
            inline_float_casts(current, needed | pictures), needed | pictures
        )
        half = target.storage_dtype is not None
        lying = target.assign_layouts(current, outputs, tensors.parts)
        current = fuse_products(current, needed, lying, tensors.parts, tensors.constants, half)
    lying = target.assign_layouts(current, outputs, tensors.parts)
    if target.reorders_operands:
        lying |= panel_layouts(current, vector_bytes)
    pictured = {x.tensor for t, some in tensors.parts.items() if t in lying for x in some}
    current = reorder_products(current, lying.keys() | pictured, tensors.constants)
    own: dict[Tensor, int] = {}
    if target.fuses_horizontally:
        found = find_cells(current, needed, lying, tensors.parts, tensors.constants)
        current, own = fuse_cells(current, found, tensors.constants)
        needed |= own.keys()
    current, leads = fuse_rows(current, needed, lying, target.min_parallel_elements > 0)
    leads |= own
    if target.attention_fusion is not None:
        fusing = target.attention_fusion(tensors.constants, vector_bytes)
        current, leads = fuse_attention(current, leads, needed, lying, tensors.constants, fusing)
    orders: Mapping[Tensor, AxisOrder] = {}
    if target.min_parallel_elements:
        apart_ = {*lying, *(x.tensor for some in tensors.parts.values() for x in some)}
        current, more = fuse_group_norm(current, needed, apart_, leads)
        leads |= more
        current, orders = fuse_strided_softmax(current, needed, leads)
        leads |= {t: len(order.row_axes) for t, order in orders.items()}
    whole = current.keys()
    current = split_channel_reductions(current, leads, lying)
    if target.min_parallel_elements:
        current = split_reductions(
            current, leads, tensors.constants, needed, target.min_parallel_elements
        )
    sums = current.keys() - whole  # partial reductions
    if target.replaces_causal_masks:
        current = replace_causal_masks(current, leads, tensors.constants)
    if target.fuses_horizontally:
        beside = {*lying, *leads}
        some = find_gates(current, needed, beside, tensors.parts, tensors.constants, half)
        current = fuse_gates(*some)
    current = fuse_tree_walks(current, walk_steps, needed)
    how = options or {}
    machine = (
        vector_bytes,
        how,
        allow_winograd,
        multiply_bytes,
        allow_dilated_winograd,
        vector_registers,
        target,
    )
    return _Builder(graph, tensors, outputs, current, leads, orders, lying, sums, *machine).build()


@dataclass(frozen=True, slots=True)
class Step:
    """A kernel call before its buffers have offsets. read_offsets: bytes into each buffer that is
    read."""

    kernel: Kernel
    reads: tuple[Tensor, ...]
    target: Tensor
    problem: str
    result: Tensor
    read_offsets: tuple[int, ...]


@dataclass(slots=True)
class _Builder:
    graph: ir_graph.Graph
    tensors: GraphTensors
    outputs: Sequence[Tensor]
    current: Mapping[Tensor, Tensor]
    batch_ranks: Mapping[Tensor, int]
    orders: Mapping[Tensor, AxisOrder]
    layouts: Mapping[Tensor, Layout]
    partial_sums: Collection[Tensor]
    vector_bytes: int
    options: Mapping[str, Option]
    allow_winograd: bool
    multiply_bytes: int
    allow_dilated_winograd: bool
    vector_registers: int
    target: Target
    storage: StorageTypes = field(init=False)
    strassen_levels: int = 0

    def build(self) -> Program:
        into = {x.tensor: (whole, x) for whole, some in self.tensors.parts.items() for x in some}
        kept = StorageTypes(
            self.target, self.tensors, self.current, self.outputs, self.partial_sums
        )
        self.storage = kept
        some = [*self.current, *(x for x in self.tensors.parts if kept.dtype_of(x) != x.dtype)]
        buffers = {t: Tensor(f"b{n}", kept.dtype_of(t), t.shape) for n, t in enumerate(some)}
        back = {b: t for t, b in buffers.items()}
        where: dict[Tensor, Ref] = {}
        for n, i in enumerate(self.graph.inputs):
            t = self.tensors.by_value.get(i)
            if isinstance(t, Tensor):
                where[self.tensors.copies.get(t, t)] = Ref("argument", n)
        for n, t in enumerate(self.outputs):
            where[t] = Ref("argument", len(self.graph.inputs) + n)
        self.strassen_levels = _strassen_levels(map(self.buffer_bytes, self.tensors.constants))
        plain = (
            zero_sensitive_products(self.current, self.tensors)
            if self.allow_winograd
            else self.current
        )
        steps: list[Step] = []
        asked: dict[str, Problem] = {}
        used: dict[str, Option] = {}
        again: dict[Tensor, Tensor] = {}
        transformed = TransformedConstants(self.tensors.constants)
        for t, now in self.current.items():
            lie = {**buffers, **kept.narrowed_constants(t, now)}
            root = read_from_buffers(
                now, lie, kept.dtype_of(t), kept.dropped_bits(t), self.target.storage_dtype
            )
            root = duplicate_constants(root, self.tensors.constants, again)
            views: dict[Tensor, BufferView] = {}
            if self.target.fuses_horizontally:
                made = {b for b in input_buffers(root) if (x := back.get(b)) and x not in where}
                root, views = use_views(root, {b for b in made if back[b] not in self.layouts})
            given = input_buffers(root)
            layout: dict[Tensor, Layout | ScatteredLayout] = {
                b: self.layouts[x] for b in given if (x := back.get(b, b)) in self.layouts
            }
            if t in into:
                layout[root] = self.part_layout(t, root, *into[t])
            elif t in self.orders:
                layout[root] = self.orders[t].permute_layout(self.layouts.get(t))
            elif t in self.layouts:
                layout[root] = self.layouts[t]
            known = {x for x in given if x in self.tensors.constants}
            given_ = root, layout, known, self.batch_ranks.get(t, 0)
            key, problem, how = self.solve(*given_, direct=t in plain)
            if (
                how.derived_constants
                and self.target.bounds_transformed_constants
                and not transformed.fits(key, how)
            ):
                key, problem, how = self.solve(*given_, direct=True)
            transformed.add(key, how)
            asked[key], used[key] = problem, how.option
            for one in build_kernels(problem, how):
                target = one.writes
                if target is root:
                    target = into[t][0] if t in into else t
                read = [views.get(x, BufferView(x, 0)) for x in one.reads]
                reads, begins = (
                    tuple(back.get(v.buffer, v.buffer) for v in read),
                    tuple(v.offset for v in read),
                )
                steps.append(Step(one.kernel, reads, target, key, t, begins))
        return self.assign_buffers(steps, where, asked, used)

    def solve(
        self,
        root: Tensor,
        layout: Mapping[Tensor, Layout | ScatteredLayout],
        known_constants: set[Tensor],
        batch_rank: int,
        *,
        direct: bool,
    ) -> tuple[str, Problem, Choice]:
        """Return the key of a problem, the problem, and its solution. direct: do not use Winograd
        and Strassen."""
        own = (False, 0) if direct else (True, self.strassen_levels)
        how = (
            self.vector_bytes,
            batch_rank,
            *own,
            self.multiply_bytes,
            self.allow_dilated_winograd,
            self.vector_registers,
        )
        problem = Problem(
            root, layout, known_constants, *how, self.target.storage_dtype is not None
        )
        key = problem_digest(problem)
        return key, problem, self.target.choose(problem, self.options.get(key))

    def part_layout(
        self, t: Tensor, root: Tensor, parent: Tensor, part: StridedPart
    ) -> ScatteredLayout:
        """Return the layout of a part of another tensor."""
        axes = self.orders[t].to_tensor_order(root.axes) if t in self.orders else root.axes
        places = zip(axes, part.begin, part.step, strict=True)
        at = [index.as_index(i * step + begin) for i, begin, step in places]
        layout = self.layouts.get(parent) or row_major(parent.rank)
        return ScatteredLayout(self.static_shape(parent), layout, root.axes, tuple(at))

    def assign_buffers(
        self,
        steps: Sequence[Step],
        places: dict[Tensor, Ref],
        problems: Mapping[str, Problem],
        options: Mapping[str, Option],
    ) -> Program:
        """Assign buffers, and return the program."""
        # A write over another tensor comes after the write of that tensor, as a read would.
        over = self.tensors.overwriting_parts
        reads = [(*s.reads, s.target) if s.result in over else s.reads for s in steps]
        writes = [s.target for s in steps]
        how = [(problems[s.problem], options[s.problem]) for s in steps]
        order = (
            self.target.assign_streams(reads, writes, how) if self.target.assign_streams else None
        )
        used = live_ranges(reads, writes, order)
        own = [t for t in used if t not in places]
        lives = [BufferLife(self.buffer_bytes(t), *used[t], *self.border_contents(t)) for t in own]
        at, memory, shared, kept = assign_offsets(lives)
        places |= {t: Ref("memory", a) for t, a in zip(own, at, strict=True)}
        cleared = {own[n] for n in shared}
        constants: list[ConstantSlot] = []
        held: dict[object, Ref] = {}
        end = 0
        calls: list[Call] = []
        run: list[Step] = []
        for step in steps:
            if step.target in cleared:  # before its first write
                cleared.remove(step.target)
                clear = self.border_clear_kernel(step.target)
                run.append(replace(step, kernel=clear))
                calls.append(Call(clear.name, (places[step.target],), chunk_count(clear)))
            run.append(step)
            refs = []
            packs = {p.source: p for p in step.kernel.packs}
            for x, begin in zip(step.reads, step.read_offsets, strict=True):
                if x not in self.tensors.constants:
                    refs.append(replace(places[x], position=places[x].position + begin))
                    continue
                c, pack = self.tensors.constants[x], packs.get(x)
                key = c, None if pack is None else layout_key(pack)
                if key not in held:
                    held[key] = Ref("constant", end)
                    buffer = x if pack is None else pack.buffer
                    size = prod(self.static_shape(buffer)) * _element_bytes(x)
                    constants.append(ConstantSlot(end, buffer.type, c, pack))
                    end += -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
                refs.append(held[key])
            calls.append(
                Call(step.kernel.name, (*refs, places[step.target]), chunk_count(step.kernel))
            )
        kernels = {step.kernel.name: step.kernel for step in run}
        most = max((workspace_bytes(k) for k in kernels.values()), default=0)
        return Program(
            kernels,
            tuple(calls),
            tuple(constants),
            end,
            memory,
            kept,
            most,
            problems,
            options,
            tuple(step.problem for step in run),
            tuple(step.result for step in run),
            provenance_of(self.graph, self.tensors, self.current),
            order,
        )

    def static_shape(self, t: Tensor) -> tuple[int, ...]:
        return tuple(n for n in t.shape if isinstance(n, int))

    def buffer_bytes(self, t: Tensor) -> int:
        layout = self.layouts.get(t) or row_major(t.rank)
        return prod(layout.shape(self.static_shape(t))) * max(self.storage.dtype_of(t).bits // 8, 1)

    def border_contents(self, t: Tensor) -> tuple[object, int | None]:
        """Return the key of the zero border around a tensor, and the bytes of the border."""
        layout = self.layouts.get(t)
        if layout is None or not any(p.border for p in layout.parts):
            return None, None
        shape = layout.shape(self.static_shape(t))
        zeros = layout.borders()
        written = zeros is not None and self.target.clears_borders
        clear = (
            zero_border.count_border_elements(shape, zeros) * _element_bytes(t)
            if written and zeros
            else None
        )
        return (self.storage.dtype_of(t), shape, layout), clear

    def border_clear_kernel(self, t: Tensor) -> Kernel:
        """Return a kernel that writes the zeros around a tensor."""
        layout = self.layouts[t]
        made = zero_border.clear_border_kernel(
            t.dtype, layout.shape(self.static_shape(t)), layout.borders() or ()
        )
        return replace(made, name=f"k{kernel_digest(made)}")


def _strassen_levels(constants: Iterable[int]) -> int:
    """Return how many levels of Strassen products may use: each level makes a constant 7/4 times as
    large.

    constants: their bytes.
    """
    total = sum(constants)
    return sum(total <= most for most in STRASSEN_CONSTANT_BYTES)


def _element_bytes(t: Tensor) -> int:
    return max(t.dtype.bits // 8, 1)
