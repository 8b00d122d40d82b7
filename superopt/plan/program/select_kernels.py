"""Choose how each definition is computed, and build its kernels."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from math import prod

from superopt.kernels.algorithms.build import BuiltKernel, build_kernels, input_buffers
from superopt.kernels.algorithms.digests import kernel_digest, problem_digest
from superopt.kernels.algorithms.problem import Choice, Problem
from superopt.kernels.llvm.calls import Ref
from superopt.kernels.loops.data_dependent.limit_loops import limit_loops
from superopt.kernels.loops.data_dependent.limit_rows import limit_rows
from superopt.kernels.loops.data_dependent.place_stores import place_stores
from superopt.kernels.loops.layout import Layout, ScatteredLayout, row_major
from superopt.kernels.loops.tile import Kernel
from superopt.plan.lowering.polyphase import StridedPart
from superopt.plan.lowering.updated_states import Placement, UpdatedState
from superopt.plan.program.buffer_reads import read_from_buffers
from superopt.plan.program.plan import Plan, Settings, Step
from superopt.plan.program.storage_types import StorageTypes
from superopt.plan.program.symbolic_choice import (
    SymbolicProblem,
    costly_tensors,
    keep_unit_level,
)
from superopt.plan.program.transformed_constants import TransformedConstants
from superopt.plan.rewrites.fusion.buffer_views import BufferView, use_views
from superopt.plan.rewrites.matmul.duplicated_constants import duplicate_constants
from superopt.plan.rewrites.matmul.valid_keys import KeyLimit, find_key_limits
from superopt.plan.rewrites.reductions.row_fusion import replace_tensors
from superopt.te.analysis.bind_sizes import has_symbolic_size
from superopt.te.expr import index
from superopt.te.expr.symbolic_int import example_sizes, level_guards
from superopt.te.expr.tensor import Tensor

# Bytes of a model's constants up to which its products use one level of Strassen, and two levels.
STRASSEN_CONSTANT_BYTES = (2**30, 2**29)


def buffer_bytes(p: Plan, t: Tensor) -> int:
    """Return the bytes of a tensor in its layout and storage type."""
    assert p.storage is not None
    layout = p.layouts.get(t) or row_major(t.rank)
    return prod(layout.shape(t.sizes)) * max(p.storage.dtype_of(t).bits // 8, 1)


def select_kernels(p: Plan) -> None:
    """Add to the plan its steps, problems, options, and the places of its arguments."""
    assert isinstance(p.storage, StorageTypes)
    p.places = _argument_places(p)
    strassen_levels = _strassen_levels([buffer_bytes(p, t) for t in p.tensors.constants])
    owner = {x.tensor: (whole, x) for whole, some in p.tensors.parts.items() for x in some}
    stored = [*p.definitions, *(x for x in p.tensors.parts if p.storage.dtype_of(x) != x.dtype)]
    buffers = {t: Tensor(f"b{n}", p.storage.dtype_of(t), t.shape) for n, t in enumerate(stored)}
    tensor_of = {b: t for t, b in buffers.items()}
    duplicates: dict[Tensor, Tensor] = {}
    transformed = TransformedConstants(p.tensors.constants)
    costly = costly_tensors(p.definitions)
    limits = _key_limits(p)
    built: dict[object, tuple[str, BuiltKernel]] = {}  # by what it computes, in equal layers once
    for t, definition in p.definitions.items():
        root, views = _definition_of_buffers(p, t, definition, buffers, tensor_of, duplicates)
        inputs = input_buffers(root)
        layouts: dict[Tensor, Layout | ScatteredLayout] = {
            b: p.layouts[x] for b in inputs if (x := tensor_of.get(b, b)) in p.layouts
        }
        result_layout = _part_layout(p, t, root, *owner[t]) if t in owner else _result_layout(p, t)
        if result_layout is not None:
            layouts[root] = result_layout
        constants = {x for x in inputs if x in p.tensors.constants}
        problem = _problem(
            root, layouts, constants, p.batch_ranks.get(t, 0), p.settings,
            None if t in p.direct else strassen_levels,
        )  # fmt: skip
        about = (
            problem_digest(problem), problem.row_axes, problem.strassen_levels, t in costly
        )  # fmt: skip
        if about in built:
            key, kernel = built[about]
            kernels = [_kernel_of_tensors(kernel, inputs, root)]
        else:
            key, choice = _choose(p.settings, problem)
            if (
                choice.derived_constants
                and p.target.bounds_transformed_constants
                and not transformed.fits(key, choice)
            ):
                problem = _problem(
                    root, layouts, constants, p.batch_ranks.get(t, 0), p.settings, None
                )
                key, choice = _choose(p.settings, problem)
            transformed.add(key, choice)
            p.problems[key], p.chosen[key] = problem, choice.option
            with level_guards(t in costly):
                kernels = build_kernels(problem, choice)
                keep_unit_level(problem)
            if choice.root is root and not choice.derived_constants and len(kernels) == 1:
                built[about] = key, kernels[0]
        for limit in limits.get(t, ()):
            kernels[-1] = _limit_kernel(kernels[-1], limit, buffers)
        if t in p.tensors.placements:
            kernels[-1] = _place_kernel(kernels[-1], p.tensors.placements[t], buffers)
        for made in kernels:
            target = made.writes
            if target is root:
                target = owner[t][0] if t in owner else t
            read = [views.get(x, BufferView(x, 0)) for x in made.reads]
            reads = tuple(tensor_of.get(v.buffer, v.buffer) for v in read)
            offsets = tuple(v.offset for v in read)
            p.steps.append(Step(made.kernel, reads, target, key, t, offsets))
    _check_state_order(p)


def _check_state_order(p: Plan) -> None:
    """Raise NotImplementedError if a step reads a state that is updated in place as it was before
    the call, or positions that are not computed yet."""
    updated = {m.before for m in p.tensors.memories.values() if isinstance(m.state, UpdatedState)}
    missing = {step.target for step in p.steps}
    for step in p.steps:
        if not updated.isdisjoint(step.reads):
            raise NotImplementedError("a state that is read after it was written")
        placement = p.tensors.placements.get(step.result)
        if placement is not None and placement.positions in missing:
            raise NotImplementedError("positions that are computed after they are used")
        missing.discard(step.target)


def _kernel_of_tensors(built: BuiltKernel, reads: Sequence[Tensor], writes: Tensor) -> BuiltKernel:
    """Return the kernel of an equal problem, which reads and writes other tensors."""
    others = dict(zip(built.reads, reads, strict=True))
    packs = tuple(replace(pack, source=others[pack.source]) for pack in built.kernel.packs)
    return BuiltKernel(replace(built.kernel, packs=packs), tuple(reads), writes)


def _key_limits(p: Plan) -> dict[Tensor, list[KeyLimit]]:
    """Return the limits of products, on targets whose loops end at values."""
    if p.target.fuses_horizontally:
        return {}
    parts = (x.tensor for some in p.tensors.parts.values() for x in some)
    return find_key_limits(
        p.definitions, p.tensors.constants, {*p.outputs, *p.partial_sums, *parts}
    )


def _limit_kernel(
    built: BuiltKernel, limit: KeyLimit, buffers: Mapping[Tensor, Tensor]
) -> BuiltKernel:
    """Return the kernel with a limit, if its loops allow it."""
    held = _parameters(built, buffers)
    end = replace_tensors(limit.end, held)
    keys = None if limit.keys is None else held.get(limit.keys, limit.keys)
    made = limit_loops(built.kernel, limit.axis, end, is_summed=limit.is_summed, reads=keys)
    if made is not None and limit.rows is not None:
        rows = [held.get(x, x) for x in limit.rows]
        made = limit_rows(made, limit.axis.extent, end, rows)
    return built if made is None else _with_more_reads(built, made)


def _place_kernel(
    built: BuiltKernel, placement: Placement, buffers: Mapping[Tensor, Tensor]
) -> BuiltKernel:
    """Return the kernel with its result stored at positions in memory."""
    positions = _parameters(built, buffers).get(placement.positions, placement.positions)
    place = partial(placement.place, positions=positions)
    return _with_more_reads(built, place_stores(built.kernel, placement.axis, place))


def _parameters(built: BuiltKernel, buffers: Mapping[Tensor, Tensor]) -> dict[Tensor, Tensor]:
    """Return the parameters of a kernel, which may have been built for an equal problem, by the
    tensors that they stand for; and the buffers of other tensors."""
    own = dict(zip(built.reads, built.kernel.params, strict=False))
    return {**own, **{t: own.get(b, b) for t, b in buffers.items()}}


def _with_more_reads(built: BuiltKernel, made: Kernel) -> BuiltKernel:
    """Return a kernel that was changed so that it has more parameters, before the result."""
    more = made.params[len(built.kernel.params) - 1 : -1]
    named = replace(made, name=f"k{kernel_digest(made)}")
    return BuiltKernel(named, (*built.reads, *more), built.writes)


def _argument_places(p: Plan) -> dict[Tensor, Ref]:
    out: dict[Tensor, Ref] = {}
    for n, i in enumerate(p.graph.inputs):
        t = p.tensors.by_value.get(i)
        if isinstance(t, Tensor):
            out[p.tensors.copies.get(t, t)] = Ref("argument", n)
    for n, t in enumerate(p.outputs):
        out[t] = Ref("argument", len(p.graph.inputs) + n)
    return out


def _definition_of_buffers(
    p: Plan,
    t: Tensor,
    definition: Tensor,
    buffers: Mapping[Tensor, Tensor],
    tensor_of: Mapping[Tensor, Tensor],
    duplicates: dict[Tensor, Tensor],
) -> tuple[Tensor, dict[Tensor, BufferView]]:
    """Return the definition reading buffers in their storage types, and views of buffers, on
    targets where each kernel has a cost."""
    assert p.storage is not None
    stored = {**buffers, **p.storage.narrowed_constants(t, definition)}
    root = read_from_buffers(
        definition,
        stored,
        p.storage.dtype_of(t),
        p.storage.dropped_bits(t),
        p.target.storage_dtype,
    )
    root = duplicate_constants(root, p.tensors.constants, duplicates)
    if not p.target.fuses_horizontally:
        return root, {}
    own = {b for b in input_buffers(root) if (x := tensor_of.get(b)) and x not in p.places}
    return use_views(root, {b for b in own if tensor_of[b] not in p.layouts})


def _result_layout(p: Plan, t: Tensor) -> Layout | None:
    if t in p.axis_orders:
        return p.axis_orders[t].permute_layout(p.layouts.get(t))
    return p.layouts.get(t)


def _part_layout(
    p: Plan, t: Tensor, root: Tensor, parent: Tensor, part: StridedPart
) -> ScatteredLayout:
    """Return the layout of a part of another tensor."""
    axes = p.axis_orders[t].to_tensor_order(root.axes) if t in p.axis_orders else root.axes
    places = zip(axes, part.begin, part.step, strict=True)
    at = [index.as_index(i * step + begin) for i, begin, step in places]
    layout = p.layouts.get(parent) or row_major(parent.rank)
    return ScatteredLayout(parent.sizes, layout, root.axes, tuple(at))


def _problem(
    root: Tensor,
    layouts: Mapping[Tensor, Layout | ScatteredLayout],
    constants: set[Tensor],
    batch_rank: int,
    s: Settings,
    strassen_levels: int | None,
) -> Problem:
    """Return the problem of a definition. strassen_levels: None to use neither Winograd nor
    Strassen."""
    return Problem(
        root,
        layouts,
        constants,
        s.vector_bytes,
        batch_rank,
        strassen_levels is not None,
        strassen_levels or 0,
        s.allow_dilated_winograd,
        s.processor,
        s.target.storage_dtype is not None,
        threads=s.threads,
    )


def _choose(s: Settings, problem: Problem) -> tuple[str, Choice]:
    """Return the key of a problem, and its solution."""
    if not has_symbolic_size(problem.tensor):
        key = problem_digest(problem)
        return key, s.target.choose(problem, s.options.get(key))
    # Strassen computes other tensors, which are made for fixed sizes.
    plain = replace(problem, strassen_levels=0)
    known = SymbolicProblem(plain, example_sizes())
    key = problem_digest(known.at_hints)
    choices = (
        s.target.choose(known.at_hints, option)
        for option in chain((s.options.get(key),), s.target.list_options(known.at_hints))
    )
    found = next(filter(None, map(known.transfer, choices)), None)
    if found is None:
        raise NotImplementedError(f"no kernel of symbolic sizes computes {problem.tensor.type}")
    return key, found


def _strassen_levels(constants: Collection[int]) -> int:
    """Return how many levels of Strassen products may use: each level makes a constant 7/4 times as
    large.

    constants: their bytes.
    """
    total = sum(constants)
    return sum(total <= most for most in STRASSEN_CONSTANT_BYTES)
