"""Lower transposed convolutions to a convolution whose channels are the phases of the result,
followed by a depth-to-space shuffle (sub-pixel convolution; Shi et al., arXiv:1609.05158).

Long strides, as in upsampling by 32 and inverse short-time Fourier transforms, have too many phases
for a kernel each (lowering/polyphase.py). As one sum nearly every term is tested and does not
count: that took 700 times as long as onnxruntime. With short strides one convolution reads the
image once and can use Winograd: an image decoder with 4 x 4 windows of stride 2 takes 0.61 of the
time. Windows that the stride does not divide are padded with zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from superopt.ir import graph as ir_graph
from superopt.ir.substitute import replace_all
from superopt.ops import OPS
from superopt.plan.lowering.polyphase import MAX_PHASES
from superopt.te.expr import index
from superopt.te.expr.tensor import Dim

MIN_CHANNELS, MIN_EXTENT = (
    16,
    7,
)  # fewer output channels, or pixels along an axis: phases are as fast


def lower_to_subpixel_conv(
    graph: ir_graph.Graph, allow_zero_padding: bool = True, allow_short_strides: bool = True
) -> ir_graph.Graph:
    """Return the graph with such convolutions lowered. allow_zero_padding: weights may be padded
    with zeros, which changes results for infinite inputs (Inf times 0 is NaN). allow_short_strides:
    also lower short strides."""
    change: dict[ir_graph.Value, ir_graph.Value] = {}
    change |= {
        n: v
        for n in ir_graph.nodes(graph)
        if (v := _as_subpixel_conv(n, allow_zero_padding, allow_short_strides)) is not None
    }
    return replace_all(graph, change) if change else graph


def _as_subpixel_conv(
    n: ir_graph.Node, allow_zero_padding: bool, allow_short_strides: bool
) -> ir_graph.Value | None:
    """Return y[s i + r] = sum(x[i - j] w[s j + r] for j) along each axis: a convolution by the
    flipped w with channels r; None where it does not apply."""
    if n.op.name != "ConvTranspose" or n.op.domain or n.op.opaque:
        return None
    x, w, bias = (*n.inputs, None)[:3]
    assert x is not None
    assert w is not None
    strides, pads, groups = _int_attr(n, "strides"), _int_attr(n, "pads"), n.attr("group")
    assert isinstance(groups, int)
    batch, _, *places = x.type.shape or ()
    made, rank = [d for d in w.type.shape or () if isinstance(d, int)], len(strides)
    if len(made) < rank + 2 or set(_int_attr(n, "dilations")) != {1}:
        return None
    _, outer, *window = made
    reach = [k + p for k, p in zip(window, _int_attr(n, "output_padding"), strict=True)]
    whole = reach == window and all(k % s == 0 for k, s in zip(window, strides, strict=True))
    pays = (
        allow_short_strides
        and whole
        and groups == 1
        and _is_faster_than_phases(outer, places, window, strides)
    )
    if not (prod(strides) > MAX_PHASES or pays) or not (whole or allow_zero_padding):
        return None
    terms = [-(-k // s) for k, s in zip(reach, strides, strict=True)]
    weights = _weights_by_phase(w, groups, terms, strides)
    if bias is not None:
        column = ir_graph.node(OPS["Reshape"], [bias], shape=(groups, 1, outer))
        wide = ir_graph.node(OPS["Expand"], [column], shape=(groups, prod(strides), outer))
        bias = ir_graph.node(OPS["Reshape"], [wide], shape=(groups * outer * prod(strides),))
    given = [x, weights] if bias is None else [x, weights, bias]
    around = tuple(j - 1 for j in terms) * 2
    phases = ir_graph.node(OPS["Conv"], given, pads=around, group=groups)
    _, _, *places = phases.type.shape or ()
    apart = ir_graph.node(OPS["Reshape"], [phases], shape=(batch, groups, *strides, outer, *places))
    order = [d for axis in range(rank) for d in (3 + rank + axis, 2 + axis)]
    turned = ir_graph.node(OPS["Transpose"], [apart], perm=(0, 1, 2 + rank, *order))
    sides: list[Dim] = [
        index.dim(index.as_index(i) * s) for i, s in zip(places, strides, strict=True)
    ]
    joined = ir_graph.node(OPS["Reshape"], [turned], shape=(batch, groups * outer, *sides))
    cut = [
        k - j * s - end
        for k, j, s, end in zip(reach, terms, strides, pads[rank:], strict=True)
    ]  # fmt: skip
    kept = (0, 0, *(-begin for begin in pads[:rank]), 0, 0, *cut)
    return ir_graph.node(OPS["Pad"], [joined], pads=kept)


def _is_faster_than_phases(
    outer: int, places: Sequence[Dim], window: Sequence[int], strides: Sequence[int]
) -> bool:
    """True if it is faster than one convolution for each phase, each of which reads the image."""
    overlap = all(k > s > 1 for k, s in zip(window, strides, strict=True))
    return (
        overlap
        and outer >= MIN_CHANNELS
        and not any(isinstance(d, int) and d < MIN_EXTENT for d in places)
    )


def _weights_by_phase(
    w: ir_graph.Value, groups: int, terms: list[int], strides: tuple[int, ...]
) -> ir_graph.Value:
    """Return weights [(group, inner), outer, s j + r, ...] as [(group, r, ..., outer), inner, -j,
    ...]. A phase's channels are neighbours: the shuffle moves vectors of them."""
    channels, outer, *window = (d for d in w.type.shape or () if isinstance(d, int))
    rank, inner = len(strides), channels // groups
    more = [j * s - k for j, s, k in zip(terms, strides, window, strict=True)]
    full = ir_graph.node(OPS["Pad"], [w], pads=(*(0,) * (2 + rank), 0, 0, *more))
    both = [d for pair in zip(terms, strides, strict=True) for d in pair]
    apart = ir_graph.node(OPS["Reshape"], [full], shape=(groups, inner, outer, *both))
    axes = tuple(3 + 2 * axis for axis in range(rank))
    ends, backwards = (-(2**31),) * rank, (-1,) * rank
    how = {"starts": tuple(j - 1 for j in terms), "ends": ends, "axes": axes, "steps": backwards}
    turned = ir_graph.node(OPS["Slice"], [apart], **how)
    order = (0, *(a + 1 for a in axes), 2, 1, *axes)
    moved = ir_graph.node(OPS["Transpose"], [turned], perm=order)
    return ir_graph.node(
        OPS["Reshape"], [moved], shape=(groups * outer * prod(strides), inner, *terms)
    )  # fmt: skip


def _int_attr(n: ir_graph.Node, name: str) -> tuple[int, ...]:
    found = n.attr(name)
    assert isinstance(found, tuple)
    return tuple(d for d in found if isinstance(d, int))
