"""The problems that a plan's kernels solve: its definitions, over buffers in their layouts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from superopt.kernels.algorithms.build import input_buffers
from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.loops.layout import Layout, ScatteredLayout, row_major
from superopt.kernels.processor import AVX_INT16
from superopt.plan.lowering.polyphase import StridedPart
from superopt.plan.program.buffer_reads import read_from_buffers
from superopt.plan.program.plan import Plan, Settings
from superopt.plan.rewrites.fusion.buffer_views import BufferView, use_views
from superopt.plan.rewrites.matmul.duplicated_constants import duplicate_constants
from superopt.te.expr import index
from superopt.te.expr.dtype import I8
from superopt.te.expr.tensor import Tensor

MATRIX_RANK = 2
MAX_UINT8 = 255
_FILTER_LIMITS: WeakKeyDictionary[Callable[[], np.ndarray], int] = WeakKeyDictionary()
# Bytes of a model's constants up to which its products use one level of Strassen, and two levels.
STRASSEN_CONSTANT_BYTES = (2**30, 2**29)


@dataclass(frozen=True, slots=True)
class KernelProblem:
    """The problem of a definition. tensor: what is defined. root: its definition over buffers;
    inputs: what that reads. views: of buffers that are read in part. target: the tensor whose
    memory is written."""

    tensor: Tensor
    root: Tensor
    inputs: list[Tensor]
    views: Mapping[Tensor, BufferView]
    target: Tensor
    problem: Problem


@dataclass(slots=True)
class PlanProblems:
    """The problems of a plan. buffers: of tensors that kernels write; tensor_of: the reverse."""

    plan: Plan
    buffers: dict[Tensor, Tensor]
    tensor_of: dict[Tensor, Tensor]

    @classmethod
    def of_plan(cls, p: Plan) -> PlanProblems:
        assert p.storage is not None
        wide = (x for x in p.tensors.parts if p.storage.dtype_of(x) != x.dtype)
        stored = [*p.definitions, *wide]
        buffers = {t: Tensor(f"b{n}", p.storage.dtype_of(t), t.shape) for n, t in enumerate(stored)}
        return cls(p, buffers, {b: t for t, b in buffers.items()})

    def __iter__(self) -> Iterator[KernelProblem]:
        """Yield the problem of each definition, producers first."""
        p, tensor_of = self.plan, self.tensor_of
        levels = strassen_levels([p.buffer_bytes(t) for t in p.tensors.constants])
        owner = {x.tensor: (whole, x) for whole, some in p.tensors.parts.items() for x in some}
        duplicates: dict[Tensor, Tensor] = {}
        for t, definition in p.definitions.items():
            root, views = _definition_of_buffers(
                p, t, definition, self.buffers, tensor_of, duplicates
            )
            inputs = input_buffers(root)
            layouts: dict[Tensor, Layout | ScatteredLayout] = {
                b: p.layouts[x] for b in inputs if (x := tensor_of.get(b, b)) in p.layouts
            }
            own = _part_layout(p, t, root, *owner[t]) if t in owner else _result_layout(p, t)
            if own is not None:
                layouts[root] = own
            constants = {x for x in inputs if x in p.tensors.constants}
            problem = _make_problem(
                root, layouts, constants, p.batch_ranks.get(t, 0), p.settings,
                None if t in p.direct else levels, largest_integer_sum(p, constants),
            )  # fmt: skip
            target = owner[t][0] if t in owner else t
            yield KernelProblem(t, root, inputs, views, target, problem)


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


def _make_problem(
    root: Tensor,
    layouts: Mapping[Tensor, Layout | ScatteredLayout],
    constants: set[Tensor],
    batch_rank: int,
    s: Settings,
    strassen_levels: int | None,
    sum_limit: int,
) -> Problem:
    """Return the problem of a definition. strassen_levels: None to use neither Winograd nor
    Strassen. sum_limit: see Problem."""
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
        bf16_instructions=s.bf16_instructions,
        integer_instructions=s.integer_instructions,
        sum_limit=sum_limit,
    )


def largest_integer_sum(p: Plan, constants: Collection[Tensor]) -> int:
    """Return the largest absolute value of a sum of products of uint8 with int8 filters along the
    first axis, where kernels depend on it; 0 for others."""
    filters = [x for x in constants if x.dtype == I8 and x.rank > MATRIX_RANK]
    if p.settings.integer_instructions != AVX_INT16:
        return 0
    return max((_filter_limit(p.tensors.constants[x]) for x in filters), default=0)


def _filter_limit(load: Callable[[], np.ndarray]) -> int:
    if load not in _FILTER_LIMITS:
        w = load()
        w = w.reshape(len(w), -1)
        parts = np.maximum(w, 0), np.minimum(w, 0)
        sums = [np.abs(x.sum(1, dtype=np.int64)).max(initial=0) for x in parts]
        _FILTER_LIMITS[load] = MAX_UINT8 * int(max(sums))
    return _FILTER_LIMITS[load]


def strassen_levels(constants: Collection[int]) -> int:
    """Return how many levels of Strassen products may use: each level makes a constant 7/4 times as
    large.

    constants: their bytes.
    """
    total = sum(constants)
    return sum(total <= most for most in STRASSEN_CONSTANT_BYTES)
