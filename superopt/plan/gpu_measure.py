"""Measure options of a problem on a GPU: their kernels alone, on random inputs. If constants are
large, successive runs read different copies, which come from memory, as in a model whose constants
exceed the cache."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from superopt.kernels.built import buffers, built
from superopt.kernels.cpu_run import Ref
from superopt.kernels.gpu_clock import TIMES, clock, warmed
from superopt.kernels.gpu_device import current, drawn, on, wait
from superopt.kernels.gpu_program import Call, Running, running
from superopt.kernels.gpu_space import chosen, told
from superopt.kernels.option import Option
from superopt.kernels.problem import Problem

Timed = tuple[float, Callable[[], float]]  # seconds, and a function that measures again, in ms
COMPILERS = 8
RUNS = 5  # of each option; their median counts
BEST, NEAR = 6, 1.1  # the best options, within this ratio of the best one, are measured again
TURNS, LONG = 20, 0.5  # interleaved rounds, for at most so many seconds
STALE = 1 << 20  # bytes of constants from which on runs rotate through copies
# bytes of all copies, more than the L2 cache holds; their number, at most
OTHERS, COPIES = 1 << 26, 64


def seconds(
    p: Problem, options: Sequence[Option], dots: str, held: dict[Option, Timed],
    failed: list[str],
) -> Mapping[Option, float]:  # fmt: skip
    """Return the seconds of each option that the device can run. Compilation is parallel. The best
    options are measured interleaved with those in `timers`, from earlier calls, which they replace.
    failed: receives a message for each option that cannot run."""

    def make(o: Option) -> tuple[Option, tuple[Running, list[int]] | None]:
        try:
            with on(where):  # the current GPU is a property of the thread
                r, fixed = running_of(p, o, dots)
                r.compile(1)
        except Exception as e:  # too many registers or too little memory: skip the option
            failed.append(f"{o}: {type(e).__name__}: {e}")
            return o, None
        return o, (r, fixed)

    where = current("cuda")

    with ThreadPoolExecutor(COMPILERS) as pool:
        ready = {o: x for o, x in pool.map(make, options) if x is not None}
    out: dict[Option, float] = {}
    for o, (r, fixed) in ready.items():
        try:
            others = copies(r, fixed)
            tick = clock(r, max(TIMES, 1 + len(others)), others)
            if not out:
                warmed(tick)
            out[o] = float(np.median([tick() for _ in range(RUNS)])) * 1e-3
            held[o] = out[o], tick
        except Exception as e:
            failed.append(f"{o}: {type(e).__name__}: {e}")
            wait("cuda")  # raises errors that the device does not recover from
    some = {o: held[o] for o in nearest({o: time for o, (time, _) in held.items()})}
    out |= in_turns({o: tick for o, (_, tick) in some.items()})
    held.clear()
    held |= {o: (out.get(o, before), tick) for o, (before, tick) in some.items()}
    return out


def nearest(times: Mapping[Option, float]) -> list[Option]:
    """Return the best options that are so close that another run may order them differently."""
    best = sorted(times, key=lambda o: times[o])[:BEST]
    return [o for o in best if times[o] <= NEAR * times[best[0]]]


def in_turns(clocks: Mapping[Option, Callable[[], float]]) -> dict[Option, float]:
    """Return the seconds of each option, measured in interleaved rounds, so that clock changes
    affect all of them alike. A single option is not measured."""
    begin = time.monotonic()
    found: dict[Option, list[float]] = {o: [] for o in clocks}
    for n in range(TURNS if len(clocks) > 1 else 0):
        if n and time.monotonic() - begin > LONG:
            break
        for o, tick in clocks.items():
            found[o].append(tick() * 1e-3)
    return {o: float(np.median(x)) for o, x in found.items() if x}


def running_of(p: Problem, o: Option, dots: str, device: str = "cuda") -> tuple[Running, list[int]]:
    """Return the kernels of an option with random inputs, and the indices of inputs that are
    constants."""
    how = chosen(p, o)
    made = built(p, how)
    given = buffers(made)
    number = {t: n for n, t in enumerate(given)}
    calls = [
        Call(x.kernel, tuple(Ref("argument", number[t]) for t in (*x.reads, x.writes)), *told(o))
        for x in made
    ]
    specs = [(tuple(n for n in b.shape if isinstance(n, int)), b.dtype) for b in given.values()]
    r = running(calls, np.zeros(0, np.uint8), 0, specs, [], device, dots, record=False)
    _drawn(r)
    return r, [n for t, n in number.items() if t in p.constants or t in how.made]


def copies(r: Running, fixed: Sequence[int]) -> list[Running]:
    """Return copies of the kernels that share memory except for the constants."""
    own = [r.inputs[n] for n in fixed]
    size = sum(x.numel() * x.element_size() for x in own)
    if size < STALE:
        return []
    out = []
    for _ in range(min(COPIES, OTHERS // size)):
        new = {id(x): x.clone() for x in own}
        launches = [(name, f, programs, [new.get(id(x), x) for x in given], how)
                    for name, f, programs, given, how in r.launches]  # fmt: skip
        out.append(r.only(*launches))
    return out


def _drawn(r: Running) -> None:
    for x in r.inputs:
        if x.is_floating_point():
            drawn(x)
