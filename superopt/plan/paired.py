"""Two products of one operand that are made one result, as one kernel's problem: a gated product,
whose gate would be written and read again else. On a GPU.

    g[i, n] = f(sum(x[i, k] * a[k, n] for k))
    y[i, n] = h(g[i, n], sum(x[i, k] * b[k, n] for k))      =>   g is computed where y is

Whether it is one kernel is the target's choice (kernels/gpu_pairs.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from superopt.kernels.gpu_pairs import pair_of, pays
from superopt.kernels.problem import Problem
from superopt.plan.rows import instead
from superopt.te.expr import Tensor
from superopt.te.walk import loads

WIDTH = 64  # bytes of a vector, of which nothing hangs here


def paired(
    current: Mapping[Tensor, Tensor], stay: Collection[Tensor], apart: Collection[Tensor],
    constants: Collection[Tensor], half: bool,
) -> dict[Tensor, Tensor]:  # fmt: skip
    """What is computed then, where that should be faster. stay: what is needed in memory; apart:
    what is computed by rows, lies as pictures do, or as a part of another tensor. half: are numbers
    of 16 bits multiplied?"""
    readers: dict[Tensor, list[Tensor]] = {}
    for t, now in current.items():
        for x in () if now.body is None else dict.fromkeys(x.tensor for x in loads(now.body)):
            readers.setdefault(x, []).append(t)
    buffers = {x: Tensor(x.name, x.dtype, x.shape) for x in current}
    out = dict(current)
    inside: set[Tensor] = set()
    for t, now in current.items():
        if now.body is None or t in apart or t in inside:
            continue
        for g in dict.fromkeys(x.tensor for x in loads(now.body)):
            gate = current.get(g)
            if gate is None or g in stay or g in apart or g in inside or readers[g] != [t]:
                continue
            made = pair_of(Problem(_made(now, g, gate, buffers), {}, constants, WIDTH))
            if made is None or not pays(replace(made.matrix, half=half)):
                continue
            out[t] = _made(now, g, gate, {})
            del out[g]
            inside |= {g, t}
            break
    return out


def _made(now: Tensor, g: Tensor, gate: Tensor, buffers: Mapping[Tensor, Tensor]) -> Tensor:
    """The result with its gate computed within it; both read from these buffers."""
    assert now.body is not None
    assert gate.body is not None
    stage = Tensor(g.name, gate.dtype, gate.shape, gate.axes, instead(gate.body, buffers))
    body = instead(now.body, {**buffers, g: stage})
    return Tensor(now.name, now.dtype, now.shape, now.axes, body)
