"""How long ways to compute a problem take on a GPU: their kernels alone, on random numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from superopt.kernels.built import buffers, built
from superopt.kernels.cpu_run import Ref
from superopt.kernels.gpu_program import Call, Running, event_ms, running
from superopt.kernels.gpu_space import chosen, told
from superopt.kernels.option import Option
from superopt.kernels.problem import Problem

COMPILERS = 8


def seconds(
    p: Problem, options: Sequence[Option], dots: str, compilers: int = COMPILERS
) -> Mapping[Option, float]:
    """Of each option that the device can run; they are compiled at once, as far as cores allow."""

    def make(o: Option) -> tuple[Option, Running | None]:
        try:
            r = _running(p, o, dots)
            r.compile(1)
        except Exception:  # too many registers, too little memory: another one is taken
            return o, None
        return o, r

    with ThreadPoolExecutor(compilers) as pool:
        ready = {o: r for o, r in pool.map(make, options) if r is not None}
    out = {}
    for o, r in ready.items():
        try:
            out[o] = event_ms(r) * 1e-3
        except Exception:
            continue
    return out


def _running(p: Problem, o: Option, dots: str) -> Running:
    made = built(p, chosen(p, o))
    given = buffers(made)
    number = {t: n for n, t in enumerate(given)}
    calls = [
        Call(x.kernel, tuple(Ref("argument", number[t]) for t in (*x.reads, x.writes)), *told(o))
        for x in made
    ]
    specs = [(tuple(n for n in b.shape if isinstance(n, int)), b.dtype) for b in given.values()]
    r = running(calls, np.zeros(0, np.uint8), 0, specs, [], "cuda", dots, record=False)
    _drawn(r)
    return r


def _drawn(r: Running) -> None:
    for x in r.inputs:
        if x.is_floating_point():
            x.normal_()
