"""The public functions. Each is one job; what they share lies in `superopt.pipeline`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from superopt import guard
from superopt.compiled import compile as compile
from superopt.compiled import load as load
from superopt.compiled import tune as tune
from superopt.compiled_files import compilation as compilation
from superopt.compiled_files import export_model as export_model
from superopt.compiled_files import profile as profile
from superopt.compiled_files import run_model as run_model
from superopt.errors import OutOfTime, UsageError
from superopt.errors import seconds as seconds_
from superopt.report.data import Event
from superopt.rulebook import check_rules as check_rules
from superopt.rulebook import generate_mutants as generate_mutants
from superopt.rulebook import generate_rules as generate_rules
from superopt.rulebook import partial_rule as partial_rule
from superopt.rulebook import rule_diagram as rule_diagram
from superopt.rulebook import rule_report as rule_report
from superopt.rulebook import rule_stats as rule_stats
from superopt.rulebook import rules as rules

if TYPE_CHECKING:
    import numpy as np

    from superopt.onnx_io.read.source import ModelLike
    from superopt.pipeline.result import Optimized
    from superopt.report.cache import CacheListing, Pruned
    from superopt.report.data import BenchRow, Derivation, Finding, StoreStats, Verdict

TARGETS = ("onnxruntime", "cpu")


def optimize(
    model: ModelLike,
    *,
    budget: float = 60.0,
    target: str = "onnxruntime",
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
    max_memory: int | str | None = None,
) -> Optimized:
    """Find a faster model that computes the same.

    model: a path, a file's bytes, a ModelProto or an onnx_ir model (never changed).
    budget: seconds for everything; the best checked model by then is the result.
    target: what will run the model: "onnxruntime", or "cpu", superopt's own compiler.
    rules: files with further rules of the user's; those that the result would owe something to are
        tried first, as `check_rules` does. Without `library` they are the only ones.
    shapes: values of symbolic sizes at which costs are measured, by their name in the model.
    inputs: arrays (or an .npz) by input name; the check runs on them too.
    threads: of the runtime, 1 by default.
    alpha: how many times the best cost a graph on the way may have (default 1.05).
    progress, stop: told of events; asked whether to stop with the best so far.
    replay: the decisions of an earlier run, repeated without searching.
    store: where measured costs are kept (default: the user's cache folder).
    cost: "measured", "roofline" (nothing is measured or timed) or "auto".
    tier: of the rules that may be applied, at least: "A" proved for all sizes, or for the only one
        they have (rules of the user's are proved first), "B" up to a bound, "C" only tried.
    float_class: of these rules, at most: "E0" bit-exact, "E1" sums and products in another order,
        "E2" these distributed, "E3" other results where numbers overflow or are none. A rule of the
        user's is in the class that is computed of it, if that is above the one it names.
    partial: may programs become such as are equal in parts, with what corrects the rest?
    mutants: look for such of the model's own convolutions and means, too, for half of the budget at
        most; what was found is kept beside the store, and the next call goes on.
    max_memory: bytes, or a text such as "8GB", that this process and those that it starts may use
        together; half of what is free by default. What would need more is left out, with a note.

    Ends within 1.2 times the budget and 5 seconds, whatever the model does: what takes longer is
    left out, with a note.

    Raises ModelError for an invalid model, CheckFailed when a rewritten model disagrees with the
    original or a rule of the user's is refuted, UsageError for arguments that do not fit.
    """
    if target not in TARGETS:
        raise UsageError(
            f"target {target} is unknown", f"there are {', '.join(TARGETS)}", "use one"
        )
    if cost not in ("auto", "measured", "roofline"):
        raise UsageError(f"cost {cost!r} is unknown", "it is auto, measured or roofline", "use one")
    given_least = ((budget, 0), (alpha, 1), (threads, 1), (seed, 0))
    for name, (value, least) in zip(
        ("budget", "alpha", "threads", "seed"), given_least, strict=True
    ):
        if value is not None and not least <= value < float("inf"):
            raise UsageError(
                f"{name} {value}", f"it is at least {least:g}, and finite", "give another"
            )
    memory = guard.bytes_given(max_memory)
    begin = time.monotonic()
    from superopt.onnx_io.read.source import read_model
    from superopt.pipeline import admit as admit_
    from superopt.pipeline import optimize as optimize_
    from superopt.pipeline.collect import collecting_rarely
    from superopt.pipeline.inputs import read_inputs
    from superopt.pipeline.load import load_model
    from superopt.pipeline.reporting import report_of
    from superopt.pipeline.request import Request
    from superopt.pipeline.result import Optimized
    from superopt.pipeline.rule_library import load_library
    from superopt.rulebook import own_pairs, own_rules
    from superopt.rules.lang.rule import FLOAT_CLASSES
    from superopt.rules.trial.float_class import with_computed_class

    options = (("tier", tier, admit_.TIERS), ("float_class", float_class, FLOAT_CLASSES))
    for what, given, known in options:
        if given not in known:
            raise UsageError(
                f"{what} {given!r} is unknown", f"there are {', '.join(known)}", "use one of them"
            )
    with guard.limited(float(budget), memory, begin=begin), collecting_rarely():
        source = read_model(model)
        if progress is not None:
            progress(Event("load", f"reading {source.label}", 0.0))
        begin = time.monotonic()
        loaded = load_model(source)  # before the rules: once it is read, no budget is too small
        read_seconds = time.monotonic() - begin
        late: OutOfTime | guard.OverMemory | None = None
        try:
            own = tuple(map(with_computed_class, own_rules(rules)))
            found = load_library() if library else ()
            shipped = tuple(r for r in found if partial or not r.is_from_pair)
            pairs = own_pairs(rules)
        except (OutOfTime, guard.OverMemory) as e:
            late, own, shipped, pairs = e, (), (), {}
        timers = None
        if target == "cpu" and late is None:
            from superopt.pipeline.timed import TIMERS as timers
        request = Request(
            budget=float(budget),
            rules=(*shipped, *own),
            tier=tier,
            float_class=float_class,
            untried=frozenset(r.name for r in own),
            shapes=dict(shapes or {}),
            inputs=read_inputs(inputs),
            threads=threads or 1,
            seed=seed,
            alpha=1.05 if alpha is None else float(alpha),
            progress=progress or (lambda event: None),
            stop=stop or (lambda: False),
            replay=replay,
            store=None if store is None else Path(store),
            cost=cost,
            target=target,
            mutants=mutants,
            pairs=pairs,
            timers=timers,
        )
        done = optimize_.optimize(loaded, request, read_seconds, late)
    # Without the limits: a result that was found in time is not given up for its report.
    digest = source.sha256 if done.winner is None else done.winner.sha256
    return Optimized(report_of(done, done.request.rules, digest), done.winner is not None, done)


METHODS = ("auto", "index", "rules", "numeric")


def verify(
    a: ModelLike,
    b: ModelLike,
    *,
    inputs: str | Path | Mapping[str, np.ndarray] | None = None,
    shapes: Mapping[str, int] | None = None,
    seed: int = 0,
    method: str = "auto",
    limit: float = 60.0,
    certificate: str | Path | None = None,
    rules: Sequence[str | Path] | None = None,
    progress: Callable[[Event], None] | None = None,
    stop: Callable[[], bool] | None = None,
    max_memory: int | str | None = None,
) -> Verdict:
    """Are two models equal? Proved by structure or by definition, agreeing on many inputs, or
    different.

    method: "auto" proves in both ways, and tries many inputs; "index" only proves, from the
        operators' tensor expressions; "rules" only by a chain of proved rules; "numeric" only
        tries.
    limit: seconds for proofs; all of it ends within 1.2 times that and 5 seconds, "unknown" where
        nothing was found by then. max_memory: as `optimize` has it.
    certificate: the file that `optimize` wrote beside `b`: it is replayed, and nothing else is
        asked. rules: files of rules beside the library's that it may apply; of others that it names
        the text that it holds is proved anew.

    Raises ModelError for an invalid model, UsageError for inputs that do not fit and for a file
    that is no certificate.
    """
    memory = guard.bytes_given(max_memory)
    if certificate is None and method not in METHODS:
        raise UsageError(f"method {method!r}", f"there are {', '.join(METHODS)}", "give one")
    begin = time.monotonic()
    from superopt.onnx_io.read.source import read_model
    from superopt.pipeline import certify as certify_
    from superopt.pipeline import verify as verify_
    from superopt.pipeline.inputs import read_inputs
    from superopt.report.data import Verdict
    from superopt.rulebook import own_rules
    from superopt.rules.trial.float_class import with_computed_class

    with guard.limited(limit, memory, begin=begin) as limits:
        try:
            if certificate is not None:
                found = certify_.read_file(Path(certificate))
                own = [*map(with_computed_class, own_rules(rules))]
                return certify_.verdict(read_model(a), read_model(b), found, own)
            question = verify_.Question(
                inputs=read_inputs(inputs),
                shapes=dict(shapes or {}),
                seed=seed,
                method=method,
                limit=limit,
                progress=progress or (lambda event: None),
                stop=stop or (lambda: False),
            )
            verdict = verify_.verify(read_model(a), read_model(b), question)
        except (OutOfTime, guard.OverMemory) as e:
            verdict = Verdict("unknown", " ".join(str(e).split()), None)
        return replace(verdict, notes=(*verdict.notes, *limits.said()))


def bench(
    models: Sequence[str | Path],
    *,
    vs: Sequence[str] | None = None,
    threads: int | None = None,
    seconds: float = 10.0,
    shapes: Mapping[str, int] | None = None,
    progress: Callable[[Event], None] | None = None,
    stop: Callable[[], bool] | None = None,
    target: str = "cpu",
    precision: str = "fp32",
    vendor: bool = True,
    float_class: str = "E2",
    max_memory: int | str | None = None,
) -> tuple[BenchRow, ...]:
    """Time models in turns, in onnxruntime ("ort"), "openvino", "torch" (torch.compile) and
    compiled ("superopt"): medians with intervals.

    vs: which of these; by default onnxruntime, and with "cuda" superopt.
    target, precision, vendor, float_class: as `compile` has them. With "cuda" superopt and torch
    run on the GPU and in that precision, on inputs that are there, until the outputs are; raises
    UsageError where neither of them does. max_memory: as `optimize` has it. A model of which one
    run takes longer than `seconds` is not timed, with a note."""
    from superopt.pipeline import bench as bench_
    from superopt.pipeline.targets import known_target

    known_target(target, precision, vendor)
    if vs is None:
        vs = ("ort",) if target == "cpu" else ("superopt",)
    if target != "cpu" and not {"superopt", "torch"} & {*vs}:
        raise UsageError(
            f"target {target}", f"nothing of {', '.join(vs)} runs on a GPU",
            "add superopt or torch, which do: --vs ort,superopt",
        )  # fmt: skip
    with guard.limited(None, guard.bytes_given(max_memory)):
        return bench_.bench(
            [Path(m) for m in models],
            vs=vs,
            threads=threads or 1,
            seconds=seconds,
            shapes=shapes,
            progress=progress or (lambda event: None),
            stop=stop or (lambda: False),
            on=bench_.On(target, precision, vendor, float_class),
        )


def derive(
    a: ModelLike,
    b: ModelLike,
    *,
    rules: Sequence[str | Path] | None = None,
    library: bool = True,
    limit: float = 60.0,
    progress: Callable[[Event], None] | None = None,
    stop: Callable[[], bool] | None = None,
    max_memory: int | str | None = None,
) -> Derivation:
    """Is the equality of two models a consequence of the rules?

    rules: files of further rules; without `library` they are the only ones. limit: seconds.

    max_memory: as `optimize` has it.

    A chain of rules from one to the other is as good as its rules. Not finding one says nothing.
    Raises ModelError for an invalid model, UsageError for models of different interfaces.
    """
    seconds = seconds_("limit", limit)
    begin = time.monotonic()
    from superopt.onnx_io.read.source import read_model
    from superopt.pipeline import derive as derive_
    from superopt.pipeline.rule_library import load_library
    from superopt.rulebook import own_rules
    from superopt.rules.trial.float_class import with_computed_class

    with guard.limited(seconds, guard.bytes_given(max_memory), begin=begin):
        given = (*(load_library() if library else ()), *map(with_computed_class, own_rules(rules)))
        asked = derive_.Asked(
            given, seconds, progress or (lambda event: None), stop or (lambda: False)
        )
        return derive_.derivation(read_model(a), read_model(b), asked)


def values_of(model: str | Path, node: str) -> tuple[str, ...]:
    """The values that the node of this name writes; empty if there is no such node."""
    from superopt.onnx_io.read.source import read_model

    graph = read_model(model).model.graph
    return tuple(v.name for n in graph if n.name == node for v in n.outputs if v.name)


def doctor() -> tuple[Finding, ...]:
    """What is installed, and what it enables."""
    from superopt.pipeline import doctor as doctor_

    return doctor_.doctor()


def cache_stats(store: str | Path | None = None) -> StoreStats:
    """What the cost store holds."""
    from superopt.cost.store import Store
    from superopt.report.data import StoreStats
    from superopt.report.words import count

    with Store.open(store) as held:
        s = held.stats()
        names = tuple(
            f"{t.cpu}, {t.runtime} {t.version}, {count(t.threads, 'thread')}" for t in s.targets
        )
        where = str(s.path) if s.path else f"in memory: {s.reason}"
        return StoreStats(where, s.operators + s.graphs, s.size, names)


def cache_list() -> CacheListing:
    """The files of the cache on disk, those used last first, with its folder, total and limit."""
    from superopt.cost import disk_cache
    from superopt.cost.folder import default_folder
    from superopt.report.cache import CachedFile, CacheListing

    folder, found = default_folder(), disk_cache.cache_files()
    files = tuple(
        CachedFile(str(f.path.relative_to(folder)), f.kind, f.bytes, f.used) for f in found
    )
    total = sum(f.bytes for f in files)
    return CacheListing(str(folder), disk_cache.limit_bytes(), total, files)


def cache_prune(max_size: str | int | None = None, older_than: str | float | None = None) -> Pruned:
    """Remove files from the cache, those not used for the longest time first.

    max_size: what may be left, in bytes or as "2GiB"; by default the limit, unless an age is
    given. older_than: seconds, or "30d": what was not used for so long goes. Measured costs and
    proofs stay. Raises UsageError for what is no size or age."""
    from superopt.cost import disk_cache
    from superopt.cost.folder import default_folder
    from superopt.report.cache import Pruned

    most = disk_cache.parse_size(max_size) if isinstance(max_size, str) else max_size
    age = disk_cache.parse_age(older_than) if isinstance(older_than, str) else older_than
    gone = disk_cache.prune(most, age)
    left = sum(f.bytes for f in disk_cache.cache_files())
    return Pruned(str(default_folder()), len(gone), sum(f.bytes for f in gone), left)


def cache_clear(store: str | Path | None = None) -> int:
    """Remove every entry; how many there were."""
    from superopt.cost.store import Store

    with Store.open(store) as held:
        return held.clear()


def cache_export(store: str | Path | None, file: str | Path) -> int:
    """Write the store to a file, by rename; how many entries."""
    from superopt.cost.store import Store

    with Store.open(store) as held:
        return held.export(file)


def cache_import(store: str | Path | None, file: str | Path) -> int:
    """Take over the entries of an exported store of the same kind of machine; how many were new."""
    from superopt.cost.machine import machine
    from superopt.cost.store import Store

    with Store.open(store) as held:
        return held.import_(file, machine())
