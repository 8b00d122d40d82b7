"""The public functions. Each checks its arguments and calls the job that does the work."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from superopt import guard
from superopt.api.cache import cache_clear as cache_clear
from superopt.api.cache import cache_export as cache_export
from superopt.api.cache import cache_import as cache_import
from superopt.api.cache import cache_list as cache_list
from superopt.api.cache import cache_prune as cache_prune
from superopt.api.cache import cache_stats as cache_stats
from superopt.api.compilation import compile as compile
from superopt.api.compilation import load as load
from superopt.api.compilation import tune as tune
from superopt.api.model_files import compile_model as compile_model
from superopt.api.model_files import export_model as export_model
from superopt.api.model_files import profile as profile
from superopt.api.model_files import run_model as run_model
from superopt.api.rule_library import check_lowering_rules as check_lowering_rules
from superopt.api.rule_library import check_rules as check_rules
from superopt.api.rule_library import generate_mutants as generate_mutants
from superopt.api.rule_library import generate_rules as generate_rules
from superopt.api.rule_library import partial_rule as partial_rule
from superopt.api.rule_library import rule_diagram as rule_diagram
from superopt.api.rule_library import rule_report as rule_report
from superopt.api.rule_library import rule_stats as rule_stats
from superopt.api.rule_library import rules as rules
from superopt.errors import OutOfTime, UsageError
from superopt.errors import positive_seconds as seconds_
from superopt.report.data.report import Event

if TYPE_CHECKING:
    import numpy as np

    from superopt.loading.request import CompiledTimers
    from superopt.onnx_io.read.source import ModelLike
    from superopt.optimization.result import Optimized
    from superopt.report.data.report import BenchRow, Derivation, Finding, Verdict

OPTIMIZE_TARGETS = ("onnxruntime", "cpu")


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
    threads: default 1. alpha: the largest relative cost of an intermediate graph (default 1.05).
    progress, stop: called with each `Event`; polled, and true to return the best result so far.
    replay: a decision log to repeat. store: of measured costs (default: in the user's cache).
    cost: "measured", "roofline" (nothing is measured or timed) or "auto".
    tier: the weakest allowed proof of a rule: "A" proved for all sizes, or for its only size (rules
        from `rules` are proved first), "B" proved up to a bound, "C" only tested.
    float_class: the largest allowed float deviation of a rule: "E0" bit-exact, "E1" sums and
        products in another order, "E2" products distributed over sums, "E3" other results on
        overflow or NaN. A rule from `rules` has its computed class if that is higher.
    partial: allow programs that are equal on part of the output, with a correction of the rest.
    mutants: also search for such programs for the model's own convolutions and means, for at most
        half of the budget. Results are kept beside the store; the next call continues from them.
    max_memory: bytes, or a text such as "8GB", that this process and its children may use together;
        default half of the free memory.

    The call ends within 1.2 times the budget plus 5 seconds. Work that would take longer, or need
    more memory, is skipped, with a note. Raises ModelError for an invalid model, CheckFailed if the
    rewritten model disagrees with the original or a rule from `rules` is refuted, UsageError for
    invalid arguments.
    """
    if target not in OPTIMIZE_TARGETS:
        raise UsageError(
            f"unknown target {target}",
            f"the targets are {', '.join(OPTIMIZE_TARGETS)}",
            "choose one of them",
        )
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
    begin = time.monotonic()
    from superopt.api.rule_library import rules_of_call
    from superopt.loading.array_files import read_inputs
    from superopt.loading.garbage_collection import raise_gc_thresholds
    from superopt.loading.model import load_model
    from superopt.loading.request import Request
    from superopt.onnx_io.read.source import read_model
    from superopt.optimization import admit_rules as admit_
    from superopt.optimization import optimize as optimize_
    from superopt.optimization.report.optimization_report import make_report
    from superopt.optimization.result import Optimized
    from superopt.rules.lang.rule import FLOAT_CLASSES

    options = (("tier", tier, admit_.TIERS), ("float_class", float_class, FLOAT_CLASSES))
    for what, given, known in options:
        if given not in known:
            raise UsageError(
                f"unknown {what} {given!r}", f"the values are {', '.join(known)}", "choose one"
            )
    with guard.limit_call(float(budget), memory, begin=begin), raise_gc_thresholds():
        source = read_model(model)
        if progress is not None:
            progress(Event("load", f"reading {source.label}", 0.0))
        begin = time.monotonic()
        loaded = load_model(
            source
        )  # before the rules: once the model is read, no budget is too small
        read_seconds = time.monotonic() - begin
        late: OutOfTime | guard.MemoryLimitError | None = None
        try:
            shipped, own, pairs = rules_of_call(rules, library, partial)
        except (OutOfTime, guard.MemoryLimitError) as e:
            late, shipped, own, pairs = e, (), (), {}
        timers: CompiledTimers | None = None
        if target == "cpu" and late is None:
            from superopt.compilation.node_timing import COMPILED_TIMERS

            timers = COMPILED_TIMERS
        request = Request(
            budget=float(budget),
            rules=(*shipped, *own),
            tier=tier,
            float_class=float_class,
            untried_rules=frozenset(r.name for r in own),
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
            use_mutants=mutants,
            partial_pairs=pairs,
            timers=timers,
        )
        done = optimize_.optimize(loaded, request, read_seconds, late)
    # Outside the limits: a result that was found in time is not dropped for its report.
    digest = source.sha256 if done.winner is None else done.winner.sha256
    return Optimized(make_report(done, done.request.rules, digest), done.winner is not None, done)


VERIFY_METHODS = ("auto", "index", "rules", "numeric")


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
    checked. rules: rule files that it may use beside the library; other rules are proved again from
    their text in the certificate.

    Raises ModelError for an invalid model, UsageError for inputs that do not fit and for a file
    that is not a certificate.
    """
    memory = guard.parse_max_memory(max_memory)
    if certificate is None and method not in VERIFY_METHODS:
        raise UsageError(
            f"unknown method {method!r}",
            f"the methods are {', '.join(VERIFY_METHODS)}",
            "choose one of them",
        )
    begin = time.monotonic()
    from superopt.api.rule_library import read_rules
    from superopt.loading.array_files import read_inputs
    from superopt.onnx_io.read.source import read_model
    from superopt.optimization import certificate as certify_
    from superopt.report.data.report import Verdict
    from superopt.rules.trial.float_class import with_computed_class
    from superopt.verification import verify as verify_

    with guard.limit_call(limit, memory, begin=begin) as limits:
        try:
            if certificate is not None:
                found = certify_.read_certificate_file(Path(certificate))
                own = [*map(with_computed_class, read_rules(rules))]
                return certify_.certificate_verdict(read_model(a), read_model(b), found, own)
            question = verify_.VerifyRequest(
                inputs=read_inputs(inputs),
                shapes=dict(shapes or {}),
                seed=seed,
                method=method,
                max_seconds=limit,
                progress=progress or (lambda event: None),
                stop=stop or (lambda: False),
            )
            verdict = verify_.verify(read_model(a), read_model(b), question)
        except (OutOfTime, guard.MemoryLimitError) as e:
            verdict = Verdict("unknown", " ".join(str(e).split()), None)
        return replace(verdict, notes=(*verdict.notes, *limits.take_notes()))


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
    from superopt.compilation.frontend.targets import check_target
    from superopt.jobs import benchmark as bench_

    check_target(target, precision, vendor)
    if vs is None:
        vs = ("ort",) if target == "cpu" else ("superopt",)
    if target != "cpu" and not {"superopt", "torch"} & {*vs}:
        raise UsageError(
            f"target {target}", f"no runtime of {', '.join(vs)} supports a GPU",
            "add superopt or torch: --vs ort,superopt",
        )  # fmt: skip
    with guard.limit_call(None, guard.parse_max_memory(max_memory)):
        return bench_.run_benchmark(
            [Path(m) for m in models],
            runtimes=vs,
            threads=threads or 1,
            seconds=seconds,
            shapes=shapes,
            progress=progress or (lambda event: None),
            stop=stop or (lambda: False),
            target=bench_.BenchTarget(target, precision, vendor, float_class),
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
    from superopt.api.rule_library import read_rules
    from superopt.loading.rule_library import load_library
    from superopt.onnx_io.read.source import read_model
    from superopt.rules.trial.float_class import with_computed_class
    from superopt.verification import derivation as derive_

    with guard.limit_call(seconds, guard.parse_max_memory(max_memory), begin=begin):
        given = (*(load_library() if library else ()), *map(with_computed_class, read_rules(rules)))
        asked = derive_.DeriveRequest(
            given, seconds, progress or (lambda event: None), stop or (lambda: False)
        )
        return derive_.find_derivation(read_model(a), read_model(b), asked)


def node_outputs(model: str | Path, node: str) -> tuple[str, ...]:
    """Return the names of the outputs of the node with this name; empty if there is none."""
    from superopt.onnx_io.read.source import read_model

    graph = read_model(model).model.graph
    return tuple(v.name for n in graph if n.name == node for v in n.outputs if v.name)


def doctor() -> tuple[Finding, ...]:
    """List the installed dependencies and the features that each one enables."""
    from superopt.jobs import doctor as doctor_

    return doctor_.diagnose()
