"""Attention by torch, through cuDNN or its flash attention, as a candidate beside generated
kernels: for 16 bits, without a mask or with a causal one that no score compensates. Its result is
copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

import numpy as np

from superopt.kernels.algorithms.algorithm import Algorithm, expect_no_gain
from superopt.kernels.algorithms.build import input_buffers
from superopt.kernels.algorithms.causal_mask import scale_and_mask_offset
from superopt.kernels.algorithms.gpu.attention_blocks import recognise_online_attention
from superopt.kernels.algorithms.gpu.vendor_gemm import VENDOR
from superopt.kernels.algorithms.online_attention import (
    OnlineAttention,
    shared_neighbours,
    without_widening,
)
from superopt.kernels.algorithms.problem import Choice, Problem, remember_match
from superopt.kernels.loops.layout import Layout, ScatteredLayout
from superopt.kernels.loops.lower import buffer_view
from superopt.kernels.loops.option import Option
from superopt.kernels.loops.tile import Kernel
from superopt.kernels.vendor.sdpa import Sdpa, View
from superopt.te.analysis.affine import affine
from superopt.te.expr import index as te_index
from superopt.te.expr.dtype import BF16, F16, F32
from superopt.te.expr.node import Apply, Axis, Const, Expr, Load
from superopt.te.expr.tensor import Tensor

HEAD_SIZES = range(8, 257, 8)  # that torch's kernels support
Layouts = Mapping[Tensor, Layout | ScatteredLayout]


def match_sdpa(a: OnlineAttention, layouts: Layouts) -> Sdpa | None:
    """Match an attention that torch computes; None otherwise."""
    some = [without_widening(e) for e in (a.q, a.k, a.v)]
    reads = [e for e in some if isinstance(e, Load)]
    kinds = {e.dtype for e in reads}
    if len(reads) < len(some) or len(kinds) != 1 or not kinds <= {F16, BF16}:
        return None
    queries, keys, width, inner = (
        n for x in (a.i, a.j, a.d, a.c) if isinstance(n := x.extent, int)
    )  # fmt: skip
    largest = inner * float(np.finfo(np.float16).max) ** 2 if kinds == {F16} else inf
    told = scale_and_mask_offset(a.score, a.i, a.j, Load(a.placeholder, (), F32), largest)
    others = [x for x in a.tensor.axes if x.extent != 1 and x not in (a.i, a.d)]
    if (
        told is None
        or len(others) > 2
        or inner != width
        or width not in HEAD_SIZES
        or not _is_plain_softmax(a)
    ):
        return None
    scale, offset = told
    if offset is not None and (offset, queries) != (0, keys):
        return None
    others.sort(key=lambda x: shared_neighbours(x, (a.k, a.v)))
    lead = [Axis("one", 1)] * (2 - len(others)) + others
    some_share = shared_neighbours(lead[1], (a.k, a.v))
    batch, heads = (n for x in lead if isinstance(n := x.extent, int))
    if heads % some_share or shared_neighbours(lead[0], (a.k, a.v)) > 1:
        return None
    group = Axis("group", heads // some_share)
    of_group: dict[Expr, Expr] = {lead[1]: te_index.as_index(group * some_share)}
    views = [
        _memory_view(
            e.tensor, [te_index.substitute(i, env) for i in e.index], layouts, (lead[0], *own)
        )
        for e, env, own in zip(
            reads,
            ({}, of_group, of_group),
            ((lead[1], a.i, a.c), (group, a.j, a.c), (group, a.j, a.d)),
            strict=True,
        )
    ]
    made = _memory_view(a.tensor, a.tensor.axes, layouts, (*lead, a.i, a.d))
    found = [x for x in views if x is not None and x.is_vector_aligned]
    if len(found) < len(views) or made is None:
        return None
    number = {t: n for n, t in enumerate(input_buffers(a.tensor))}
    given = tuple((number[e.tensor], x) for e, x in zip(reads, found, strict=True))
    how = batch, heads, heads // some_share, queries, keys, width
    return Sdpa(how, given, made, scale, offset is not None)


def _is_plain_softmax(a: OnlineAttention) -> bool:
    """True if it is softmax(scores) @ values without another epilogue."""
    match a.normalizer_fn, a.normalizer:
        case ("mul", Apply("div", (Const(1), Load(total)))) | ("div", Load(total)):
            pass
        case _:
            return False
    held = Load(a.placeholder, (), F32)
    out = (
        a.epilogue.args[0]
        if isinstance(a.epilogue, Apply) and a.epilogue.fn == "cast"
        else a.epilogue
    )
    return total is a.total and out == held


def _memory_view(
    t: Tensor, index: Sequence[Expr], layouts: Layouts, axes: Sequence[Axis]
) -> View | None:
    """Return a tensor's strides along axes and offset in memory; None if its address depends on
    anything else."""
    kept = buffer_view(t.name, t, layouts.get(t))
    whole: Expr = te_index.as_index(0)
    for i, n in zip(kept.buffer_index(index), kept.buffer.shape, strict=True):
        whole = whole * n + i
    form = affine(te_index.as_index(whole))
    # axes of extent 1 do not matter
    if form is None or any(x not in axes and x.extent != 1 for x in form.axes):
        return None
    return View(tuple(form.coefficient(x) for x in axes), form.base)


@remember_match
def recognise_sdpa(p: Problem) -> Sdpa | None:
    """Match an attention that torch computes."""
    a = recognise_online_attention(p)
    return None if a is None else match_sdpa(a, p.layouts)


def sdpa_options(p: Problem, sdpa: Sdpa) -> list[Option]:
    """Return the only option."""
    return [Option.make(VENDOR)]


def schedule_sdpa(p: Problem, sdpa: Sdpa, option: Option) -> Choice:
    """Return the choice of torch's attention."""
    t = p.tensor
    some = tuple(buffer_view(x.name, x, p.layouts.get(x)).buffer for x in input_buffers(t))
    out = buffer_view("t1", t, p.layouts.get(t)).buffer
    kernel = Kernel("kernel", (*some, out), (), library=str(sdpa))
    return Choice(option, t, kernels={t: kernel})


VENDOR_ATTENTION = Algorithm(
    (VENDOR,), "attention by torch: cuDNN or flash attention", recognise_sdpa, sdpa_options,
    schedule_sdpa, expect_no_gain, uses_vendor_library=True, replaces_sums=True,
)  # fmt: skip
