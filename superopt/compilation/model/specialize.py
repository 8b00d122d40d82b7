"""Background compilation for further sizes, and the choice of what is faster."""

from __future__ import annotations

import logging
import pickle
import time
import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from superopt.compilation.model.control_flow.dynamic_loop import DynamicLoop
from superopt.compilation.model.control_flow.part_calls import (
    add_new_programs,
    compile_missing_parts,
)
from superopt.compilation.model.flow_programs import background_flow
from superopt.compilation.runtime import background_worker, child_process
from superopt.cost.machine import this_machine
from superopt.errors import SuperoptError

if TYPE_CHECKING:
    from superopt.compilation.frontend.input_arrays import Sizes
    from superopt.compilation.model.compile_child import Work
    from superopt.compilation.model.executable import Executable
    from superopt.compilation.model.model_programs import ModelPrograms
    from superopt.compilation.model.size_classes import SizeClass
    from superopt.compilation.model.states.state_programs import StateNames
    from superopt.compilation.model.steps import Variant

LOG = logging.getLogger("superopt.compile")
CHILD_MODULE: Final = "superopt.compilation.model.compile_child"
MIN_CHILD_TIMEOUT_S: Final = 120.0  # limit for compiling, and a multiple of the expected time:
CHILD_TIMEOUT_FACTOR: Final = 20.0
MAX_RUN_PAIRS: Final = 40  # pairs of runs that are compared, at most
MAX_PAIRS_SECONDS: Final = 0.5  # limit for these runs
# By which ONNX Runtime must be faster for a class not to be used: runs vary by this on a busy
# machine, and a class is measured at one of its sizes.
CLASS_MARGIN: Final = 1.1
MIN_CLEAR_PAIRS: Final = 6  # pairs after which a ratio of CLEAR_RATIO decides
CLEAR_RATIO: Final = 1.15  # larger than the variation of repeated medians on a busy machine


def submit_specialization(exe: Executable, key: Sizes, inputs: Sequence[Any]) -> None:
    """Compile the model for these sizes in the background, and use the result from then on if it is
    faster on these inputs. The caller holds exe.lock."""
    policy = exe.shape_policy
    if key in policy.pending:
        return
    arrays = [np.array(x) if isinstance(x, np.ndarray) else x for x in inputs]
    ref = weakref.ref(exe)
    if background_worker.background_worker().submit(
        background_worker.Job(id(exe), lambda: _specialize(ref, key, arrays))
    ):
        policy.pending.add(key)


def _specialize(ref: weakref.ref[Executable], key: Sizes, arrays: list[Any]) -> None:
    if (exe := ref()) is None:
        return
    is_urgent = exe.shape_policy.is_first_due and this_machine().cores_allowed > 1
    with closing(child_results(exe, key, is_urgent=is_urgent, arrays=arrays)) as results:
        _compile_and_choose(exe, key, arrays, results)
        try:
            for _ in results:  # classes of other levels
                _add_new_classes(exe)
                if exe.is_closed:
                    break
        except (OSError, SuperoptError) as e:
            LOG.info("background classes of other levels: %s", e)
    with exe.lock:
        exe.shape_policy.pending.discard(key)


def _compile_and_choose(
    exe: Executable, key: Sizes, arrays: list[Any], results: Generator[float, None, None]
) -> None:
    """Compile the model for a class of sizes that has these, and use it if it is faster than ONNX
    Runtime. results: of a child process."""
    policy, why = exe.shape_policy, ""
    made: SizeClass | None = None
    variant, flow = None, None
    try:
        variant, made = compile_in_background(exe, key, results)
        if (flow := variant.control_flow) is not None:
            with compile_missing_parts():
                flow.run_programs(dict(zip(flow.input_names, arrays, strict=True)))
        if not isinstance(flow, DynamicLoop):  # which compares in its calls
            own, other = _measure_pair(exe, variant, arrays)
            policy.add_measurement(own, other)
            if own >= other * (1.0 if made is None else CLASS_MARGIN):
                why = f"onnxruntime is faster: {1e3 * other:.3g} ms, compiled {1e3 * own:.3g} ms"
    except Exception as e:  # any error; `fallback_nodes` reports it
        policy.failures += 1
        why = " ".join(f"background compilation failed: {e}".split())
    LOG.info("background %s: %s", dict(key), why or "compiled code is used")
    with exe.lock:
        if exe.is_closed:
            return
        if made is not None:  # from here on calls use its memory
            exe.size_classes.add(made, is_slower=bool(why))
            policy.add_class()
        elif flow is not None and not why:
            exe.size_classes.any_sizes = variant
            policy.add_class()
        policy.compiles_classes = exe.size_classes.is_supported
        policy.is_first_due = False
        if why or variant is None:
            policy.keep_in_fallback(key, why)
        else:
            exe.set_variant(key, variant)


def _add_new_classes(exe: Executable) -> None:
    """Let calls use the classes that a child process has compiled."""
    with exe.lock:
        if exe.is_closed:
            return
        exe.size_classes.add_new()
        flow = exe.size_classes.any_control_flow
    if flow is not None:
        add_new_programs(flow)


def has_child(exe: Executable) -> bool:
    """True if a child process can compile the model, whose file it opens."""
    cached = exe.size_classes.cache is not None
    return child_process.CAN_RUN_CHILDREN and cached and exe.reference is not None


def start_compiler(exe: ModelPrograms, *, is_urgent: bool) -> child_process.Child:
    """Start a child process that opens the model and waits for sizes. is_urgent: not at a low
    priority. Raises OSError if there is no memory for one."""
    assert exe.reference is not None
    child = child_process.start_child(CHILD_MODULE)
    child.send(pickle.dumps((*exe.reference.reduce(), is_urgent)))
    return child


def child_results(
    exe: Executable,
    key: Sizes,
    *,
    work: Work = "class",
    states: StateNames = (),
    is_urgent: bool = False,
    arrays: Sequence[Any] = (),
) -> Generator[float, None, None]:
    """Yield the processor time in seconds of a child process that compiles the model, after each
    result (compile_child.py); nothing if no child can open the model. states: those that programs
    keep in place. is_urgent: a call waits for the first result, or there is no program yet. arrays:
    the inputs of a call, for which the work "class" compiles a model with an If or Loop."""
    if not has_child(exe):
        return
    policy = exe.shape_policy
    if work == "class" and not exe.size_classes.is_supported:
        work = "fixed"
    given = [*map(exe.device.to_host, arrays)] if exe.may_branch and work == "class" else None
    child = exe.take_child() or start_compiler(exe, is_urgent=is_urgent)
    child.send(pickle.dumps((key, work, policy.size_ranges, states, is_urgent, given)))
    child.last_message = lambda: pickle.dumps(policy.size_ranges)
    limit = max(MIN_CHILD_TIMEOUT_S, CHILD_TIMEOUT_FACTOR * policy.expected_compile_seconds)
    with closing(background_worker.child_lines(child, limit)) as lines:
        for text in lines:
            yield float(text)
            child.send(pickle.dumps(policy.size_ranges))


def compile_in_waiting_child(exe: Executable, key: Sizes, *, states: StateNames = ()) -> bool:
    """Let the child that has opened the model compile for these sizes, and wait for that: this
    process needs no compiler. False if there is no such child, or if it failed. states: those that
    programs keep in place."""
    if exe.waiting_child is None:
        return False
    try:
        with closing(child_results(exe, key, states=states, is_urgent=True)) as results:
            if (seconds := next(results, None)) is None:
                return False
            exe.shape_policy.add_compile_time(seconds)
            for _ in results:  # further classes
                pass
    except (OSError, SuperoptError) as e:
        LOG.info("compilation of %s in a child: %s", dict(key), e)
        return False
    return True


def compile_fixed_in_background(exe: Executable, key: Sizes) -> Variant:
    """Return the model compiled for these sizes alone."""
    with closing(child_results(exe, key, work="fixed")) as results:
        variant, _ = compile_in_background(exe, key, results, is_fixed=True)
        return variant


def compile_in_background(
    exe: Executable, key: Sizes, results: Generator[float, None, None], *, is_fixed: bool = False
) -> tuple[Variant, SizeClass | None]:
    """Return the model compiled for a class of sizes that has these, and that class; or for these
    sizes alone, if it has no class or `is_fixed`. results: of a child process, which are read from
    the disk cache; without one the model is compiled in this process."""
    policy, classes, sizes = exe.shape_policy, exe.size_classes, dict(key)
    seconds = None
    with suppress(OSError):  # no memory for another process
        seconds = next(results, None)
    if seconds is not None:
        policy.add_compile_time(seconds)
    if exe.may_branch and not is_fixed:
        found = background_flow(exe, compile_new=False)
        if found is not None and found.control_flow is not None:
            add_new_programs(found.control_flow)
            return found, None
    if seconds is not None:
        for new in () if is_fixed else classes.find_new():
            if new.formulas.admits(sizes) and (bound := new.variant(sizes)) is not None:
                new.log()
                return bound, new
        if (found := exe.find_cached(key)) is not None:
            return found, None
    compiler, clock = exe.compiler, exe.device.compile_clock
    begin = clock()
    if exe.may_branch and not is_fixed and (found := background_flow(exe, compile_new=True)):
        return found, None
    with background_worker.compile_lock():
        made = None if is_fixed else classes.compile(compiler, sizes)
        bound = None if made is None else made.variant(sizes)
        variant = bound or compiler.compile_variant(sizes)
    compiler.compile_branches(variant)
    policy.add_compile_time(clock() - begin)
    if bound is None:
        exe.store_cached(key, variant)
    return variant, made


def _measure_pair(exe: Executable, variant: Variant, arrays: list[Any]) -> tuple[float, float]:
    """Return the minimum seconds of runs of a variant and of runs in ONNX Runtime, interleaved."""
    fallback = exe.shape_policy.fallback
    assert fallback is not None
    return fastest_times((partial(variant.run, exe.device), fallback.call), arrays)


def fastest_times(
    runs: tuple[Callable[[list[Any]], object], Callable[[list[Any]], object]], arrays: list[Any]
) -> tuple[float, float]:
    """Return the minimum seconds of two functions of these arrays, which run in turns."""
    best = [float("inf"), float("inf")]
    end = time.perf_counter() + MAX_PAIRS_SECONDS
    for n in range(MAX_RUN_PAIRS + 1):  # the first pair warms up
        for k, call in enumerate(runs):
            begin = time.perf_counter()
            call(arrays)
            if n:
                best[k] = min(best[k], time.perf_counter() - begin)
        clear = n >= MIN_CLEAR_PAIRS and max(best) > CLEAR_RATIO * min(best)
        if n and (clear or time.perf_counter() > end):
            break
    return best[0], best[1]
