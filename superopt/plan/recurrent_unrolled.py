"""Unroll recurrent layers, so that operators of neighbouring steps can be fused.

Used for few steps; on a GPU, where a step is one kernel, for up to some hundreds.
"""

from __future__ import annotations

from collections.abc import Sequence

from superopt.ir import graph as g
from superopt.ir.substitute import replace_all
from superopt.plan.recurrent import (
    GATES,
    MAX_UNROLLED_STEPS,
    MAX_UNROLLED_STEPS_GPU,
    C,
    H,
    R,
    Recurrent,
    Unsupported,
    is_recurrent,
    recurrent,
)
from superopt.plan.recurrent_steps import (
    cell,
    concat,
    do,
    element,
    initial,
    mask,
    part,
    projections,
    results,
    reversed_along,
    zeros,
)

# Bytes of the matrices of both directions that stay in the L2 cache beside all else.
CACHED_BYTES = 2**18


def unrolled(
    graph: g.Graph, threads: int = 1, separate: bool = False, max_steps: int | None = None
) -> g.Graph:
    """Return the graph with recurrent layers of up to max_steps (of all directions together)
    unrolled. separate: each gate of a step is a product of its own, which may be fused with its
    epilogue (gate_fusion.py); else the gates are one product."""
    limit = max_steps or (MAX_UNROLLED_STEPS_GPU if separate else MAX_UNROLLED_STEPS)
    while True:
        some = (_short(n, limit, separate) for n in g.nodes(graph))
        found = next((r for r in some if r is not None), None)
        if found is None:
            return graph
        matrix = found.input(R)
        assert matrix is not None
        assert matrix.type.dtype is not None
        bytes_ = matrix.type.dtype.bits // 8
        size = bytes_ * len(found.backward) * GATES[found.kind] * found.hidden**2
        made = _written(found, threads > 1 or size <= CACHED_BYTES, separate)
        graph = replace_all(graph, dict(zip(g.results(found.node), made, strict=False)))


def _short(n: g.Node, limit: int, gpu: bool) -> Recurrent | None:
    if not is_recurrent(n):
        return None
    try:
        r = recurrent(n, limit if gpu else None)
    except Unsupported:
        return None
    return r if r.steps * len(r.backward) <= limit else None


def _written(r: Recurrent, together: bool, separate: bool) -> list[g.Value]:
    """Return Y, Y_h and Y_c. Step k of a backward direction is k before the last.

    fuse_directions: both directions are one computation, which two threads share; else they run one
    after the other, so that the matrix of one stays in a core's L2 cache.
    """
    every = tuple(range(len(r.backward)))
    alike = len(set(r.activations)) == 1
    groups = [every] if together and alike else [(d,) for d in every]
    ys, hs, cs = [], [], []
    for ds in groups:
        y, h, c = _directions(r, ds, separate)
        ways = [part(y, 1, k, k + 1) for k in range(len(ds))]
        backward = [r.backward[d] for d in ds]
        ys += [reversed_along(v, 0) if b else v for v, b in zip(ways, backward, strict=True)]
        hs.append(h)
        cs.append(c or h)
    return results(r, ys, hs, cs)


def _directions(
    r: Recurrent, ds: Sequence[int], separate: bool
) -> tuple[g.Value, g.Value, g.Value | None]:
    """Return the states after each step of these directions, and the last ones."""
    h, c = (initial(r, k, ds) for k in (H, C))
    products, added = projections(r, ds)
    given = _ordered(r, ds, products)
    present = mask(r)
    on = None if present is None else _ordered(r, ds, [present] * len(ds))
    own = cell(r, ds, added, separate)
    states = []
    for k in range(r.steps):
        now = None if on is None else element(on, 0, k)
        h, c = own.step(element(given, 0, k), h, c, now)
        y = h if now is None else do("Where", now, h, zeros(r, len(ds)))
        states.append(do("Unsqueeze", y, axes=(0,)))
    assert h is not None
    return concat(states, 0), h, c


def _ordered(r: Recurrent, ds: Sequence[int], some: Sequence[g.Value]) -> g.Value:
    """Return tensors [steps, one direction, ...] concatenated along directions, in the order of
    their steps."""
    turned = [reversed_along(v, 0) if r.backward[d] else v for v, d in zip(some, ds, strict=True)]
    return concat(turned, 1)
