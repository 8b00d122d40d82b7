"""Measurements of kernels: the time of each option of a problem, and the chosen option."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version

from superopt import __version__
from superopt.cost.machine import digest_names, this_machine
from superopt.cost.store import GPU_THREADS, Key, Measurement, Store, Target
from superopt.kernels.loops.option import Option
from superopt.kernels.runtime.target_cpu import LEVELS, requested_level

# The numbers change with the names of algorithms and knobs, and with how kernels are timed: other
# versions' records are not read.
MEASURED_KIND, CHOSEN_KIND, REWRITES_KIND = "kernel 3", "tuned 3", "rewrites"
REFERENCE_KIND = "reference"
TimeSummary = tuple[float, float, float, int]  # median, 10th and 90th percentile, number of runs


def cpu_target(threads: int) -> Target:
    """Return the target for kernels of this superopt version on this machine, or on the x86-64
    level of SUPEROPT_TARGET_CPU: their times differ.
    """
    on, level = this_machine(), requested_level()
    if level is not None:
        on = replace(on, flags_digest=digest_names(list(LEVELS[level].features)))
    return Target.for_machine(on, "superopt", __version__, threads)


def gpu_target(name: str, float32_products: str) -> Target:
    """Return the target for kernels of this version of superopt, Triton and torch on a GPU, in any
    machine. float32_products: how float32 products are computed, by Triton's name."""
    made_by = "-".join((__version__, *map(_package_version, ("triton", "torch"))))
    return Target("superopt", made_by, name, float32_products, GPU_THREADS)


def _package_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


@dataclass(frozen=True, slots=True)
class TimedOption:
    """A measurement: the problem, by its key and `Problem.numbers`, the option, and its seconds."""

    problem: str
    numbers: tuple[int, ...]
    option: Option
    seconds: float


def measured_options(store: Store, target: Target, kind: str = MEASURED_KIND) -> list[TimedOption]:
    """Return all measurements of a kind on a target."""
    out = []
    for key, found in store.measurements_of_kind(target, kind):
        problem, option = key.operator.split(" ", 1)
        (numbers,) = key.shapes
        with suppress(ValueError):  # written by another version
            out.append(TimedOption(problem, numbers, Option.parse(option), found.us_median * 1e-6))
    return out


def store_times(
    store: Store,
    target: Target,
    problem: str,
    numbers: tuple[int, ...],
    times: Mapping[Option, TimeSummary],
    kind: str = MEASURED_KIND,
) -> None:
    """Store measurements."""
    rows = {
        Key(kind, f"{problem} {option}", (numbers,), (), target): Measurement(
            median * 1e6, low * 1e6, high * 1e6, runs, time.time()
        )
        for option, (median, low, high, runs) in times.items()
    }
    store.put(rows)


def reference_seconds(store: Store, target: Target) -> float | None:
    """Return the seconds of the product that kernels are timed beside; None on a new machine."""
    key = _reference_key(target)
    found = store.get([key]).get(key)
    return None if found is None else found.us_median * 1e-6


def store_reference_seconds(store: Store, target: Target, seconds: float) -> None:
    us = 1e6 * seconds
    store.put({_reference_key(target): Measurement(us, us, us, 1, time.time())})


def _reference_key(target: Target) -> Key:
    return Key(REFERENCE_KIND, "product", (), (), target)


def chosen_options(store: Store, target: Target) -> dict[str, Option]:
    """Return the option that was chosen last for each problem."""
    out: dict[str, tuple[float, Option]] = {}
    for key, found in store.measurements_of_kind(target, CHOSEN_KIND):
        problem, option = key.operator.split(" ", 1)
        if problem not in out or out[problem][0] < found.when:
            with suppress(ValueError):
                out[problem] = (found.when, Option.parse(option))
    return {problem: option for problem, (_, option) in out.items()}


def store_chosen_options(store: Store, target: Target, options: Mapping[str, Option]) -> None:
    """Store these as the options that were chosen last for their problems."""
    for problem, option in options.items():
        store_times(store, target, problem, (), {option: (0.0, 0.0, 0.0, 1)}, CHOSEN_KIND)


def gpu_models_target(name: str, precision: str) -> Target:
    """Return the target for whole models of this precision on a GPU."""
    return gpu_target(name, f"{precision} models")


def store_rewrites(
    store: Store, target: Target, model_digest: str, decisions: str, us: TimeSummary
) -> None:
    """Store the rewrites of a model's graph: the decision log, and the microseconds of the compiled
    result. model_digest: of its file."""
    key = Key(REWRITES_KIND, f"{model_digest} {decisions}", (), (), target)
    store.put({key: Measurement(*us, time.time())})


def stored_rewrites(store: Store, target: Target, model_digest: Callable[[], str]) -> str | None:
    """Return the decision log that was stored last for a model; None without one. model_digest:
    returns its digest, called only if there are logs."""
    some = store.measurements_of_kind(target, REWRITES_KIND)
    own = [(m.when, k.operator.split(" ", 1)) for k, m in some]
    found = (
        [(when, text) for when, (digest, text) in own if digest == model_digest()] if own else []
    )
    return max(found)[1] if found else None
