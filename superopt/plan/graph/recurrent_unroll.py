"""Unroll recurrent layers, so that operators of neighbouring steps can be fused.

Used for few steps; on a GPU, where a step is one kernel, for up to some hundreds.
"""

from __future__ import annotations

from collections.abc import Sequence

from superopt.ir import graph as ir_graph
from superopt.ir.substitute import replace_all
from superopt.plan.graph.recurrent_layer import (
    GATES,
    MAX_UNROLLED_STEPS,
    MAX_UNROLLED_STEPS_GPU,
    C,
    H,
    R,
    Recurrent,
    Unsupported,
    is_recurrent,
    parse_layer,
)
from superopt.plan.graph.recurrent_step import (
    axis_element,
    concat,
    initial_state,
    layer_results,
    make_cell,
    make_node,
    projections,
    reversed_along,
    slice_axis,
    step_mask,
    zero_state,
)

# Bytes of the matrices of both directions that stay in the L2 cache beside all else. Larger ones
# run one direction after the other: 1.2 to 1.6 times as fast (three GRUs of 2 x 128: 2.3 ms became
# 1.4).
CACHED_BYTES = 2**18


def unroll_recurrent(
    graph: ir_graph.Graph, threads: int = 1, separate: bool = False, max_steps: int | None = None
) -> ir_graph.Graph:
    """Return the graph with recurrent layers of up to max_steps (of all directions together)
    unrolled. separate: each gate of a step is a product of its own, which may be fused with its
    epilogue (gate_fusion.py); else the gates are one product."""
    limit = max_steps or (MAX_UNROLLED_STEPS_GPU if separate else MAX_UNROLLED_STEPS)
    while True:
        some = (_match_short_layer(n, limit, separate) for n in ir_graph.nodes(graph))
        found = next((r for r in some if r is not None), None)
        if found is None:
            return graph
        matrix = found.input(R)
        assert matrix is not None
        assert matrix.type.dtype is not None
        bytes_ = matrix.type.dtype.bits // 8
        size = bytes_ * len(found.backward) * GATES[found.kind] * found.hidden**2
        made = _unroll_layer(found, threads > 1 or size <= CACHED_BYTES, separate)
        graph = replace_all(graph, dict(zip(ir_graph.results(found.node), made, strict=False)))


def _match_short_layer(n: ir_graph.Node, limit: int, gpu: bool) -> Recurrent | None:
    if not is_recurrent(n):
        return None
    try:
        r = parse_layer(n, limit if gpu else None)
    except Unsupported:
        return None
    return r if r.static_steps is not None and r.static_steps <= limit else None


def _unroll_layer(r: Recurrent, fuse_directions: bool, separate: bool) -> list[ir_graph.Value]:
    """Return Y, Y_h and Y_c. Step k of a backward direction is k before the last.

    fuse_directions: both directions are one computation, which two threads share; else they run one
    after the other, so that the matrix of one stays in a core's L2 cache.
    """
    every = tuple(range(len(r.backward)))
    alike = len(set(r.activations)) == 1
    together = fuse_directions and alike and not r.is_quantized
    groups = [every] if together else [(d,) for d in every]
    ys, hs, cs = [], [], []
    for ds in groups:
        y, h, c = _run_directions(r, ds, separate)
        ways = [slice_axis(y, 1, k, k + 1) for k in range(len(ds))]
        backward = [r.backward[d] for d in ds]
        ys += [reversed_along(v, 0) if b else v for v, b in zip(ways, backward, strict=True)]
        hs.append(h)
        cs.append(c or h)
    return layer_results(r, ys, hs, cs)


def _run_directions(
    r: Recurrent, ds: Sequence[int], separate: bool
) -> tuple[ir_graph.Value, ir_graph.Value, ir_graph.Value | None]:
    """Return the states after each step of these directions, and the last ones."""
    h, c = (initial_state(r, k, ds) for k in (H, C))
    products, added = projections(r, ds)
    given = _in_step_order(r, ds, products)
    present = step_mask(r)
    on = None if present is None else _in_step_order(r, ds, [present] * len(ds))
    own = make_cell(r, ds, added, separate)
    states = []
    assert isinstance(r.steps, int)
    for k in range(r.steps):
        now = None if on is None else axis_element(on, 0, k)
        h, c = own.step(axis_element(given, 0, k), h, c, now)
        y = h if now is None else make_node("Where", now, h, zero_state(r, len(ds)))
        states.append(make_node("Unsqueeze", y, axes=(0,)))
    assert h is not None
    return concat(states, 0), h, c


def _in_step_order(
    r: Recurrent, ds: Sequence[int], tensors: Sequence[ir_graph.Value]
) -> ir_graph.Value:
    """Return tensors [steps, one direction, ...] concatenated along directions, in the order of
    their steps."""
    turned = [
        reversed_along(v, 0) if r.backward[d] else v for v, d in zip(tensors, ds, strict=True)
    ]
    return concat(turned, 1)
