"""The passes of the back end, in order: from a graph to a program of kernels.

`superopt compile --passes` prints this table; `superopt compile --dump FOLDER` writes the plan
after each pass.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial

from superopt.ir import graph as ir_graph
from superopt.plan.lowering.graph_tensors import GraphTensors
from superopt.plan.lowering.image_layouts import image_copies
from superopt.plan.lowering.outputs import copy_image_outputs, materialized_tensors, output_tensors
from superopt.plan.lowering.scatter_into import find_scatter_into
from superopt.plan.lowering.state_memories import state_memories
from superopt.plan.program.assign_buffers import assign_buffers, assign_streams
from superopt.plan.program.plan import Plan, Settings
from superopt.plan.program.program import Program
from superopt.plan.program.storage_types import StorageTypes
from superopt.plan.program.target import CPU, Target
from superopt.plan.rewrites.fusion.concat_fusion import fuse_concat, inline_float_casts
from superopt.plan.rewrites.fusion.inline import (
    inline_tensors,
    inline_to_fixpoint,
    topological_order,
)
from superopt.plan.rewrites.fusion.tree_walks import fuse_tree_walks, tree_walk_steps
from superopt.plan.rewrites.matmul.attention import fuse_attention
from superopt.plan.rewrites.matmul.causal_masks import inline_masks, replace_causal_masks
from superopt.plan.rewrites.matmul.cell_fusion import find_cells, fuse_cells
from superopt.plan.rewrites.matmul.gate_fusion import find_gates, fuse_gates
from superopt.plan.rewrites.matmul.operand_transpose import panel_layouts, transpose_operands
from superopt.plan.rewrites.matmul.product_passes import fuse_products, reorder_products
from superopt.plan.rewrites.matmul.scale_hoisting import hoist_scales
from superopt.plan.rewrites.matmul.zero_sensitive import zero_sensitive_products
from superopt.plan.rewrites.reductions.channel_reduction import split_channel_reductions
from superopt.plan.rewrites.reductions.group_norm import fuse_group_norm
from superopt.plan.rewrites.reductions.row_fusion import fuse_rows
from superopt.plan.rewrites.reductions.split_reduction import split_reductions
from superopt.plan.rewrites.reductions.strided_softmax import fuse_strided_softmax
from superopt.plan.selection.select_kernels import select_kernels


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass over a plan.

    summary: an example, before => after. requires, ensures: properties of the plan, by name
    (plan/properties.py), before and after it. runs_on: the targets that have it. run: rewrites the
    plan.
    """

    name: str
    summary: str
    run: Callable[[Plan], None]
    requires: tuple[str, ...] = ("definitions",)
    ensures: tuple[str, ...] = ()
    runs_on: Callable[[Target], bool] = lambda target: True

    @property
    def is_fusion(self) -> bool:
        """True if it only makes one kernel of several."""
        return self.name.startswith("fuse-")


def _lower(p: Plan) -> None:
    for n in ir_graph.nodes(p.graph):
        p.tensors.add(n)
    p.outputs = output_tensors(p.graph, p.tensors)


def _inline(p: Plan) -> None:
    parts = p.written_parts()
    order = topological_order(p.outputs, parts)
    copies_operands = p.target.reorders_operands
    p.tree_walk_steps = tree_walk_steps(order) if copies_operands else set()
    p.image_copies = image_copies(order, p.tensors.copies, copies_operands) | p.tree_walk_steps
    processor = p.settings.processor
    transpose = partial(transpose_operands, constants=p.tensors.constants, processor=processor)
    kept = p.image_copies if p.settings.fuses_operators else p.image_copies | p.operator_results()
    p.definitions = inline_tensors(p.outputs, kept, parts, transpose if copies_operands else None)


def _copy_image_outputs(p: Plan) -> None:
    p.outputs, p.definitions = copy_image_outputs(p.outputs, p.definitions, p.tensors.parts)
    p.materialized = materialized_tensors(p.outputs, p.tensors)


def _hoist_scales(p: Plan) -> None:
    p.definitions = hoist_scales(p.definitions, p.materialized)


def _fuse_concat(p: Plan) -> None:
    p.definitions = fuse_concat(p.definitions, p.tensors.parts)
    p.materialized = materialized_tensors(p.outputs, p.tensors)


def _inline_casts(p: Plan) -> None:
    kept = p.materialized | p.image_copies
    p.definitions = inline_to_fixpoint(inline_float_casts(p.definitions, kept), kept)


def _fuse_products(p: Plan) -> None:
    images = p.target.assign_layouts(p.definitions, p.outputs, p.tensors.parts)
    p.definitions = fuse_products(
        p.definitions, p.materialized, images, p.tensors.parts, p.tensors.constants, p.is_fp16
    )


def _assign_layouts(p: Plan) -> None:
    p.layouts = p.target.assign_layouts(p.definitions, p.outputs, p.tensors.parts)
    if p.target.reorders_operands:
        p.layouts |= panel_layouts(p.definitions, p.settings.vector_bytes)


def _reorder_products(p: Plan) -> None:
    in_images = {x.tensor for t, some in p.tensors.parts.items() if t in p.layouts for x in some}
    p.definitions = reorder_products(
        p.definitions, p.layouts.keys() | in_images, p.tensors.constants
    )


def _fuse_cells(p: Plan) -> None:
    constants = p.tensors.constants
    found = find_cells(p.definitions, p.materialized, p.layouts, p.tensors.parts, constants)
    p.definitions, p.batch_ranks = fuse_cells(p.definitions, found, constants)
    p.materialized |= p.batch_ranks.keys()


def _fuse_rows(p: Plan) -> None:
    parallel_rows = p.target.min_parallel_elements > 0
    p.definitions, found = fuse_rows(p.definitions, p.materialized, p.layouts, parallel_rows)
    p.batch_ranks = found | p.batch_ranks


def _fuse_attention(p: Plan) -> None:
    assert p.target.attention_fusion is not None
    fusion = p.target.attention_fusion(p.tensors.constants, p.settings.vector_bytes)
    p.definitions, p.batch_ranks = fuse_attention(
        p.definitions, p.batch_ranks, p.materialized, p.layouts, p.tensors.constants, fusion
    )


def _fuse_group_norm(p: Plan) -> None:
    parts = (x.tensor for some in p.tensors.parts.values() for x in some)
    p.definitions, found = fuse_group_norm(
        p.definitions, p.materialized, {*p.layouts, *parts}, p.batch_ranks
    )
    p.batch_ranks |= found


def _fuse_strided_softmax(p: Plan) -> None:
    p.definitions, p.axis_orders = fuse_strided_softmax(
        p.definitions, p.materialized, p.batch_ranks
    )
    p.batch_ranks |= {t: len(order.row_axes) for t, order in p.axis_orders.items()}


def _split_channel_reductions(p: Plan) -> None:
    before = p.definitions.keys()
    p.definitions = split_channel_reductions(p.definitions, p.batch_ranks, p.layouts)
    p.partial_sums |= p.definitions.keys() - before


def _split_reductions(p: Plan) -> None:
    before = p.definitions.keys()
    p.definitions = split_reductions(
        p.definitions,
        p.batch_ranks,
        p.tensors.constants,
        p.materialized,
        p.target.min_parallel_elements,
    )
    p.partial_sums |= p.definitions.keys() - before


def _replace_causal_masks(p: Plan) -> None:
    if p.target.reorders_operands:
        constants = p.tensors.constants
        p.definitions = inline_masks(p.definitions, p.batch_ranks, p.materialized, constants)
    p.definitions = replace_causal_masks(p.definitions, p.batch_ranks, p.tensors.constants)


def _fuse_gates(p: Plan) -> None:
    definitions, found = find_gates(
        p.definitions,
        p.materialized,
        {*p.layouts, *p.batch_ranks},
        p.tensors.parts,
        p.tensors.constants,
        p.is_fp16,
    )
    p.definitions = fuse_gates(definitions, found)


def _fuse_tree_walks(p: Plan) -> None:
    p.definitions = fuse_tree_walks(p.definitions, p.tree_walk_steps, p.materialized)


def _assign_storage_types(p: Plan) -> None:
    p.storage = StorageTypes(p.target, p.tensors, p.definitions, p.outputs, p.partial_sums)


def _find_zero_sensitive(p: Plan) -> None:
    if p.settings.allow_winograd:
        p.direct = zero_sensitive_products(p.definitions, p.tensors)
    else:
        p.direct = set(p.definitions)


def _is_gpu(target: Target) -> bool:
    return target.fuses_horizontally


def _has_attention(target: Target) -> bool:
    return target.attention_fusion is not None


def _is_parallel(target: Target) -> bool:
    return target.min_parallel_elements > 0


PASSES: tuple[Pass, ...] = (
    Pass(
        "lower-graph", "Relu(MatMul(x, w)) => t[i, j] = sum(x[i, k] * w[k, j]); y = max(t, 0)",
        _lower, requires=(), ensures=("outputs",),
    ),
    Pass(
        "inline", "t = x[j, i]; y[i, j] = t[i, j] + 1 => y[i, j] = x[j, i] + 1",
        _inline, requires=("outputs",), ensures=("definitions",),
    ),
    Pass(
        "copy-image-outputs", "output y in image layout => output copy(y) in row-major order",
        _copy_image_outputs, ensures=("materialized",),
    ),
    Pass(
        "hoist-scales", "s = c * x; y = sum(s[k] * w[k]) => y = c * sum(x[k] * w[k])",
        _hoist_scales, runs_on=lambda t: _is_gpu(t) and _has_attention(t),
    ),
    Pass(
        "fuse-concat", "a = f(x); b = g(x); y = [a | b] in two kernels => in one kernel",
        _fuse_concat, ensures=("materialized",), runs_on=_is_gpu,
    ),
    Pass(
        "inline-casts", "t = f32(x); y = f(t) => y = f(f32(x))",
        _inline_casts, runs_on=_is_gpu,
    ),
    Pass(
        "fuse-products", "a = x @ u; b = x @ v => ab = x @ [u | v]",
        _fuse_products, runs_on=_is_gpu,
    ),
    Pass(
        "assign-layouts", "x[n, c, h, w] in row-major order => in blocks of channels, with borders",
        _assign_layouts, ensures=("layouts",),
    ),
    Pass(
        "reorder-products", "y[j, i] = sum(a[i, k] * b[k, j]) => t = a @ b; y[j, i] = t[i, j]",
        _reorder_products, requires=("definitions", "layouts"),
    ),
    Pass(
        "fuse-cells", "g = x @ w + h @ u; c = f(g); h = tanh(c) => one kernel of rows",
        _fuse_cells, requires=("definitions", "layouts"), ensures=("batch-ranks",),
        runs_on=_is_gpu,
    ),
    Pass(
        "fuse-rows", "m = max(x[i]); e = exp(x - m); y = e / sum(e[i]) => one kernel of rows",
        _fuse_rows, requires=("definitions", "layouts"), ensures=("batch-ranks",),
    ),
    Pass(
        "fuse-attention", "s = q @ k; p = softmax(s); y = p @ v => one kernel of rows",
        _fuse_attention, requires=("definitions", "batch-ranks"), ensures=("batch-ranks",),
        runs_on=_has_attention,
    ),
    Pass(
        "fuse-group-norm", "m = mean(x[g]); y[c] = (x[c] - m) * w[c] => one kernel of rows",
        _fuse_group_norm, requires=("definitions", "batch-ranks"), ensures=("batch-ranks",),
        runs_on=_is_parallel,
    ),
    Pass(
        "fuse-strided-softmax", "softmax over an outer axis in three kernels => in one",
        _fuse_strided_softmax, requires=("definitions", "batch-ranks"),
        ensures=("batch-ranks", "axis-orders"), runs_on=_is_parallel,
    ),
    Pass(
        "split-channel-reductions",
        "mean of x[:, c, h, w] in image layout => sums by channel; their mean",
        _split_channel_reductions, requires=("definitions", "layouts"),
    ),
    Pass(
        "split-reductions", "y = sum(x[k] for k < n) => p[i] = sum(x[i, k]); y = sum(p[i])",
        _split_reductions, runs_on=_is_parallel,
    ),
    Pass(
        "replace-causal-masks", "s[i, j] + mask[i, j] => s[i, j] if j <= i else -inf",
        _replace_causal_masks, runs_on=lambda t: t.replaces_causal_masks,
    ),
    Pass(
        "fuse-gates", "a = x @ u; b = x @ v; y = f(a) * b => one kernel of two products",
        _fuse_gates, requires=("definitions", "layouts", "batch-ranks"), runs_on=_is_gpu,
    ),
    Pass(
        "fuse-tree-walks", "n1 = next(n0); n2 = next(n1) => one kernel of all steps",
        _fuse_tree_walks,
    ),
    Pass(
        "assign-storage-types", "t: f32 => t: f32, stored as f16",
        _assign_storage_types, ensures=("storage",),
    ),
    Pass(
        "find-zero-sensitive", "1 / conv(x, w) => 1 / conv(x, w), without Winograd and Strassen",
        _find_zero_sensitive,
    ),
    Pass(
        "select-kernels", "y = x @ w => call k1(x, w) -> y",
        select_kernels, requires=("definitions", "layouts", "batch-ranks", "storage"),
        ensures=("steps",),
    ),
    Pass(
        "assign-streams", "call a; call b => call a on stream 0; call b on stream 1",
        assign_streams, requires=("steps",),
        runs_on=lambda t: t.assign_streams is not None,
    ),
    Pass(
        "assign-buffers", "call k1(x, w) -> t => run k1(argument 0, constant 0) -> memory 64",
        assign_buffers, requires=("steps", "storage"), ensures=("program",),
    ),
)  # fmt: skip

# Is told the plan after each pass, in `observe_passes`.
Observer = Callable[[int, Pass, Plan], None]
LOG = logging.getLogger("superopt.compile")
_observer: ContextVar[Observer | None] = ContextVar("superopt.plan.passes", default=None)


@contextmanager
def observe_passes(observer: Observer) -> Iterator[None]:
    """Call `observer(number, pass, plan)` after each pass of each plan made in this context."""
    token = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(token)


def run_passes(p: Plan, passes: Sequence[Pass] = PASSES) -> None:
    """Run the passes that the plan's target has.

    Raises NotImplementedError if no kernel supports an element type.
    """
    observer = _observer.get()
    for number, each in enumerate(passes):
        if each.runs_on(p.target) and (p.settings.fuses_operators or not each.is_fusion):
            each.run(p)
            LOG.debug("pass %s", each.name)
            if observer is not None:
                observer(number, each, p)


def initial_plan(graph: ir_graph.Graph, sizes: Mapping[str, int], settings: Settings) -> Plan:
    """Return the plan on which the first pass runs. sizes: those of symbols in shapes."""
    memories = state_memories(graph, settings.states)
    scatters = find_scatter_into(graph, sizes)
    signed = settings.target.has_signed_bytes
    tensors = GraphTensors(sizes, signed, scatters=scatters, memories=memories)
    return Plan(graph, sizes, settings, tensors)


def plan_program(graph: ir_graph.Graph, sizes: Mapping[str, int], settings: Settings) -> Program:
    """Return the program of a graph.

    Raises NotImplementedError if no kernel supports an element type.
    """
    p = initial_plan(graph, sizes, settings)
    run_passes(p)
    assert p.program is not None
    return p.program


def pass_table() -> str:
    """Return the passes as a table: number, name, example, and what each requires and ensures."""
    width = max(len(each.name) for each in PASSES)
    lines = []
    for n, each in enumerate(PASSES):
        lines.append(f"{n:2}  {each.name:{width}}  {each.summary}")
        needs = ", ".join(each.requires) or "nothing"
        gives = f"; ensures {', '.join(each.ensures)}" if each.ensures else ""
        where = "" if each.runs_on(CPU) else "; GPU only"
        lines.append(f"{'':{width + 6}}requires {needs}{gives}{where}")
    return "\n".join(lines)
