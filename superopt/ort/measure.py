"""Time models, and run them at each optimization level, in a worker process. Times are in us."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

from superopt.ort.profiled_plan import NodePlan
from superopt.ort.sessions import Source, optimization_levels
from superopt.ort.tensors import Feeds
from superopt.ort.timing import Timing
from superopt.ort.wire import Blob, Header, pack_values
from superopt.ort.worker import Failure, LoadedModel, Worker, model_title, shared_worker


@dataclass(frozen=True, slots=True)
class LevelResult:
    """Whether a model loads and runs at one of onnxruntime's optimization levels."""

    level: str
    ok: bool
    message: str  # the error; empty if it runs


def run_at_all_levels(
    model: Source,
    feeds: Feeds,
    *,
    threads: int = 1,
    skip: Sequence[str] = (),
    limit: float | None = None,
    worker: Worker | None = None,
) -> list[LevelResult]:
    """Load and run a model at every graph optimization level except those in `skip`, weakest first.

    onnxruntime's optimizer rejects some valid graphs, so that a model which runs at one level may
    fail to load at another. limit: seconds for each level.
    """
    worker = worker or shared_worker()
    tried = []
    for level in optimization_levels():
        if level in skip:
            continue
        found = worker.run(model, feeds, threads=threads, level=level, limit=limit)
        failed = isinstance(found, Failure)
        tried.append(
            LevelResult(level, not failed, found.message if isinstance(found, Failure) else "")
        )
    return tried


def time_single(
    models: Sequence[Source],
    feeds: Sequence[Feeds | None] | None = None,
    *,
    threads: int = 1,
    level: str = "all",
    seconds: float | None = None,
    target_ms: float = 8.0,
    max_runs: int = 150,
    subtract: bool = True,
    limit: float = 60.0,
    stop: Callable[[], bool] = lambda: False,
    on_done: Callable[[int], None] = lambda count: None,
    worker: Worker | None = None,
) -> list[Timing | Failure]:
    """Time many small models in the given order: what their nodes cost inside a larger one.

    Each runs twice to warm up and then for `target_ms` or `max_runs` times, so that hundreds take
    seconds. The fixed cost of a run is subtracted unless `subtract` is false. Inputs without a
    value in `feeds` are random: floats from a normal distribution, integers all one or zero. After
    `seconds`, or once `stop()` is true, the rest is `Failure("skipped", ...)`; `limit` is the time
    limit of one model in seconds. `on_done` is called with the number of timed models.
    """
    worker = worker or shared_worker()
    end = None if seconds is None else monotonic() + seconds
    found: list[Timing | Failure] = []
    for index, model in enumerate(models):
        if stop() or (end is not None and monotonic() >= end):
            found.append(Failure("skipped", "not timed: no time was left"))
            continue
        given = None if feeds is None else feeds[index]
        values, blobs = (None, list[Blob]()) if given is None else pack_values(given)
        header: Header = {"do": "time", "values": values}
        header |= {"threads": threads, "level": level, "subtract": subtract}
        header |= {"aim_us": target_ms * 1e3, "most": max_runs}
        what = f"timing model {index + 1} of {len(models)}, {model_title(model)}"
        reply = worker.request(header, blobs, what, limit, [model])
        found.append(reply if isinstance(reply, Failure) else Timing(*reply[0]["timing"]))
        on_done(index + 1)
    return found


def node_plan(
    model: Source, *, threads: int = 1, limit: float | None = None, worker: Worker | None = None
) -> NodePlan | Failure:
    """Return the nodes that onnxruntime runs for a model: its optimized graph, with types
    and times.

    The model runs some times, on drawn inputs. limit: seconds.
    """
    worker = worker or shared_worker()
    header: Header = {"do": "plan", "threads": threads}
    reply = worker.request(header, (), f"planning {model_title(model)}", limit, [model])
    if isinstance(reply, Failure):
        return reply
    found, blobs = reply
    results = {name: [(k, dims) for k, dims in ts] for name, ts in found["results"].items()}
    return NodePlan(bytes(blobs[0]), results, found["us"])


def time_interleaved(
    models: Sequence[Source | LoadedModel],
    feeds: Feeds,
    *,
    threads: int = 1,
    seconds: float = 5.0,
    rounds: int = 25,
    seed: int = 0,
    level: str = "all",
    limit: float | None = None,
    stop: Callable[[list[list[float]]], bool] = lambda times: False,
    worker: Worker | None = None,
) -> list[list[float]] | Failure:
    """Time whole models against each other in interleaved rounds; return a list of times for each
    model.

    The k-th times of all models are from the same round, in which they ran one after another in an
    order drawn from `seed`; pass them to `superopt.cost.speedup.compare_times`. All models take the
    same inputs. Ends after `rounds` or `seconds`, or once `stop`, called with the times before
    every round, is true, but not before five rounds. A loaded model keeps its threads and level.
    All models are in the worker's memory at once.
    """
    worker = worker or shared_worker()
    values, blobs = pack_values(feeds)
    header: Header = {"do": "interleave", "values": values}
    header |= {"threads": threads, "level": level, "seed": seed}
    header |= {"seconds": seconds, "rounds": rounds}
    what = f"timing {' against '.join(map(model_title, models))}"
    limit = worker.limit + seconds if limit is None else limit
    so_far: list[list[float]] = [[] for _ in models]

    def heard(stage: Header) -> bool:
        for row, us in zip(so_far, stage["round"], strict=False):
            row.append(us)
        return stop(so_far)

    reply = worker.request(header, blobs, what, limit, models, heard)
    if isinstance(reply, Failure):
        return reply
    times: list[list[float]] = reply[0]["times"]
    return times
