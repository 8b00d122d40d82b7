"""Lower long recurrent layers to loops: one for each direction, whose body is one step.

The products with the inputs of all steps come first, as a loop over blocks of rows, so that no code
depends on the number of steps; as one product if that number or the number of sequences is
symbolic.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from superopt.ir import graph
from superopt.plan.graph.loop_node import LoopSpec, make_loop
from superopt.plan.graph.recurrent_layer import (
    MAX_UNROLLED_STEPS,
    C,
    H,
    Recurrent,
    Unsupported,
    is_recurrent,
    parse_layer,
)
from superopt.plan.graph.recurrent_step import (
    concat,
    initial_state,
    layer_input,
    layer_results,
    make_cell,
    make_node,
    projection,
    step_mask,
    zero_state,
)
from superopt.te.expr.dtype import to_numpy
from superopt.te.expr.tensor import TensorType

# Rows of a block whose products with W are one kernel, the largest first.
BLOCK_ROWS = (48, 16)


def lower_to_loop(n: graph.Node, threads: int) -> list[graph.Value] | None:
    """Return Y, Y_h and Y_c of a long recurrent layer; None for other nodes. Each thread has loops
    of its own if there are enough sequences."""
    if not is_recurrent(n):
        return None
    try:
        r = parse_layer(n)
    except Unsupported:
        return None
    if r.batch == 0:
        return [_empty_result(v.type) for v in graph.results(n)]
    if r.static_steps is not None and r.static_steps <= MAX_UNROLLED_STEPS:
        return None
    batch = r.batch if isinstance(r.batch, int) else 1
    parts = max(min(threads // len(r.backward), batch), 1)
    each = [_lower_direction(r, d, parts) for d in range(len(r.backward))]
    ys, hs, cs = (list(some) for some in zip(*each, strict=True))
    return layer_results(r, ys, hs, cs)


def _lower_direction(
    r: Recurrent, d: int, parts: int
) -> tuple[graph.Value, graph.Value, graph.Value]:
    """Return `_direction_loop` of a direction, split into loops of nearly equal numbers of
    sequences."""
    if parts == 1:
        return _direction_loop(r, d)
    assert isinstance(r.batch, int)
    ends = [k * r.batch // parts for k in range(parts + 1)]
    some = [replace(r, batch=b - a, first_row=a) for a, b in pairwise(ends)]
    ys, hs, cs = zip(*(_direction_loop(own, d) for own in some), strict=True)
    return concat(ys, 2), concat(hs, 1), concat(cs, 1)


def _input_projection(r: Recurrent, d: int) -> tuple[graph.Value, graph.Value | None]:
    """Return x @ W + b for all steps, [steps, 1, batch, gates * hidden], in blocks of rows."""
    x = layer_input(r)
    size = (x.type.shape or ())[-1]
    rows = r.steps * r.batch if isinstance(r.steps, int) and isinstance(r.batch, int) else 0
    blocks = BLOCK_ROWS if size and not r.is_quantized else ()  # one scale quantizes all rows
    block = next((n for n in blocks if n <= rows), None)
    if block is None:
        given, added = projection(r, d, x)
        return make_node("Unsqueeze", given, axes=(1,)), added
    one = graph.Input("rows", TensorType(x.type.dtype, (block, size)))
    y, added = projection(r, d, one)
    width = (y.type.shape or ())[-1]
    what = LoopSpec(graph.Graph((one,), (y,)), -(-rows // block), 0, (False,), (False,))
    whole = TensorType(x.type.dtype, (r.steps, 1, r.batch, width))
    return make_loop(what, (), (x,), (whole,), r.kind)[0], added


def _direction_loop(r: Recurrent, d: int) -> tuple[graph.Value, graph.Value, graph.Value]:
    """Return the states of a direction after each step, [steps, 1, batch, hidden], and the last
    ones, [1, batch, hidden]; for a layer without a cell state, the last state in its place."""
    given, rest = _input_projection(r, d)
    added = None if rest is None else make_node("Unsqueeze", rest, axes=(0, 1))
    on = step_mask(r)
    start = [initial_state(r, H, (d,)) or zero_state(r, 1)]
    start += [initial_state(r, C, (d,)) or zero_state(r, 1)] if r.kind == "LSTM" else []
    states = [graph.Input(f"state{n}", v.type) for n, v in enumerate(start)]
    slices = [graph.Input(f"slice{n}", _slice_type(v)) for n, v in enumerate((given, on)) if v]
    own_on = slices[1] if on is not None else None
    step = make_cell(r, (d,), added, separate=False).step
    h, c = step(slices[0], states[0], states[1] if len(states) > 1 else None, own_on)
    y = h if own_on is None else make_node("Where", own_on, h, zero_state(r, 1))
    after = [h] if c is None else [h, c]
    body = graph.Graph((*states, *slices), (*after, y))
    back = r.backward[d]
    what = LoopSpec(body, r.steps, len(after), (back,) * len(slices), (back,))
    stacked = TensorType(y.type.dtype, (r.steps, 1, r.batch, r.hidden))
    *last, y = make_loop(what, start, [v for v in (given, on) if v is not None], [stacked], r.kind)
    return y, last[0], last[-1]


def _empty_result(t: TensorType) -> graph.Value:
    """Return the result of a layer without sequences; an arbitrary value for an unused result."""
    if t.dtype is None:
        return graph.constant(np.zeros(0, np.float32))
    return graph.constant(
        np.zeros([d for d in t.shape or () if isinstance(d, int)], to_numpy(t.dtype))
    )


def _slice_type(v: graph.Value) -> TensorType:
    return TensorType(v.type.dtype, (v.type.shape or ())[1:])
