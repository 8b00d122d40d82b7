"""Convolutions with few output channels over planar (NCHW) images: vectors run along image rows.

    y[k, h, w] = sum(b[k, c, r, s] * x[c, h + r, w + s] for c, r, s)

With, say, eight channels k, vectors of channels would leave half of the lanes empty. Along a row of
the image all lanes are full: the roles of a GEMM's operands are exchanged. Channels are the rows of
the register tile, whose weights are broadcast, and vectors of x are read at each step of the
window. Layouts are planar where this pays (superopt/plan/lowering/image_layouts.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from superopt.kernels.algorithms.algorithm import Algorithm, Prediction
from superopt.kernels.algorithms.contraction import (
    Contraction,
    axis_stride,
    buffer_load,
    match_contraction,
)
from superopt.kernels.algorithms.cpu.gemm import schedule_contraction
from superopt.kernels.algorithms.cpu.partition import best_tile
from superopt.kernels.algorithms.cpu.register_tiling import RegisterTiling
from superopt.kernels.algorithms.problem import Choice, Problem, remember_match
from superopt.kernels.loops.layout import effective_layout
from superopt.kernels.loops.loop_transforms import reduction
from superopt.kernels.loops.option import Option

# Relative to vectors of results with a sum each, which read x once for each channel.
MAX_TIME_RATIO = 0.9


@dataclass(frozen=True, slots=True)
class PlanarConvolution:
    """contraction: with the constant as `a`, and the image as `b`; tiling: channels times vectors
    along a row."""

    contraction: Contraction
    tiling: RegisterTiling


@remember_match
def recognise_planar(p: Problem) -> PlanarConvolution | None:
    """Match a convolution with several output channels, of which image and result are contiguous
    along rows."""
    t = p.tensor
    c, found = match_contraction(t, p.constants, p.lanes), reduction(t)
    if c is None or found is None or len(c.b_axes) != 1 or c.batch_axes:
        return None
    if c.b.tensor not in p.constants or not t.axes:
        return None
    w = t.axes[effective_layout(p.layouts.get(t), t.rank).parts[-1].axis]
    (k,) = c.b_axes
    if w not in c.a_axes or axis_stride(buffer_load(c.a, p.layouts), w) != 1:
        return None
    if k.size < 2 or w.size < p.lanes:
        return None
    exchanged = Contraction(c.b, c.a, c.b_axes, c.a_axes, ())
    terms = 1
    for a in found.axes:
        terms *= a.size
    tiling = RegisterTiling(k, w, p.lanes, 1, k.size, p.processor, terms)
    return PlanarConvolution(exchanged, tiling)


def planar_options(p: Problem, f: PlanarConvolution) -> Iterator[Option]:
    """Yield the options of all register tiles, best first."""
    for _, rows, vectors in sorted(f.tiling.register_tiles()):
        yield Option.make("planar_convolution", rows=rows, vectors=vectors)


def predict_planar(p: Problem, f: PlanarConvolution) -> Prediction:
    """Return the best tile."""
    _, rows, vectors = best_tile(p, f.tiling, short_blocks=False)
    return Prediction(Option.make("planar_convolution", rows=rows, vectors=vectors), MAX_TIME_RATIO)


def schedule_planar(p: Problem, f: PlanarConvolution, option: Option) -> Choice:
    """Return the choice of an option."""
    c, tile = f.contraction, (option["rows"], option["vectors"], 0)
    how = schedule_contraction(
        p.tensor, c, p.layouts, f.tiling, *tile,
        unrolled_terms=p.processor.unrolled_terms, threads=p.threads,
    )  # fmt: skip
    return Choice(option, p.tensor, {p.tensor: how}, (c.a.tensor,))


PLANAR_CONVOLUTION = Algorithm(
    ("planar_convolution",),
    "convolution with few output channels: vectors along image rows",
    recognise_planar,
    planar_options,
    schedule_planar,
    predict_planar,
)
