"""Attention by torch, through cuDNN or its flash attention, as a candidate beside generated
kernels: for 16 bits, without a mask or with a causal one that no score compensates. Its result is
copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import inf

import numpy as np

from superopt.kernels.built import operands
from superopt.kernels.causal import scaled
from superopt.kernels.gpu_library import NAME
from superopt.kernels.gpu_sdpa import Sdpa, View
from superopt.kernels.layout import Layout, Scatter
from superopt.kernels.lower import buffer
from superopt.kernels.online import Online, bare, shared
from superopt.kernels.option import Option
from superopt.kernels.problem import Choice
from superopt.kernels.tile import Kernel
from superopt.te import index as ix
from superopt.te.affine import affine
from superopt.te.dtype import BF16, F16, F32
from superopt.te.expr import Tensor
from superopt.te.node import Apply, Axis, Const, Expr, Load

WIDTHS = range(8, 257, 8)  # that torch's kernels support
Lying = Mapping[Tensor, Layout | Scatter]


def flash_of(a: Online, layouts: Lying) -> Sdpa | None:
    """Match an attention that torch computes; None otherwise."""
    some = [bare(e) for e in (a.q, a.k, a.v)]
    reads = [e for e in some if isinstance(e, Load)]
    kinds = {e.dtype for e in reads}
    if len(reads) < len(some) or len(kinds) != 1 or not kinds <= {F16, BF16}:
        return None
    queries, keys, width, inner = (
        n for x in (a.i, a.j, a.d, a.c) if isinstance(n := x.extent, int)
    )  # fmt: skip
    largest = inner * float(np.finfo(np.float16).max) ** 2 if kinds == {F16} else inf
    told = scaled(a.x, a.i, a.j, Load(a.held, (), F32), largest)
    others = [x for x in a.t.axes if x.extent != 1 and x not in (a.i, a.d)]
    if told is None or len(others) > 2 or inner != width or width not in WIDTHS or not _plain(a):
        return None
    scale, offset = told
    if offset is not None and (offset, queries) != (0, keys):
        return None
    others.sort(key=lambda x: shared(x, (a.k, a.v)))
    lead = [Axis("one", 1)] * (2 - len(others)) + others
    some_share = shared(lead[1], (a.k, a.v))
    batch, heads = (n for x in lead if isinstance(n := x.extent, int))
    if heads % some_share or shared(lead[0], (a.k, a.v)) > 1:
        return None
    group = Axis("group", heads // some_share)
    of_group: dict[Expr, Expr] = {lead[1]: ix.as_index(group * some_share)}
    views = [
        _view(e.tensor, [ix.substitute(i, env) for i in e.index], layouts, (lead[0], *own))
        for e, env, own in zip(
            reads, ({}, of_group, of_group),
            ((lead[1], a.i, a.c), (group, a.j, a.c), (group, a.j, a.d)), strict=True,
        )
    ]  # fmt: skip
    made = _view(a.t, a.t.axes, layouts, (*lead, a.i, a.d))
    found = [x for x in views if x is not None and x.whole]
    if len(found) < len(views) or made is None:
        return None
    number = {t: n for n, t in enumerate(operands(a.t))}
    given = tuple((number[e.tensor], x) for e, x in zip(reads, found, strict=True))
    how = batch, heads, heads // some_share, queries, keys, width
    return Sdpa(how, given, made, scale, offset is not None)


def _plain(a: Online) -> bool:
    """True if a softmax times values is all of it."""
    match a.fn, a.over:
        case ("mul", Apply("div", (Const(1), Load(total)))) | ("div", Load(total)):
            pass
        case _:
            return False
    held = Load(a.held, (), F32)
    out = a.out.args[0] if isinstance(a.out, Apply) and a.out.fn == "cast" else a.out
    return total is a.total and out == held


def _view(t: Tensor, at: Sequence[Expr], layouts: Lying, axes: Sequence[Axis]) -> View | None:
    """Return a tensor's strides along axes and offset in memory; None if its address depends on
    anything else."""
    kept = buffer(t.name, t, layouts.get(t))
    whole: Expr = ix.as_index(0)
    for i, n in zip(kept.place(at), kept.buffer.shape, strict=True):
        whole = whole * n + i
    form = affine(ix.as_index(whole))
    # axes of extent 1 do not matter
    if form is None or any(x not in axes and x.extent != 1 for x in form.axes):
        return None
    return View(tuple(form.coefficient(x) for x in axes), form.base)


def flash(a: Online, layouts: Lying, option: Option) -> Choice | None:
    """Return the choice of torch's attention; None if torch does not compute it."""
    how = flash_of(a, layouts)
    return None if how is None else Choice(option, a.t, direct={a.t: partial(_kernel, a.t, how)})


def offered(a: Online, layouts: Lying) -> list[Option]:
    """Return the option, if torch computes it."""
    return [] if flash_of(a, layouts) is None else [Option.of(NAME)]


def _kernel(t: Tensor, how: Sdpa, given: Sequence[Tensor], layouts: Lying) -> Kernel:
    some = tuple(buffer(x.name, x, layouts.get(x)).buffer for x in given)
    out = buffer("t1", t, layouts.get(t)).buffer
    return Kernel("kernel", (*some, out), (), library=str(how))
