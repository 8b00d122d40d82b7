"""What is known of kernels: how long each option of a problem took, and which one was chosen."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version

from superopt import __version__
from superopt.cost.machine import digest, machine
from superopt.cost.store import GPU, Key, Measured, Store, Target
from superopt.kernels.loops.option import Option
from superopt.kernels.runtime.target_cpu import LEVELS, requested_level

MEASURED, CHOSEN, GRAPH = "kernel", "tuned", "rewrites"
Seconds = tuple[float, float, float, int]  # median, 10th and 90th percentile, of how many runs


def target(threads: int) -> Target:
    """Kernels of this version of superopt on this machine, or for the level of x86-64 that
    SUPEROPT_TARGET_CPU names: times of the one say nothing about the other."""
    on, level = machine(), requested_level()
    if level is not None:
        on = replace(on, flags_digest=digest(list(LEVELS[level].features)))
    return Target.on(on, "superopt", __version__, threads)


def gpu(name: str, dots: str) -> Target:
    """Kernels of this version of superopt, by these of Triton and torch, on such a GPU, in whatever
    machine. dots: how products of float32 are computed there, by Triton's name."""
    made_by = "-".join((__version__, *map(_version, ("triton", "torch"))))
    return Target("superopt", made_by, name, dots, GPU)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


@dataclass(frozen=True, slots=True)
class Timed:
    """A measurement: the problem, by its key and what `Problem.numbers` says of it, and how."""

    problem: str
    numbers: tuple[int, ...]
    option: Option
    seconds: float


def measured(store: Store, on: Target) -> list[Timed]:
    """All that was measured there."""
    out = []
    for key, found in store.of_kind(on, MEASURED):
        problem, option = key.operator.split(" ", 1)
        (numbers,) = key.shapes
        with suppress(ValueError):  # of another version, or of nobody
            out.append(Timed(problem, numbers, Option.parse(option), found.us_median * 1e-6))
    return out


def keep(
    store: Store,
    on: Target,
    problem: str,
    numbers: tuple[int, ...],
    times: Mapping[Option, Seconds],
    kind: str = MEASURED,
) -> None:
    """Write down what was measured."""
    rows = {
        Key(kind, f"{problem} {option}", (numbers,), (), on): Measured(
            median * 1e6, low * 1e6, high * 1e6, runs, time.time()
        )
        for option, (median, low, high, runs) in times.items()
    }
    store.put(rows)


def chosen(store: Store, on: Target) -> dict[str, Option]:
    """The option that was chosen last for each problem."""
    out: dict[str, tuple[float, Option]] = {}
    for key, found in store.of_kind(on, CHOSEN):
        problem, option = key.operator.split(" ", 1)
        if problem not in out or out[problem][0] < found.when:
            with suppress(ValueError):
                out[problem] = (found.when, Option.parse(option))
    return {problem: option for problem, (_, option) in out.items()}


def keep_graph(store: Store, threads: int, model: str, decisions: str, us: Seconds) -> None:
    """Write down how a model's graph became faster: the log of decisions, and microseconds of it,
    compiled. model: the digest of its file."""
    key = Key(GRAPH, f"{model} {decisions}", (), (), target(threads))
    store.put({key: Measured(*us, time.time())})


def graph(store: Store, threads: int, model: Callable[[], str]) -> str | None:
    """The log that was kept last for a model. model: gives its digest, where there are any."""
    some = store.of_kind(target(threads), GRAPH)
    own = [(m.when, k.operator.split(" ", 1)) for k, m in some]
    found = [(when, text) for when, (digest, text) in own if digest == model()] if own else []
    return max(found)[1] if found else None
