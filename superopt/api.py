"""The public functions. The code that they share is in `superopt.pipeline`."""

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
    from superopt.pipeline.request import CompiledTimers
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
    """Find a faster model that computes the same results.

    model: a path, a file's bytes, a ModelProto or an onnx_ir model (not modified).
    budget: seconds for the whole call; returns the best checked model found by then.
    target: the runtime of the result: "onnxruntime", or "cpu", superopt's own compiler.
    rules: rule files to add. A rule that the result depends on is tested first, as `check_rules`
        does. Without `library` only these rules apply.
    shapes: values of symbolic dimensions, by name, at which costs are measured.
    inputs: arrays by input name, or an .npz file; the numerical check also uses them.
    threads: threads of the runtime, default 1.
    alpha: the largest cost of an intermediate graph, relative to the best cost (default 1.05).
    progress, stop: called with each `Event`; polled, and true to return the best result so far.
    replay: the decision log of an earlier run, which is repeated without a search.
    store: the store of measured costs (default: in the user's cache folder).
    cost: "measured", "roofline" (nothing is measured or timed) or "auto".
    tier: the weakest allowed proof of a rule: "A" proved for all sizes, or for its only size (rules
        from `rules` are proved first), "B" proved up to a bound, "C" only tested.
    float_class: the largest allowed float deviation of a rule: "E0" bit-exact, "E1" sums and
        products in another order, "E2" products distributed over sums, "E3" other results on
        overflow or NaN. A rule from `rules` has the computed class if that is above its declared
        one.
    partial: allow programs that are equal on part of the output, with a correction of the rest.
    mutants: also search for such programs for the model's own convolutions and means, for at most
        half of the budget. Results are kept beside the store; the next call continues from them.
    max_memory: bytes, or a text such as "8GB", that this process and its children may use together;
        default half of the free memory.

    The call ends within 1.2 times the budget plus 5 seconds. Work that would take longer, or need
    more memory, is skipped, with a note.

    Raises ModelError for an invalid model, CheckFailed if the rewritten model disagrees with the
    original or a rule from `rules` is refuted, UsageError for invalid arguments.
    """
    if target not in TARGETS:
        raise UsageError(
            f"unknown target {target}",
            f"the targets are {', '.join(TARGETS)}",
            "choose one of them",
        )
    if cost not in ("auto", "measured", "roofline"):
        raise UsageError(
            f"unknown cost {cost!r}",
            "cost must be auto, measured or roofline",
            "choose one of them",
        )
    given_least = ((budget, 0), (alpha, 1), (threads, 1), (seed, 0))
    for name, (value, least) in zip(
        ("budget", "alpha", "threads", "seed"), given_least, strict=True
    ):
        if value is not None and not least <= value < float("inf"):
            raise UsageError(
                f"invalid {name}: {value}",
                f"it must be finite and at least {least:g}",
                "pass a value in that range",
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
    from superopt.rulebook import rules_of_call
    from superopt.rules.lang.rule import FLOAT_CLASSES

    options = (("tier", tier, admit_.TIERS), ("float_class", float_class, FLOAT_CLASSES))
    for what, given, known in options:
        if given not in known:
            raise UsageError(
                f"unknown {what} {given!r}",
                f"the values are {', '.join(known)}",
                "choose one of them",
            )
    with guard.limited(float(budget), memory, begin=begin), collecting_rarely():
        source = read_model(model)
        if progress is not None:
            progress(Event("load", f"reading {source.label}", 0.0))
        begin = time.monotonic()
        loaded = load_model(
            source
        )  # before the rules: once the model is read, no budget is too small
        read_seconds = time.monotonic() - begin
        late: OutOfTime | guard.OverMemory | None = None
        try:
            shipped, own, pairs = rules_of_call(rules, library, partial)
        except (OutOfTime, guard.OverMemory) as e:
            late, shipped, own, pairs = e, (), (), {}
        timers: CompiledTimers | None = None
        if target == "cpu" and late is None:
            from superopt.pipeline.timed import TIMERS

            timers = TIMERS
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
    # Outside the limits: a result that was found in time is not dropped for its report.
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
    """Decide whether two models are equal: proved, equal on every tested input, or different.

    method: "auto" tries both proofs and the numerical check; "index" only proves, from the
        operators' tensor expressions; "rules" only proves, by a chain of rules; "numeric" only
        tests.
    limit: seconds for proofs. The call ends within 1.2 times that plus 5 seconds, with "unknown" if
    nothing was decided. max_memory: as in `optimize`.
    certificate: the file that `optimize` wrote beside `b`. It is replayed, and nothing else is
    checked. rules: rule files that it may use beside the library. A rule that it names and that is
    in neither is proved again from its text in the certificate.

    Raises ModelError for an invalid model, UsageError for inputs that do not fit and for a file
    that is not a certificate.
    """
    memory = guard.bytes_given(max_memory)
    if certificate is None and method not in METHODS:
        raise UsageError(
            f"unknown method {method!r}",
            f"the methods are {', '.join(METHODS)}",
            "choose one of them",
        )
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
    """Time models in interleaved rounds; return medians with confidence intervals.

    vs: runtimes: onnxruntime ("ort"), "openvino", "torch" (torch.compile), compiled by superopt
        ("superopt"). Default "ort", for target "cuda" "superopt".
    target, precision, vendor, float_class: as in `compile`. With "cuda" superopt and torch run on
    the GPU, with inputs on the device and outputs synchronized; UsageError if `vs` has neither.
    max_memory: as in `optimize`.

    A model whose single run takes longer than `seconds` is not timed, with a note.
    """
    from superopt.pipeline import bench as bench_
    from superopt.pipeline.targets import known_target

    known_target(target, precision, vendor)
    if vs is None:
        vs = ("ort",) if target == "cpu" else ("superopt",)
    if target != "cpu" and not {"superopt", "torch"} & {*vs}:
        raise UsageError(
            f"target {target}", f"no runtime of {', '.join(vs)} supports a GPU",
            "add superopt or torch: --vs ort,superopt",
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
    """Search for a chain of rules that rewrites one model into the other; not finding one proves
    nothing.

    rules: rule files to add; without `library` only these apply. limit: seconds. max_memory: as in
    `optimize`. Raises ModelError for an invalid model, UsageError for models with different
    interfaces.
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
    """Return the names of the outputs of the node with this name; empty if there is none."""
    from superopt.onnx_io.read.source import read_model

    graph = read_model(model).model.graph
    return tuple(v.name for n in graph if n.name == node for v in n.outputs if v.name)


def doctor() -> tuple[Finding, ...]:
    """List the installed dependencies and the features that each one enables."""
    from superopt.pipeline import doctor as doctor_

    return doctor_.doctor()


def cache_stats(store: str | Path | None = None) -> StoreStats:
    """Return the location, size and contents of the cost store."""
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
    """List the files of the disk cache, most recently used first, with folder, total and limit."""
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
    """Remove files from the cache, the least recently used first.

    max_size: the size to shrink to, in bytes or as "2GiB"; default the limit, unless an age is
    given. older_than: seconds, or "30d" without use. Measured costs and proofs stay. Raises
    UsageError for an invalid size or age.
    """
    from superopt.cost import disk_cache
    from superopt.cost.folder import default_folder
    from superopt.report.cache import Pruned

    most = disk_cache.parse_size(max_size) if isinstance(max_size, str) else max_size
    age = disk_cache.parse_age(older_than) if isinstance(older_than, str) else older_than
    gone = disk_cache.prune(most, age)
    left = sum(f.bytes for f in disk_cache.cache_files())
    return Pruned(str(default_folder()), len(gone), sum(f.bytes for f in gone), left)


def cache_clear(store: str | Path | None = None) -> int:
    """Remove every entry of the store; return how many there were."""
    from superopt.cost.store import Store

    with Store.open(store) as held:
        return held.clear()


def cache_export(store: str | Path | None, file: str | Path) -> int:
    """Write the store to a file, atomically; return the number of entries."""
    from superopt.cost.store import Store

    with Store.open(store) as held:
        return held.export(file)


def cache_import(store: str | Path | None, file: str | Path) -> int:
    """Add the entries of a store exported on the same kind of machine; return how many are new."""
    from superopt.cost.machine import machine
    from superopt.cost.store import Store

    with Store.open(store) as held:
        return held.import_(file, machine())
