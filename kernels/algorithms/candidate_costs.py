"""Why a kernel has its schedule: the candidates on a CPU, with estimated times by resource.

What decides is the prediction of each algorithm (algorithm.py), or a measurement (`tune`). The
times here are counted on the kernels that the options make, so that they are comparable, and say
what bounds each of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from superopt.kernels.algorithms.build import build_kernels
from superopt.kernels.algorithms.cpu.partition import imbalance
from superopt.kernels.algorithms.kernel_work import KernelWork, cache_traffic, count_work
from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.algorithms.space import (
    best_option,
    build_choice,
    matched_algorithms,
    options,
)
from superopt.kernels.llvm.codegen import chunk_count
from superopt.kernels.loops.option import Option

STORE_COST, STEP_COST = 2.0, 2.0  # vector FMAs; two FMAs and two loads a cycle, one store
TERMS = ("FMA", "other", "load", "store", "loop", "L2", "L3", "memory", "wait")
MAX_OTHER_OPTIONS = 4  # of the chosen algorithm


@dataclass(frozen=True, slots=True)
class MachineFigures:
    """fma_rate: vector FMAs of all threads in a second. caches: bytes of the data caches, from L1
    on. bandwidths: bytes that all threads read in a second from L2, L3 and memory. sources: where
    these come from, a line each."""

    fma_rate: float
    caches: tuple[int, ...]
    bandwidths: tuple[float, float, float]
    threads: int
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Candidate:
    """An option. predicted: its time relative to the general algorithm, if that was predicted;
    seconds: by resource, of TERMS, if nothing else took time. chunks: parts that threads share."""

    option: Option
    predicted: float | None
    seconds: tuple[float, ...]
    chunks: int

    @property
    def bound(self) -> str:
        """What takes longest: one of TERMS."""
        vectors = self.seconds[0] + self.seconds[1]  # share the ports
        times = (vectors, 0.0, *self.seconds[2:])
        return TERMS[max(range(len(TERMS)), key=times.__getitem__)]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a kernel has its schedule. default: what was predicted to be the fastest. rejected: names
    of algorithms that are not expected to pay. limits: of block sizes, a sentence each."""

    tensor: str
    chosen: Option
    default: Option
    candidates: tuple[Candidate, ...]
    rejected: tuple[str, ...]
    limits: tuple[str, ...]
    figures: MachineFigures


def explain_choice(p: Problem, chosen: Option, figures: MachineFigures) -> Explanation:
    """Return why a problem of fixed sizes has the option `chosen`."""
    predicted: dict[Option, float] = {}
    rejected: list[str] = []
    limits: list[str] = []
    for a, match in matched_algorithms(p, "cpu"):
        found = a.prediction(p, match)
        if found is None:
            rejected.append(a.names[0])
        else:
            predicted[found.option] = found.relative_time
        if chosen.algorithm in a.names and a.limits is not None:
            limits += a.limits(p, match, chosen)
    others = (o for o in options(p) if o.algorithm == chosen.algorithm)
    first = sorted(predicted, key=predicted.__getitem__)
    some = dict.fromkeys((chosen, *first, *islice(others, MAX_OTHER_OPTIONS + 1)))
    candidates = tuple(candidate_cost(p, o, figures, predicted.get(o)) for o in some)
    return Explanation(
        str(p.tensor.type), chosen, best_option(p), candidates, tuple(rejected), tuple(limits),
        figures,
    )  # fmt: skip


def candidate_cost(
    p: Problem, o: Option, figures: MachineFigures, predicted: float | None = None
) -> Candidate:
    """Return the costs of an option: of all its kernels."""
    work, traffic, wait, chunks = KernelWork(), [0.0, 0.0, 0.0], 0.0, 0
    for built in build_kernels(p, build_choice(p, o)):
        own = count_work(built.kernel, p.multiply_lanes)
        work.add(own)
        chunks = chunk_count(built.kernel)
        busy = sum(_vector_seconds(own, figures)[:2])
        wait += busy * (imbalance(chunks, figures.threads) - 1)
        for n, size in enumerate(figures.caches[:3]):
            traffic[n] += cache_traffic(built.kernel, size)
    read = (n / rate for n, rate in zip(traffic, figures.bandwidths, strict=True))
    return Candidate(o, predicted, (*_vector_seconds(work, figures), *read, wait), chunks)


def _vector_seconds(w: KernelWork, f: MachineFigures) -> tuple[float, ...]:
    """Return the seconds of FMAs, of other instructions, loads, stores, and steps of loops."""
    costs = (w.fmas, w.others, w.loads, STORE_COST * w.stores, STEP_COST * w.steps)
    return tuple(n / f.fma_rate for n in costs)
