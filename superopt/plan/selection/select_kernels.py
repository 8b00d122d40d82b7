"""Choose how each definition is computed, and build its kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from superopt.kernels.algorithms.build import BuiltKernel, build_kernels
from superopt.kernels.algorithms.digests import kernel_digest, problem_digest
from superopt.kernels.llvm.calls import Ref
from superopt.kernels.loops.data_dependent.limit_loops import limit_loops
from superopt.kernels.loops.data_dependent.limit_rows import limit_rows
from superopt.kernels.loops.data_dependent.place_stores import place_stores
from superopt.kernels.loops.tile import Kernel
from superopt.plan.lowering.updated_states import Placement, UpdatedState
from superopt.plan.program.plan import Plan, Step
from superopt.plan.program.storage_types import StorageTypes
from superopt.plan.rewrites.fusion.buffer_views import BufferView
from superopt.plan.rewrites.matmul.valid_keys import KeyLimit, find_key_limits
from superopt.plan.rewrites.reductions.row_fusion import replace_tensors
from superopt.plan.selection.choose_kernels import choose_kernels, solve
from superopt.plan.selection.kernel_problems import PlanProblems
from superopt.plan.selection.symbolic_choice import (
    costly_tensors,
    keep_unit_level,
)
from superopt.plan.selection.transformed_constants import TransformedConstants, tensor_bytes
from superopt.te.expr.symbolic_int import level_guards
from superopt.te.expr.tensor import Tensor


def select_kernels(p: Plan) -> None:
    """Add to the plan its steps, problems, options, and the places of its arguments."""
    assert isinstance(p.storage, StorageTypes)
    p.places = _argument_places(p)
    found = PlanProblems.of_plan(p)
    buffers, tensor_of = found.buffers, found.tensor_of
    problems = list(found)
    solutions = choose_kernels(
        p.settings,
        [each.problem for each in problems],
        TransformedConstants(
            p.tensors.constants,
            largest_result_bytes=max(map(tensor_bytes, p.definitions), default=0),
        ),
    )
    costly = costly_tensors(p.definitions)
    limits = _key_limits(p)
    built: dict[object, BuiltKernel] = {}  # by what it computes, in equal layers once
    for each, solution in zip(problems, solutions, strict=True):
        t, root, key, problem = each.tensor, each.root, solution.key, solution.problem
        about = (
            problem_digest(problem), problem.row_axes, problem.strassen_levels, t in costly
        )  # fmt: skip
        if about in built:
            kernels = [_kernel_of_tensors(built[about], each.inputs, root)]
        else:
            choice = (solve(p.settings, problem) if solution.is_shared else solution).choice
            p.problems[key], p.chosen[key] = problem, choice.option
            with level_guards(t in costly):
                kernels = build_kernels(problem, choice)
                keep_unit_level(problem)
            if choice.root is root and not choice.derived_constants and len(kernels) == 1:
                built[about] = kernels[0]
        for limit in limits.get(t, ()):
            kernels[-1] = _limit_kernel(kernels[-1], limit, buffers)
        if t in p.tensors.placements:
            kernels[-1] = _place_kernel(kernels[-1], p.tensors.placements[t], buffers)
        for made in kernels:
            target = made.writes
            if target is root:
                target = each.target
            read = [each.views.get(x, BufferView(x, 0)) for x in made.reads]
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
