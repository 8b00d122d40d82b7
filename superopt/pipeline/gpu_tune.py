"""Tuning on a GPU: ways to compute a model's kernels are measured, and the fastest ones kept, in
the store of measurements, too."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import prod

from superopt.cost import tuned as kept
from superopt.cost.store import Store
from superopt.kernels.gpu_device import name
from superopt.kernels.option import Option
from superopt.kernels.problem import Problem
from superopt.plan.build import Program
from superopt.plan.gpu_measure import seconds
from superopt.report.compiled import Tuned, TunedKernel

Seen = Callable[[Problem, Mapping[Option, float]], None]


@dataclass(frozen=True, slots=True)
class Found:
    """The options that were chosen, by the keys of problems; and what is said of it."""

    chosen: Mapping[str, Option]
    report: Tuned


def where(device: str, dots: str) -> str:
    """What stands before a problem's key in the store: which GPU, and how it multiplies float32."""
    return f"{name(device)} {dots}".replace(" ", "_")


def known(store: Store, device: str, dots: str) -> dict[str, Option]:
    """What was chosen on this GPU before."""
    own = where(device, dots) + ":"
    return {
        key.removeprefix(own): o for key, o in kept.chosen(store, 0).items() if key.startswith(own)
    }


def tuned(
    programs: Sequence[Program], options: Callable[[Problem], Iterator[Option]], device: str,
    dots: str, store: Store | None, budget: float, most: int, seen: Seen, stop: Callable[[], bool],
) -> Found:  # fmt: skip
    """Measure the `most` of the `options` of each problem that should be the fastest, those of the
    most work first, for at most so many seconds; what the store knows is not measured again."""
    begin = time.monotonic()
    problems = {key: p for made in programs for key, p in made.problems.items()}
    calls = [key for made in programs for key in made.solved]
    before = _measured(store, device, dots)
    how: dict[str, Option] = {}
    rows = []
    by_work = sorted(problems, key=lambda k: -prod(problems[k].numbers()[:2]) * calls.count(k))
    for key in by_work if device == "cuda" else ():
        if stop() or time.monotonic() - begin > budget:
            break
        p = problems[key]
        some = list(islice(options(p), most))
        found = {o: t for o, t in before.get(key, {}).items() if o in some}
        left = [o for o in some if o not in found] if len(some) > 1 else []
        if left:
            new = seconds(p, left, dots)
            found |= new
            _keep(store, device, dots, key, p, new, kept.MEASURED)
        if not found:
            continue
        best = min(found, key=lambda o: found[o])
        how[key] = best
        _keep(store, device, dots, key, p, {best: found[best]}, kept.CHOSEN)
        first = some[0] if some[0] in found else best
        shown, count = f"{p.tensor.type}", len(found)
        rows.append(
            TunedKernel(
                shown, calls.count(key), found[first], found[best], str(first), str(best),
                count, len(some),
            )
        )  # fmt: skip
        seen(p, found)
    return Found(how, Tuned(tuple(rows), time.monotonic() - begin))


def _measured(store: Store | None, device: str, dots: str) -> dict[str, dict[Option, float]]:
    out: dict[str, dict[Option, float]] = {}
    own = where(device, dots) + ":"
    for t in () if store is None else kept.measured(store, 0):
        if t.problem.startswith(own):
            out.setdefault(t.problem.removeprefix(own), {})[t.option] = t.seconds
    return out


def _keep(
    store: Store | None, device: str, dots: str, key: str, p: Problem,
    times: Mapping[Option, float], kind: str,
) -> None:  # fmt: skip
    if store is not None and times:
        rows = {o: (t, t, t, 1) for o, t in times.items()}
        kept.keep(store, 0, f"{where(device, dots)}:{key}", p.numbers(), rows, kind)
