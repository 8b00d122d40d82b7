"""The public function `optimize`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from superopt import guard
from superopt.api.event_log import log_events
from superopt.errors import OutOfTime, UsageError
from superopt.loading.given_sizes import as_size_mapping
from superopt.report.data.report import Event

if TYPE_CHECKING:
    import numpy as np

    from superopt.api.optimized import Optimized
    from superopt.loading.request import CompiledTimers
    from superopt.onnx_io.read.source import ModelLike
    from superopt.optimization.optimization_result import OptimizationResult
    from superopt.report.data.report import Interval

OPTIMIZE_TARGETS = ("onnxruntime", "cpu", "cuda")


def optimize(
    model: ModelLike,
    *,
    budget: float = 60.0,
    target: str = "onnxruntime",
    precision: str = "fp32",
    rules: Sequence[str | Path] | None = None,
    library: bool = True,
    shapes: Mapping[str, int] | None = None,
    inputs: str | Path | Mapping[str, np.ndarray] | None = None,
    threads: int | None = None,
    seed: int = 0,
    alpha: float | None = None,
    progress: Callable[[Event], None] | None = None,
    stop: Callable[[], bool] | None = None,
    replay: str | None = None,
    store: str | Path | None = None,
    cost: str = "auto",
    tier: str = "A",
    float_class: str = "E2",
    partial: bool = True,
    mutants: bool = False,
    ablate: bool = False,
    max_memory: int | str | None = None,
) -> Optimized:
    """Find a faster model that computes the same results.

    The call ends within 1.2 times the budget plus 5 seconds (with `ablate`, of twice the budget).
    Work that would take longer, or need more memory, is skipped, with a note.

    Args:
        model: A path, a file's bytes, a ModelProto or an onnx_ir model (not modified).
        budget: Seconds for the whole call; the best checked model found by then is returned.
        target: The runtime of the result: "onnxruntime"; or superopt's own compiler for "cpu" or
            "cuda". Without a GPU nothing is timed for "cuda": costs are predicted for an NVIDIA
            H100, and a graph is used if it is predicted to be at least 3 % faster.
        precision: For "cuda": the precision for which the result will be compiled, as in
            `superopt.compile`: "fp32", "tf32", "fp16" or "bf16".
        rules: Rule files to add. A rule that the result depends on is tested first, as by
            `superopt.api.check_rules`.
        library: False: only the rules of `rules` apply.
        shapes: Values of symbolic dimensions, by name, at which costs are measured.
        inputs: Arrays by input name, or an .npz file; the numerical check also uses them.
        threads: Threads of the runtime, default 1.
        seed: Of all random choices.
        alpha: The largest relative cost of an intermediate graph, default 1.05.
        progress: Called with each `Event`.
        stop: Polled; once it is true the best result so far is returned.
        replay: A decision log (`Optimized.decisions`) to repeat without a search.
        store: The store of measured costs, by default in the user's cache.
        cost: "measured", "roofline" (nothing is measured or timed) or "auto".
        tier: The weakest allowed proof of a rule: "A" proved for all sizes, or for its only size
            (those of `rules` are proved first), "B" proved up to a bound, "C" only tested.
        float_class: The largest allowed float deviation of a rule: "E0" bit-exact, "E1" sums and
            products in another order, "E2" products distributed over sums, "E3" other results on
            overflow or NaN.
        partial: Allow programs that are equal on part of the output, with a correction of the rest.
        mutants: Also search for such programs for the model's own convolutions and means, for at
            most half of the budget. Later calls continue from what was found.
        ablate: Also time the result without the steps of each rule, and compiled results without
            each kind of kernel decision, for at most `budget` seconds more (`Report.ablation`).
        max_memory: Bytes, or a text such as "8GB", that this process and its children may use
            together; default half of the free memory.

    Returns:
        The optimized model and its report. `changed` is false if nothing faster was found.

    Raises:
        ModelError: The model is invalid.
        CheckFailed: The rewritten model disagrees with the original, or a rule of `rules` is wrong.
        UsageError: An argument is invalid.

    Example:
        >>> result = superopt.optimize("model.onnx", budget=8)
        >>> certificate = result.save("fast.onnx")
        >>> result.report.nodes_after <= result.report.nodes_before
        True
    """
    if target not in OPTIMIZE_TARGETS:
        raise UsageError(
            f"unknown target {target}",
            f"the targets are {', '.join(OPTIMIZE_TARGETS)}",
            "choose one of them",
        )
    if target != "cuda" and precision != "fp32":
        raise UsageError(
            f"precision {precision!r} of target {target}", "rewrites are priced in float32",
            'omit it, or use target="cuda"',
        )  # fmt: skip
    if cost not in ("auto", "measured", "roofline"):
        raise UsageError(
            f"unknown cost {cost!r}", "cost must be auto, measured or roofline", "choose one"
        )
    given_least = ((budget, 0), (alpha, 1), (threads, 1), (seed, 0))
    for name, (value, least) in zip(
        ("budget", "alpha", "threads", "seed"), given_least, strict=True
    ):
        if value is not None and not least <= value < float("inf"):
            raise UsageError(
                f"invalid {name}: {value}",
                f"it must be finite and at least {least:g}",
                "pass another",
            )
    memory = guard.parse_max_memory(max_memory)
    progress = log_events("superopt.optimize", progress)
    begin = time.monotonic()
    from superopt.api.optimized import Optimized
    from superopt.api.rule_library import rules_of_call
    from superopt.loading.array_files import read_inputs
    from superopt.loading.garbage_collection import raise_gc_thresholds
    from superopt.loading.model import load_model
    from superopt.loading.request import Request
    from superopt.onnx_io.read.source import hash_weights, read_model
    from superopt.optimization import admit_rules as admit_
    from superopt.optimization import optimize as optimize_
    from superopt.optimization.report.optimization_report import make_report
    from superopt.rules.lang.rule import FLOAT_CLASSES

    options = (("tier", tier, admit_.TIERS), ("float_class", float_class, FLOAT_CLASSES))
    for what, given, known in options:
        if given not in known:
            raise UsageError(
                f"unknown {what} {given!r}", f"the values are {', '.join(known)}", "choose one"
            )
    most = float(budget) * (1 + ablate)
    with guard.limit_call(most, memory, begin=begin), raise_gc_thresholds():
        source = read_model(model)
        progress(Event("load", f"reading {source.label}", 0.0))
        begin = time.monotonic()
        loaded = load_model(
            source
        )  # before the rules: once the model is read, no budget is too small
        late: OutOfTime | guard.MemoryLimitError | None = None
        try:
            hash_weights(source)
            read_seconds = time.monotonic() - begin
            shipped, own, pairs = rules_of_call(rules, library, partial)
        except (OutOfTime, guard.MemoryLimitError) as e:
            read_seconds = time.monotonic() - begin
            late, shipped, own, pairs = e, (), (), {}
        timers: CompiledTimers | None = None
        if target == "cpu" and late is None:
            from superopt.compilation.node_timing import COMPILED_TIMERS

            timers = COMPILED_TIMERS
        elif target == "cuda":
            from superopt.compilation.cuda.graph_timing import gpu_timers

            timers = gpu_timers(precision, may_measure=cost != "roofline" and replay is None)
        request = Request(
            budget=float(budget),
            rules=(*shipped, *own),
            tier=tier,
            float_class=float_class,
            untried_rules=frozenset(r.name for r in own),
            shapes=as_size_mapping(shapes),
            inputs=read_inputs(inputs),
            threads=threads or 1,
            seed=seed,
            alpha=1.05 if alpha is None else float(alpha),
            progress=progress,
            stop=stop or (lambda: False),
            replay=replay,
            store=None if store is None else Path(store),
            cost=cost,
            target=target,
            use_mutants=mutants,
            partial_pairs=pairs,
            timers=timers,
            precision=precision,
            ablation_seconds=float(budget) if ablate else 0.0,
        )
        done = optimize_.optimize(loaded, request, read_seconds, late)
        digest = source.sha256 if done.winner is None else done.winner.sha256
        left = budget - (time.monotonic() - begin)
        compiled = None if late else _compiled_speedup(done, left, progress)
    # Outside the limits: a result that was found in time is not dropped for its report.
    report = replace(make_report(done, done.request.rules, digest), compiled=compiled)
    return Optimized(report, done.winner is not None, done)


def _compiled_speedup(
    done: OptimizationResult, left: float, progress: Callable[[Event], None]
) -> Interval | None:
    """Return what compiling the result would gain over onnxruntime, if that was asked to be timed
    and enough of the budget is left. left: seconds."""
    request = done.request
    is_wanted = request.target == "onnxruntime" and not request.is_untimed
    from superopt.optimization.stage_times import compare_compiled_seconds, save_seconds

    size = done.source.size_bytes
    left -= save_seconds(size)
    if not is_wanted or request.stop() or left < compare_compiled_seconds(size):
        return None
    from superopt.jobs.compiled_speedup import measure_compiled_speedup
    from superopt.optimization.optimization_result import save_model

    progress(Event("time", "the compiled model", 0.98))
    with TemporaryDirectory(prefix="superopt-") as folder:
        path = done.source.current_path() if done.winner is None else done.winner.path
        if path is None:  # it was given as an object
            path = Path(folder, "model.onnx")
            save_model(done, path)
        return measure_compiled_speedup(path, request.threads, request.shapes, left)
