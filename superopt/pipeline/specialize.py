"""Background compilation for further sizes, and the choice of what is faster."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from superopt.pipeline import background
from superopt.pipeline.native import Native

if TYPE_CHECKING:
    from superopt.pipeline.executable import Executable, Sizes, Steps

CHILD_SECONDS: Final = 120.0  # limit for compiling, and a multiple of the expected time:
CHILD_TIMES: Final = 20.0
PAIRS: Final = 40  # pairs of runs that are compared, at most
PAIRS_SECONDS: Final = 0.5  # limit for these runs
CLEAR_PAIRS: Final = 6  # pairs after which a ratio of CLEAR_RATIO decides
CLEAR_RATIO: Final = 1.15  # larger than the variation of repeated medians on a busy machine


def submit(exe: Executable, key: Sizes, given: Sequence[Any]) -> None:
    """Compile the model for these sizes in the background, and use the result from then on if it is
    faster on these inputs. The caller holds exe.lock."""
    policy = exe.new_sizes
    if key in policy.pending:
        return
    arrays = [np.array(x) if isinstance(x, np.ndarray) else x for x in given]
    ref = weakref.ref(exe)
    if background.worker().submit(background.Job(id(exe), lambda: _run(ref, key, arrays))):
        policy.pending.add(key)


def _run(ref: weakref.ref[Executable], key: Sizes, arrays: list[Any]) -> None:
    if (exe := ref()) is None:
        return
    policy, why = exe.new_sizes, ""
    steps = None
    try:
        steps = compiled(exe, key)
        own, other = _measured(exe, key, steps, arrays)
        policy.note_measured(own, other)
        if own >= other:
            why = f"onnxruntime is faster: {1e3 * other:.3g} ms, compiled {1e3 * own:.3g} ms"
    except Exception as e:  # any error; `fallback_nodes` reports it
        why = " ".join(f"background compilation failed: {e}".split())
    with exe.lock:
        policy.pending.discard(key)
        if why or steps is None:
            policy.note_settled(key, why)
        else:
            exe.take(key, steps)


def compiled(exe: Executable, key: Sizes) -> Steps:
    """Return the steps for these sizes. A child process compiles them if it can; its result is read
    from the disk cache."""
    compiler, policy = exe.compiler, exe.new_sizes
    if background.FORKS:

        def work() -> str:
            begin = time.process_time()
            steps = compiler.compiled(dict(key), sessions=False)
            exe.keep(key, steps)
            return str(time.process_time() - begin)

        limit = max(CHILD_SECONDS, CHILD_TIMES * policy.further_seconds)
        with suppress(OSError):  # no memory for another process
            policy.note_compiled(float(background.in_child(work, limit, compiler.forkable())))
        if (found := exe.find(key)) is not None:
            return [found]
    begin = time.thread_time()
    with background.compiling():
        steps = compiler.compiled(dict(key))
    if not background.FORKS:
        policy.note_compiled(time.thread_time() - begin)
    exe.keep(key, steps)
    return steps


def _measured(exe: Executable, key: Sizes, steps: Steps, arrays: list[Any]) -> tuple[float, float]:
    """Return the minimum seconds of runs of the steps and of runs in ONNX Runtime, interleaved."""
    fallback = exe.new_sizes.fallback
    assert fallback is not None
    run = _runner(exe, key, steps)
    best = [float("inf"), float("inf")]
    end = time.perf_counter() + PAIRS_SECONDS
    for n in range(PAIRS + 1):  # the first pair warms up
        for k, call in enumerate((run, fallback.call)):
            begin = time.perf_counter()
            call(arrays)
            if n:
                best[k] = min(best[k], time.perf_counter() - begin)
        clear = n >= CLEAR_PAIRS and max(best) > CLEAR_RATIO * min(best)
        if n and (clear or time.perf_counter() > end):
            break
    return best[0], best[1]


def _runner(exe: Executable, key: Sizes, steps: Steps) -> Callable[[list[Any]], object]:
    first = steps[0] if len(steps) == 1 else None
    if not isinstance(first, Native) or first.whole is None:
        made = exe.compiler.at(dict(key))
        return lambda arrays: made.run(steps, arrays)
    native, takes = first, first.whole.takes
    return lambda arrays: native.code.call((*[arrays[n] for n in takes], *native.new()))
