"""Time loaded models in this process. Times are in microseconds.

One run of a session has a fixed cost of 3 to 8 us (the call from Python, binding inputs and
outputs) and about 0.35 us for each node. `measure_fixed_cost` measures both, so that the time of a
one-node model gives the node's cost inside a larger one.
"""

import gc
import math
import random
import re
import statistics
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter_ns, sleep
from typing import Any

import numpy as np

from superopt.errors import ModelError
from superopt.ort import probe_model
from superopt.ort.sessions import (
    Port,
    Session,
    _ort,
    check_feeds,
    error_text,
    load_session,
    run_options,
)
from superopt.ort.tensors import EXTENDED_DTYPES, Array, Feeds, Value, element_name, to_ort

_SLOW_US = 50_000.0  # a run this long is not repeated for statistics
_SMALL_US = 100.0  # below this, the fixed cost of a run is several percent of it
SPIN_SECONDS = (
    0.03  # seconds that a session's idle threads spin, and occupy another session's cores
)
_MIN_ROUNDS = 5  # fewer rounds decide nothing (superopt.cost.speedup)


@dataclass(frozen=True, slots=True)
class Timing:
    """A time in us: the median, 10th and 90th percentile of `runs` runs."""

    us_median: float
    us_low: float
    us_high: float
    runs: int


@dataclass(frozen=True, slots=True)
class FixedCost:
    """The cost of a run without its nodes, and of a node that computes nothing, in us.

    `probe` runs a model of one such node.
    """

    us_run: float
    us_node: float
    probe: Callable[[], object]


def bind_run(session: Session, feeds: Feeds) -> Callable[[], object]:
    """Return a function that runs the model once, with its inputs bound beforehand.

    Strings and sequences cannot be bound; such a model runs without binding, with a fixed cost
    about 3 us higher. Raises ModelError if an input has no value.
    """
    ort = _ort()
    check_feeds(session, feeds)
    given = {name: to_ort(ort, value) for name, value in feeds.items()}
    if not all(isinstance(v, ort.OrtValue) or _can_be_bound(v) for v in given.values()):
        return lambda: session.raw.run(None, given, run_options())
    binding = session.raw.io_binding()
    for name, value in given.items():
        if not isinstance(value, ort.OrtValue):
            value = ort.OrtValue.ortvalue_from_numpy(value)
        binding.bind_ortvalue_input(name, value)
    for port in session.outputs:
        binding.bind_output(port.name)
    run = session.raw.run_with_iobinding
    return lambda: run(binding, run_options())


def _can_be_bound(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.dtype != object


def measure(run: Callable[[], object], target_us: float, max_runs: int) -> Timing:
    """Time a call: two warm-ups, then until `target_us` have passed or `max_runs` runs are done.

    Counts at least five runs; of slow calls two, with only the first as warm-up.
    """
    with _without_gc():
        first = _time_once(run)
        second = _time_once(run)
        slow = first > _SLOW_US and second > _SLOW_US
        times = [second] if slow else []
        least, spent = (2 if slow else 5), sum(times)
        while len(times) < least or (spent < target_us and len(times) < max_runs):
            times.append(_time_once(run))
            spent += times[-1]
    return _summarize(times)


def _time_once(run: Callable[[], object]) -> float:
    start = perf_counter_ns()
    run()
    return (perf_counter_ns() - start) / 1e3


def _summarize(times: list[float]) -> Timing:
    ordered, last = sorted(times), len(times) - 1
    return Timing(
        statistics.median(ordered),
        ordered[math.floor(0.1 * last)],
        ordered[math.ceil(0.9 * last)],
        len(ordered),
    )


@contextmanager
def _without_gc() -> Iterator[None]:
    """Disable garbage collection during a measurement."""
    enabled = gc.isenabled()
    gc.collect(0)
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def measure_fixed_cost(threads: int) -> FixedCost:
    """Measure the cost of a run and of a node, from chains of 1 and of 33 nodes.

    Takes the least of several bursts: other load only adds, and subtracting too much would make
    nodes look free.
    """
    short, long = [
        bind_run(load_session(probe_model.chain_model(n), threads), {"x": np.zeros(1, np.float32)})
        for n in (1, 33)
    ]
    one = many = math.inf
    for _ in range(5):
        one = min(one, measure(short, math.inf, 60).us_median)
        many = min(many, measure(long, math.inf, 60).us_median)
    node = min(max((many - one) / 32, 0.05), one)
    return FixedCost(one - node, node, short)


def subtract_fixed_cost(fixed: FixedCost, timing: Timing) -> Timing:
    """Subtract the fixed cost; the result is at least the time of a node that computes nothing.

    If the fixed cost matters it is measured again: a slow moment of the machine affected `timing`
    as well.
    """
    us_run = fixed.us_run
    if timing.us_median < _SMALL_US:
        us_run = max(measure(fixed.probe, math.inf, 20).us_median - fixed.us_node, us_run)
    median, low, high = (
        max(us - us_run, fixed.us_node) for us in (timing.us_median, timing.us_low, timing.us_high)
    )
    return Timing(median, low, high, timing.runs)


def time_session(model: Session, feeds: Feeds | None, target_us: float, max_runs: int) -> Timing:
    """Time a model including the fixed cost; inputs without a value in `feeds` are random.

    Raises ModelError if it does not run. Integers are drawn as ones (dividing by zero would kill
    the process) and, if that fails, as zeros, which are valid indices of everything.
    """
    given = dict(feeds or {})
    try:
        return _time_with_drawn_inputs(model, given, 1, target_us, max_runs)
    except ModelError:
        if all(port.name in given or "int" not in port.type for port in model.inputs):
            raise
    return _time_with_drawn_inputs(model, given, 0, target_us, max_runs)


def _time_with_drawn_inputs(
    model: Session, feeds: Feeds, integer: int, target_us: float, max_runs: int
) -> Timing:
    drawn = {
        p.name: feeds[p.name] if p.name in feeds else draw_input(p, integer) for p in model.inputs
    }
    try:
        return measure(bind_run(model, {**feeds, **drawn}), target_us, max_runs)
    except ModelError:
        raise
    except Exception as error:  # onnxruntime has a dozen exception types without a common base
        raise ModelError("onnxruntime cannot run the model", error_text(error)) from error


def draw_input(port: Port, integer: int) -> Value:
    """Return values to time an input with: normal floats, one integer throughout, random bools.

    They depend only on name and shape. Raises ModelError for a dim without a size, and for an input
    that is not a tensor.
    """
    element = element_name(port.type)
    if element == port.type:
        raise ModelError(
            f"input {port.name!r} is a {port.type}", "only tensors can be drawn", "pass its value"
        )
    dims = [dim for dim in port.shape if isinstance(dim, int) and dim >= 0]
    if len(dims) < len(port.shape):
        raise ModelError(
            f"input {port.name!r} has the shape {list(port.shape)}",
            "a dim without a size cannot be drawn",
            "pass its value or make the dim a number",
        )
    # A short repeated piece: drawing a tensor may take longer than the operator.
    size = math.prod(dims)
    rng = np.random.default_rng(zlib.crc32(port.name.encode()))
    floats = np.resize(rng.standard_normal(min(max(size, 1), 1 << 14)), dims)
    return _cast_drawn(element, floats, integer)


def _cast_drawn(element: str, floats: Array, integer: int) -> Array:
    if element == "string":
        return np.full(floats.shape, "a", dtype=object)
    if element == "bool":
        return np.asarray(floats > 0)
    if re.fullmatch(r"u?int\d+", element):
        ones = np.full(floats.shape, integer)
        return ones.astype(
            EXTENDED_DTYPES[element].dtype if element in EXTENDED_DTYPES else element
        )
    if element in EXTENDED_DTYPES:
        return floats.astype(EXTENDED_DTYPES[element].dtype)
    return floats.astype({"float": "f4", "double": "f8", "float16": "f2"}[element])


def interleave(
    runs: Sequence[Callable[[], object]],
    seconds: float,
    rounds: int,
    seed: int,
    stop: Callable[[list[list[float]]], bool] = lambda times: False,
    *,
    pause: float = 0.0,
) -> list[list[float]]:
    """Time several calls in interleaved rounds: `rounds` numbers for each, the k-th ones from the
    same round.

    In a round each call has one burst, in a new random order, so that whatever slows the machine
    down for longer than a round affects all of them. A burst of three runs or more is not counted
    from its first; its number is the median. Stops at `seconds`, or once `stop`, called with the
    times before every round, is true, but not before five rounds: fewer decide nothing.
    pause: seconds of rest before each burst, after which its first run is not counted; SPIN_SECONDS
        for sessions of several threads.
    """
    rng = random.Random(seed)
    with _without_gc():
        estimates = [min(_time_once(run), _time_once(run)) for run in runs]
        share = seconds * 1e6 / (rounds * len(runs))
        bursts = [max(1, min(100, int(share / max(us, 0.1)))) for us in estimates]
        times: list[list[float]] = [[] for _ in runs]
        deadline = perf_counter_ns() + seconds * 1e9
        for done in range(rounds):
            late = stop(times) or perf_counter_ns() > deadline
            if done >= _MIN_ROUNDS and late:
                break
            order = list(range(len(runs)))
            rng.shuffle(order)
            for index in order:
                if pause:
                    sleep(pause)
                    runs[index]()
                burst = [_time_once(runs[index]) for _ in range(bursts[index])]
                times[index].append(statistics.median(burst[1:] if len(burst) > 2 else burst))
    return times


def timing_fields(timing: Timing) -> list[Any]:
    """Return the fields in order; `Timing(*fields)` is the inverse."""
    return [timing.us_median, timing.us_low, timing.us_high, timing.runs]
