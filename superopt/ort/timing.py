"""Measuring loaded models, in the process that calls.  Times are in microseconds.

One run of a session costs 3 to 8 us whatever it computes (the call from Python, binding inputs and
outputs) and about 0.35 us for each node.  `fixed_cost` measures both, so that the time of a
one-node model can be turned into what the node costs inside of a larger one.
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
from superopt.ort import tiny
from superopt.ort.runtime import Port, Session, _ort, check_names, plain, run_options, session
from superopt.ort.values import FOREIGN, Array, Feeds, Value, element_of, to_ort

_SLOW_US = 50_000.0  # a run this long is not repeated for the sake of statistics
_SMALL_US = 100.0  # below this, the fixed cost of a run is several percent of it
SPINNING = 0.03  # seconds that a session's threads go on asking for work, and take another's cores
_LEAST_ROUNDS = 5  # fewer rounds decide nothing (superopt.cost.clock)


@dataclass(frozen=True, slots=True)
class Timing:
    """How long something took, in us: the median, 10th and 90th percentile of `runs` runs."""

    us_median: float
    us_low: float
    us_high: float
    runs: int


@dataclass(frozen=True, slots=True)
class FixedCost:
    """What a run costs without its nodes, and what a node costs that computes nothing, in us.

    `probe` runs a model of one such node.
    """

    us_run: float
    us_node: float
    probe: Callable[[], object]


def prepare(session: Session, feeds: Feeds) -> Callable[[], object]:
    """One run of the model as a call without arguments, its inputs bound beforehand.

    Strings and sequences cannot be bound; such a model runs in the plain way, whose fixed cost is
    some 3 us higher.  Raises ModelError where an input has no value.
    """
    ort = _ort()
    check_names(session, feeds)
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


def measure(run: Callable[[], object], aim_us: float, most: int) -> Timing:
    """Times a call: two warm-ups, then until `aim_us` have passed or `most` runs are done.

    At least five runs are counted, of slow calls two (and their only warm-up is the first).
    """
    with _quiet():
        first = _once(run)
        second = _once(run)
        slow = first > _SLOW_US and second > _SLOW_US
        times = [second] if slow else []
        least, spent = (2 if slow else 5), sum(times)
        while len(times) < least or (spent < aim_us and len(times) < most):
            times.append(_once(run))
            spent += times[-1]
    return _summary(times)


def _once(run: Callable[[], object]) -> float:
    start = perf_counter_ns()
    run()
    return (perf_counter_ns() - start) / 1e3


def _summary(times: list[float]) -> Timing:
    ordered, last = sorted(times), len(times) - 1
    return Timing(
        statistics.median(ordered),
        ordered[math.floor(0.1 * last)],
        ordered[math.ceil(0.9 * last)],
        len(ordered),
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """No garbage collection in the middle of a measurement."""
    enabled = gc.isenabled()
    gc.collect(0)
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def fixed_cost(threads: int) -> FixedCost:
    """Measures the cost of a run and of a node, from chains of 1 and of 33 nodes.

    The least of several bursts: other load on the machine only ever adds, and subtracting too much
    would make nodes look free.
    """
    short, long = [
        prepare(session(tiny.chain(n), threads), {"x": np.zeros(1, np.float32)}) for n in (1, 33)
    ]
    one = many = math.inf
    for _ in range(5):
        one = min(one, measure(short, math.inf, 60).us_median)
        many = min(many, measure(long, math.inf, 60).us_median)
    node = min(max((many - one) / 32, 0.05), one)
    return FixedCost(one - node, node, short)


def without(fixed: FixedCost, timing: Timing) -> Timing:
    """The time of the nodes alone, never less than that of one node which computes nothing.

    Where the fixed cost matters it is measured again: a machine that is slow for a moment was slow
    for `timing` as well.
    """
    us_run = fixed.us_run
    if timing.us_median < _SMALL_US:
        us_run = max(measure(fixed.probe, math.inf, 20).us_median - fixed.us_node, us_run)
    median, low, high = (
        max(us - us_run, fixed.us_node) for us in (timing.us_median, timing.us_low, timing.us_high)
    )
    return Timing(median, low, high, timing.runs)


def time_alone(model: Session, feeds: Feeds | None, aim_us: float, most: int) -> Timing:
    """Times a model as it is, the fixed cost included; draws what `feeds` leaves out.

    Raises ModelError where it does not run.  Integers are drawn as ones (a zero would end the
    process when divided by) and, where that fails, as zeros: those are indices of everything.
    """
    given = dict(feeds or {})
    try:
        return _time_drawn(model, given, 1, aim_us, most)
    except ModelError:
        if all(port.name in given or "int" not in port.type for port in model.inputs):
            raise
    return _time_drawn(model, given, 0, aim_us, most)


def _time_drawn(model: Session, feeds: Feeds, integer: int, aim_us: float, most: int) -> Timing:
    drawn = {p.name: feeds[p.name] if p.name in feeds else draw(p, integer) for p in model.inputs}
    try:
        return measure(prepare(model, {**feeds, **drawn}), aim_us, most)
    except ModelError:
        raise
    except Exception as error:  # onnxruntime has a dozen exception types without a common base
        raise ModelError("onnxruntime does not run the model", plain(error)) from error


def draw(port: Port, integer: int) -> Value:
    """Values to time an input with: normal floats, one integer throughout, bits at random.

    The same for the same name and shape.  Raises ModelError for a dim without a size, and for an
    input that is no tensor.
    """
    element = element_of(port.type)
    if element == port.type:
        raise ModelError(
            f"input {port.name!r} is a {port.type}", "only tensors are drawn", "give its value"
        )
    dims = [dim for dim in port.shape if isinstance(dim, int) and dim >= 0]
    if len(dims) < len(port.shape):
        raise ModelError(
            f"input {port.name!r} has the shape {list(port.shape)}",
            "a dim without a size cannot be drawn",
            "give its value or make the dim a number",
        )
    # A short piece repeated: drawing a tensor may take longer than the operator.
    size = math.prod(dims)
    rng = np.random.default_rng(zlib.crc32(port.name.encode()))
    floats = np.resize(rng.standard_normal(min(max(size, 1), 1 << 14)), dims)
    return _typed(element, floats, integer)


def _typed(element: str, floats: Array, integer: int) -> Array:
    if element == "string":
        return np.full(floats.shape, "a", dtype=object)
    if element == "bool":
        return np.asarray(floats > 0)
    if re.fullmatch(r"u?int\d+", element):
        ones = np.full(floats.shape, integer)
        return ones.astype(FOREIGN[element].dtype if element in FOREIGN else element)
    if element in FOREIGN:
        return floats.astype(FOREIGN[element].dtype)
    return floats.astype({"float": "f4", "double": "f8", "float16": "f2"}[element])


def interleave(
    runs: Sequence[Callable[[], object]],
    seconds: float,
    rounds: int,
    seed: int,
    enough: Callable[[list[list[float]]], bool] = lambda times: False,
    *,
    pause: float = 0.0,
) -> list[list[float]]:
    """Times several calls in turns: `rounds` numbers for each, the k-th ones from the same round.

    Within a round each call has one burst, in an order drawn anew, so that whatever slows the
    machine down for longer than a round hits all of them.  A burst that fits three runs or more
    is not counted from its first, and its number is the median.  Stops at `seconds`, or once
    `enough`, shown the times before every round, is true; but not before five rounds: fewer
    decide nothing.

    pause: seconds of rest before each burst, after which its first run is not counted; SPINNING
    for sessions of several threads.
    """
    rng = random.Random(seed)
    with _quiet():
        estimates = [min(_once(run), _once(run)) for run in runs]
        share = seconds * 1e6 / (rounds * len(runs))
        bursts = [max(1, min(100, int(share / max(us, 0.1)))) for us in estimates]
        times: list[list[float]] = [[] for _ in runs]
        deadline = perf_counter_ns() + seconds * 1e9
        for done in range(rounds):
            late = enough(times) or perf_counter_ns() > deadline
            if done >= _LEAST_ROUNDS and late:
                break
            order = list(range(len(runs)))
            rng.shuffle(order)
            for index in order:
                if pause:
                    sleep(pause)
                    runs[index]()
                burst = [_once(runs[index]) for _ in range(bursts[index])]
                times[index].append(statistics.median(burst[1:] if len(burst) > 2 else burst))
    return times


def as_json(timing: Timing) -> list[Any]:
    """The fields in order; `Timing(*fields)` undoes it."""
    return [timing.us_median, timing.us_low, timing.us_high, timing.runs]
