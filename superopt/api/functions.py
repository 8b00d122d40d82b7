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
from superopt.api.event_log import log_events
from superopt.api.model_files import compile_model as compile_model
from superopt.api.model_files import explain_kernel as explain_kernel
from superopt.api.model_files import export_model as export_model
from superopt.api.model_files import profile as profile
from superopt.api.model_files import run_model as run_model
from superopt.api.optimization import optimize as optimize
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
from superopt.loading.given_sizes import as_size_mapping
from superopt.report.data.report import Event

if TYPE_CHECKING:
    import numpy as np

    from superopt.onnx_io.read.source import ModelLike
    from superopt.report.data.report import BenchRow, Derivation, Finding, Verdict

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
    max_steps: int | None = None,
    certificate: str | Path | None = None,
    rules: Sequence[str | Path] | None = None,
    progress: Callable[[Event], None] | None = None,
    stop: Callable[[], bool] | None = None,
    max_memory: int | str | None = None,
) -> Verdict:
    """Decide whether two models are equal: proved, equal on every tested input, or different.

    A proof is about real numbers. The call ends within 1.2 times `limit` plus 5 seconds.

    Args:
        a: The original: a path, a file's bytes, a ModelProto or an onnx_ir model.
        b: The other model, with the same names, types and shapes of inputs and outputs.
        inputs: Arrays by input name, or an .npz file, to test as well.
        shapes: Values of symbolic dimensions, by name, for the tests.
        seed: Of the random inputs.
        method: "auto" tries both proofs and the numerical check; "index" only proves, from the
            operators' tensor expressions; "rules" only proves, by a chain of rules; "numeric" only
            tests.
        limit: Seconds for proofs.
        max_steps: Outputs of a quantization that differ by more quantization steps are refuted.
            None: that differ by more than rounding explains.
        certificate: The file that `optimize` wrote beside `b`. It is replayed, and nothing else is
            checked.
        rules: Rule files that the certificate may use beside the library; other rules are proved
            again from their text in the certificate.
        progress: Called with each `Event`.
        stop: Polled; true ends the call.
        max_memory: As in `optimize`.

    Returns:
        The verdict; its `decision` is "proved", "agrees", "within_steps" (by its `steps`),
        "differs", "unknown", "certified" or "refused".

    Raises:
        ModelError: A model is invalid.
        UsageError: Inputs do not fit, or a file is not a certificate.

    Example:
        >>> superopt.verify("model.onnx", "model.onnx").decision
        'proved'
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
                shapes=as_size_mapping(shapes),
                seed=seed,
                method=method,
                max_seconds=limit,
                progress=log_events("superopt.verify", progress),
                stop=stop or (lambda: False),
                max_steps=max_steps,
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

    Args:
        models: Paths of models.
        vs: Runtimes: "ort" (onnxruntime), "openvino", "torch" (torch.compile), "superopt". Default
            "ort", for target "cuda" "superopt".
        threads: Threads of each runtime, default 1.
        seconds: For each model. One whose single run takes longer is not timed, with a note.
        shapes: Values of symbolic dimensions, by name.
        progress: Called with each `Event`.
        stop: Polled; true ends the call.
        target: As in `compile`. With "cuda" superopt and torch run on the GPU, with inputs on the
            device and outputs synchronized.
        precision: As in `compile`.
        vendor: As in `compile`.
        float_class: As in `compile`.
        max_memory: As in `optimize`.

    Returns:
        A row for each model and runtime. Latencies are in microseconds; `speedup` is the interval
        (low, median, high) of the first row's latency over this one's.

    Raises:
        ModelError: A model is invalid.
        UsageError: An argument is invalid, or no runtime of `vs` supports the target.

    Example:
        >>> rows = superopt.bench(["model.onnx"], vs=["ort", "superopt"], seconds=1)
        >>> [row.runtime.split()[0] for row in rows]
        ['onnxruntime', 'superopt']
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
            shapes=as_size_mapping(shapes),
            progress=log_events("superopt.bench", progress),
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
    """Search for a chain of rules that rewrites one model into the other.

    Not finding one proves nothing.

    Args:
        a: A model, as in `optimize`.
        b: A model with the same inputs and outputs.
        rules: Rule files to add.
        library: False: only the rules of `rules` apply.
        limit: Seconds.
        progress: Called with each `Event`.
        stop: Polled; true ends the call.
        max_memory: As in `optimize`.

    Returns:
        Whether there is a chain, its steps, and the number of graphs visited.

    Raises:
        ModelError: A model is invalid.
        UsageError: The models have different interfaces.

    Example:
        >>> superopt.derive("model.onnx", "model.onnx", limit=5).derived
        True
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
            given, seconds, log_events("superopt.derive", progress), stop or (lambda: False)
        )
        return derive_.find_derivation(read_model(a), read_model(b), asked)


def node_outputs(model: str | Path, node: str) -> tuple[str, ...]:
    """Return the names of the outputs of the node with this name; empty if there is none."""
    from superopt.onnx_io.read.source import read_model

    graph = read_model(model).model.graph
    return tuple(v.name for n in graph if n.name == node for v in n.outputs if v.name)


def doctor() -> tuple[Finding, ...]:
    """List the installed dependencies and the features that each one enables.

    Returns:
        A finding for each: its name, its status ("ok", "missing" or "problem"), its version.

    Example:
        >>> {finding.name: finding.status for finding in superopt.doctor()}["onnx"]
        'ok'
    """
    from superopt.jobs import doctor as doctor_

    return doctor_.diagnose()
